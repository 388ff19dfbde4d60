//! `ferry-bench --relay [WAY …]`, all ways by default: one client, one endpoint, and between them, in turn: nothing but a
//! router (direct), the relay of mode userspace, and HAProxy in TCP mode without and with `option splice-auto`. Three network
//! namespaces on veth pairs, one process each for the endpoint and what relays.
//!
//! Throughput of one stream and processor time per gigabit; new connections with one request each; round trips on an established
//! connection; resident memory with idle connections and, of the relay, with UDP associations.

mod children;
pub(crate) mod gate;
mod load;
mod ratios;
mod site;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;

use crate::stats;
pub(crate) use children::{relay_process, server};
use ratios::{RelayFigures, Rounds, count};
use site::{Process, Site};

/// Duration of each load.
const TIME: Duration = Duration::from_secs(4);
/// Rounds over all ways; the figures of each round are printed, since the machine's other load varies.
const ROUNDS: usize = 7;
/// Idle connections at which memory is measured.
const IDLE: [usize; 3] = [5_000, 10_000, 20_000];
/// UDP clients.
const ASSOCIATIONS: usize = 50_000;
/// Descriptors of a process beside those of connections.
const RESERVED: usize = 600;

/// One way from the client to the endpoint.
struct Way {
    name: &'static str,
    /// The relaying program; nothing if the way is direct.
    process: Option<Process>,
    /// Where the client reaches the endpoint that echoes, and the one that discards.
    echo: SocketAddr,
    sink: SocketAddr,
}

/// Measures the ways of these names, or all, and prints the figures.
///
/// # Errors
/// If there is no root, `ip` or `haproxy`, or a connection fails.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<()> {
    let ways = || site::ways().into_iter().filter(|(name, _)| names.is_empty() || names.contains(name));
    let descriptors = usize::try_from(ferry_relay::raise_limit(500_000)).unwrap_or(usize::MAX);
    let site = Site::new().context("building the network, which needs root and ip")?;
    let _server = site.serve()?;
    let mut rounds = Rounds::default();
    for round in 1..=ROUNDS {
        println!("\n== round {round} of {ROUNDS}");
        let mut order: Vec<_> = ways().collect();
        // Each way is the first in some rounds: what runs first finds a processor that is less warm.
        let first = round % order.len().max(1);
        order.rotate_left(first);
        for (name, start) in order {
            let way = start(&site, name)?;
            rounds.add(name, site.as_client(|| measure(&way))??);
        }
    }
    rounds.print();
    println!("\n== idle connections, as far as {descriptors} descriptors of a process go");
    let most = descriptors.saturating_sub(RESERVED);
    for (name, start) in ways().filter(|&(name, _)| name != "direct") {
        let way = start(&site, name)?;
        site.as_client(|| idle(&way, IDLE.map(|count| count.min(most / 2))))??;
    }
    println!("\n== UDP");
    let way = site::relayed(&site, "relay")?;
    site.as_client(|| associations(&way, ASSOCIATIONS.min(most)))?
}

fn measure(way: &Way) -> anyhow::Result<RelayFigures> {
    load::warm_up(way.echo)?;
    let before = way.cpu()?;
    let gigabits = load::stream(way.sink, TIME)?;
    let cpu = way.cpu()?.saturating_sub(before).as_secs_f64() / gigabits;
    let throughput = gigabits / TIME.as_secs_f64();
    println!("{:16} stream      {throughput:8.2} Gbit/s    {cpu:8.4} s of CPU per gigabit", way.name);
    let before = way.cpu()?;
    let connections = load::connections(&[way.echo], TIME)?;
    print_connections(way.name, connections, way.cpu()?.saturating_sub(before));
    let trips = load::round_trips(way.echo)?;
    let figures = RelayFigures { throughput, cpu, connections, round_trip: stats::median(&trips) };
    stats::print(&format!("{:16} round trip", way.name), trips, "");
    Ok(figures)
}

fn print_connections(name: &str, connections: usize, cpu: Duration) {
    let connections = count(connections);
    println!(
        "{name:16} connections {:8.0} /s         {:8.1} us of CPU each",
        connections / TIME.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / connections
    );
}

fn idle(way: &Way, counts: [usize; IDLE.len()]) -> anyhow::Result<()> {
    let empty = way.resident_mib()?;
    let mut connections = Vec::new();
    for count in counts {
        if count <= connections.len() {
            continue;
        }
        let start = std::time::Instant::now();
        while connections.len() < count {
            connections.push(load::established(way.echo)?);
        }
        println!(
            "{:16} {count} idle connections: {:.1} MiB resident, {empty:.1} without; opened in {:.1} s",
            way.name,
            way.resident_mib()?,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn associations(way: &Way, clients: usize) -> anyhow::Result<()> {
    let (empty, before) = (way.resident_mib()?, way.cpu()?);
    let start = std::time::Instant::now();
    let answered = load::datagrams(way.echo, clients)?;
    println!(
        "{clients} UDP clients: {answered} of 2 x {clients} datagrams answered in {:.1} s, {:.1} MiB resident, {empty:.1} without; {:.2} s of CPU",
        start.elapsed().as_secs_f64(),
        way.resident_mib()?,
        way.cpu()?.saturating_sub(before).as_secs_f64()
    );
    Ok(())
}

// === impl Way ===

impl Way {
    fn cpu(&self) -> anyhow::Result<Duration> {
        self.process.as_ref().map_or(Ok(Duration::ZERO), Process::cpu)
    }

    fn resident_mib(&self) -> anyhow::Result<f64> {
        self.process.as_ref().map_or(Ok(0.0), |process| stats::memory_mib(&process.id(), "VmRSS"))
    }
}
