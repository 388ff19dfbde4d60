//! One Service with very many source ranges: what that means for new connections to other Services, and for their commits.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::objects;
use crate::pipeline::{Empty, Pipe, decode, load, slice};
use crate::stats::{self, slab_mib};

/// How many ranges the one Service has, one after the other.
const SIZES: [u32; 4] = [1, 1_000, 20_000, 100_000];
const CONNECTIONS: usize = 2_000;
const COMMITS: usize = 400;
/// Where the endpoint of all measured Services listens.
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const PORT: u16 = 8080;

/// A Service that connections are made to.
struct Target {
    name: &'static str,
    cluster_ip: Ipv4Addr,
    balancer: Ipv4Addr,
}

/// The one with very many ranges, one with a few, and one without.
const HEAVY: Target =
    Target { name: "heavy", cluster_ip: Ipv4Addr::new(10, 126, 0, 1), balancer: Ipv4Addr::new(203, 0, 113, 1) };
const LIGHT: Target =
    Target { name: "light", cluster_ip: Ipv4Addr::new(10, 126, 0, 2), balancer: Ipv4Addr::new(203, 0, 113, 2) };
const FREE: Target =
    Target { name: "free", cluster_ip: Ipv4Addr::new(10, 126, 0, 3), balancer: Ipv4Addr::new(203, 0, 113, 3) };

pub(crate) fn run(services: usize) -> anyhow::Result<()> {
    ip(&["address", "add", &format!("{ENDPOINT}/32"), "dev", "lo"])?;
    ip(&["route", "add", "default", "dev", "lo", "src", &ENDPOINT.to_string()])?;
    let listener = TcpListener::bind((ENDPOINT, PORT))?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let mut pipe = Pipe::start()?;
    load(&mut pipe, services)?;
    for target in [&LIGHT, &FREE] {
        let ranges = if target.name == LIGHT.name { "[10.200.0.0/24, 192.0.2.0/24]" } else { "[]" };
        pipe.change(decode(&target.documents(ranges))?)?;
    }
    let mut empty = Empty::open()?;
    for size in SIZES {
        println!("\n-- a service with {size} source ranges");
        one(&mut pipe, size, services, &mut empty)?;
    }
    Ok(())
}

fn one(pipe: &mut Pipe, size: u32, services: usize, empty: &mut Empty) -> anyhow::Result<()> {
    let before = slab_mib()?;
    let (written, turn) = pipe.turn(decode(&HEAVY.documents(&ranges(size)))?)?;
    println!(
        "its ranges written                           {:8.1} ms ({:.1} ms cpu engine), kernel memory {:+.1} MiB",
        written.as_secs_f64() * 1e3,
        turn.cpu.as_secs_f64() * 1e3,
        slab_mib()? - before
    );
    // In turn, so that a busy moment of the machine meets all of them.
    let mut connections = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..CONNECTIONS {
        for (target, times) in [&FREE, &LIGHT, &HEAVY].into_iter().zip(&mut connections) {
            times.push(target.connect()?);
        }
    }
    let [free, light, heavy] = connections;
    stats::print("new connection, a service without ranges", free, "");
    stats::print("new connection, a service with two ranges", light, "");
    stats::print("new connection, the service itself", heavy, "");
    let (mut unrelated, mut others, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..COMMITS {
        let index = (round / 2).wrapping_mul(7919) % services;
        let mut endpoints = objects::first_endpoints(index);
        if round.is_multiple_of(2) {
            endpoints.pop();
            endpoints.push(objects::endpoint(index, 15));
        }
        unrelated.push(pipe.change(slice(index, &endpoints)?)?.0);
        let ranges = format!("[10.200.0.0/24, 192.0.{}.0/24]", 3 + round % 2);
        others.push(pipe.change(decode(&LIGHT.service(&ranges))?)?.0);
        nothing.push(empty.commit()?);
    }
    stats::print("empty netlink commit", nothing, "");
    stats::print("an unrelated service's endpoint replaced", unrelated, "");
    stats::print("another service's ranges changed", others, "");
    Ok(())
}

/// Ranges that hold the client, and many that don't.
fn ranges(size: u32) -> String {
    let mut all = vec![format!("{ENDPOINT}/32")];
    // Every other network, so that none is the neighbour of another.
    all.extend((1..size).map(|number| format!("{}/30", Ipv4Addr::from_bits(0x1400_0000 + 8 * number))));
    format!("[{}]", all.join(", "))
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("ip").args(arguments).status().context("ip")?;
    anyhow::ensure!(status.success(), "ip {arguments:?}: {status}");
    Ok(())
}

// === impl Target ===

impl Target {
    fn service(&self, ranges: &str) -> String {
        let Self { name, cluster_ip, balancer } = self;
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: bench}}\nspec:\n  \
             type: LoadBalancer\n  clusterIP: {cluster_ip}\n  clusterIPs: [{cluster_ip}]\n  ipFamilies: [IPv4]\n  ports:\n  \
             - {{name: http, protocol: TCP, port: 80}}\n  loadBalancerSourceRanges: {ranges}\nstatus:\n  \
             loadBalancer: {{ingress: [{{ip: {balancer}}}]}}\n"
        )
    }

    fn documents(&self, ranges: &str) -> String {
        let name = self.name;
        self.service(ranges)
            + &format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-a\n  \
                 namespace: bench\n  labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\n\
                 ports:\n- {{name: http, protocol: TCP, port: {PORT}}}\nendpoints:\n\
                 - {{addresses: [{ENDPOINT}], nodeName: node-1, conditions: {{ready: true}}}}\n"
            )
    }

    /// From the first packet to the end of the handshake.
    fn connect(&self) -> anyhow::Result<Duration> {
        let address = SocketAddr::from((self.balancer, 80));
        let started = Instant::now();
        TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .with_context(|| format!("service {}", self.name))?;
        Ok(started.elapsed())
    }
}
