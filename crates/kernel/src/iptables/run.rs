//! Runs a child process with pipes and a deadline.
//!
//! One thread serves all three pipes, so that parent and child never deadlock, and no wait for the child exceeds its deadline.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid};

use crate::children::ChildProcess;

/// Maximum number of bytes kept of standard error; the tool's error messages are a few lines.
const STDERR_MAX: usize = 8 << 10;

/// Bytes per read of standard error and of discarded output.
const READ_BYTES: usize = 4 << 10;

/// Number of bytes kept of the end of discarded output, for [`Process::prints`].
const TAIL: usize = 64;

/// Maximum length of a line of standard output in bytes: a rule has less than a thousand.
const LINE_MAX: usize = 64 << 10;

/// Interval of checks for the child's exit while its pipes are open: another process, such as its own child, may hold them.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// Interval of checks for the child's exit once its pipes are closed, which happens when it exits.
const REAP_INTERVAL: Duration = Duration::from_micros(200);

/// Extension of the deadline per byte that the child reads: 1 s for 200 KB.
const TIME_PER_BYTE: Duration = Duration::from_micros(5);

/// Maximum wait for a killed process group: a member may be in an uninterruptible system call, or a zombie that only the init
/// process can reap.
const GROUP_EXIT_WAIT: Duration = Duration::from_secs(1);

/// Pause between accesses to a pipe. The tool reads and writes 4 KiB at a time, and polling for each of them costs ten times as
/// much CPU time; after this pause it is some tens of KiB, and a pipe holds 64.
const PIPE_PAUSE: Duration = Duration::from_millis(1);

/// Bytes of standard output after which reads are paced.
const PACED_AFTER: usize = 64 << 10;

/// A child process, in a process group of its own. If it has not exited when this is dropped, the whole group is killed and
/// waited for: the tool may be a script that runs the real one.
///
/// [`Read`] reads the child's standard output.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    stderr_bytes: Vec<u8>,
    /// standard error was longer than the part that is kept
    stderr_truncated: bool,
    /// bytes of standard output so far
    printed: usize,
    /// bytes of standard output since the last line end
    line: usize,
    /// the end of the discarded standard output
    tail: Vec<u8>,
    deadline: Instant,
    exited: Option<ExitStatus>,
    /// the first error of a read, kept because a reader may not pass it on
    read_error: Option<io::Error>,
    /// dropped last
    _counted: ChildProcess,
}

/// The exit of a child that was not killed by this process.
#[derive(Debug)]
pub(super) struct Exit {
    /// its exit status
    pub(super) status: ExitStatus,
    /// its standard error, truncated at a line end if too long
    pub(super) stderr: String,
}

/// The pipes that are ready for reading or writing.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

// === impl Process ===

