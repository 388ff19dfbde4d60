//! Measures the executable, and upstream's if given, with an API server over TLS: start, memory, latency of changes, many
//! changes, idle, a restart. The server runs in the benchmark's process, so its costs don't count. In iptables mode both
//! use the same tool, whose CPU time is reported separately from their own.

pub(crate) mod churn;
pub(crate) mod events;
pub(crate) mod insight;
mod latency;
mod messages;
mod proxy;
mod relayed;
mod servers;
mod site;
mod tools;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_kernel::iptables::Backend;
use ferry_lab::Mode;
use rustix::system::uname;

use self::proxy::{MeasuredProxy, PATIENCE, Program, Start};
use self::site::{Site, Workload, at};
use crate::figures::{Figures, ProxyFigures};
use crate::pipeline::Empty;
use crate::process::megabytes;
use crate::stats;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
/// Time between the start and the memory measurement.
const STEADY: Duration = Duration::from_secs(5);
/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(10);
/// Number of changes, and the time that they are spread over.
const SPREAD: (u32, Duration) = (1000, Duration::from_mins(1));
/// Changes whose bytes are counted.
const COUNTED: ChangeSeries = ChangeSeries { count: 10, ..RESTED };
/// Changes one at a time. Upstream syncs at most once a second, and both pause between two runs of the tool.
const RESTED: ChangeSeries = ChangeSeries { count: 40, pause: Duration::from_millis(1500) };
/// The same for a proxy that needs no pause.
const DENSE: ChangeSeries = ChangeSeries { count: 1000, pause: Duration::from_millis(2) };

/// Number of changes that are measured one at a time, and the pause after each.
#[derive(Clone, Copy)]
struct ChangeSeries {
    count: usize,
    pause: Duration,
}

/// CPU time of a proxy so far.
struct Used {
    all: Duration,
    /// of the tools that it ran
    children: Duration,
}

/// Memory in MiB.
#[derive(Clone, Copy)]
struct MemoryUse {
    steady: f64,
    peak: f64,
}

/// Measures ours and upstream's, and returns what both have in common.
///
/// # Errors
/// If a proxy doesn't start in time, or a measurement fails.
pub(crate) fn compare(mode: Mode, services: usize, upstream: &Path) -> anyhow::Result<Figures> {
    anyhow::ensure!(mode == Mode::NFTABLES, "the figures of a chart are measured in mode nftables");
    let upstream = Program { name: "upstream's", path: upstream.to_owned() };
    let workload = Workload::of(mode, services)?;
    let measured = |program: &Program, series| {
        whole(program, workload, series)?.with_context(|| format!("{} did not start in time", program.path.display()))
    };
    Ok(Figures {
        mode: mode.to_string(),
        services,
        endpoints: workload.endpoints,
        kernel: kernel_series(&uname().release().to_string_lossy()),
        cores: std::thread::available_parallelism()?.get(),
        ours: measured(&Program::ours()?, DENSE)?,
        upstream: measured(&upstream, ChangeSeries { count: 20, ..RESTED })?,
    })
}

/// The kernel's series, such as 6.18: what follows in a release is the machine's.
fn kernel_series(release: &str) -> String {
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}

/// Measures ours, and upstream's if given.
pub(crate) fn run(mode: Mode, services: usize, upstream: Option<&Path>) -> anyhow::Result<()> {
    let (ours, few) = (Program::ours()?, Workload::of(mode, services)?);
    let upstream = upstream.map(|path| Program { name: "upstream's", path: path.to_owned() });
    if mode == Mode::IPVS {
        return balanced(&ours, few, upstream.as_ref());
    }
    let rested = ChangeSeries { count: if mode.backend.is_none() { 20 } else { 40 }, ..RESTED };
    whole(&ours, few, if mode.backend.is_none() { DENSE } else { rested })?;
    if mode.backend.is_none() {
        forms(&ours, few)?;
    }
    if let Some(upstream) = upstream {
        whole(&upstream, few, rested)?;
        if mode.backend.is_none() {
            started(&upstream, Workload { content_type: JSON, ..few })?;
        }
    }
    Ok(())
}

/// Measures ours in mode ipvs, in mode nftables its memory, and upstream's if given.
fn balanced(ours: &Program, workload: Workload, upstream: Option<&Program>) -> anyhow::Result<()> {
    servers::run(ours, workload)?;
    messages::run(ours, workload)?;
    started(ours, Workload { mode: Mode::NFTABLES, ..workload })?;
    upstream.map_or(Ok(()), |upstream| servers::run(upstream, workload))
}

/// Measures only a start from an API server.
pub(crate) fn start(mode: Mode, services: usize) -> anyhow::Result<()> {
    let (ours, few) = (Program::ours()?, Workload::of(mode, services)?);
    started(&ours, few).map(drop)
}

