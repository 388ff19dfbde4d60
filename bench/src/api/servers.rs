//! Measures mode ipvs, whose virtual servers have no notifications: processor time of a start and of single changes, memory.
//!
//! Upstream's proxy runs a process of `ipset` for each frontend, also long after the last virtual server is there. So a start is
//! measured up to that server and until the proxy is quiet, and a change until it is quiet again.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::ipvs::{IpvsDestination, IpvsError, IpvsProtocol, IpvsSocket, ServerId};
use ferry_kernel::nft::NftSocket;

use super::proxy::{MeasuredProxy, PATIENCE, Program};
use super::site::{Site, Workload, at};
use super::{give_up, headline, ms, print_memory};
use crate::process::megabytes;

/// Number of changes, one at a time.
const CHANGES: u32 = 10;
/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(40);
/// Polling interval of the kernel's state.
const POLL: Duration = Duration::from_millis(20);
/// Interval at which the processor time of a proxy that shall become quiet is read.
const SAMPLE: Duration = Duration::from_secs(1);
/// Consecutive quiet samples after which a proxy counts as quiet.
const QUIET_SAMPLES: u32 = 5;
/// Processor time of a quiet sample: a tenth of a core.
const QUIET: Duration = Duration::from_millis(100);

/// The virtual servers of IPv4 in the kernel.
pub(super) struct Servers(RefCell<IpvsSocket>);

/// Measures start, changes, memory and a restart.
pub(super) fn run(program: &Program, workload: Workload) -> anyhow::Result<()> {
    headline(program, workload);
    println!("executable                                   {:8.2} MB", megabytes(&program.path)?);
    at(workload, |site| {
        let servers = Servers::open()?;
        let mut proxy = program.start(site)?;
        let began = Instant::now();
        if !wait_for(&mut proxy, || servers.are_complete(workload))? {
            return give_up("start", &proxy);
        }
        print_cpu("start to the last endpoint", began.elapsed(), proxy.cpu()?, proxy.children_cpu()?);
        let (quiet, cpu) = settle(&mut proxy)?;
        print_cpu("start until quiet", quiet - began, cpu, proxy.children_cpu()?);
        print_threads(&proxy)?;
        print_memory("memory", &proxy, 0.0)?;
        idle(&proxy)?;
        if !changes(&mut proxy, site, &servers)? {
            return give_up("change", &proxy);
        }
        print_memory("memory after the changes", &proxy, 0.0)?;
        drop(proxy);
        restarted(program, site)
    })
}

/// Measures a restart until the proxy is quiet.
fn restarted(program: &Program, site: &Site) -> anyhow::Result<()> {
    let mut nft = NftSocket::open()?;
    let before = nft.generation()?;
    let mut proxy = program.start(site)?;
    let began = Instant::now();
    let (quiet, cpu) = settle(&mut proxy)?;
    print_cpu("restart until quiet", quiet - began, cpu, proxy.children_cpu()?);
    print_threads(&proxy)?;
    println!("commits to nf_tables                         {:8}", nft.generation()?.wrapping_sub(before));
    print_memory("memory", &proxy, 0.0).map(drop)
}

fn print_threads(proxy: &MeasuredProxy) -> anyhow::Result<()> {
    let threads = proxy.threads_cpu()?;
    let busy = threads.iter().filter(|(_, cpu)| *cpu > Duration::from_millis(1));
    let threads: Vec<String> = busy.map(|(name, cpu)| format!("{name} {:.0}", ms(*cpu))).collect();
    println!("CPU time by thread, ms                       {}", threads.join(", "));
    Ok(())
}

fn print_cpu(what: &str, wall: Duration, cpu: Duration, children: Duration) {
    let own = cpu.saturating_sub(children);
    println!("{what:44} {:8.1} ms wall, {:.0} ms cpu in total ({:.0} of the proxy itself)", ms(wall), ms(cpu), ms(own));
}

