//! Measures staleness of rules while changes never end: mode iptables, both proxies in turn, seen from outside.
//!
//! Each change gives a Service an endpoint that it never had, so the name of that endpoint's chain identifies the change.
//! It is in force once the kernel has the chain, which nf_tables notifies; legacy tables are read after each run of the
//! tool. A change that a later one of the same Service overtakes is in force when that is.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_api::object::{ObjectName, Protocol};
use ferry_kernel::iptables::Backend;
use ferry_kernel::nft::{Changed, Monitor};
use ferry_plane_iptables::names::PortNames;
use ferry_testkit::Mode;
use ferry_testkit::api::objects;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::proxy::{Program, Proxy};
use super::site::{Shape, Site, at};
use super::tools::Tools;
use super::{STEADY, Used, give_up};
use crate::objects::ENDPOINTS;
use crate::stats;

/// Changes a second.
const RATE: u32 = 33;
/// Length of one round of one proxy.
const WATCHED: Duration = Duration::from_secs(30);
/// The proxies take turns so often, so that what else the machine does meets both.
const ROUNDS: u32 = 2;
/// Time limit for the last changes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between checks for the end of the changes.
const LOOK: Duration = Duration::from_millis(50);
/// Receive buffer of the monitor: a run of the tool notifies thousands of rules.
const UNREAD_BYTES: usize = 64 << 20;

/// The change of a Service.
#[derive(Clone, Copy)]
enum Kind {
    /// its last endpoint is another one
    Replaced,
    /// half of the endpoints, and another one
    Halved,
    /// no endpoint: its frontend moves to the chain of refusals
    Emptied,
    /// another port: its rule in the shared chain is deleted and another added
    Moved,
}

/// Changes that are not in force yet.
#[derive(Default)]
struct Waiting {
    /// of each Service, in order: the chain that shows it, and when the change was made
    changes: HashMap<usize, VecDeque<(String, Instant)>>,
    /// the Service of the chain
    owners: HashMap<String, usize>,
    /// of those that are in force
    stale: Vec<Duration>,
}

/// Observations of one proxy.
#[derive(Default)]
struct Seen {
    stale: Vec<Duration>,
    never: usize,
    runs: u32,
    cpu: Duration,
    tool_cpu: Duration,
}

/// Measures ours, and upstream's if there is one, in turns.
pub(crate) fn run(mode: Mode, services: usize, upstream: Option<&Path>) -> anyhow::Result<()> {
    let mut programs = vec![Program::ours()?];
    programs.extend(upstream.map(|path| Program { name: "upstream's", path: path.to_owned() }));
    let shape = Shape::of(mode, services)?;
    println!("\n== churn: {services} services x {ENDPOINTS} endpoints, {RATE} changes a second, {mode}");
    let mut seen: Vec<Seen> = programs.iter().map(|_| Seen::default()).collect();
    for _ in 0..ROUNDS {
        for (program, seen) in programs.iter().zip(&mut seen) {
            at(shape, |site| {
                let mut proxy = program.start(site)?;
                if proxy.wait_for_rules(site)?.is_none() {
                    return give_up("start", &proxy);
                }
                std::thread::sleep(STEADY);
                seen.round(&proxy, site)
            })?;
        }
    }
    programs.iter().zip(seen).for_each(|(program, seen)| seen.print(program.name));
    Ok(())
}

// === impl Kind ===

impl Kind {
    /// Of the change with this number: what most changes of a cluster are, and some of what costs more.
    fn of(number: usize) -> Self {
        match number % 8 {
            2 => Self::Halved,
            4 => Self::Emptied,
            6 => Self::Moved,
            _ => Self::Replaced,
        }
    }
}

// === impl Waiting ===

impl Waiting {
    /// Makes a change.
    fn change(waiting: &Mutex<Self>, site: &Site, number: usize) -> anyhow::Result<()> {
        let service = number.wrapping_mul(7919) % site.shape.services;
        let kind = Kind::of(number);
        let mut endpoints = objects::first_endpoints(service);
        let fresh = Ipv4Addr::from_bits(0x0c00_0001 + u32::try_from(number)?);
        match kind {
            Kind::Moved => {
                let port = format!("\"port\":{},\"protocol\"", 1000 + number % 60_000);
                site.put(&objects::service(service).json().replace("\"port\":80,\"protocol\"", &port));
                return Ok(());
            }
            Kind::Emptied => endpoints.clear(),
            Kind::Halved => endpoints.truncate(endpoints.len() / 2),
            Kind::Replaced => drop(endpoints.pop()),
        }
        if matches!(kind, Kind::Halved | Kind::Replaced) {
            endpoints.push(fresh);
        }
        let names =
            PortNames::new(&ObjectName::new(objects::NAMESPACE, &format!("service-{service}")), "http", Protocol::Tcp);
        let chain = names.endpoint(&format!("{fresh}:8080")).as_str().to_owned();
        let slice = objects::slice(service, &endpoints);
        let mut locked = lock(waiting);
        match kind {
            // What is overtaken by nothing at all never shows.
            Kind::Emptied => drop(locked.changes.remove(&service)),
            _ => {
                locked.owners.insert(chain.clone(), service);
                locked.changes.entry(service).or_default().push_back((chain, Instant::now()));
            }
        }
        drop(locked);
        site.put(slice.json());
        Ok(())
    }

