//! Keeps `iptables-restore` of the nft variant running, so that a small text takes a tenth of the time.
//!
//! Starting the tool takes longer than a small text. Its end takes longest: the kernel frees what was deleted before the tool's socket is
//! closed (an RCU grace period, 10 to 40 ms). A process that stays needs neither; at its next commit the kernel has freed all
//! of it. With `--verbose` the tool prints the comments of its input. It reads on only after a commit, and ends at the first failure: when the
//! comment behind a text comes back, all of the text is in force.

use std::io;
use std::time::{Duration, Instant};

use super::call::Call;
use super::run::Process;
use super::tool::{Stdin, TextSize};
use super::{Backend, RestoreOutcome, Tool, ToolFailure};
use crate::children::{ChildProcess, IdleChild};

/// Time without a text after which the process ends.
const IDLE: Duration = Duration::from_secs(10);

/// Number of texts after which it ends, in case the tool doesn't free all of its memory.
const TEXTS: usize = 1000;

/// Number of bytes after which it ends: its memory grows with the largest text, and with the rules that it fetches to delete one.
const BYTES: usize = 1 << 20;

/// Maximum wait for the first comment. A tool that prints none in time gets the end of its input, and its exit status counts.
const FIRST: Duration = Duration::from_secs(1);

/// After this number of such waits, one after another, the tool is run for each text,
const SILENT: u8 = 3;

/// for this time: the machine may have been busy.
const RETRY: Duration = Duration::from_secs(600);

/// Runs `iptables-restore` for one text after another. The legacy variant, whose lock is held during a run, gets a process for each.
#[derive(Debug)]
pub struct Restorer {
    tool: Tool,
    idle: Option<(IdleChild<Session>, Instant)>,
    /// number of processes that printed no comment in time, since the last one that did
    silent: u8,
    /// a process for each text until then
    singly_until: Option<Instant>,
}

/// A process that has read some texts, and waits for another one.
#[derive(Debug)]
struct Session {
    process: Process,
    texts: usize,
    /// all that it has read
    read: TextSize,
}

/// The comments of a text that a process has printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printed {
    /// the comment behind it: all of it is in force
    End,
    /// only earlier comments, and its output has ended
    Part,
    /// nothing in time, at its first text: the exit status tells
    Nothing,
}

// === impl Restorer ===

impl Restorer {
    /// Runs this tool.
    pub fn new(tool: Tool) -> Self {
        Self { tool, idle: None, silent: 0, singly_until: None }
    }

    /// The tool.
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// Runs a text that `write` generates, section by section, without changes to anything else; each section ends with COMMIT. Returns
    /// when all of it is in force.
    ///
    /// # Errors
    /// As [`Tool::restore_by`]; line numbers are those of this text.
    pub fn restore_by(
        &mut self,
        write: &mut dyn FnMut(&mut Stdin<'_>) -> io::Result<()>,
    ) -> Result<RestoreOutcome, ToolFailure> {
        if !self.keeps_process() {
            return self.tool.restore_by(write);
        }
        let call = Call::new(&self.tool.environment, &self.tool.restore);
        let idle = self.idle.take().and_then(|(idle, _)| idle.take()).and_then(Session::still_serving);
        let session = idle.map_or_else(|| Session::start(&call), Ok)?;
        match session.restore(&call, write)? {
            Some(session) => {
                self.silent = 0;
                if session.texts < TEXTS && session.read.bytes < BYTES {
                    self.idle = Some((IdleChild::new(session), Instant::now() + IDLE));
                }
            }
            None => {
                self.silent += 1;
                if self.silent == SILENT {
                    (self.silent, self.singly_until) = (0, Some(Instant::now() + RETRY));
                    return Ok(RestoreOutcome { gave_up: Some(RETRY), ..RestoreOutcome::default() });
                }
            }
        }
        Ok(RestoreOutcome::default())
    }

    fn keeps_process(&self) -> bool {
        let is_retried = self.singly_until.is_none_or(|until| until <= Instant::now());
        self.tool.backend() == Backend::Nft && self.tool.version().prints_comments() && is_retried
    }

    /// Ends a process that has had no text for ten seconds.
    pub fn tend(&mut self, now: Instant) {
        self.idle.take_if(|(_, until)| *until <= now);
    }

    /// Time of the next call of [`Restorer::tend`].
    pub fn wake(&self) -> Option<Instant> {
        self.idle.as_ref().map(|(_, until)| *until)
    }
}

// === impl Session ===

impl Session {
    fn start(call: &Call<'_>) -> Result<Self, ToolFailure> {
        let mut process = call.start_counted(&["--noflush", "--verbose"], ChildProcess::begin())?;
        process.write(comment(0).as_bytes()).map_err(|error| call.io(error))?;
        Ok(Self { process, texts: 0, read: TextSize { lines: 1, bytes: 0 } })
    }

    /// `None` if the process has ended or closed its output, as after a signal.
    fn still_serving(mut self) -> Option<Self> {
        self.process.is_serving().is_ok_and(|serves| serves).then_some(self)
    }

    /// Runs a text. `None` if the tool printed nothing in time, so that its input was ended, and it succeeded.
    fn restore(
        mut self,
        call: &Call<'_>,
        write: &mut dyn FnMut(&mut Stdin<'_>) -> io::Result<()>,
    ) -> Result<Option<Self>, ToolFailure> {
        let before = self.read.lines;
        let printed = self.feed(call, write).map_err(|error| call.io(error))?;
        if printed == Printed::End {
            return Ok(Some(self));
        }
        let ended = self.process.finish().map_err(|error| call.io(error))?;
        call.check_exit_after(&ended, before)?;
        if printed == Printed::Part {
            return Err(call.io(io::Error::other("it ended without confirming its input")));
        }
        Ok(None)
    }

    /// Writes a text, and waits for the comment behind it.
    fn feed(
        &mut self,
        call: &Call<'_>,
        write: &mut dyn FnMut(&mut Stdin<'_>) -> io::Result<()>,
    ) -> io::Result<Printed> {
        self.process.renew(call.environment.run_time)?;
        let is_first = self.texts == 0;
        self.texts += 1;
        let (begin, end) = (comment(0), comment(self.texts));
        let mut stdin = Stdin::new(&mut self.process);
        write(&mut stdin)?;
        stdin.write(&end)?;
        self.read.add(stdin.written);
        let has_begun = |tail: &[u8]| tail.windows(begin.len()).any(|part| part == begin.as_bytes());
        if is_first && !self.process.prints(has_begun, Some(FIRST))? {
            return Ok(Printed::Nothing);
        }
        let is_over = self.process.prints(|tail| tail.ends_with(end.as_bytes()), None)?;
        Ok(if is_over { Printed::End } else { Printed::Part })
    }
}

/// The comment behind a text; of text 0, before the first one.
fn comment(text: usize) -> String {
    format!("# {text}\n")
}

#[cfg(test)]
mod tests;