/// Measures only changes spread over a minute.
pub(crate) fn spread(mode: Mode, services: usize) -> anyhow::Result<()> {
    let (ours, few) = (Program::ours()?, Workload::of(mode, services)?);
    headline(&ours, few);
    at(few, |site| {
        let mut proxy = ours.start(site)?;
        if first_start(&mut proxy, site)?.is_some() {
            spread_out(&proxy, site)?;
        }
        Ok(())
    })
}

/// Measures starts with JSON, with paged lists and with twice the endpoints.
fn forms(ours: &Program, few: Workload) -> anyhow::Result<()> {
    let first = started(ours, few)?;
    started(ours, Workload { content_type: JSON, ..few })?;
    started(ours, Workload { streaming: false, ..few })?;
    let more = started(ours, Workload { endpoints: 2 * few.endpoints, ..few })?;
    #[expect(clippy::cast_precision_loss, reason = "a ratio to print")]
    let per = |more: f64, few_: f64| (more - few_) * 1_048_576.0 / (few.services * few.endpoints) as f64;
    println!(
        "a further endpoint                           {:8.1} bytes steady, {:.1} peak",
        per(more.steady, first.steady),
        per(more.peak, first.peak)
    );
    Ok(())
}

/// Runs all measurements of a proxy; `None` if its start didn't complete in time.
fn whole(program: &Program, workload: Workload, series: ChangeSeries) -> anyhow::Result<Option<ProxyFigures>> {
    headline(program, workload);
    println!("executable                                   {:8.2} MB", megabytes(&program.path)?);
    let version = program.version()?;
    let mut figures = None;
    at(workload, |site| {
        let mut proxy = program.start(site)?;
        let Some((start, memory)) = first_start(&mut proxy, site)? else { return Ok(()) };
        let latencies = one_by_one(&proxy, site, series)?;
        let spread = spread_out(&proxy, site)?;
        idle(&proxy)?;
        print_memory("memory after the changes", &proxy, 0.0)?;
        bytes(site)?;
        drop(proxy);
        figures = Some(ProxyFigures {
            version,
            start_seconds: start.wall.as_secs_f64(),
            start_cpu_seconds: start.cpu.as_secs_f64(),
            resident_mib: memory.steady,
            tool_peak_mib: start.child_mib,
            changes: latencies.len(),
            change_p50_seconds: stats::percentile(&latencies, 0.5).as_secs_f64(),
            change_max_seconds: stats::percentile(&latencies, 1.0).as_secs_f64(),
            spread_cpu_seconds: spread.as_secs_f64(),
        });
        restart(program, site)
    })?;
    Ok(figures)
}

/// Measures a start only.
fn started(program: &Program, workload: Workload) -> anyhow::Result<MemoryUse> {
    headline(program, workload);
    let mut memory = MemoryUse { steady: 0.0, peak: 0.0 };
    at(workload, |site| {
        memory = first_start(&mut program.start(site)?, site)?.map_or(memory, |(_, memory)| memory);
        Ok(())
    })?;
    Ok(memory)
}

fn headline(program: &Program, workload: Workload) {
    let form = if workload.streaming { "streaming lists" } else { "paged lists" };
    let encoding = if workload.content_type == JSON { "JSON" } else { "protobuf" };
    let Workload { mode, endpoints, .. } = workload;
    println!("\n-- {} from an API server, {mode}, {endpoints} endpoints each, {encoding}, {form}", program.name);
}

/// Measures the first start; `None` if it didn't complete in time.
fn first_start(proxy: &mut MeasuredProxy, site: &Site) -> anyhow::Result<Option<(Start, MemoryUse)>> {
    let Some(start) = proxy.wait_for_rules(site)? else {
        give_up("start", proxy)?;
        return Ok(None);
    };
    print_start("start to the last rule effective", &start, site);
    std::thread::sleep(STEADY);
    let memory = print_memory("memory", proxy, start.child_mib)?;
    Ok(Some((start, memory)))
}

fn restart(program: &Program, site: &Site) -> anyhow::Result<()> {
    let before = bytes_written(site)?;
    let mut proxy = program.start(site)?;
    let Some(start) = proxy.wait_for_sync(site)? else { return give_up("restart", &proxy) };
    print_start("restart", &start, site);
    if site.tools.is_some() {
        println!("bytes written to iptables-restore            {:8}", bytes_written(site)? - before);
    }
    std::thread::sleep(STEADY);
    print_memory("memory", &proxy, start.child_mib)?;
    Ok(())
}

fn give_up(what: &str, proxy: &MeasuredProxy) -> anyhow::Result<()> {
    println!("{what:44} did not finish in {} s ({:.0} ms cpu)", PATIENCE.as_secs(), ms(proxy.cpu()?));
    Ok(())
}