    /// The kernel has this chain.
    fn found(&mut self, chain: &str, now: Instant) {
        let Some(changes) = self.owners.get(chain).and_then(|service| self.changes.get_mut(service)) else { return };
        let Some(last) = changes.iter().position(|(name, _)| name == chain) else { return };
        self.stale.extend(changes.drain(..=last).map(|(_, made)| now.saturating_duration_since(made)));
    }

    fn count(&self) -> usize {
        self.changes.values().map(VecDeque::len).sum()
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Seen ===

impl Seen {
    /// Makes changes for a while, and waits until the last ones are in force.
    fn round(&mut self, proxy: &Proxy, site: &Site) -> anyhow::Result<()> {
        let Some(tools) = &site.tools else { return Ok(()) };
        let (waiting, ended) = (Mutex::new(Waiting::default()), AtomicBool::new(false));
        let monitor = match site.shape.mode.backend {
            Some(Backend::Nft) => Some(Monitor::open()?),
            _ => None,
        };
        tools.ended()?;
        let used = Used::new(proxy)?;
        let runs = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| match monitor {
                Some(monitor) => watch_kernel(monitor, tools, &waiting, &ended),
                None => watch_tool(tools, &waiting, &ended),
            });
            let changed = make_changes(&waiting, site);
            ended.store(true, Ordering::Release);
            let runs = watcher.join().map_err(|_| anyhow::anyhow!("the watcher has panicked"))?;
            changed.and(runs)
        })?;
        let spent = Used::new(proxy)?;
        self.runs += runs;
        self.tool_cpu += spent.children - used.children;
        self.cpu += spent.all - used.all;
        let mut waiting = lock(&waiting);
        self.never += waiting.count();
        self.stale.append(&mut waiting.stale);
        Ok(())
    }

    fn print(self, name: &str) {
        stats::print(&format!("{name}: change -> in force"), self.stale, "");
        let own = self.cpu.saturating_sub(self.tool_cpu);
        let seconds = WATCHED.as_secs_f64() * f64::from(ROUNDS);
        println!(
            "{:44} {} runs of the tool with {:.1} s of cpu, {:.2} s the proxy's own, in {seconds} s; {} changes never seen",
            "",
            self.runs,
            self.tool_cpu.as_secs_f64(),
            own.as_secs_f64(),
            self.never,
        );
    }
}

/// Makes changes at an even pace, and returns when all are in force or were waited for.
fn make_changes(waiting: &Mutex<Waiting>, site: &Site) -> anyhow::Result<()> {
    let started = Instant::now();
    for number in 0.. {
        let due = started + Duration::from_secs(1) / RATE * number;
        if due > started + WATCHED {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Waiting::change(waiting, site, usize::try_from(number)?)?;
    }
    let last = Instant::now();
    while lock(waiting).count() > 0 && last.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Notes what nf_tables notifies. Returns how often the tool was run.
fn watch_kernel(
    mut monitor: Monitor,
    tools: &Tools,
    waiting: &Mutex<Waiting>,
    ended: &AtomicBool,
) -> anyhow::Result<u32> {
    monitor.set_receive_buffer(UNREAD_BYTES)?;
    monitor.join()?;
    let timeout = Timespec::try_from(LOOK)?;
    let mut runs = 0;
    while !ended.load(Ordering::Acquire) {
        // Equal unread notifications become one.
        runs += tools.ended()?;
        if poll(&mut [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)], Some(&timeout))? == 0 {
            continue;
        }
        let now = Instant::now();
        let mut chains = Vec::new();
        let overrun = monitor.read(&mut |event| {
            if let (Some(Family::V4), Changed::Chain(chain)) = (event.family, event.what) {
                chains.push(chain);
            }
        })?;
        anyhow::ensure!(!overrun.0, "notifications were lost");
        let mut waiting = lock(waiting);
        chains.iter().for_each(|chain| waiting.found(chain, now));
    }
    Ok(runs + tools.ended()?)
}

/// Reads the table after each run of the tool. Returns how many there were.
fn watch_tool(tools: &Tools, waiting: &Mutex<Waiting>, ended: &AtomicBool) -> anyhow::Result<u32> {
    let mut runs = 0;
    while !ended.load(Ordering::Acquire) {
        let Some(now) = tools.wait(LOOK)? else { continue };
        runs += tools.ended()?;
        let chains = tools.chains()?;
        let mut waiting = lock(waiting);
        chains.iter().for_each(|chain| waiting.found(chain, now));
    }
    Ok(runs)
}
