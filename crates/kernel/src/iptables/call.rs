//! Runs one of the programs, and converts what it returns.

use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::environment::{Environment, LOCK_FILE_VARIABLE};
use super::failure::FailedRun;
use super::lock::Lock;
use super::run::{Exit, Process};
use super::{OutputLine, ToolFailure, read_lines};
use crate::capability;
use crate::children::ChildProcess;

/// Bytes per read of a listing.
const BUFFER: usize = 64 << 10;

/// The lock file that the tool gets while this process holds the real lock: its own standard input, a pipe that no other process
/// locks.
const OWN_LOCK: &str = "/proc/self/fd/0";

/// Maximum wait for the exit and the error message of a tool after unexpected output.
const ERROR_WAIT: Duration = Duration::from_secs(1);

/// One run of a program.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) environment: &'a Environment,
    pub(super) program: &'a Path,
    /// the lock that the child holds, too
    pub(super) lock: Option<&'a Lock>,
}

// === impl Call ===

impl<'a> Call<'a> {
    pub(super) fn new(environment: &'a Environment, program: &'a Path) -> Self {
        Self { environment, program, lock: None }
    }

    /// Starts the program, serves its pipes and waits for its exit.
    pub(super) fn run(
        &self,
        arguments: &[&str],
        serve: impl FnOnce(&mut Process) -> io::Result<()>,
    ) -> Result<Exit, ToolFailure> {
        self.serve(self.start(arguments)?, serve)
    }

    pub(super) fn serve(
        &self,
        mut process: Process,
        serve: impl FnOnce(&mut Process) -> io::Result<()>,
    ) -> Result<Exit, ToolFailure> {
        serve(&mut process).and_then(|()| process.finish()).map_err(|error| self.io(error))
    }

    fn start(&self, arguments: &[&str]) -> Result<Process, ToolFailure> {
        self.start_counted(arguments, ChildProcess::begin())
    }

    pub(super) fn start_counted(&self, arguments: &[&str], counted: ChildProcess) -> Result<Process, ToolFailure> {
        let mut command = Command::new(self.program);
        command.args(arguments).env("PATH", &self.environment.path);
        command.env("LC_ALL", "C").env(LOCK_FILE_VARIABLE, OWN_LOCK);
        self.lock.map_or(Ok(()), |lock| lock.lend(&mut command)).map_err(|error| self.io(error))?;
        Process::start(&mut command, self.environment.run_time, counted).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ToolFailure::Missing { tool: self.name() },
            _ => self.io(error),
        })
    }

    /// Runs the program and passes on its output line by line.
    pub(super) fn lines(&self, arguments: &[&str], each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure> {
        let mut process = self.start(arguments)?;
        process.feed(&[]).map_err(|error| self.io(error))?;
        let Err(unexpected) = read_lines(BufReader::with_capacity(BUFFER, &mut process), each) else {
            return self.check_exit(&process.finish().map_err(|error| self.io(error))?);
        };
        if let Some(error) = process.take_read_error().filter(|error| error.kind() != io::ErrorKind::InvalidData) {
            return Err(self.io(error));
        }
        // It may have been killed in the middle of a line, or report why it stopped there.
        process.shorten_deadline(ERROR_WAIT);
        match process.finish() {
            Ok(ended) => self.check_exit(&ended)?,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(self.io(error)),
        }
        Err(ToolFailure::UnexpectedOutput { tool: self.name(), line: unexpected.line, text: unexpected.text })
    }

    /// Converts an unsuccessful exit to a failure.
    pub(super) fn check_exit(&self, ended: &Exit) -> Result<(), ToolFailure> {
        self.check_exit_after(ended, 0)
    }

    /// The same after texts with this number of lines, which the tool's line numbers include.
    pub(super) fn check_exit_after(&self, ended: &Exit, lines: usize) -> Result<(), ToolFailure> {
        if ended.status.success() {
            return Ok(());
        }
        if let Some(signal) = ended.status.signal() {
            return Err(ToolFailure::Killed { tool: self.name(), signal });
        }
        let privileged = capability::net_admin().unwrap_or(true);
        let tool = self.name();
        let code = ended.status.code();
        Err(FailedRun { tool: &tool, text: &ended.stderr, lines, code, privileged }.classify())
    }

    pub(super) fn io(&self, error: io::Error) -> ToolFailure {
        let tool = self.name();
        match error.kind() {
            io::ErrorKind::TimedOut => ToolFailure::TimedOut { tool, after: self.environment.run_time },
            _ => ToolFailure::Io { tool, error },
        }
    }

    pub(super) fn name(&self) -> String {
        name_of(self.program)
    }
}

pub(super) fn name_of(program: &Path) -> String {
    program.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}
