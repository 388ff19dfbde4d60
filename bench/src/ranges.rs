//! Measures the effect of one Service with very many source ranges on new connections to other Services, and on their commits.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use ferry_api::object::Kind;
use ferry_lab::Mode;
use ferry_model::store::Event;

use crate::network::ip;
use crate::objects;
use crate::pipeline::{Empty, PassReport, Pipe, decode, load, slice};
use crate::stats::{self, children_cpu, memory_mib, slab_mib};

/// Numbers of source ranges of the heavy Service. Each alternates with a single range.
const SIZES: [u32; 3] = [1_000, 20_000, 100_000];
const CONNECTIONS: usize = 1_000;
const WARM: usize = 100;
const SETTLED: Duration = Duration::from_millis(1500);
const COMMITS: usize = 400;
/// Number of changes of the heavy Service itself.
const OWN: u32 = 4;
/// Bound of the duration of these changes in mode iptables, where each commit starts a process.
const PATIENCE: Duration = Duration::from_secs(8);
/// Address of the endpoint of all measured Services.
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);
const PORT: u16 = 8080;

/// A measured Service.
struct MeasuredService {
    name: &'static str,
    cluster_ip: Ipv4Addr,
    balancer: Ipv4Addr,
}

/// The Services with very many ranges, with a few, and without.
const HEAVY: MeasuredService = MeasuredService {
    name: "heavy",
    cluster_ip: Ipv4Addr::new(10, 126, 0, 1),
    balancer: Ipv4Addr::new(203, 0, 113, 1),
};
const LIGHT: MeasuredService = MeasuredService {
    name: "light",
    cluster_ip: Ipv4Addr::new(10, 126, 0, 2),
    balancer: Ipv4Addr::new(203, 0, 113, 2),
};
const FREE: MeasuredService =
    MeasuredService { name: "free", cluster_ip: Ipv4Addr::new(10, 126, 0, 3), balancer: Ipv4Addr::new(203, 0, 113, 3) };

/// Measurements with one number of ranges of the heavy Service.
#[derive(Default)]
struct RangeFigures {
    /// duration of connections to the Service without ranges, the light one, the heavy one
    connections: [Vec<Duration>; 3],
    unrelated: Vec<Duration>,
    others: Vec<Duration>,
    nothing: Vec<Duration>,
}

pub(crate) fn run(mode: Mode, services: usize) -> anyhow::Result<()> {
    ip(&["address", "add", &format!("{ENDPOINT}/32"), "dev", "lo"])?;
    ip(&["route", "add", "default", "dev", "lo", "src", &ENDPOINT.to_string()])?;
    let listener = TcpListener::bind((ENDPOINT, PORT))?;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let mut pipe = Pipe::start(mode)?;
    load(&mut pipe, services)?;
    for target in [&LIGHT, &FREE] {
        pipe.change(decode(&target.documents(few(target, 0)))?)?;
    }
    let mut bench = Bench { mode, services, pipe, empty: Empty::open()?, round: 0 };
    for size in SIZES {
        println!("\n-- a service with {size} source ranges");
        bench.size(size)?;
    }
    drop(bench);
    restart(mode, services)
}

