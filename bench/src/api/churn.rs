//! Measures staleness of rules while changes never end: mode iptables, both proxies alternately, from outside.
//!
//! Each change gives a Service an endpoint that it never had, so the name of that endpoint's chain identifies the change.
//! It is in force once the kernel has the chain, which nf_tables notifies; legacy tables are read after each run of the
//! tool. A change superseded by a later one of the same Service counts as in force together with it.

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
use ferry_kernel::nft::{Changed, Monitor, NftEvent, NftNotice};
use ferry_lab::Mode;
use ferry_lab::api::objects;
use ferry_plane_iptables::names::PortNames;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::proxy::{MeasuredProxy, Program};
use super::site::{Site, Workload, at};
use super::tools::Tools;
use super::{STEADY, Used, give_up};
use crate::objects::ENDPOINTS;
use crate::stats;

/// Changes a second.
const RATE: u32 = 33;
/// Length of one round of one proxy.
const WATCHED: Duration = Duration::from_secs(30);
/// Rounds of each proxy, alternately, so that other load of the machine affects both.
const ROUNDS: u32 = 2;
/// Time limit for the last changes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between checks for the end of the changes.
const POLL: Duration = Duration::from_millis(50);
/// Receive buffer of the monitor: a run of the tool notifies thousands of rules.
const UNREAD_BYTES: usize = 64 << 20;

/// The change of a Service.
#[derive(Clone, Copy)]
enum ChangeKind {
    /// its last endpoint is replaced
    Replaced,
    /// half of the endpoints are removed, and a new one is added
    Halved,
    /// all endpoints are removed: its frontend moves to the chain of rejected ones
    Emptied,
    /// its port changes: its rule in the shared chain is deleted and another one added
    Moved,
}

/// Changes that are not in force yet.
#[derive(Default)]
struct PendingChanges {
    /// by Service, in order: the chain that identifies the change, and the time of the change
    changes: HashMap<usize, VecDeque<(String, Instant)>>,
    /// the Service of each chain
    owners: HashMap<String, usize>,
    /// staleness of the changes in force
    stale: Vec<Duration>,
}

/// Observations of one proxy.
#[derive(Default)]
struct Observations {
    stale: Vec<Duration>,
    never: usize,
    runs: u32,
    cpu: Duration,
    tool_cpu: Duration,
}

