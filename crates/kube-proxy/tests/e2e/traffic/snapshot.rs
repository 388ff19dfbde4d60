//! Starts without the API server: from the snapshot of an earlier run, on a machine that was restarted in between, which is a new
//! lab here. Then the server comes back, with changes.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferry_lab::api::{ApiServer, ApiServerOptions, Authority, Identity, Validity};
use ferry_lab::objects::at_cluster_ip;
use ferry_lab::patience::slowly;
use ferry_lab::probe::Hammer;
use ferry_lab::proxy::{IPTABLES, IPVS, NFTABLES, ProxyConfig};
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProbeOutcome, Protocol, ProxyProcess, TestService};

use crate::support::{EXECUTABLE, alone, folder};

/// The address of the API server, on the node's loopback device.
const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 6443);
/// Below TCP's retransmission timeout of 1 s, so that a lost packet is detected.
const NO_RETRY: Duration = Duration::from_millis(900);
/// One attempt of a connection that may not be answered yet.
const ATTEMPT: Duration = Duration::from_millis(50);
/// The longest time from the start to the first answer.
const SOON: Duration = Duration::from_secs(10);
/// Services without endpoints that are served beside those of the test.
const OTHERS: u16 = 200;
const HEALTHZ: u16 = 10256;

/// What outlasts a restart of the machine: files, and the cluster.
struct Site {
    folder: PathBuf,
    mode: &'static str,
    identity: Identity,
}

// === impl Site ===

impl Site {
    fn new(mode: &'static str) -> Self {
        let folder = folder(&format!("snapshot-{mode}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("making a folder");
        let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
        Self { folder, mode, identity }
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.join("snapshot")
    }

    /// Starts the API server on a lab's node.
    fn serve(&self, lab: &Lab, manifests: &Manifests) -> ApiServer {
        let tls = Some(self.identity.clone());
        let options = ApiServerOptions { tls, listen: SocketAddr::from(SERVER), ..ApiServerOptions::secure() };
        let text = manifests.to_string();
        let server = lab.host(LabMachine::Node).run(move || {
            let server = ApiServer::start(options);
            server.put(&text);
            server
        });
        server.kubeconfig(&self.folder.join("kubeconfig"));
        server
    }

    fn start<'a>(&self, lab: &'a Lab) -> ProxyProcess<'a> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let more = format!(
            "clientConnection: {{kubeconfig: {}}}\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nsnapshot: {}\n",
            path("kubeconfig"),
            path("snapshot")
        );
        let config = ProxyConfig { mode: self.mode, more, ..ProxyConfig::default() };
        config.write(Path::new(&path("config.yaml")));
        ProxyProcess::start_with(
            lab.host(LabMachine::Node),
            EXECUTABLE,
            &self.folder,
            &["--config", &path("config.yaml"), "-v=2"],
        )
    }

    /// True if the snapshot has all of these texts.
    fn has(&self, texts: &[&str]) -> bool {
        fs::read_to_string(self.snapshot()).is_ok_and(|text| texts.iter().all(|wanted| text.contains(wanted)))
    }
}

fn of_earlier() -> Manifests {
    let others = (0..OTHERS).map(|at| TestService::new(&format!("other-{at}"), 1000 + at));
    others
        .fold(Manifests::new(), |manifests, service| manifests.with(service, &[LabMachine::Far]))
        .with(TestService::new("stays", 61), &[LabMachine::PodA, LabMachine::Far])
        .with(TestService::new("moves", 62), &[LabMachine::PodA])
        .with(TestService::new("goes", 63), &[LabMachine::PodA])
}

fn changed() -> Manifests {
    Manifests::new()
        .with(TestService::new("stays", 61), &[LabMachine::PodA, LabMachine::Far])
        .with(TestService::new("moves", 62), &[LabMachine::PodB])
        .with(TestService::new("comes", 64), &[LabMachine::Far])
}

/// The endpoint that answers at the cluster IP of this number at once, if one does.
fn answer(lab: &Lab, family: Family, number: u16) -> Option<String> {
    answer_within(ATTEMPT, lab, family, number)
}

fn answer_within(patience: Duration, lab: &Lab, family: Family, number: u16) -> Option<String> {
    let tally = lab.from(LabMachine::Node).patience(slowly(patience)).tcp(at_cluster_ip(family, number), 1);
    tally.answers().next().map(|answer| answer.endpoint.clone())
}

/// The body of the health check, which must succeed.
#[track_caller]
fn health(proxy: &ProxyProcess<'_>) -> String {
    let text = proxy.get(HEALTHZ, "/healthz").unwrap_or_default();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text
}

