//! The lab that the groups share, and `ipvsadm`'s view of the node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ferry_lab::iptables::{Backend, IptablesRules};
use ferry_lab::patience::until;
use ferry_lab::proxy::{IPVS, ProxyConfig};
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Host, Lab, LabMachine, Manifests, ProbeTally, Protocol, ProxyProcess, Stage};

/// The program under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// Time limit of what takes the proxy a look for foreign changes, or a retry.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

/// A virtual server as `ipvsadm -ln` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// `TCP 10.96.0.1:80`
    pub(crate) name: String,
    /// the scheduler and flags: `rr persistent 10800`
    pub(crate) settings: String,
    pub(crate) endpoints: Vec<Real>,
}

/// An endpoint of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Real {
    pub(crate) at: SocketAddr,
    pub(crate) weight: u32,
    /// number of established connections
    pub(crate) active: u32,
    /// number of other connections
    pub(crate) inactive: u32,
}

/// The lab, built once, with a proxy in mode ipvs that serves these manifests. Groups take turns.
pub(crate) fn stage(manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    stage_with(&ipvs(""), manifests)
}

/// The same with a configuration.
pub(crate) fn stage_with(config: &ProxyConfig, manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    static STAGE: OnceLock<Mutex<Stage<'static>>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let lab: &Lab = Box::leak(Box::new(Lab::new()));
        Mutex::new(Stage::new(lab, EXECUTABLE, &folder("shared"), config.clone(), manifests))
    });
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    stage.reset(config, manifests);
    stage
}

/// The configuration in mode ipvs with further lines of the file.
pub(crate) fn ipvs(more: &str) -> ProxyConfig {
    ProxyConfig { mode: IPVS, ..ProxyConfig::with(more) }
}

/// A folder of this test binary, by the name of its user.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ipvs").join(name)
}

/// Runs the executable with these arguments on the node until it ends; returns its log.
pub(crate) fn run_to_end(lab: &Lab, arguments: &[&str]) -> (ExitStatus, String) {
    let directory = ManifestDirectory::new(&folder("other"));
    let mut proxy = ProxyProcess::start_with(lab.host(LabMachine::Node), EXECUTABLE, &directory.manifests(), arguments);
    (proxy.wait(), proxy.log())
}

/// The same as in an image from scratch: `PATH` has no program.
pub(crate) fn run_to_end_without_tools(lab: &Lab, arguments: &[&str]) -> (ExitStatus, String) {
    let folder = ManifestDirectory::new(&folder("other")).manifests();
    let path = format!("PATH={}", folder.display());
    let arguments = [&[path.as_str(), EXECUTABLE], arguments].concat();
    let mut proxy = ProxyProcess::start_by(lab.host(LabMachine::Node), "env", &folder, &arguments);
    (proxy.wait(), proxy.log())
}

/// The virtual servers of the node, as `ipvsadm` lists them.
pub(crate) fn servers(node: &Host) -> Vec<Server> {
    let mut servers: Vec<Server> = Vec::new();
    for line in node.sh("ipvsadm", &["-ln"]).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["TCP" | "UDP" | "SCTP", at, ref settings @ ..] => {
                let name = format!("{} {at}", words[0]);
                servers.push(Server { name, settings: settings.join(" "), endpoints: Vec::new() });
            }
            ["->", at, "Masq", weight, active, inactive] => {
                let number = |text: &str| text.parse().expect("a number");
                let at = at.parse().expect("an address");
                let (weight, active, inactive) = (number(weight), number(active), number(inactive));
                let server = servers.last_mut().expect("below its server");
                server.endpoints.push(Real { at, weight, active, inactive });
            }
            _ => {}
        }
    }
    servers
}

/// One request of the UDP flow from this place that keeps its port.
pub(crate) fn ask_from_port(
    lab: &Lab,
    (from, port): (LabMachine, u16),
    to: SocketAddr,
    patience: Duration,
) -> ProbeTally {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    lab.from(from).bound_to_port(SocketAddr::new(any, port)).patience(patience).ask(Protocol::Udp, to, 1)
}

/// The virtual server of a frontend over TCP.
pub(crate) fn server(node: &Host, at: SocketAddr) -> Option<Server> {
    let name = format!("TCP {at}");
    servers(node).into_iter().find(|server| server.name == name)
}

/// The endpoint of the frontend's server at this place, in pods' first port.
pub(crate) fn real(node: &Host, at: SocketAddr, to: SocketAddr) -> Option<Real> {
    server(node, at)?.endpoints.into_iter().find(|real| real.at == to)
}

/// Statistics of virtual servers: Linux 6.12 sums them up only while it estimates rates, too, which namespaces of tests switch off
/// ([`Namespace::new`](ferry_kernel::Namespace::new)).
pub(crate) struct Statistics<'a>(&'a Host);

impl<'a> Statistics<'a> {
    /// Has the node's kernel sum them up until this is dropped.
    pub(crate) fn of(node: &'a Host) -> Self {
        estimate(node, true);
        Self(node)
    }
}

impl Drop for Statistics<'_> {
    fn drop(&mut self) {
        estimate(self.0, false);
    }
}

fn estimate(node: &Host, on: bool) {
    const SETTING: &str = "/proc/sys/net/ipv4/vs/run_estimation";
    match node.run(move || std::fs::write(SETTING, if on { "1" } else { "0" })) {
        // Linux 6.1 always estimates.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        written => written.expect("the setting is written"),
    }
}

/// The number of connections that each virtual server has counted, if there are [`Statistics`]: of a new server it is 0.
pub(crate) fn counted(node: &Host) -> BTreeMap<String, u64> {
    let listed = node.sh("ipvsadm", &["-ln", "--stats", "--exact"]);
    let server = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [protocol @ ("TCP" | "UDP" | "SCTP"), at, connections, ..] => {
            Some((format!("{protocol} {at}"), connections.parse().expect("a number")))
        }
        _ => None,
    };
    listed.lines().filter_map(server).collect()
}

/// The value on which two readings agree: the kernel updates statistics every two seconds.
pub(crate) fn settled<T>(read: impl Fn() -> T, agree: impl Fn(&T, &T) -> bool) -> T {
    let mut last = read();
    until("statistics", Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(2500));
        let before = std::mem::replace(&mut last, read());
        agree(&before, &last)
    });
    last
}

/// What a proxy of any mode has left on the node: virtual servers, addresses, tables and chains.
pub(crate) fn leftovers(node: &Host) -> Vec<String> {
    let mut left: Vec<String> = servers(node).into_iter().map(|server| server.name).collect();
    left.extend(devices(node));
    let tables = node.sh("nft", &["list", "tables"]);
    left.extend(tables.lines().filter(|line| line.contains("kube-proxy")).map(str::to_owned));
    left.extend(IptablesRules::of(node, Backend::Nft).of_proxy());
    left
}

/// The node's devices of the mode.
pub(crate) fn devices(node: &Host) -> Vec<String> {
    let links = node.sh("ip", &["-o", "link", "show"]);
    links.lines().filter(|line| line.contains("kube-ipvs0")).map(str::to_owned).collect()
}