/// Measures ours, and upstream's if given, alternately.
pub(crate) fn run(mode: Mode, services: usize, upstream: Option<&Path>) -> anyhow::Result<()> {
    let mut programs = vec![Program::ours()?];
    programs.extend(upstream.map(|path| Program { name: "upstream's", path: path.to_owned() }));
    let workload = Workload::of(mode, services)?;
    println!("\n== churn: {services} services x {ENDPOINTS} endpoints, {RATE} changes a second, {mode}");
    let mut seen: Vec<Observations> = programs.iter().map(|_| Observations::default()).collect();
    for _ in 0..ROUNDS {
        for (program, seen) in programs.iter().zip(&mut seen) {
            at(workload, |site| {
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

// === impl ChangeKind ===

impl ChangeKind {
    /// The kind of the change with this number: mostly the most frequent kind in a cluster, and some more costly ones.
    fn of(number: usize) -> Self {
        match number % 8 {
            2 => Self::Halved,
            4 => Self::Emptied,
            6 => Self::Moved,
            _ => Self::Replaced,
        }
    }
}

// === impl PendingChanges ===

impl PendingChanges {
    /// Makes a change.
    fn change(waiting: &Mutex<Self>, site: &Site, number: usize) -> anyhow::Result<()> {
        let service = number.wrapping_mul(7919) % site.workload.services;
        let kind = ChangeKind::of(number);
        let mut endpoints = objects::first_endpoints(service);
        let fresh = Ipv4Addr::from_bits(0x0c00_0001 + u32::try_from(number)?);
        match kind {
            ChangeKind::Moved => {
                let port = format!("\"port\":{},\"protocol\"", 1000 + number % 60_000);
                site.put(&objects::service(service).json().replace("\"port\":80,\"protocol\"", &port));
                return Ok(());
            }
            ChangeKind::Emptied => endpoints.clear(),
            ChangeKind::Halved => endpoints.truncate(endpoints.len() / 2),
            ChangeKind::Replaced => drop(endpoints.pop()),
        }
        if matches!(kind, ChangeKind::Halved | ChangeKind::Replaced) {
            endpoints.push(fresh);
        }
        let names =
            PortNames::new(&ObjectName::new(objects::NAMESPACE, &format!("service-{service}")), "http", Protocol::Tcp);
        let chain = names.endpoint(&format!("{fresh}:8080")).as_str().to_owned();
        let slice = objects::slice(service, &endpoints);
        let mut locked = lock(waiting);
        match kind {
            // Without an endpoint, no chain identifies the change.
            ChangeKind::Emptied => drop(locked.changes.remove(&service)),
            _ => {
                locked.owners.insert(chain.clone(), service);
                locked.changes.entry(service).or_default().push_back((chain, Instant::now()));
            }
        }
        drop(locked);
        site.put(slice.json());
        Ok(())
    }

    /// Records that the kernel has this chain.
    fn found(&mut self, chain: &str, now: Instant) {
        let Some(changes) = self.owners.get(chain).and_then(|service| self.changes.get_mut(service)) else { return };
        let Some(last) = changes.iter().position(|(name, _)| name == chain) else { return };
        self.stale.extend(changes.drain(..=last).map(|(_, made)| now.saturating_duration_since(made)));
    }

    fn count(&self) -> usize {
        self.changes.values().map(VecDeque::len).sum()
    }
}

fn lock(waiting: &Mutex<PendingChanges>) -> MutexGuard<'_, PendingChanges> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Observations ===

impl Observations {
    /// Makes changes for the length of a round, and waits until the last ones are in force.
    fn round(&mut self, proxy: &MeasuredProxy, site: &Site) -> anyhow::Result<()> {
        let Some(tools) = &site.tools else { return Ok(()) };
        let (waiting, ended) = (Mutex::new(PendingChanges::default()), AtomicBool::new(false));
        let monitor = match site.workload.mode.backend {
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
            let runs = watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
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
            "{:44} {} processes of the tool with {:.1} s of cpu, {:.2} s of the proxy itself, in {seconds} s; \
             {} changes never in force",
            "",
            self.runs,
            self.tool_cpu.as_secs_f64(),
            own.as_secs_f64(),
            self.never,
        );
    }
}

/// Makes changes at an even rate, and returns when all are in force or the time limit has passed.
fn make_changes(waiting: &Mutex<PendingChanges>, site: &Site) -> anyhow::Result<()> {
    let started = Instant::now();
    for number in 0.. {
        let due = started + Duration::from_secs(1) / RATE * number;
        if due > started + WATCHED {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        PendingChanges::change(waiting, site, usize::try_from(number)?)?;
    }
    let last = Instant::now();
    while lock(waiting).count() > 0 && last.elapsed() < PATIENCE {
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Records the chains of nf_tables notifications. Returns the number of runs of the tool.
fn watch_kernel(
    mut monitor: Monitor,
    tools: &Tools,
    waiting: &Mutex<PendingChanges>,
    ended: &AtomicBool,
) -> anyhow::Result<u32> {
    monitor.set_receive_buffer(UNREAD_BYTES)?;
    monitor.join()?;
    let timeout = Timespec::try_from(POLL)?;
    let mut runs = 0;
    while !ended.load(Ordering::Acquire) {
        // Equal unread notifications are merged into one.
        runs += tools.ended()?;
        if poll(&mut [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)], Some(&timeout))? == 0 {
            continue;
        }
        let now = Instant::now();
        let mut chains = Vec::new();
        let overrun = monitor.read(&mut |notice| {
            if let NftNotice::Changed(NftEvent {
                family: Some(Family::V4),
                what: Changed::Chain { name: chain, .. },
                ..
            }) = notice
            {
                chains.push(chain);
            }
        })?;
        anyhow::ensure!(!overrun.0, "the kernel dropped notifications: the receive buffer overflowed");
        let mut waiting = lock(waiting);
        chains.iter().for_each(|chain| waiting.found(chain, now));
    }
    Ok(runs + tools.ended()?)
}

/// Reads the table after each run of the tool. Returns the number of runs.
fn watch_tool(tools: &Tools, waiting: &Mutex<PendingChanges>, ended: &AtomicBool) -> anyhow::Result<u32> {
    let mut runs = 0;
    while !ended.load(Ordering::Acquire) {
        let Some(now) = tools.wait(POLL)? else { continue };
        runs += tools.ended()?;
        let chains = tools.chains()?;
        let mut waiting = lock(waiting);
        chains.iter().for_each(|chain| waiting.found(chain, now));
    }
    Ok(runs)
}