/// An earlier run, which leaves a snapshot; everything else of it is lost with its machine.
fn earlier(site: &Site) {
    let lab = Lab::new();
    let server = site.serve(&lab, &of_earlier());
    let mut proxy = site.start(&lab);
    proxy.wait_for("a snapshot", |_| site.has(&["\"stays\"", "\"moves\"", "\"other-199\"", "\nend "]));
    proxy.wait_for("an answer", |_| answer(&lab, Family::V4, 62).as_deref() == Some("pod-a:8080"));
    fs::copy(site.snapshot(), site.folder.join("older")).expect("a copy of the snapshot");
    // Killed in the middle of whatever it does.
    proxy.kill();
    drop(server);
}

fn a_restart_of_the_machine_without_the_server(mode: &'static str) {
    let (_turn, site) = (alone(), Site::new(mode));
    earlier(&site);
    let lab = Lab::new();
    let begin = Instant::now();
    let mut proxy = site.start(&lab);
    proxy.wait_for("an answer", |_| Family::ALL.iter().all(|family| answer(&lab, *family, 61).is_some()));
    let took = begin.elapsed();
    println!("mode {mode}: {OTHERS} services and three more served {took:?} after the start of the process");
    assert!(took < slowly(SOON), "{took:?}");
    proxy.wait_until_healthy();
    let body = health(&proxy);
    assert!(body.contains("\"snapshot\":{\"confirmed\":\"2") && body.contains("\"nodeEligible\":true"), "{body}");
    assert!(body.contains("\"Service\":{\"synced\":false"), "{body}");
    assert!(proxy.metric("kubeproxy_snapshot_in_use", &[]) > 0.0);
    assert!(proxy.log().contains("API server doesn't answer, serving from the snapshot"), "{}", proxy.log());
    the_server_returns(&site, &lab, &mut proxy);
    a_restart_of_the_proxy_keeps_newer_rules(&site, &lab, proxy);
}

/// Changes made meanwhile come into force, and no connection to an unchanged Service fails.
fn the_server_returns(site: &Site, lab: &Lab, proxy: &mut ProxyProcess<'_>) {
    let client =
        |family| lab.from(LabMachine::PodB).patience(NO_RETRY).hammer(Protocol::Tcp, at_cluster_ip(family, 61));
    let hammers = Family::ALL.map(client);
    let server = site.serve(lab, &changed());
    let begin = Instant::now();
    proxy.wait_for("the changes", |_| {
        Family::ALL.iter().all(|family| {
            answer(lab, *family, 62).as_deref() == Some("pod-b:8080")
                && answer(lab, *family, 64).as_deref() == Some("far:8080")
                && answer(lab, *family, 63).is_none()
        })
    });
    println!("mode {}: changes in force {:?} after the server's return", site.mode, begin.elapsed());
    let served = |server: &ApiServer| server.events().iter().any(|event| event["reason"] == "ServedFromSnapshot");
    proxy.wait_for("an Event", |_| served(&server));
    let outcomes: Vec<_> = hammers.into_iter().flat_map(Hammer::stop).collect();
    let is_answered = |outcome: &ProbeOutcome| matches!(outcome, ProbeOutcome::Answered(_));
    let failed: Vec<_> = outcomes.iter().filter(|(_, outcome)| !is_answered(outcome)).collect();
    println!("mode {}: {} connections to the unchanged service, {} failed", site.mode, outcomes.len(), failed.len());
    assert!(outcomes.len() > 100 && failed.is_empty(), "{failed:?}");
    assert!(!health(proxy).contains("snapshot"));
    assert!(proxy.metric("kubeproxy_snapshot_in_use", &[]) == 0.0);
    proxy.wait_for("a new snapshot", |_| site.has(&["\"comes\"", "\nend "]) && !site.has(&["\"goes\""]));
}

/// Without the server again, the rules in the kernel are newer than an old snapshot, which must not replace them.
fn a_restart_of_the_proxy_keeps_newer_rules(site: &Site, lab: &Lab, mut proxy: ProxyProcess<'_>) {
    proxy.kill();
    drop(proxy);
    fs::copy(site.folder.join("older"), site.snapshot()).expect("an older snapshot");
    assert!(site.has(&["\"goes\""]));
    let mut proxy = site.start(lab);
    proxy.wait_for("the decision", |proxy| proxy.log().contains("rules of an earlier run serve and may be newer"));
    let answer = |number| answer_within(NO_RETRY, lab, Family::V4, number);
    assert_eq!(answer(62).as_deref(), Some("pod-b:8080"), "still served");
    assert_eq!(answer(63), None, "not served again");
    assert!(proxy.metric("kubeproxy_snapshot_in_use", &[]) == 0.0);
}

#[test]
fn a_restarted_machine_serves_without_the_server_in_mode_nftables() {
    a_restart_of_the_machine_without_the_server(NFTABLES);
}

#[test]
fn a_restarted_machine_serves_without_the_server_in_mode_iptables() {
    a_restart_of_the_machine_without_the_server(IPTABLES);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn a_restarted_machine_serves_without_the_server_in_mode_ipvs() {
    a_restart_of_the_machine_without_the_server(IPVS);
}
