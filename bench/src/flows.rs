//! Measures the cost of deleting stale conntrack entries among many flows, in the running executable (mode nftables), and, in any mode, the
//! time until a client with a constant UDP source port follows a change.

mod latency;
mod restart;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::conntrack::testing::create;
use ferry_kernel::conntrack::{ConntrackSocket, Entry, Filter, FlowStatus, Tuple};
use ferry_lab::Mode;

use crate::network::mark_variant;
use crate::process::{ProxyChild, ScratchDirectory, metrics};
use crate::stats::{memory_mib, thread_of};

const UDP: u8 = 17;
const TCP: u8 = 6;
/// Number of services, and of endpoints of each.
const SERVICES: u8 = 10;
const ENDPOINTS: u8 = 10;
/// Time in which all sweeps after a change are complete.
const ALL_PASSES: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(20);

const REMOVED: &str = "kubeproxy_conntrack_reconciler_deleted_entries_total";
const PASSES: &str = "kubeproxy_conntrack_reconciler_sync_duration_seconds_count";

/// Content of the conntrack table, and the change.
struct Case {
    what: &'static str,
    /// true if the flows are to the service that changes; false if they are to others
    concerned: bool,
    protocol: u8,
    /// number of its endpoints that stay
    stay: u8,
    /// all services change, so that the kernel's dump can't be filtered by one address
    all: bool,
}

const CASES: [Case; 6] = [
    Case { what: "UDP flows to others", concerned: false, protocol: UDP, stay: 9, all: false },
    Case { what: "TCP connections to it", concerned: true, protocol: TCP, stay: 9, all: false },
    Case { what: "UDP flows to it", concerned: true, protocol: UDP, stay: 9, all: false },
    Case { what: "UDP flows to it, no endpoint stays", concerned: true, protocol: UDP, stay: 0, all: false },
    Case { what: "UDP flows, all services change", concerned: true, protocol: UDP, stay: 9, all: true },
    Case { what: "an empty table", concerned: false, protocol: UDP, stay: 9, all: false },
];

pub(crate) fn run(mode: Mode, flows: usize) -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("kube-proxy");
    anyhow::ensure!(program.exists(), "{} is missing: build the executable beside this program", program.display());
    if let Some(backend) = mode.backend {
        mark_variant(backend)?;
    }
    let first = manifests(Family::V4, SERVICES.into(), |_| 0..ENDPOINTS);
    let directory = ScratchDirectory::new(mode, vec![("all.yaml".to_owned(), first)])?;
    let proxy = ProxyChild::start(&program, &directory.0)?;
    proxy.wait_for_sync(SERVICES.into())?;
    let is_measured = mode == Mode::NFTABLES;
    for case in CASES.iter().filter(|_| is_measured) {
        let flows = if case.what.contains("empty") { 0 } else { flows };
        measure(case, flows, &directory, &proxy)?;
    }
    latency::run(mode, flows, &directory)?;
    drop((proxy, directory));
    if is_measured { restart::run(&program, flows) } else { Ok(()) }
}

fn measure(case: &Case, flows: usize, directory: &ScratchDirectory, proxy: &ProxyChild) -> anyhow::Result<()> {
    write(directory, &manifests(Family::V4, SERVICES.into(), |_| 0..ENDPOINTS))?;
    std::thread::sleep(ALL_PASSES);
    create((0..flows).map(|n| flow(case, n)), Duration::from_secs(600))?;
    let (wrong, process) = (wrong(case, flows), proxy.id());
    let removed_before = sum(REMOVED)?;
    let passes_before = sum(PASSES)?;
    let before = thread_of(process, "flows")?;
    let resident = memory_mib(&process.to_string(), "VmRSS")?;
    let start = Instant::now();
    let stay = |service| if service == 0 || case.all { case.stay } else { ENDPOINTS };
    write(directory, &manifests(Family::V4, SERVICES.into(), |service| 0..stay(service)))?;
    while sum(PASSES)? < passes_before + 1.0 || sum(REMOVED)? < removed_before + wrong {
        anyhow::ensure!(start.elapsed() < PATIENCE, "{}: stale conntrack entries remain", case.what);
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = start.elapsed();
    let first = thread_of(process, "flows")?.saturating_sub(before);
    std::thread::sleep(ALL_PASSES);
    let both = thread_of(process, "flows")?.saturating_sub(before);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{:36} {flows:6} in the table, {wrong:6} removed {:7.1} ms after the manifest, {:6.1} ms cpu, later passes {:6.1} ms, \
         resident {:5.2} MiB more, peak {:5.1} of {resident:.1}",
        case.what,
        ms(took),
        ms(first),
        ms(both.saturating_sub(first)),
        memory_mib(&process.to_string(), "VmRSS")? - resident,
        memory_mib(&process.to_string(), "VmHWM")?,
    );
    clear(case.protocol)
}

