//! A child process with its pipes, and a bound on its time.
//!
//! One thread serves all three pipes, so that neither side ever waits for the other for good, and nothing that the child
//! does is waited for beyond the bound.

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

/// Bytes of standard error that are kept; the tool's complaints are a few lines.
const COMPLAINTS: usize = 8 << 10;

/// Bytes that are read at a time from what is thrown away or complained.
const PIECE: usize = 4 << 10;

/// Bytes in a line of what it prints, at most: a rule has less than a thousand.
const LINE: usize = 64 << 10;

/// How often it is looked whether the child is gone while somebody else, its own child perhaps, holds its pipes.
const LOOK: Duration = Duration::from_millis(50);

/// How often it is looked whether the child is gone when its pipes are closed: it ends just then.
const REAP: Duration = Duration::from_micros(200);

/// How much longer it may take for each byte that it is given: 1 s for 200 KB.
const PER_BYTE: Duration = Duration::from_micros(5);

/// How long a group that was killed is waited for: somebody in it may be within the kernel, or in a state of which nobody
/// but the machine's first process can relieve him.
const GONE: Duration = Duration::from_secs(1);

/// The tool reads and writes 4 KiB at a time. Whoever looks for each of them spends ten times the time; after this time it is
/// some tens of KiB, and a pipe holds 64.
const PACE: Duration = Duration::from_millis(1);

/// What the child prints until it counts as much, in bytes.
const MUCH: usize = 64 << 10;

/// A child process, in a process group of its own. If it has not ended by itself when this is dropped, all of the group is
/// killed and waited for: the tool may be a script that runs the real one.
///
/// As a reader, it is what the child prints.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    complaints: Vec<u8>,
    /// it has said more than is kept
    cut: bool,
    /// bytes that it has printed
    printed: usize,
    /// since the last end of a line
    line: usize,
    deadline: Instant,
    ended: Option<ExitStatus>,
    /// why reading has failed: who reads may not hand it on
    trouble: Option<io::Error>,
}

/// How a child ended by itself.
#[derive(Debug)]
pub(super) struct Ended {
    /// its status
    pub(super) status: ExitStatus,
    /// the beginning of its standard error, in whole lines if there are several
    pub(super) complaints: String,
}

/// Which pipes can be served.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    stdin: bool,
    stdout: bool,
    stderr: bool,
}

// === impl Process ===

