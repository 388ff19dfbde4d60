//! Runs a process within limits.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, prlimit};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// The limits of a process's resources.
#[derive(Debug)]
pub(crate) struct ProcessLimits {
    /// processor time, rounded up to seconds
    pub(crate) processor: Duration,
    /// time by the clock
    pub(crate) clock: Duration,
    /// address space
    pub(crate) memory_bytes: u64,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// with status 0
    Success,
    /// with another status, or by a signal
    Failure,
    /// it reached a limit of time
    Limit,
}

/// Runs a command to its end, or to that of a limit.
///
/// # Errors
/// If it can't be started, limited or waited for.
pub(crate) fn run(command: &mut Command, limits: &ProcessLimits) -> Result<ProcessEnd> {
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    let limited = limit(child.id(), limits).and_then(|()| wait(child.id(), begin, limits.clock));
    if !matches!(limited, Ok(true)) {
        child.kill().context("ending a test")?;
    }
    let status = child.wait().context("waiting for a test")?;
    let has_ended = limited.context("limiting a test")?;
    Ok(if has_ended { end(status) } else { ProcessEnd::Limit })
}

fn end(status: ExitStatus) -> ProcessEnd {
    match status.signal().and_then(Signal::from_named_raw) {
        Some(Signal::XCPU | Signal::KILL) => ProcessEnd::Limit,
        _ if status.success() => ProcessEnd::Success,
        _ => ProcessEnd::Failure,
    }
}

fn pid(process: u32) -> Result<Pid, Errno> {
    i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// Limits the processor time and the memory of a process that has just started.
fn limit(process: u32, limits: &ProcessLimits) -> Result<(), Errno> {
    let set = |resource, value| {
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        prlimit(Some(pid(process)?), resource, limit).map(drop)
    };
    set(Resource::Cpu, limits.processor.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX))?;
    set(Resource::As, limits.memory_bytes)
}

/// Waits for the end of a process; false if it runs for longer than `clock` since `begin`.
fn wait(process: u32, begin: Instant, clock: Duration) -> Result<bool, Errno> {
    let descriptor = pidfd_open(pid(process)?, PidfdFlags::empty())?;
    loop {
        let rest = clock.saturating_sub(begin.elapsed());
        let rest = Timespec::try_from(rest).unwrap_or_default();
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&rest)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64) -> ProcessEnd {
        let time = Duration::from_secs(seconds);
        let limits = ProcessLimits { processor: Duration::from_secs(1), clock: time, memory_bytes: 4 << 30 };
        run(Command::new("sh").args(["-c", script]), &limits).unwrap()
    }

    #[test]
    fn a_process_ends_by_itself_or_at_a_limit() {
        assert_eq!(shell("exit 0", 60), ProcessEnd::Success);
        assert_eq!(shell("exit 3", 60), ProcessEnd::Failure);
        assert_eq!(shell("kill -ABRT $$", 60), ProcessEnd::Failure);
        assert_eq!(shell("while :; do :; done", 60), ProcessEnd::Limit, "processor time");
        assert_eq!(shell("exec sleep 1000", 0), ProcessEnd::Limit, "time by the clock");
    }
}
