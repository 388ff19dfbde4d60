//! The Debian package: what it contains, and its life on a machine with systemd.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferry_lab::iptables::{Backend, IptablesRules};
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::{slowly, until, within};
use ferry_lab::probe::{Echo, Hammer, Held};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, TestService, nft};

use crate::support::{fresh_folder, package, run, unpacked};
use crate::systemd::Machine;

/// The cluster IP's number of the Service whose clients ask again and again.
pub(crate) const WEB: u16 = 60;
/// That of the Service with connections that stay open.
const HELD: u16 = 61;
/// The port of the server for these.
const ECHO: u16 = 7777;
/// The most of systemd's points of exposure, where 0 is the least and 10 the most.
const EXPOSURE: f32 = 3.0;

#[test]
fn the_package_has_its_files_and_is_the_same_each_time() {
    let folder = fresh_folder("contents");
    let file = package("1.2.3", &folder);
    let first = std::fs::read(&file).unwrap();
    assert_eq!(first, std::fs::read(package("1.2.3", &folder)).unwrap(), "built twice, it differs");
    let deb = |option: &str| run(Command::new("dpkg-deb").arg(option).arg(&file));
    let (information, contents) = (deb("--info"), deb("--contents"));
    for field in ["Package: ferry-kube-proxy", "Version: 1.2.3", "Provides: kube-proxy", "Depends: libc6 (>= 2."] {
        assert!(information.lines().any(|line| line.trim().starts_with(field)), "{field}\n{information}");
    }
    for (mode, path) in [
        ("-rwxr-xr-x root/root", "./usr/bin/kube-proxy"),
        ("-rwxr-xr-x root/root", "./usr/bin/kubectl-ferry"),
        ("-rw-r--r-- root/root", "./etc/default/kube-proxy"),
        ("-rw-r--r-- root/root", "./etc/kube-proxy/config.yaml"),
        ("-rw-r--r-- root/root", "./usr/lib/systemd/system/kube-proxy.service"),
        ("-rw-r--r-- root/root", "./usr/share/man/man8/kube-proxy.8.gz"),
        ("drwx------ root/root", "./var/lib/kube-proxy/"),
    ] {
        assert!(contents.lines().any(|line| line.starts_with(mode) && line.ends_with(path)), "{path}\n{contents}");
    }
    assert!(contents.lines().all(|line| line.contains(" root/root ")), "{contents}");
}