impl Process {
    /// Starts it, in the network namespace of this thread. It must be done within the bound.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(command: &mut Command, bound: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + bound;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on it is ended when anything fails.
        let process = Self {
            child,
            stdin,
            stdout,
            stderr,
            complaints: Vec::new(),
            cut: false,
            printed: 0,
            line: 0,
            deadline,
            ended: None,
            trouble: None,
        };
        process.stdin.iter().try_for_each(never_block)?;
        process.stdout.iter().try_for_each(never_block)?;
        process.stderr.iter().try_for_each(never_block)?;
        Ok(process)
    }

    /// Writes to its standard input. A child that does not read it all is no error: it says why itself. The bound moves with
    /// what it reads.
    ///
    /// # Errors
    /// What the system says; `TimedOut` at the bound.
    pub(super) fn write(&mut self, mut input: &[u8]) -> io::Result<()> {
        while !input.is_empty() {
            let ready = self.wait()?;
            if ready.stderr {
                self.listen()?;
            }
            if ready.stdout {
                self.discard()?;
            }
            let Some(stdin) = self.stdin.as_mut().filter(|_| self.ended.is_none()) else { return Ok(()) };
            if ready.stdin {
                match stdin.write(input) {
                    Ok(written) => {
                        input = input.get(written..).unwrap_or_default();
                        self.deadline += PER_BYTE.saturating_mul(u32::try_from(written).unwrap_or(u32::MAX));
                        if !input.is_empty() {
                            sleep(PACE);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        self.stdin = None;
                        return Ok(());
                    }
                    Err(error) if later(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Writes to its standard input, and closes that.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn feed(&mut self, input: &[u8]) -> io::Result<()> {
        self.write(input)?;
        self.stdin = None;
        Ok(())
    }

    /// Waits for its end. What it still prints is not looked at.
    ///
    /// # Errors
    /// What the system says, also to a reader before; `TimedOut` at the bound, when it is killed.
    pub(super) fn finish(mut self) -> io::Result<Ended> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        self.stdin = None;
        while self.stdout.is_some() || self.stderr.is_some() {
            let ready = self.wait()?;
            if ready.stdout {
                self.discard()?;
            }
            if ready.stderr {
                self.listen()?;
            }
            if self.ended.is_some() && !ready.stdout && !ready.stderr {
                break;
            }
        }
        let status = loop {
            match self.status()? {
                Some(status) => break status,
                None if Instant::now() >= self.deadline => return Err(io::ErrorKind::TimedOut.into()),
                None => sleep(REAP),
            }
        };
        Ok(Ended { status, complaints: self.complaints() })
    }

    /// What it complains. Half a line is left out: half a number would be another one.
    fn complaints(&self) -> String {
        let last = self.complaints.iter().rposition(|byte| *byte == b'\n').filter(|_| self.cut);
        let whole = last.map_or(&*self.complaints, |last| self.complaints.get(..last).unwrap_or_default());
        String::from_utf8_lossy(whole).into_owned()
    }

    /// Why reading has failed, if it has.
    pub(super) fn trouble(&mut self) -> Option<io::Error> {
        self.trouble.take()
    }

    /// Gives it no longer than this from now on.
    pub(super) fn hurry(&mut self, bound: Duration) {
        self.deadline = self.deadline.min(Instant::now() + bound);
    }

    /// Waits until a pipe can be served, or until the child is gone and nothing is left in its pipes.
    fn wait(&mut self) -> io::Result<Ready> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let ended = self.ended.is_some();
            let patience = if ended { Duration::ZERO } else { left.min(LOOK) };
            let ready = self.poll(patience)?;
            if ended || ready.stdin || ready.stdout || ready.stderr {
                return Ok(ready);
            }
            self.status()?;
        }
    }

    fn poll(&self, patience: Duration) -> io::Result<Ready> {
        let ends: [(Option<BorrowedFd<'_>>, PollFlags); 3] = [
            (self.stdin.as_ref().map(AsFd::as_fd), PollFlags::OUT),
            (self.stdout.as_ref().map(AsFd::as_fd), PollFlags::IN),
            (self.stderr.as_ref().map(AsFd::as_fd), PollFlags::IN),
        ];
        let open = |(end, flags)| Some(PollFd::from_borrowed_fd(end?, flags));
        let mut fds: Vec<PollFd<'_>> = ends.into_iter().filter_map(open).collect();
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // in the order above, without those that are closed
        let mut events = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = |open: bool| open && events.next().unwrap_or_default();
        Ok(Ready {
            stdin: next(self.stdin.is_some()),
            stdout: next(self.stdout.is_some()),
            stderr: next(self.stderr.is_some()),
        })
    }

    /// Its status, once it is gone.
    fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Reads what it complains.
    fn listen(&mut self) -> io::Result<()> {
        let mut piece = [0; PIECE];
        match read_once(&mut self.stderr, &mut piece)? {
            Some(0) => self.stderr = None,
            Some(read) => {
                let room = COMPLAINTS.saturating_sub(self.complaints.len());
                self.cut |= read > room;
                self.complaints.extend(piece.iter().take(read.min(room)));
            }
            None => {}
        }
        Ok(())
    }

    /// Reads what it prints, for nobody.
    fn discard(&mut self) -> io::Result<()> {
        if read_once(&mut self.stdout, &mut [0; PIECE])? == Some(0) {
            self.stdout = None;
        }
        Ok(())
    }

    fn read_stdout(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.stdout.is_some() && !buffer.is_empty() {
            if self.printed > MUCH {
                sleep(PACE);
            }
            let ready = self.wait()?;
            if ready.stderr {
                self.listen()?;
            }
            if ready.stdout {
                match read_once(&mut self.stdout, buffer)? {
                    Some(0) => self.stdout = None,
                    Some(read) => return self.count(buffer.get(..read).unwrap_or_default()),
                    None => {}
                }
            } else if self.ended.is_some() && !ready.stderr {
                break;
            }
        }
        Ok(0)
    }

    /// Lines are held by who reads them.
    fn count(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.printed = self.printed.saturating_add(bytes.len());
        match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => self.line = bytes.len() - last - 1,
            None => self.line += bytes.len(),
        }
        if self.line > LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
        }
        Ok(bytes.len())
    }
}

impl Read for Process {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_stdout(buffer).map_err(|error| {
            let told = io::Error::new(error.kind(), error.to_string());
            self.trouble.get_or_insert(error);
            told
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // These fail only if it is gone already. A child within the kernel, which cannot be interrupted there, may still
            // write: nobody else should before it is gone. So nothing bounds this wait.
            let group = Pid::from_child(&self.child);
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
            until_gone(group);
        }
    }
}

/// Waits for the children of a child, which are not ours.
fn until_gone(group: Pid) {
    let begin = Instant::now();
    while test_kill_process_group(group).is_ok() && begin.elapsed() < GONE {
        // But they have become ours if this is the machine's first process, as in a container.
        let _ = waitpgid(group, WaitOptions::NOHANG);
        sleep(REAP);
    }
}

fn never_block(end: &impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(end)?;
    Ok(fcntl_setfl(end, flags | OFlags::NONBLOCK)?)
}

fn later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// `None`: nothing is there yet.
fn read_once(end: &mut Option<impl Read>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match end.as_mut().map_or(Ok(0), |end| end.read(buffer)) {
        Ok(read) => Ok(Some(read)),
        Err(error) if later(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
