//! Measures what control socket, status page and self-test cost a running proxy: without all three, with socket and page, while a client
//! requests pages, and with a self-test each second beside that. Then `verify` over the socket, which copies all objects and reads the kernel's
//! back.

use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ferry_kernel::sysctl;
use ferry_lab::Mode;

use super::proxy::{MeasuredProxy, Program};
use super::site::{Site, Workload, at};
use super::{DENSE, STEADY, Used, first_start, headline, latency, ms};
use crate::process::get;
use crate::stats;

/// Rounds of each kind, in turn, so that other load of the machine affects all.
const ROUNDS: u32 = 4;
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// The requested pages, in turn.
const PAGES: [&str; 3] = ["/ui", "/ui/services", "/ui/explain?format=json&q=10.96.0.1:80"];
/// The range of the self-test's addresses.
const SELF_TEST_RANGE: &str = "192.0.2.248/29";
/// Polling interval of the memory of `verify`.
const POLL: Duration = Duration::from_millis(20);

/// Use of the control socket and the status page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// the proxy has neither
    Off,
    /// no client requests anything
    Idle,
    /// a client requests a page ten times a second
    Requests,
    /// the same, and the proxy tests its data path each second
    SelfTest,
}

/// Measures a proxy of each kind in turn, and then a subcommand.
pub(crate) fn run(mode: Mode, services: usize) -> anyhow::Result<()> {
    let (ours, workload) = (Program::ours()?, Workload::of(mode, services)?);
    let mut loads = [Load::Off, Load::Idle, Load::Requests, Load::SelfTest];
    for _ in 0..ROUNDS {
        // Each comes first once: the first one of a round finds other caches.
        loads.rotate_left(1);
        for load in loads {
            headline(&ours, workload);
            println!("requests                                     {}", load.text());
            at(workload, |site| measure(&ours, site, load))?;
        }
    }
    Ok(())
}

fn measure(ours: &Program, site: &Site, load: Load) -> anyhow::Result<()> {
    let socket = site.file("control.sock");
    let (socket_path, page) = match load {
        Load::Off => (String::new(), "nobody"),
        Load::Idle | Load::Requests | Load::SelfTest => (socket.display().to_string(), "loopback"),
    };
    let mut config = fs::read_to_string(site.file("config.yaml"))?;
    let own = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n";
    write!(config, "{own}controlSocket: \"{socket_path}\"\nstatusPage: {page}\n")?;
    if load == Load::SelfTest {
        for arguments in ["link add uplink type bridge", "address add 203.0.113.1/24 dev uplink", "link set uplink up"]
        {
            let status = Command::new("ip").args(arguments.split(' ')).status().context("starting ip")?;
            ensure!(status.success(), "ip {arguments}: {status}");
        }
        // The Node's address is not this one, and by that families are chosen otherwise.
        write!(config, "selfTestPeriod: 1s\nselfTestRanges: [{SELF_TEST_RANGE}]\n")?;
        sysctl::write("net/ipv4/ip_forward", "1")?;
    }
    fs::write(site.file("config.yaml"), config)?;
    let mut proxy = ours.start(site)?;
    first_start(&mut proxy, site)?.context("the start did not finish")?;
    let used = Used::new(&proxy)?;
    let asks = matches!(load, Load::Requests | Load::SelfTest);
    let latencies = if asks { changes_under_requests(site)? } else { changes(site)? };
    stats::print("endpoint replaced: write started -> in force", latencies, &used.since(&proxy)?.to_string());
    super::print_memory("memory after the changes", &proxy, 0.0)?;
    if load == Load::SelfTest {
        print_self_tests()?;
    }
    if load == Load::Requests {
        verify(ours, &proxy, &socket_path)?;
    }
    Ok(())
}

fn changes(site: &Site) -> anyhow::Result<Vec<Duration>> {
    Ok(latency::measure(site, DENSE.count, DENSE.pause)?.from_begin)
}

/// Measures changes while a client requests pages, and these.
fn changes_under_requests(site: &Site) -> anyhow::Result<Vec<Duration>> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| request_pages(&done));
        let latencies = changes(site);
        done.store(true, Ordering::Relaxed);
        let answers = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        for (page, times) in PAGES.iter().zip(answers) {
            stats::print(&format!("GET {page}"), times, "");
        }
        latencies
    })
}

/// Requests pages in turn; returns the times until each answer was complete, by page.
fn request_pages(done: &AtomicBool) -> anyhow::Result<[Vec<Duration>; PAGES.len()]> {
    let mut times = [const { Vec::new() }; PAGES.len()];
    while !done.load(Ordering::Relaxed) {
        for (page, times) in PAGES.iter().zip(&mut times) {
            let begun = Instant::now();
            let answer = get(page)?;
            times.push(begun.elapsed());
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{page}: {}", answer.lines().next().unwrap_or_default());
            std::thread::sleep(PAUSE);
        }
    }
    Ok(times)
}

/// Prints the number of self-tests so far; all must have succeeded.
fn print_self_tests() -> anyhow::Result<()> {
    let metrics = get("/metrics")?;
    let count = |result: &str| {
        let sample = format!("kubeproxy_self_tests_total{{ip_family=\"IPv4\",result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok()).unwrap_or_default()
    };
    println!("self-tests meanwhile                         {:8}", count("success"));
    ensure!(count("success") > 0 && count("failure") == 0, "{} self-tests have failed", count("failure"));
    Ok(())
}

/// Runs `verify` over all Services; it copies the objects of the proxy.
fn verify(ours: &Program, proxy: &MeasuredProxy, socket: &str) -> anyhow::Result<()> {
    let (used, of_children, started) = (proxy.cpu()?, stats::children_cpu(std::process::id())?, Instant::now());
    let mut command = Command::new(&ours.path);
    let mut child = command.args(["verify", "--control-socket", socket]).stdout(Stdio::null()).spawn()?;
    let mut peak = 0.0_f64;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // It may end in the meantime.
        peak = peak.max(stats::memory_mib(&child.id().to_string(), "VmHWM").unwrap_or(0.0));
        std::thread::sleep(POLL);
    };
    let wall = started.elapsed();
    ensure!(status.success(), "verify: {status}");
    let now = stats::children_cpu(std::process::id())?;
    let cpu = (now.0 + now.1).saturating_sub(of_children.0 + of_children.1);
    let of_proxy = proxy.cpu()?.saturating_sub(used);
    println!(
        "verify, all Services                         {:8.1} ms wall, {:.0} ms cpu, {peak:.1} MiB peak; {:.0} ms cpu of the proxy",
        ms(wall),
        ms(cpu),
        ms(of_proxy)
    );
    std::thread::sleep(STEADY);
    super::print_memory("memory of the proxy after it", proxy, 0.0)?;
    Ok(())
}

// === impl Load ===

impl Load {
    fn text(self) -> &'static str {
        match self {
            Self::Off => "none: neither control socket nor status page",
            Self::Idle => "none, with control socket and status page",
            Self::Requests => "a page ten times a second, then verify",
            Self::SelfTest => "a page ten times a second, and a self-test each second",
        }
    }
}