/// The numbers of a flow's service and endpoint.
fn place(case: &Case, n: usize) -> (u8, u8) {
    let low = |n: usize, below: u8| u8::try_from(n % usize::from(below)).unwrap_or(0);
    let endpoint = low(n, ENDPOINTS);
    match (case.concerned, case.all) {
        (false, _) => (1 + low(n / 10, SERVICES - 1), endpoint),
        (true, false) => (0, endpoint),
        (true, true) => (low(n / 10, SERVICES), endpoint),
    }
}

fn wrong(case: &Case, flows: usize) -> f64 {
    let is_wrong = |n: &usize| case.protocol == UDP && case.concerned && place(case, *n).1 >= case.stay;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let count = (0..flows).filter(is_wrong).count() as f64;
    count
}

fn flow(case: &Case, n: usize) -> Entry {
    let (service, endpoint) = place(case, n);
    between(case.protocol, n, service.into(), endpoint)
}

/// The conntrack entry with this number, to an endpoint of a service.
fn between(protocol: u8, n: usize, service: usize, endpoint: u8) -> Entry {
    let number = u32::try_from(n).unwrap_or(0);
    let client: IpAddr = Ipv4Addr::from_bits(0x0a0a_0000 + number / 20_000).into();
    let port = 20_000 + u16::try_from(number % 20_000).unwrap_or(0);
    let (vip, endpoint) = (vip(Family::V4, service), endpoint_of(Family::V4, service, endpoint));
    Entry {
        original: Tuple { source: client, destination: vip, source_port: port, destination_port: 53 },
        reply: Tuple { source: endpoint, destination: client, source_port: 5353, destination_port: port },
        protocol,
        status: FlowStatus::SEEN_REPLY,
        id: 0,
        zone: 0,
    }
}

fn clear(protocol: u8) -> anyhow::Result<()> {
    let mut socket = ConntrackSocket::open()?;
    let mut all = Vec::new();
    let filter = Filter { family: Family::V4, protocol, destination: None, port: Some(53), unanswered: false };
    socket.dump(&filter, &mut |entry| all.push(*entry))?;
    let deletion = socket.delete(&all);
    anyhow::ensure!(deletion.error.is_none(), "{:?}", deletion.error);
    Ok(())
}

fn write(directory: &ScratchDirectory, text: &str) -> anyhow::Result<()> {
    let draft = directory.0.join("draft.yaml");
    fs::write(&draft, text)?;
    Ok(fs::rename(draft, directory.0.join("manifests/all.yaml"))?)
}

/// The last two octets of a service's addresses.
fn octets(service: usize) -> [u8; 2] {
    u16::try_from(service).unwrap_or(0).to_be_bytes()
}

/// The cluster IP of a service.
fn vip(family: Family, service: usize) -> IpAddr {
    let [high, low] = octets(service);
    match family {
        Family::V4 => [10, 96, high, low].into(),
        Family::V6 => [0xfd00, 0x96, 0, 0, 0, 0, high.into(), low.into()].into(),
    }
}

/// The address of an endpoint of a service.
fn endpoint_of(family: Family, service: usize, endpoint: u8) -> IpAddr {
    let [high, low] = octets(service);
    match family {
        Family::V4 => [10, 200 + high, low, endpoint].into(),
        Family::V6 => [0xfd00, 0x200, 0, 0, 0, high.into(), low.into(), endpoint.into()].into(),
    }
}

/// Manifests of services with a UDP port, each with these endpoints.
fn manifests(family: Family, services: usize, endpoints: impl Fn(usize) -> Range<u8>) -> String {
    let mut text = String::new();
    for service in 0..services {
        let vip = vip(family, service);
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: dns-{service}, namespace: bench}}\nspec:\n  \
             type: ClusterIP\n  clusterIP: \"{vip}\"\n  clusterIPs: [\"{vip}\"]\n  \
             ipFamilies: [{family}]\n  ports:\n  - {{name: dns, protocol: UDP, port: 53, targetPort: 5353}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: dns-{service}-a\n  \
             namespace: bench\n  labels: {{kubernetes.io/service-name: dns-{service}}}\naddressType: {family}\n\
             ports:\n- {{name: dns, protocol: UDP, port: 5353}}\nendpoints:"
        );
        let list = endpoints(service).map(|n| format!("\n- {{addresses: [\"{}\"]}}", endpoint_of(family, service, n)));
        let list: String = list.collect();
        text += if list.is_empty() { " []" } else { &list };
        text.push('\n');
    }
    text
}

/// The sum of a metric over all families.
fn sum(name: &str) -> anyhow::Result<f64> {
    let text = metrics()?;
    let values = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}