/// Measures the start of a second engine with the first one's rules and the same objects.
fn restart(mode: Mode, services: usize) -> anyhow::Result<()> {
    let mut pipe = Pipe::start(mode)?;
    let mut events = Vec::new();
    for (_, text) in objects::files(services) {
        events.extend(decode(&text)?);
    }
    // The state of the last commits, except for some ranges and endpoints.
    for target in [&LIGHT, &FREE] {
        events.extend(decode(&target.documents(few(target, 0)))?);
    }
    let most = SIZES.last().copied().unwrap_or_default();
    events.extend(decode(&HEAVY.documents(&ranges(most)))?);
    events.extend([Kind::Node, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    let tools = children()?;
    let (elapsed, pass) = pipe.pass(events)?;
    println!(
        "\nrestart with {most} ranges                   {:8.1} ms ({:.1} ms cpu engine, {:.1} tools), {} operations",
        ms(elapsed),
        ms(pass.cpu),
        ms(children()?.saturating_sub(tools)),
        pass.ops
    );
    Ok(())
}

/// A mode under measurement: its pipeline, and an empty commit for comparison.
struct Bench {
    mode: Mode,
    services: usize,
    pipe: Pipe,
    empty: Empty,
    /// number of measured commits; they alternate between two states
    round: usize,
}

impl Bench {
    /// Measures with `size` ranges and with one alternately, so that other load of the machine affects both.
    fn size(&mut self, size: u32) -> anyhow::Result<()> {
        let (mut one, mut many) = (RangeFigures::default(), RangeFigures::default());
        let mut writes = Vec::new();
        for block in 0..self.blocks() {
            self.write(1)?;
            self.measure(&mut one)?;
            let (slab, resident, tools) = (slab_mib()?, memory_mib("self", "VmRSS")?, children()?);
            let (written, pass) = self.write(size)?;
            if block == 0 {
                ferry_kernel::memory::trim();
                println!(
                    "its ranges written                           {:8.1} ms ({:.1} ms cpu engine, {:.1} tools), \
                     kernel memory {:+.1} MiB, resident {:+.1} MiB",
                    ms(written),
                    ms(pass.cpu),
                    ms(children()?.saturating_sub(tools)),
                    slab_mib()? - slab,
                    memory_mib("self", "VmRSS")? - resident
                );
            }
            writes.push(written);
            self.measure(&mut many)?;
        }
        stats::print("its ranges written, all rounds", writes, "");
        self.own(size)?;
        one.compare(many, size);
        Ok(())
    }

    /// Number of rounds: fewer in mode iptables, where each commit starts a process and writing very many rules takes minutes.
    fn blocks(&self) -> usize {
        if self.mode.backend.is_none() { 5 } else { 1 }
    }

    fn write(&mut self, size: u32) -> anyhow::Result<(Duration, PassReport)> {
        let events = decode(&HEAVY.documents(&ranges(size)))?;
        self.pipe.pass(events)
    }

    fn measure(&mut self, figures: &mut RangeFigures) -> anyhow::Result<()> {
        // The kernel frees the old set after the commit; this measurement excludes that, as well as cold caches.
        std::thread::sleep(SETTLED);
        for _ in 0..WARM {
            FREE.connect()?;
        }
        for _ in 0..CONNECTIONS / self.blocks() {
            for (target, times) in [&FREE, &LIGHT, &HEAVY].into_iter().zip(&mut figures.connections) {
                times.push(target.connect()?);
            }
        }
        let (started, rounds) = (Instant::now(), COMMITS / self.blocks());
        for _ in 0..rounds {
            if started.elapsed() > PATIENCE {
                break;
            }
            let round = self.round;
            self.round += 1;
            let index = (round / 2).wrapping_mul(7919) % self.services;
            let mut endpoints = objects::first_endpoints(index);
            if round.is_multiple_of(2) {
                endpoints.pop();
                endpoints.push(objects::endpoint(index, 15));
            }
            figures.unrelated.push(self.pipe.change(slice(index, &endpoints)?)?.0);
            figures.others.push(self.pipe.change(decode(&LIGHT.service(few(&LIGHT, round + 1)))?)?.0);
            figures.nothing.push(self.empty.commit()?);
        }
        Ok(())
    }

    /// Measures changes of the heavy Service itself.
    fn own(&mut self, size: u32) -> anyhow::Result<()> {
        let (mut endpoint, mut range) = (Vec::new(), Vec::new());
        for round in 0..OWN {
            let there = [HEAVY.slice("- {addresses: [10.200.0.9], nodeName: node-1}\n"), HEAVY.slice("")];
            for documents in there {
                endpoint.push(self.pipe.change(decode(&documents)?)?.0);
            }
            let (changed, _) = self.write(size + 1 - round % 2)?;
            range.push(changed);
        }
        stats::print("its endpoint added or removed", endpoint, "");
        stats::print("a range added to or taken from it", range, "");
        Ok(())
    }
}

impl RangeFigures {
    fn compare(self, many: Self, size: u32) {
        let names = ["without ranges", "with two ranges", "itself"];
        for ((name, one), many) in names.into_iter().zip(self.connections).zip(many.connections) {
            side_by_side(&format!("new connection, a service {name}"), size, one, many);
        }
        side_by_side("empty netlink commit", size, self.nothing, many.nothing);
        side_by_side("an unrelated service's endpoint replaced", size, self.unrelated, many.unrelated);
        side_by_side("another service's ranges changed", size, self.others, many.others);
    }
}

fn side_by_side(what: &str, size: u32, one: Vec<Duration>, many: Vec<Duration>) {
    let ratio = stats::median(&many).as_secs_f64() / stats::median(&one).as_secs_f64();
    stats::print(what, one, "with 1");
    stats::print("", many, &format!("with {size}: x {ratio:.3}"));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// CPU time of the tools that this process ran.
fn children() -> anyhow::Result<Duration> {
    let (user, system) = children_cpu(std::process::id())?;
    Ok(user + system)
}

/// The ranges of a Service with few or none; they alternate from round to round.
fn few(target: &MeasuredService, round: usize) -> &'static str {
    match (target.name == LIGHT.name, round % 2) {
        (false, _) => "[]",
        (true, 0) => "[10.200.0.0/24, 192.0.2.0/24]",
        (true, _) => "[10.200.0.0/24, 192.0.3.0/24]",
    }
}

/// `size` ranges, one of which contains the client.
fn ranges(size: u32) -> String {
    let mut all = vec![format!("{ENDPOINT}/32")];
    // Every other network, so that none is adjacent to another.
    all.extend((1..size).map(|number| format!("{}/30", Ipv4Addr::from_bits(0x1400_0000 + 8 * number))));
    format!("[{}]", all.join(", "))
}

// === impl MeasuredService ===

impl MeasuredService {
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
        self.service(ranges) + &self.slice("")
    }

    /// Its slice, with one more endpoint.
    fn slice(&self, another: &str) -> String {
        let name = self.name;
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-a\n  \
                 namespace: bench\n  labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\n\
                 ports:\n- {{name: http, protocol: TCP, port: {PORT}}}\nendpoints:\n\
                 - {{addresses: [{ENDPOINT}], nodeName: node-1, conditions: {{ready: true}}}}\n{another}"
        )
    }

    /// Duration of a TCP handshake.
    fn connect(&self) -> anyhow::Result<Duration> {
        let address = SocketAddr::from((self.balancer, 80));
        let started = Instant::now();
        TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .with_context(|| format!("service {}", self.name))?;
        Ok(started.elapsed())
    }
}
