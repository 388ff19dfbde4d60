//! Measures changes of a Service with 250 ports, 64 addresses and 64 endpoints, the widest that the API allows, among many
//! others, and their effect on a change of another Service.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ferry_lab::Mode;
use ferry_model::store::Event;

use crate::objects;
use crate::pipeline::{PassReport, Pipe, decode, load, slice};
use crate::stats::{self, memory_mib, slab_mib, thread_cpu};

const PORTS: usize = 250;
const EXTERNAL_IPS: u32 = 63;
const ENDPOINTS: u32 = 64;
/// Most ports of an EndpointSlice.
const PORTS_PER_SLICE: usize = 100;
const ROUNDS: u32 = 40;
/// Rounds in mode iptables, where each change is a run of the tool.
const FEW_ROUNDS: u32 = 8;

pub(crate) fn run(mode: Mode, services: usize) -> anyhow::Result<()> {
    let rounds = if mode.backend.is_none() { ROUNDS } else { FEW_ROUNDS };
    let mut pipe = Pipe::start(mode)?;
    load(&mut pipe, services)?;
    println!("\n-- one more service: {PORTS} ports x {} addresses x {ENDPOINTS} endpoints", EXTERNAL_IPS + 1);
    let before = (slab_mib()?, memory_mib("self", "VmRSS")?);
    let mut events = decode(&service())?;
    events.extend(slices(&first_endpoints())?);
    let (born, pass) = pipe.pass(events)?;
    println!(
        "first load                                   {:8.1} ms ({:.1} ms cpu engine, {:.1} ms cpu tool), {} operations",
        born.as_secs_f64() * 1e3,
        pass.cpu.as_secs_f64() * 1e3,
        pass.tool.as_secs_f64() * 1e3,
        pass.ops
    );
    ferry_kernel::memory::trim();
    let after = (slab_mib()?, memory_mib("self", "VmRSS")?);
    println!("kernel memory {:+.1} MiB, resident {:+.1} MiB", after.0 - before.0, after.1 - before.1);
    changes(&mut pipe, rounds)?;
    neighbours(&mut pipe, services, rounds)
}

/// Measures replacing, removing and adding one endpoint.
fn changes(pipe: &mut Pipe, rounds: u32) -> anyhow::Result<()> {
    let (mut replaced, mut gone, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let mut used = Used::default();
    for round in 0..rounds {
        let mut endpoints = first_endpoints();
        if round.is_multiple_of(2)
            && let Some(third) = endpoints.get_mut(3)
        {
            *third = endpoint(200);
        }
        let events = slices(&endpoints)?;
        let before = thread_cpu();
        let (elapsed, pass) = pipe.pass(events)?;
        used.add(thread_cpu() - before, &pass);
        replaced.push(elapsed);
    }
    let mut useds = Used::default();
    for _ in 0..rounds {
        let mut endpoints = first_endpoints();
        endpoints.remove(5);
        for (endpoints, times) in [(endpoints, &mut gone), (first_endpoints(), &mut back)] {
            let events = slices(&endpoints)?;
            let before = thread_cpu();
            let (elapsed, pass) = pipe.pass(events)?;
            useds.add(thread_cpu() - before, &pass);
            times.push(elapsed);
        }
    }
    stats::print("endpoint replaced", replaced, &used.per_change(rounds));
    stats::print("endpoint removed", gone, "");
    stats::print("endpoint added", back, &useds.per_change(2 * rounds));
    Ok(())
}

/// CPU time of changes.
#[derive(Default)]
struct Used {
    core: Duration,
    engine: Duration,
    tool: Duration,
}

impl Used {
    fn add(&mut self, core: Duration, pass: &PassReport) {
        self.core += core;
        self.engine += pass.cpu;
        self.tool += pass.tool;
    }

    fn per_change(&self, changes: u32) -> String {
        let each = |time: Duration| time.as_secs_f64() * 1e3 / f64::from(changes);
        let (core, engine, tool) = (each(self.core), each(self.engine), each(self.tool));
        format!("{core:.1} ms cpu core, {engine:.1} ms cpu engine, {tool:.1} ms cpu tool")
    }
}

/// Measures a change of another service, alone and right after one of the wide service.
fn neighbours(pipe: &mut Pipe, services: usize, rounds: u32) -> anyhow::Result<()> {
    let (mut alone, mut behind) = (Vec::new(), Vec::new());
    for round in 0..2 * rounds {
        let index = usize::try_from(round / 2)?.wrapping_mul(7919) % services;
        let mut endpoints = first_endpoints();
        // Removed in one round, restored in the next.
        endpoints.truncate(if round.is_multiple_of(2) { 63 } else { 64 });
        let mut others = objects::first_endpoints(index);
        others.pop();
        alone.push(pipe.change(slice(index, &others)?)?.0);
        let change = slice(index, &objects::first_endpoints(index))?;
        pipe.start_change(slices(&endpoints)?)?;
        let started = Instant::now();
        pipe.start_change(change)?;
        behind.push(pipe.settle(started, 2)?);
    }
    stats::print("another service's endpoints, alone", alone, "");
    stats::print("another service's endpoints, queued behind", behind, "");
    Ok(())
}

fn endpoint(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0aff_0001 + number)
}

fn first_endpoints() -> Vec<Ipv4Addr> {
    (0..ENDPOINTS).map(endpoint).collect()
}

fn service() -> String {
    let external: Vec<String> =
        (0..EXTERNAL_IPS).map(|number| Ipv4Addr::from_bits(0xc633_6401 + number).to_string()).collect();
    let mut text = format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: wide, namespace: bench}}\nspec:\n  type: ClusterIP\n  \
         clusterIP: 10.127.0.1\n  clusterIPs: [10.127.0.1]\n  ipFamilies: [IPv4]\n  externalIPs: [{}]\n  ports:\n",
        external.join(", ")
    );
    for port in 0..PORTS {
        // Writing to a String can't fail.
        let _ = writeln!(text, "  - {{name: p{port}, protocol: TCP, port: {}}}", 1000 + port);
    }
    text
}

fn slices(endpoints: &[Ipv4Addr]) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for first in (0..PORTS).step_by(PORTS_PER_SLICE) {
        let mut text = format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: wide-{first}\n  \
             namespace: bench\n  labels: {{kubernetes.io/service-name: wide}}\naddressType: IPv4\nports:\n"
        );
        for port in first..PORTS.min(first + PORTS_PER_SLICE) {
            let _ = writeln!(text, "- {{name: p{port}, protocol: TCP, port: {}}}", 8000 + port);
        }
        text.push_str("endpoints:\n");
        for endpoint in endpoints {
            let _ = writeln!(text, "- {{addresses: [{endpoint}], nodeName: node-1, conditions: {{ready: true}}}}");
        }
        events.extend(decode(&text)?);
    }
    Ok(events)
}

impl Pipe {
    /// Waits until `units` units are acknowledged; returns the time since `started`.
    fn settle(&mut self, started: Instant, units: usize) -> anyhow::Result<Duration> {
        let mut acknowledged = 0;
        loop {
            let pass = self.next_pass()?;
            acknowledged += pass.units;
            if acknowledged >= units {
                return Ok(pass.acknowledged - started);
            }
        }
    }
}
