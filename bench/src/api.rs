//! The executable over an API server, with TLS, and upstream's beside it if there is one: start, memory, latency of
//! changes, many changes, idle, a restart. The server is in the benchmark's process, so nothing of it counts.

mod latency;
mod proxy;
mod site;

use std::path::Path;
use std::time::{Duration, Instant};

use self::proxy::{Program, Proxy, Start};
use self::site::{Shape, Site, at};
use crate::objects::ENDPOINTS;
use crate::pipeline::Empty;
use crate::process::megabytes;
use crate::stats;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";
/// How long after the start memory is looked at.
const STEADY: Duration = Duration::from_secs(5);
/// How long idle time is watched.
const IDLE: Duration = Duration::from_secs(10);
/// Changes spread over a minute.
const SPREAD: (u32, Duration) = (1000, Duration::from_mins(1));

/// Changes that are measured one at a time, and the pause after each.
#[derive(Clone, Copy)]
struct Series {
    count: usize,
    pause: Duration,
}

/// Memory in MiB.
struct Memory {
    steady: f64,
    peak: f64,
}

/// Measures ours, and upstream's if there is one.
pub(crate) fn run(services: usize, upstream: Option<&Path>) -> anyhow::Result<()> {
    let path = std::env::current_exe()?.with_file_name("kube-proxy");
    anyhow::ensure!(path.exists(), "{} has to be built beside this program", path.display());
    let ours = Program { name: "ours", path };
    let few = Shape { services, endpoints: usize::try_from(ENDPOINTS)?, content_type: PROTOBUF, streaming: true };
    whole(&ours, few, Series { count: 1000, pause: Duration::from_millis(2) })?;
    let first = started(&ours, few)?;
    started(&ours, Shape { content_type: JSON, ..few })?;
    started(&ours, Shape { streaming: false, ..few })?;
    let more = started(&ours, Shape { endpoints: 2 * few.endpoints, ..few })?;
    #[expect(clippy::cast_precision_loss, reason = "a ratio to print")]
    let per = |more: f64, few_: f64| (more - few_) * 1_048_576.0 / (services * few.endpoints) as f64;
    println!(
        "a further endpoint                           {:8.1} bytes steady, {:.1} peak",
        per(more.steady, first.steady),
        per(more.peak, first.peak)
    );
    if let Some(path) = upstream {
        let upstream = Program { name: "upstream's", path: path.to_owned() };
        // It syncs at most once a second.
        whole(&upstream, few, Series { count: 20, pause: Duration::from_millis(1500) })?;
        started(&upstream, Shape { content_type: JSON, ..few })?;
    }
    Ok(())
}

/// Everything that is measured of a proxy.
fn whole(program: &Program, shape: Shape, series: Series) -> anyhow::Result<()> {
    headline(program, shape);
    println!("executable                                   {:8.2} MB", megabytes(&program.path)?);
    at(shape, |site| {
        let mut proxy = program.start(site)?;
        first_start(&mut proxy, site)?;
        one_by_one(&proxy, site, series)?;
        spread(&proxy, site)?;
        idle(&proxy)?;
        print_memory("memory after that", &proxy, 0.0)?;
        drop(proxy);
        let mut proxy = program.start(site)?;
        let start = proxy.wait_for_sync()?;
        print_start("restart", &start, "kernel writes");
        std::thread::sleep(STEADY);
        print_memory("memory", &proxy, start.child_mib)?;
        Ok(())
    })
}

/// A start only.
fn started(program: &Program, shape: Shape) -> anyhow::Result<Memory> {
    headline(program, shape);
    let mut memory = Memory { steady: 0.0, peak: 0.0 };
    at(shape, |site| {
        memory = first_start(&mut program.start(site)?, site)?;
        Ok(())
    })?;
    Ok(memory)
}

fn headline(program: &Program, shape: Shape) {
    let form = if shape.streaming { "streaming lists" } else { "paged lists" };
    let encoding = if shape.content_type == JSON { "JSON" } else { "protobuf" };
    println!("\n-- {} from an API server, {} endpoints each, {encoding}, {form}", program.name, shape.endpoints);
}

fn first_start(proxy: &mut Proxy, site: &Site) -> anyhow::Result<Memory> {
    let start = proxy.wait_for_rules(site)?;
    print_start("start to the last rule effective", &start, "commits");
    std::thread::sleep(STEADY);
    print_memory("memory", proxy, start.child_mib)
}

fn print_start(what: &str, start: &Start, commits: &str) {
    println!(
        "{what:44} {:8.1} ms wall, {:.0} ms cpu in all (user {:.0}, system {:.0}), {} {commits}",
        ms(start.wall),
        ms(start.cpu),
        ms(start.user),
        ms(start.system),
        start.commits
    );
}

fn print_memory(what: &str, proxy: &Proxy, child_mib: f64) -> anyhow::Result<Memory> {
    let memory = Memory { steady: proxy.memory_mib("VmRSS")?, peak: proxy.memory_mib("VmHWM")? };
    let children = if child_mib > 0.0 { format!(", and {child_mib:.1} peak of a child") } else { String::new() };
    println!("{what:44} {:8.1} MiB resident, {:.1} peak{children}", memory.steady, memory.peak);
    Ok(memory)
}

fn one_by_one(proxy: &Proxy, site: &Site, series: Series) -> anyhow::Result<()> {
    let mut empty = Empty::open()?;
    let nothing = (0..series.count).map(|_| empty.commit()).collect::<anyhow::Result<Vec<_>>>()?;
    // They are somebody else's changes, which are looked into.
    std::thread::sleep(STEADY);
    let before = proxy.cpu()?;
    let latencies = latency::measure(site, series.count, series.pause)?;
    let cpu = proxy.cpu()? - before;
    stats::print("empty netlink commit", nothing, "");
    stats::print("endpoint replaced: write begun -> in force", latencies.from_begin, "");
    stats::print("endpoint replaced: written -> in force", latencies.from_end, &format!("{:.0} ms cpu", ms(cpu)));
    Ok(())
}

fn spread(proxy: &Proxy, site: &Site) -> anyhow::Result<()> {
    let (count, time) = SPREAD;
    let (started, before) = (Instant::now(), proxy.cpu()?);
    for number in 1..=count {
        site.replace();
        let next = started + time / count * number;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    println!(
        "{count} changes in {:3} s                         {:8.1} ms cpu",
        time.as_secs(),
        ms(proxy.cpu()? - before)
    );
    Ok(())
}

fn idle(proxy: &Proxy) -> anyhow::Result<()> {
    // What the changes left to do.
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
