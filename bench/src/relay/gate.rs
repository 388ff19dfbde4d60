//! `ferry-bench --gate [SERVICES]`: the two shapes in which mode userspace can receive redirected TCP connections, in turn: a listener
//! for each service, and one gate that finds the service by the original destination (decision 60).
//!
//! Time and memory to open them, the relay's and the kernel's; new connections with one request each, over several services.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use ferry_relay::{
    Balancer, Bind, DEFAULT_PENALTY, Gate, Listener, ListenerId, ListenerState, Port, Protocol, Relay, RelayConfig,
    Routes,
};

use super::site::{ECHO, ENDPOINT, RELAY, SINK, Site};
use super::{ROUNDS, TIME, Way, load};
use crate::stats;

/// The shapes, by the argument of their process.
const SHAPES: [&str; 2] = ["listeners", "gate"];
/// The number of services by default.
const SERVICES: u32 = 5_000;
/// Services that clients connect to.
const USED: u32 = 16;
/// The first address of services, which no machine has; each has its own.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The port of every service.
const NUMBER: u16 = 80;

/// Measures both shapes in rounds, and prints the figures.
///
/// # Errors
/// If there is no root, `ip` or `nft`, or a connection fails.
pub(crate) fn run(services: Option<&str>) -> anyhow::Result<()> {
    let services = services.map_or(Ok(SERVICES), str::parse).context("the number of services")?;
    let site = Site::new().context("building the network, which needs root and ip")?;
    let _server = site.serve()?;
    for round in 1..=ROUNDS {
        println!("\n== round {round} of {ROUNDS}, {services} services");
        for shape in SHAPES {
            let process = site.relay(&["--gate-process", shape, &services.to_string()])?;
            let service = |index| SocketAddr::new(address(index).into(), NUMBER);
            let way = Way {
                name: shape,
                process: Some(process),
                echo: service(0),
                sink: SocketAddr::new(RELAY.parse()?, SINK),
            };
            let used: Vec<_> = (0..USED.min(services)).map(service).collect();
            site.as_client(|| measure(&way, &used))??;
        }
    }
    Ok(())
}

fn measure(way: &Way, services: &[SocketAddr]) -> anyhow::Result<()> {
    load::warm_up(way.echo)?;
    let before = way.cpu()?;
    let connections = load::connections(services, TIME)?;
    super::print_connections(way.name, connections, way.cpu()?.saturating_sub(before));
    Ok(())
}

fn address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST.to_bits() + index)
}

/// The relay in one of the shapes, and the rules that redirect to it, until it is killed.
///
/// # Errors
/// If a port is taken, or descriptors are exhausted.
pub(crate) fn process(shape: &str, services: &str) -> anyhow::Result<()> {
    let services: u32 = services.parse()?;
    ferry_relay::raise_limit(500_000);
    let (relay, workers) = Relay::new(RelayConfig::default())?;
    let threads: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(|| worker.run())).collect();
    let endpoint = SocketAddr::new(ENDPOINT.parse()?, ECHO);
    let ports = (0..services).map(|index| {
        let balancer = Arc::new(Balancer::new(None, DEFAULT_PENALTY));
        relay.replace_endpoints(&balancer, &[endpoint], []);
        (address(index), Arc::new(Port::new(address(index).to_string(), balancer, usize::MAX)))
    });
    let ports: Vec<_> = ports.collect();
    let own = std::process::id().to_string();
    let (resident, slab) = (stats::memory_mib(&own, "VmRSS")?, slab_mib()?);
    let start = Instant::now();
    let (set, rule) = match shape {
        "listeners" => listeners(&relay, ports)?,
        "gate" => gate(&relay, ports)?,
        other => bail!("no shape {other:?}"),
    };
    let figures = format!(
        "{shape:16} opened in {:8.1} ms: {:.1} MiB resident and {:.1} MiB of the kernel more, {} descriptors",
        start.elapsed().as_secs_f64() * 1e3,
        stats::memory_mib(&own, "VmRSS")? - resident,
        slab_mib()? - slab,
        std::fs::read_dir("/proc/self/fd")?.count()
    );
    // Those of the shape before are replaced.
    load_rules(&format!(
        "table ip bench\ndelete table ip bench\ntable ip bench {{\n{set}\nchain pre {{ type nat hook prerouting priority dstnat; {rule}; }}\n}}\n"
    ))?;
    // Entries of connections that ended would fill the table of connection tracking within two rounds: they stay for two minutes.
    std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1")?;
    println!("ready {figures}");
    for thread in threads {
        thread.join().ok().context("a thread of the relay has panicked")?;
    }
    Ok(())
}

/// A listener for each port, at ports that the system chooses. Returns a map and the rule that uses it.
fn listeners(relay: &Relay, ports: Vec<(Ipv4Addr, Arc<Port>)>) -> anyhow::Result<(String, String)> {
    let mut elements = Vec::with_capacity(ports.len());
    for (id, (service, port)) in (0..).zip(ports) {
        let listener = Listener { protocol: Protocol::Tcp, bind: any_port()?, port };
        let bound = opened(&relay.add(ListenerId(id), listener))?;
        elements.push(format!("{service} . {NUMBER} : {} . {}", bound.ip(), bound.port()));
    }
    let of = "type ipv4_addr . inet_service : ipv4_addr . inet_service";
    Ok((
        format!("map services {{ {of}; elements = {{ {} }}; }}", elements.join(", ")),
        "dnat ip to ip daddr . tcp dport map @services".to_owned(),
    ))
}

/// A gate with a route to each port. Returns a set and the rule that uses it.
fn gate(relay: &Relay, ports: Vec<(Ipv4Addr, Arc<Port>)>) -> anyhow::Result<(String, String)> {
    let routes = Arc::new(Routes::new());
    let mut elements = Vec::with_capacity(ports.len());
    for (service, port) in ports {
        routes.insert(SocketAddr::new(service.into(), NUMBER).into(), port);
        elements.push(format!("{service} . {NUMBER}"));
    }
    let gate = Gate { name: "gate".to_owned(), bind: any_port()?, route: routes };
    let bound = opened(&relay.add_gate(ListenerId(0), gate))?;
    Ok((
        format!("set services {{ type ipv4_addr . inet_service; elements = {{ {} }}; }}", elements.join(", ")),
        format!("ip daddr . tcp dport @services dnat to {bound}"),
    ))
}

fn any_port() -> anyhow::Result<Bind> {
    Ok(Bind::Address { address: SocketAddr::new(RELAY.parse()?, 0), reuse_port: false })
}

fn opened(state: &ListenerState) -> anyhow::Result<SocketAddr> {
    match state {
        ListenerState::Open(address) => Ok(*address),
        failed => bail!("{failed:?}"),
    }
}

fn load_rules(text: &str) -> anyhow::Result<()> {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("starting nft")?;
    nft.stdin.take().context("its input")?.write_all(text.as_bytes())?;
    let status = nft.wait()?;
    ensure!(status.success(), "nft: {status}");
    Ok(())
}

/// Memory of the kernel's objects on this machine, sockets among them.
fn slab_mib() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).context("Slab in /proc/meminfo")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