fn print_start(what: &str, start: &Start, site: &Site) {
    let (commits, runs) = (start.steps.commits, start.steps.runs);
    let steps = match site.workload.mode.backend {
        None => format!("{commits} commits"),
        Some(Backend::Nft) => format!("{commits} commits, iptables-restore started {runs} times"),
        Some(Backend::Legacy) => format!("iptables-restore started {runs} times"),
    };
    println!(
        "{what:44} {:8.1} ms wall, {:.0} ms cpu in total (user {:.0}, system {:.0}; {:.0} of the proxy itself), {steps}",
        ms(start.wall),
        ms(start.cpu),
        ms(start.user),
        ms(start.system),
        ms(start.cpu.saturating_sub(start.children)),
    );
}

fn print_memory(what: &str, proxy: &MeasuredProxy, child_mib: f64) -> anyhow::Result<MemoryUse> {
    let memory = MemoryUse { steady: proxy.memory_mib("VmRSS")?, peak: proxy.memory_mib("VmHWM")? };
    let children =
        if child_mib > 0.0 { format!(", and {child_mib:.1} peak of a child process") } else { String::new() };
    println!("{what:44} {:8.1} MiB resident, {:.1} peak{children}", memory.steady, memory.peak);
    Ok(memory)
}

/// Measures changes one at a time; returns their latencies from before the event was written, sorted.
fn one_by_one(proxy: &MeasuredProxy, site: &Site, series: ChangeSeries) -> anyhow::Result<Vec<Duration>> {
    let (what, nothing) = match &site.tools {
        None => ("empty netlink commit", empty_commits(series.count)?),
        Some(tools) => {
            ("iptables-restore without a change", (0..20).map(|_| tools.empty_run()).collect::<Result<_, _>>()?)
        }
    };
    stats::print(what, nothing, "");
    // The proxy handles them as foreign changes, which would count below.
    std::thread::sleep(STEADY);
    let used = Used::new(proxy)?;
    let measure = if site.workload.mode == Mode::USERSPACE { relayed::measure } else { latency::measure };
    let mut latencies = measure(site, series.count, series.pause)?;
    let used = used.since(proxy)?;
    stats::print("endpoint replaced: write started -> in force", latencies.from_begin.clone(), "");
    stats::print("endpoint replaced: write completed -> in force", latencies.from_end, &used.to_string());
    latencies.from_begin.sort_unstable();
    Ok(latencies.from_begin)
}

fn empty_commits(count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut empty = Empty::open()?;
    (0..count).map(|_| empty.commit()).collect()
}

/// Counts bytes in a separate series, since counting costs time.
fn bytes(site: &Site) -> anyhow::Result<()> {
    let Some(tools) = &site.tools else { return Ok(()) };
    tools.count_bytes()?;
    latency::measure(site, COUNTED.count, COUNTED.pause)?;
    println!("bytes written to iptables-restore per change {:8}", tools.bytes()? / u64::try_from(COUNTED.count)?);
    Ok(())
}

fn bytes_written(site: &Site) -> anyhow::Result<u64> {
    site.tools.as_ref().map_or(Ok(0), |tools| tools.bytes())
}

/// Measures changes spread over a minute; returns the CPU time of all.
fn spread_out(proxy: &MeasuredProxy, site: &Site) -> anyhow::Result<Duration> {
    let (count, time) = SPREAD;
    let (started, used, threads) = (Instant::now(), Used::new(proxy)?, proxy.threads_cpu()?);
    for number in 1..=count {
        site.replace();
        let next = started + time / count * number;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let used = used.since(proxy)?;
    println!("{count} changes in {:3} s                         {used}", time.as_secs());
    let before: HashMap<&str, Duration> = threads.iter().map(|(name, cpu)| (name.as_str(), *cpu)).collect();
    let since = |(name, cpu): &(String, Duration)| {
        let cpu = cpu.saturating_sub(before.get(name.as_str()).copied().unwrap_or_default());
        format!("{name} {:.1}", ms(cpu))
    };
    let threads: Vec<String> = proxy.threads_cpu()?.iter().map(since).collect();
    println!("CPU time by thread, ms                       {}", threads.join(", "));
    Ok(used.all)
}

fn idle(proxy: &MeasuredProxy) -> anyhow::Result<()> {
    // Deferred work of the changes.
    std::thread::sleep(STEADY);
    let (started, before) = (Instant::now(), proxy.cpu()?);
    std::thread::sleep(IDLE);
    let share = (proxy.cpu()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("idle                                         {:8.3} % of a core", share * 100.0);
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

// === impl Used ===

impl Used {
    fn new(proxy: &MeasuredProxy) -> anyhow::Result<Self> {
        Ok(Self { all: proxy.cpu()?, children: proxy.children_cpu()? })
    }

    /// The CPU time used since.
    fn since(&self, proxy: &MeasuredProxy) -> anyhow::Result<Self> {
        let now = Self::new(proxy)?;
        Ok(Self { all: now.all - self.all, children: now.children - self.children })
    }
}

impl fmt::Display for Used {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.all.saturating_sub(self.children);
        write!(formatter, "{:8.1} ms cpu ({:.1} of the proxy itself)", ms(self.all), ms(own))
    }
}