fn idle(proxy: &MeasuredProxy) -> anyhow::Result<()> {
    let (started, before) = (Instant::now(), proxy.cpu()?);
    std::thread::sleep(IDLE);
    let share = (proxy.cpu()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("idle                                         {:8.3} % of a core", share * 100.0);
    Ok(())
}

/// Replaces endpoints one at a time; prints the mean processor time. False if one is not in force in time.
fn changes(proxy: &mut MeasuredProxy, site: &Site, servers: &Servers) -> anyhow::Result<bool> {
    let (mut all, mut own, mut latest) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for _ in 0..CHANGES {
        let (vip, endpoints) = (site.next_replaced(), site.workload.endpoints);
        let before = servers.active(vip)?;
        let (began, cpu, children) = (Instant::now(), proxy.cpu()?, proxy.children_cpu()?);
        site.replace();
        let is_replaced = || Ok(servers.active(vip)? != before && servers.destinations(vip)?.len() == endpoints);
        if !wait_for(proxy, is_replaced)? {
            return Ok(false);
        }
        latest += began.elapsed();
        let (_, now) = settle(proxy)?;
        all += now - cpu;
        own += (now - cpu).saturating_sub(proxy.children_cpu()? - children);
    }
    let (all, own, latest) = (ms(all / CHANGES), ms(own / CHANGES), ms(latest / CHANGES));
    println!(
        "endpoint replaced, mean of {CHANGES}                 {all:8.1} ms cpu ({own:.1} of the proxy itself), in force after {latest:.0} ms"
    );
    Ok(true)
}

/// Polls until the kernel's state is as wanted; false if it isn't within the time limit of a start.
pub(super) fn wait_for(
    proxy: &mut MeasuredProxy,
    mut is_done: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let started = Instant::now();
    while !is_done()? {
        proxy.expect_alive()?;
        if started.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
    Ok(true)
}

/// Waits until the proxy is quiet. Returns when it began to be, and its processor time then: at least a sample from now.
pub(super) fn settle(proxy: &mut MeasuredProxy) -> anyhow::Result<(Instant, Duration)> {
    let (mut last, mut busy, mut quiet) = (proxy.cpu()?, None, 0);
    while quiet < QUIET_SAMPLES {
        std::thread::sleep(SAMPLE);
        proxy.expect_alive()?;
        let cpu = proxy.cpu()?;
        // A child counts when it has ended.
        let is_quiet = cpu.saturating_sub(last) < QUIET && !proxy.has_children();
        quiet = if is_quiet { quiet + 1 } else { 0 };
        last = cpu;
        if !is_quiet || busy.is_none() {
            busy = Some((Instant::now(), cpu));
        }
    }
    Ok(busy.unwrap_or((Instant::now(), last)))
}

// === impl Servers ===

impl Servers {
    pub(super) fn open() -> anyhow::Result<Self> {
        Ok(Self(RefCell::new(IpvsSocket::open()?)))
    }

    /// True if the servers of all services are there with all endpoints.
    pub(super) fn are_complete(&self, workload: Workload) -> anyhow::Result<bool> {
        let listed = self.list()?;
        if listed.len() != workload.services {
            return Ok(false);
        }
        for server in listed {
            if self.destinations_of(&server)?.len() != workload.endpoints {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn list(&self) -> io::Result<Vec<ServerId>> {
        let mut listed = Vec::new();
        self.0.borrow_mut().dump_servers(Some(Family::V4), &mut |server| listed.push(server.id)).map_err(system)?;
        Ok(listed)
    }

    /// The endpoints of a service with their weights, in order.
    pub(super) fn destinations(&self, vip: Ipv4Addr) -> io::Result<Vec<(SocketAddr, u32)>> {
        self.destinations_of(&ServerId { protocol: IpvsProtocol::Tcp, address: IpAddr::V4(vip), port: 80 })
    }

    /// The endpoints that get connections.
    fn active(&self, vip: Ipv4Addr) -> io::Result<Vec<(SocketAddr, u32)>> {
        let mut destinations = self.destinations(vip)?;
        destinations.retain(|(_, weight)| *weight > 0);
        Ok(destinations)
    }

    fn destinations_of(&self, server: &ServerId) -> io::Result<Vec<(SocketAddr, u32)>> {
        let mut found = Vec::new();
        let mut add = |destination: IpvsDestination, _| found.push((destination.address, destination.weight));
        self.0.borrow_mut().dump_destinations(server, &mut add).map_err(system)?;
        found.sort_unstable();
        Ok(found)
    }
}

fn system(error: IpvsError) -> io::Error {
    match error {
        IpvsError::Absent => io::Error::new(io::ErrorKind::Unsupported, IpvsError::Absent),
        IpvsError::Io(error) => error,
    }
}
