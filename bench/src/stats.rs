//! Statistics of rounds, and CPU time and memory of processes and threads.

use std::time::Duration;

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};

/// Prints the percentiles of latencies.
pub(crate) fn print(what: &str, mut rounds: Vec<Duration>, more: &str) {
    rounds.sort_unstable();
    let at = |share| percentile(&rounds, share).as_secs_f64() * 1e6;
    println!(
        "{what:44} p50 {:8.1} us  p90 {:8.1}  p99 {:8.1}  max {:8.1}  n={} {more}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        rounds.len()
    );
}

/// The value below which this share of sorted rounds lies.
pub(crate) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let index = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(index).copied().unwrap_or_default()
}

/// The median.
pub(crate) fn median(rounds: &[Duration]) -> Duration {
    let mut sorted = rounds.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of this process.
pub(crate) fn process_cpu() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

fn duration(time: rustix::time::Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A value in KiB of /proc/PID/status, in MiB.
pub(crate) fn memory_mib(process: &str, line: &str) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':'));
    let kib: f64 = value.unwrap_or("0").trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// Memory of kernel data structures, in MiB: slab, vmalloc and per-CPU allocations.
pub(crate) fn slab_mib() -> anyhow::Result<f64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = |name: &str| {
        let value = info.lines().find_map(|found| found.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or("0").trim().trim_end_matches(" kB").parse::<f64>()
    };
    Ok((line("Slab")? + line("VmallocUsed")? + line("Percpu")?) / 1024.0)
}

/// CPU time of all threads of a process, in the scheduler's nanosecond resolution.
pub(crate) fn tasks_cpu(process: u32) -> anyhow::Result<Duration> {
    Ok(threads_cpu(process)?.into_iter().map(|(_, cpu)| cpu).sum())
}

/// CPU time of the thread of a process with this name, in the scheduler's nanosecond resolution.
pub(crate) fn thread_of(process: u32, name: &str) -> anyhow::Result<Duration> {
    let found = threads_cpu(process)?.into_iter().find(|(known, _)| known == name);
    found.map(|(_, cpu)| cpu).with_context(|| format!("no thread {name}"))
}

/// CPU time of each thread of a process by name, in the scheduler's nanosecond resolution.
pub(crate) fn threads_cpu(process: u32) -> anyhow::Result<Vec<(String, Duration)>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?.path();
        let read = |file| std::fs::read_to_string(task.join(file));
        // It may end in the meantime.
        let (Ok(name), Ok(text)) = (read("comm"), read("schedstat")) else { continue };
        let name = name.trim().to_owned();
        threads.push((name, Duration::from_nanos(text.split_ascii_whitespace().next().unwrap_or("0").parse()?)));
    }
    Ok(threads)
}

/// Voluntary context switches of each thread of a process, with the thread's name: as many times it went to sleep.
pub(crate) fn wakes(process: u32) -> anyhow::Result<Vec<(String, u64)>> {
    let mut threads: Vec<(String, u64)> = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
        let status = std::fs::read_to_string(task.join("status"))?;
        let value = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        threads.push((name, value.unwrap_or("0").trim().parse()?));
    }
    Ok(threads)
}

/// User and system time of a process or thread, from a stat file of /proc.
pub(crate) fn stat_cpu(path: &str) -> anyhow::Result<(Duration, Duration)> {
    stat_times(path, 11)
}

/// User and system time of the ended children of a process.
pub(crate) fn children_cpu(process: u32) -> anyhow::Result<(Duration, Duration)> {
    stat_times(&format!("/proc/{process}/stat"), 13)
}

/// Two times of a stat file, from the field with this index after the name in parentheses.
fn stat_times(path: &str, first: usize) -> anyhow::Result<(Duration, Duration)> {
    let stat = std::fs::read_to_string(path)?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = rest.split_ascii_whitespace().skip(first);
    let mut ticks = || -> anyhow::Result<Duration> {
        let ticks: u64 = fields.next().unwrap_or("0").parse()?;
        Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
    };
    Ok((ticks()?, ticks()?))
}