/// The manifests, the configuration and the flags of the machine's service.
pub(crate) fn configure(root: &Path, config: &ProxyConfig) {
    let manifests = root.join("etc/kube-proxy/manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    let services = Manifests::new().with(TestService::new("web", WEB), &[LabMachine::PodA]);
    let held = TestService::new("held", HELD);
    let endpoints = held.endpoints(ECHO, &[LabMachine::PodA]);
    std::fs::write(manifests.join("all.yaml"), services.with_endpoints(held, endpoints).to_string()).unwrap();
    config.write(&root.join("etc/kube-proxy/config.yaml"));
    let flags = "KUBE_PROXY_ARGS=\"--config=/etc/kube-proxy/config.yaml --manifests=/etc/kube-proxy/manifests -v=2\"\n";
    std::fs::write(root.join("etc/default/kube-proxy"), flags).unwrap();
}

pub(crate) fn serves(lab: &Lab) -> bool {
    let client = lab.from(LabMachine::PodB).patience(slowly(Duration::from_millis(500)));
    Family::ALL.into_iter().all(|family| client.tcp(at_cluster_ip(family, WEB), 2).all_answered())
}

/// Clients that connect without a pause, and connections that stay open, through the service.
struct Traffic {
    _server: Echo,
    hammers: Vec<Hammer>,
    held: Held,
}

impl Traffic {
    fn start(lab: &Lab) -> Self {
        let at = Family::ALL.map(|family| std::net::SocketAddr::new(LabMachine::PodA.address(family), ECHO));
        let server = Echo::start(lab.host(LabMachine::PodA), &at);
        let client = || lab.from(LabMachine::PodB).patience(slowly(Duration::from_millis(900)));
        let hammers =
            Family::ALL.map(|family| client().hammer(Protocol::Tcp, at_cluster_ip(family, WEB))).into_iter().collect();
        let held = Held::open(lab.host(LabMachine::PodB), &Family::ALL.map(|family| at_cluster_ip(family, HELD)), 5);
        Self { _server: server, hammers, held }
    }

    fn assert_unharmed(self) {
        let outcomes: Vec<_> = self.hammers.into_iter().flat_map(Hammer::stop).map(|(_, outcome)| outcome).collect();
        let failed = outcomes.iter().filter(|outcome| !matches!(outcome, ProbeOutcome::Answered(_))).count();
        let fate = self.held.finish();
        println!("{} connections, {failed} failed; {} exchanges on held ones", outcomes.len(), fate.exchanges);
        assert!(outcomes.len() > 100 && failed == 0, "{outcomes:?}");
        assert!(fate.exchanges > 100 && fate.broken.is_empty(), "{fate:?}");
    }
}

/// Installed in a root without a running system, then booted: nothing starts by itself, and all further steps are an operator's.
#[test]
fn a_life_from_installation_to_purge() {
    let lab = Lab::new();
    let root = unpacked("machine");
    install_in(&root, "1.0.0");
    let enabled = root.join("etc/systemd/system/multi-user.target.wants/kube-proxy.service");
    assert!(!enabled.exists() && root.join("usr/bin/kube-proxy").exists());
    configure(&root, &ProxyConfig::default());
    std::fs::copy(package("1.1.0", &fresh_folder("upgrade")), root.join("srv/upgrade.deb")).unwrap();

    let machine = Machine::boot(lab.host(LabMachine::Node), &root);
    assert_eq!(machine.property("ActiveState"), "inactive");
    machine.run("systemctl enable --now kube-proxy");
    assert_eq!(machine.property("StatusText"), "The rules are in force");
    assert!(serves(&lab), "{}", machine.journal());
    is_hardened(&machine);
    reloads(&machine, &root, &lab);
    upgrades(&machine, &lab);
    is_removed(&machine, &lab, &root);
}

pub(crate) fn install_in(root: &Path, version: &str) {
    let name = root.file_name().expect("a folder").display();
    let folder = fresh_folder(&format!("first-{name}"));
    std::fs::copy(package(version, &folder), root.join("srv/first.deb")).unwrap();
    run(Command::new("chroot").arg(root).args(["dpkg", "--install", "/srv/first.deb"]));
}

fn is_hardened(machine: &Machine) {
    let report = machine.run("systemd-analyze --no-pager security kube-proxy");
    let exposure = report.lines().find_map(|line| {
        let (_, rest) = line.split_once("exposure level for kube-proxy.service: ")?;
        rest.split(' ').next()?.parse::<f32>().ok()
    });
    println!("systemd-analyze security: {exposure:?}");
    assert!(exposure.is_some_and(|points| points <= EXPOSURE), "{report}");
    let capabilities = machine.run("grep CapEff /proc/$(systemctl show --value -p MainPID kube-proxy)/status");
    // CAP_NET_ADMIN is bit 12, CAP_NET_RAW bit 13
    assert_eq!(capabilities.split_whitespace().last(), Some("0000000000003000"));
}

/// A reload by systemd into mode iptables, whose tool has to work within the service's limits, with a parameter of the kernel that the
/// service has to be able to set; and back.
fn reloads(machine: &Machine, root: &Path, lab: &Lab) {
    let id = machine.property("MainPID");
    let file = root.join("etc/kube-proxy/config.yaml");
    let with_node_ports = ProxyConfig { more: "nodePortAddresses: [primary]\n".into(), ..ProxyConfig::iptables() };
    for config in [with_node_ports, ProxyConfig::default()] {
        config.write(&file);
        let text = std::fs::read_to_string(&file).unwrap().replace("conntrack: {", "conntrack: {udpTimeout: 77s, ");
        std::fs::write(&file, text).unwrap();
        machine.run("systemctl reload kube-proxy");
        let metric = format!("kubeproxy_engine_mode_info{{configured=\"{0}\",mode=\"{0}\"}} 1", config.mode);
        until(&metric, Duration::from_secs(30), || is_on_page(lab, &metric));
        until("service", Duration::from_secs(20), || serves(lab));
        assert_eq!(machine.property("MainPID"), id, "a reload is no restart");
    }
    // The former mode's rules go after the new ones have come.
    let left = || IptablesRules::of(lab.host(LabMachine::Node), Backend::Nft).of_proxy();
    let cleared = within(slowly(Duration::from_secs(30)), || left().is_empty());
    assert!(cleared, "{:?}\n{}", left(), machine.journal());
    let timeout = lab.host(LabMachine::Node).sh("cat", &["/proc/sys/net/netfilter/nf_conntrack_udp_timeout"]);
    assert_eq!(timeout, "77\n", "{}", machine.journal());
    let log = machine.journal();
    let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

/// True if the metrics of the proxy have this line.
pub(crate) fn is_on_page(lab: &Lab, line: &str) -> bool {
    let page = lab.host(LabMachine::Node).feed("curl", &["-s", "http://127.0.0.1:10249/metrics"], "");
    page.is_ok_and(|page| page.lines().any(|found| found == line))
}

/// An upgrade restarts the service: rules stay, clients notice nothing, and the administrator's files are kept.
fn upgrades(machine: &Machine, lab: &Lab) {
    let id = machine.property("MainPID");
    let flags = machine.run("cat /etc/default/kube-proxy");
    let traffic = Traffic::start(lab);
    let rules = nft::Ruleset::of(lab.host(LabMachine::Node)).essence();
    machine.run("dpkg --install /srv/upgrade.deb");
    until("the new executable serves", slowly(Duration::from_secs(60)), || {
        let text = machine.property("StatusText");
        machine.property("MainPID") != id
            && machine.property("ActiveState") == "active"
            && text == "The rules are in force"
    });
    assert_eq!(machine.run("dpkg-query -W -f '${Version}' ferry-kube-proxy"), "1.1.0");
    // Traffic after the upgrade, too.
    std::thread::sleep(Duration::from_secs(1));
    traffic.assert_unharmed();
    let after = nft::Ruleset::of(lab.host(LabMachine::Node)).essence();
    assert!(rules == after, "{}", rules.difference(&after));
    assert_eq!(machine.run("cat /etc/default/kube-proxy"), flags);
}

/// A removal ends a running service and takes its rules away, but leaves those of a stopped one. A purge takes the rest.
fn is_removed(machine: &Machine, lab: &Lab, root: &Path) {
    machine.run("systemctl stop kube-proxy");
    assert!(serves(lab), "rules of a stopped service stay");
    machine.run("dpkg --remove ferry-kube-proxy");
    assert!(serves(lab), "and so they do when the package goes, since another proxy may have them");
    assert!(root.join("etc/default/kube-proxy").exists() && !root.join("usr/bin/kube-proxy").exists());
    machine.run("dpkg --install /srv/upgrade.deb && systemctl start kube-proxy");
    assert!(serves(lab));
    machine.run("dpkg --remove ferry-kube-proxy");
    assert!(!nft::list(lab.host(LabMachine::Node)).contains("kube-proxy"), "the rules of a running service go with it");
    machine.run("dpkg --purge ferry-kube-proxy");
    let wants = root.join("etc/systemd/system/multi-user.target.wants/kube-proxy.service");
    assert!(!root.join("etc/default/kube-proxy").exists() && std::fs::symlink_metadata(wants).is_err());
}