impl Process {
    /// Starts a child that is counted already, in the network namespace of this thread, with a deadline after `bound`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(command: &mut Command, bound: Duration, counted: ChildProcess) -> io::Result<Self> {
        let deadline = Instant::now() + bound;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on the child is killed on every error.
        let process = Self {
            child,
            stdin,
            stdout,
            stderr,
            stderr_bytes: Vec::new(),
            stderr_truncated: false,
            printed: 0,
            line: 0,
            tail: Vec::new(),
            deadline,
            exited: None,
            read_error: None,
            _counted: counted,
        };
        process.stdin.iter().try_for_each(set_nonblocking)?;
        process.stdout.iter().try_for_each(set_nonblocking)?;
        process.stderr.iter().try_for_each(set_nonblocking)?;
        Ok(process)
    }

    /// Writes to standard input. It is no error if the child does not read it all: it reports the cause itself. The deadline is
    /// extended for each byte that it reads.
    ///
    /// # Errors
    /// The system's error; `TimedOut` at the deadline.
    pub(super) fn write(&mut self, mut input: &[u8]) -> io::Result<()> {
        while !input.is_empty() {
            let ready = self.wait()?;
            if ready.stderr {
                self.read_stderr()?;
            }
            if ready.stdout {
                self.discard_stdout()?;
            }
            let Some(stdin) = self.stdin.as_mut().filter(|_| self.exited.is_none()) else { return Ok(()) };
            if ready.stdin {
                match stdin.write(input) {
                    Ok(written) => {
                        input = input.get(written..).unwrap_or_default();
                        self.deadline += TIME_PER_BYTE.saturating_mul(u32::try_from(written).unwrap_or(u32::MAX));
                        if !input.is_empty() {
                            sleep(PIPE_PAUSE);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        self.stdin = None;
                        return Ok(());
                    }
                    Err(error) if would_block(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Writes to standard input, and closes it.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn feed(&mut self, input: &[u8]) -> io::Result<()> {
        self.write(input)?;
        self.stdin = None;
        Ok(())
    }

    /// Waits for the child's exit, discarding the rest of its output.
    ///
    /// # Errors
    /// The system's error, also one of an earlier read; `TimedOut` at the deadline, when the child is killed.
    pub(super) fn finish(mut self) -> io::Result<Exit> {
        if let Some(error) = self.read_error.take() {
            return Err(error);
        }
        self.stdin = None;
        while self.stdout.is_some() || self.stderr.is_some() {
            let ready = self.wait()?;
            if ready.stdout {
                self.discard_stdout()?;
            }
            if ready.stderr {
                self.read_stderr()?;
            }
            if self.exited.is_some() && !ready.stdout && !ready.stderr {
                break;
            }
        }
        let status = loop {
            match self.status()? {
                Some(status) => break status,
                None if Instant::now() >= self.deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => sleep(REAP_INTERVAL),
            }
        };
        Ok(Exit { status, stderr: self.stderr_text() })
    }

    /// Its standard error. A truncated line is left out, because a truncated number would be a different one.
    fn stderr_text(&self) -> String {
        let last = self.stderr_bytes.iter().rposition(|byte| *byte == b'\n').filter(|_| self.stderr_truncated);
        let whole = last.map_or(&*self.stderr_bytes, |last| self.stderr_bytes.get(..last).unwrap_or_default());
        String::from_utf8_lossy(whole).into_owned()
    }

    /// Takes the first error of a read.
    pub(super) fn take_read_error(&mut self) -> Option<io::Error> {
        self.read_error.take()
    }

    /// Shortens the deadline to this time from now.
    pub(super) fn shorten_deadline(&mut self, bound: Duration) {
        self.deadline = self.deadline.min(Instant::now() + bound);
    }

    /// Sets the deadline anew, and forgets what was written to standard error: for the next task.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn renew(&mut self, bound: Duration) -> io::Result<()> {
        while self.read_stderr()? {}
        self.stderr_bytes.clear();
        self.stderr_truncated = false;
        self.deadline = Instant::now() + bound;
        Ok(())
    }

    /// Its process number.
    #[cfg(test)]
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// True if it has neither exited nor closed its standard output.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn is_serving(&mut self) -> io::Result<bool> {
        self.discard_stdout()?;
        Ok(self.stdout.is_some() && self.status()?.is_none())
    }

    /// Waits until the discarded standard output ends as expected; false if the output, or this time, is over before.
    ///
    /// # Errors
    /// The system's error; `TimedOut` at the deadline.
    pub(super) fn prints(&mut self, is_expected: impl Fn(&[u8]) -> bool, within: Option<Duration>) -> io::Result<bool> {
        let until = within.map(|within| Instant::now() + within);
        while !is_expected(&self.tail) {
            let now = Instant::now();
            if now >= self.deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = until.unwrap_or(self.deadline).min(self.deadline).saturating_duration_since(now);
            if left.is_zero() {
                return Ok(false);
            }
            let exited = self.status()?.is_some();
            let ready = self.poll(if exited { Duration::ZERO } else { left.min(EXIT_POLL) }, false)?;
            if ready.stderr {
                self.read_stderr()?;
            }
            if ready.stdout {
                self.discard_stdout()?;
            } else if exited {
                return Ok(false);
            }
            if self.stdout.is_none() {
                return Ok(is_expected(&self.tail));
            }
        }
        Ok(true)
    }

    /// Waits until a pipe is ready, or until the child has exited and its pipes are empty.
    fn wait(&mut self) -> io::Result<Ready> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let exited = self.exited.is_some();
            let timeout = if exited { Duration::ZERO } else { left.min(EXIT_POLL) };
            let ready = self.poll(timeout, true)?;
            if exited || ready.stdin || ready.stdout || ready.stderr {
                return Ok(ready);
            }
            self.status()?;
        }
    }

    /// Waits until a pipe is ready; standard input counts only if there is something to write.
    fn poll(&self, timeout: Duration, writes: bool) -> io::Result<Ready> {
        let stdin = self.stdin.as_ref().filter(|_| writes);
        let ends: [(Option<BorrowedFd<'_>>, PollFlags); 3] = [
            (stdin.map(AsFd::as_fd), PollFlags::OUT),
            (self.stdout.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (self.stderr.as_ref().map(AsFd::as_fd), PollFlags::IN),
        ];
        let open = |(end, flags)| Some(PollFd::from_borrowed_fd(end?, flags));
        let mut fds: Vec<PollFd<'_>> = ends.into_iter().filter_map(open).collect();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // in the order above, without closed pipes
        let mut events = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = |open: bool| open && events.next().unwrap_or_default();
        Ok(Ready {
            stdin: next(stdin.is_some()),
            stdout: next(self.stdout.is_some()),
            stderr: next(self.stderr.is_some()),
        })
    }

    /// Its exit status, once it has exited.
    fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait()?;
        }
        Ok(self.exited)
    }

    /// Reads from standard error; false if there is nothing to read.
    fn read_stderr(&mut self) -> io::Result<bool> {
        let mut bytes = [0; READ_BYTES];
        match read_once(&mut self.stderr, &mut bytes)? {
            Some(0) => {
                self.stderr = None;
                Ok(false)
            }
            Some(read) => {
                let room = STDERR_MAX.saturating_sub(self.stderr_bytes.len());
                self.stderr_truncated |= read > room;
                self.stderr_bytes.extend(bytes.iter().take(read.min(room)));
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Reads and discards standard output, except for its end.
    fn discard_stdout(&mut self) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        match read_once(&mut self.stdout, &mut bytes)? {
            Some(0) => self.stdout = None,
            Some(read) => {
                self.tail.extend(bytes.iter().take(read));
                self.tail.drain(..self.tail.len().saturating_sub(TAIL));
            }
            None => {}
        }
        Ok(())
    }

    fn read_stdout(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.stdout.is_some() && !buffer.is_empty() {
            if self.printed > PACED_AFTER {
                sleep(PIPE_PAUSE);
            }
            let ready = self.wait()?;
            if ready.stderr {
                self.read_stderr()?;
            }
            if ready.stdout {
                match read_once(&mut self.stdout, buffer)? {
                    Some(0) => self.stdout = None,
                    Some(read) => return self.count(buffer.get(..read).unwrap_or_default()),
                    None => {}
                }
            } else if self.exited.is_some() && !ready.stderr {
                break;
            }
        }
        Ok(0)
    }

    /// Counts output and limits the length of a line, which the reader holds in memory.
    fn count(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.printed = self.printed.saturating_add(bytes.len());
        match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => self.line = bytes.len() - last - 1,
            None => self.line += bytes.len(),
        }
        if self.line > LINE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line longer than 64 KiB"));
        }
        Ok(bytes.len())
    }
}

impl Read for Process {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_stdout(buffer).map_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            self.read_error.get_or_insert(error);
            copy
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited.is_none() {
            // These fail only if the child has exited already. A child in an uninterruptible system call may still write to the
            // kernel, and no other writer may start before it has exited: so this wait has no bound.
            let group = Pid::from_child(&self.child);
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
            wait_for_group(group);
        }
    }
}

/// Waits for the end of a process group: processes that the child has started, which are no children of this process.
fn wait_for_group(group: Pid) {
    let begin = Instant::now();
    while test_kill_process_group(group).is_ok() && begin.elapsed() < GROUP_EXIT_WAIT {
        // They are reparented to this process if it is the init process, as in a container.
        let _ = waitpgid(group, WaitOptions::NOHANG);
        sleep(REAP_INTERVAL);
    }
}

fn set_nonblocking(end: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(end)?;
    Ok(fcntl_setfl(end, flags | OFlags::NONBLOCK)?)
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// `None` if nothing can be read yet.
fn read_once(end: &mut Option<impl Read>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match end.as_mut().map_or(Ok(0), |end| end.read(buffer)) {
        Ok(read) => Ok(Some(read)),
        Err(error) if would_block(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
