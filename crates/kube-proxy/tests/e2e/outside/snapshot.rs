//! Snapshots that a start refuses, and disks that can't hold one. Starts with a snapshot are tested with packets in `traffic`.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use ferry_lab::api::{ApiServer, ApiServerOptions};

use crate::support::{METRICS, Machine, Running, SERVICE, SLICE};

const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"node"},
    "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.10"}]}}"#;
/// More than the pause between two writes.
pub(super) const NEXT_WRITE: Duration = Duration::from_secs(60);

/// Writes a configuration with this node's name and further lines of the FerryConfiguration; returns its path.
pub(super) fn config(machine: &Machine, node: &str, snapshot: &str, more: &str) -> String {
    let kubeconfig = machine.path("kubeconfig").display().to_string();
    machine.write(
        "config.yaml",
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
             hostnameOverride: {node}\nconntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n\
             clientConnection: {{kubeconfig: {kubeconfig}}}\n---\napiVersion: ferry.io/v1alpha1\n\
             kind: FerryConfiguration\nsnapshot: {snapshot}\n{more}\n"
        ),
    )
}

pub(super) fn server(machine: &Machine) -> ApiServer {
    let server = machine.run(|| ApiServer::start(ApiServerOptions::secure()));
    for object in [NODE, SERVICE, SLICE] {
        server.put(object);
    }
    machine.write("kubeconfig", &server.kubeconfig_text());
    server
}

/// A metric's samples on the page, as lines.
pub(super) fn metric(running: &Running<'_>, name: &str) -> Vec<String> {
    let page = running.get(METRICS, "/metrics").body;
    page.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
}

/// Starts without the server; the start must refuse the snapshot with this text.
#[track_caller]
fn is_refused(machine: &Machine, config: &str, text: &str) {
    let mut running = machine.start_bare(&["--config", config, "-v=2"]);
    running.until(text, |running| running.log().contains("Not using the snapshot, nothing is served"));
    let log = running.log();
    assert!(log.contains(text), "no {text}\n{log}");
    assert!(log.contains(&machine.path("snapshot").display().to_string()), "{log}");
    assert!(!machine.serves("ip", "10.96.0.1"), "{log}");
    running.until("the count", |running| !metric(running, "kubeproxy_snapshot_refusals_total{").is_empty());
    assert_eq!(metric(&running, "kubeproxy_snapshot_in_use"), ["kubeproxy_snapshot_in_use 0"]);
}

#[test]
fn snapshots_that_may_be_wrong_are_refused_by_name() {
    let machine = Machine::new();
    let path = machine.path("snapshot");
    let own = config(&machine, "node", &path.display().to_string(), "");
    let api = server(&machine);
    let mut running = machine.start_bare(&["--config", &own, "-v=2"]);
    running.until("a snapshot", |_| path.exists());
    assert!(machine.serves("ip", "10.96.0.1"), "{}", running.log());
    drop(running);
    drop(api);
    // As after a restart of the machine.
    assert!(machine.tool("nft", &["flush", "ruleset"]).status.success());
    let good = fs::read_to_string(&path).unwrap();
    for (content, text) in [
        (good.replace("10.244.0.7", "10.244.0.8"), "it is damaged: line 6: the number of objects or the checksum"),
        (good[..good.len() / 2].to_owned(), "the file ends here, before its end is written"),
        (String::new(), "it is damaged: line 1: the file ends here"),
        (format!("{good}{good}"), "the file goes on behind its end"),
        (good.replacen("ferry-snapshot 1", "ferry-snapshot 2", 1), "it has version \\\"2\\\" of the format"),
    ] {
        fs::write(&path, content).unwrap();
        is_refused(&machine, &own, text);
    }
    OpenOptions::new().write(true).open(&path).unwrap().set_len(300 << 20).unwrap();
    is_refused(&machine, &own, "it has 314572800 bytes, more than the limit of 268435456 bytes");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    is_refused(&machine, &own, "it isn't a regular file");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, &good).unwrap();
    let snapshot = path.display().to_string();
    let other = config(&machine, "other", &snapshot, "");
    is_refused(&machine, &other, "it is of another node: \\\"node\\\", this is \\\"other\\\"");
    let aged = config(&machine, "node", &snapshot, "snapshotMaxAge: 1ms");
    is_refused(&machine, &aged, "it is too old: the API server confirmed it");
    let own = config(&machine, "node", &snapshot, "");
    let kubeconfig = fs::read_to_string(machine.path("kubeconfig")).unwrap();
    machine.write("kubeconfig", &kubeconfig.replace("https://127.0.0.1:", "https://127.0.0.2:"));
    is_refused(&machine, &own, "it is of another cluster: the API server of https://127.0.0.1:");
    let stranger = machine.run(|| ApiServer::start(ApiServerOptions::secure()));
    let authority =
        |text: &str| text.lines().find(|line| line.contains("certificate-authority-data")).unwrap().to_owned();
    let foreign = kubeconfig.replace(&authority(&kubeconfig), &authority(&stranger.kubeconfig_text()));
    machine.write("kubeconfig", &foreign);
    is_refused(&machine, &own, "had other certificate authorities");
    // The same file is used where nothing is wrong.
    machine.write("kubeconfig", &kubeconfig);
    let mut running = machine.start_bare(&["--config", &own, "-v=2"]);
    running.until("the Service of the snapshot", |_| machine.serves("ip", "10.96.0.1"));
    assert_eq!(metric(&running, "kubeproxy_snapshot_in_use"), ["kubeproxy_snapshot_in_use 1"]);
}

/// Starts the executable where the folder `disk` is a file system of its own, set up by this script.
fn start_with_disk<'a>(machine: &'a Machine, script: &str) -> Running<'a> {
    let disk = machine.path("disk");
    fs::create_dir_all(&disk).expect("making a folder");
    let snapshot = disk.join("snapshot").display().to_string();
    let file = config(machine, "node", &snapshot, "");
    machine.start_through(
        &["unshare", "--mount", "sh", "-c", script, &disk.display().to_string()],
        &["--config", &file, "-v=2"],
    )
}

#[track_caller]
fn until_failed(running: &mut Running<'_>, machine: &Machine, text: &str) {
    running.until("a failed write", |running| running.log().contains("Writing the snapshot failed, retrying"));
    let log = running.log();
    assert!(log.contains(text), "{log}");
    let failures = metric(running, "kubeproxy_snapshot_writes_total{");
    assert_eq!(failures, ["kubeproxy_snapshot_writes_total{result=\"failure\"} 1"], "{log}");
    assert!(machine.serves("ip", "10.96.0.1"), "Services aren't affected: {log}");
}

#[test]
fn a_full_disk_harms_nothing_and_is_written_to_again() {
    let machine = Machine::new();
    let api = server(&machine);
    let script =
        "mount -t tmpfs -o size=64k tmpfs \"$0\" && ! dd if=/dev/zero of=\"$0/filler\" 2>/dev/null && exec \"$@\"";
    let mut running = start_with_disk(&machine, script);
    until_failed(&mut running, &machine, "No space left on device");
    let disk = format!("/proc/{}/root{}", running.id(), machine.path("disk").display());
    let names = |disk: &str| -> Vec<String> {
        let entries = fs::read_dir(disk).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect()
    };
    assert_eq!(names(&disk), ["filler"], "no unfinished file stays");
    // Changes go on being served.
    api.put(&SERVICE.replace("10.96.0.1", "10.96.0.2").replace("\"web\"", "\"more\""));
    api.put(&SLICE.replace("\"web", "\"more"));
    running.until("another Service", |_| machine.serves("ip", "10.96.0.2"));
    fs::remove_file(format!("{disk}/filler")).unwrap();
    running.until_within(NEXT_WRITE, "a snapshot", |running| running.log().contains("Snapshot is written again"));
    let text = fs::read_to_string(format!("{disk}/snapshot")).unwrap();
    assert!(text.contains("10.96.0.2") && text.contains("\nend "), "{text}");
    assert_eq!(running.log().matches("Writing the snapshot failed").count(), 1, "{}", running.log());
}

#[test]
fn a_read_only_disk_harms_nothing() {
    let machine = Machine::new();
    let _api = server(&machine);
    let script = "mount -t tmpfs -o ro tmpfs \"$0\" && exec \"$@\"";
    let mut running = start_with_disk(&machine, script);
    until_failed(&mut running, &machine, "Read-only file system");
}

/// Objects in which everything that a proxy doesn't need has a text with this mark: what people write there may be secret.
const MARK: &str = "canary";
const TALKATIVE: [&str; 3] = [
    r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"node","generateName":"canary-1","selfLink":"/canary-2",
    "labels":{"canary.example/3":"canary-4"},
    "annotations":{"canary.example/5":"canary-6","csi.volume.kubernetes.io/nodeid":"{\"driver\":\"canary-7\"}"},
    "finalizers":["canary.example/8"],
    "managedFields":[{"manager":"canary-9","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:canary-10":{}}}],
    "ownerReferences":[{"apiVersion":"v1","kind":"canary-11","name":"canary-12","uid":"canary-13"}]},
    "spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"],"providerID":"canary://14",
    "taints":[{"key":"canary-15","value":"canary-16","effect":"NoSchedule"}],"canary17":{"token":"canary-18"}},
    "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.10"}],
    "conditions":[{"type":"Ready","status":"True","reason":"canary-19","message":"canary-20"}],
    "nodeInfo":{"machineID":"canary-21","kernelVersion":"canary-22"},"images":[{"names":["canary-23"]}]}}"#,
    r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop",
    "labels":{"app":"canary-1","canary.example/2":""},
    "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"password\":\"canary-3\"}","canary.example/4":"canary-5",
    "service.beta.kubernetes.io/canary-6":"canary-7"},
    "managedFields":[{"manager":"canary-8","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:canary-9":{}}}]},
    "spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ipFamilies":["IPv4"],"type":"LoadBalancer",
    "selector":{"app":"canary-10","canary-11":"canary-12"},"loadBalancerClass":"canary.example/13",
    "externalName":"canary-14.example","canary15":"canary-16",
    "ports":[{"name":"http","port":80,"protocol":"TCP","nodePort":30080,"targetPort":"canary-17","appProtocol":"canary.example/18"}]},
    "status":{"loadBalancer":{"ingress":[{"hostname":"canary-19.example"}]},
    "conditions":[{"type":"canary-20","status":"True","reason":"canary-21","message":"canary-22"}]}}"#,
    r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"web-1","namespace":"shop",
    "labels":{"kubernetes.io/service-name":"web","canary.example/1":"canary-2"},
    "annotations":{"canary.example/3":"canary-4","endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z"}},
    "addressType":"IPv4","ports":[{"name":"http","port":8080,"protocol":"TCP","appProtocol":"canary.example/5"}],
    "endpoints":[{"addresses":["10.244.0.7"],"conditions":{"ready":true},"hostname":"canary-6",
    "targetRef":{"kind":"Pod","name":"canary-7","namespace":"canary-8","uid":"canary-9","fieldPath":"canary-10"},
    "deprecatedTopology":{"canary.example/11":"canary-12"},"canary13":["canary-14"]}]}"#,
];

#[test]
fn a_snapshot_has_nothing_that_may_be_secret() {
    for protobuf in [true, false] {
        let machine = Machine::new();
        let path = machine.path("snapshot");
        let config = config(&machine, "node", &path.display().to_string(), "");
        let server = machine.run(|| ApiServer::start(ApiServerOptions { protobuf, ..ApiServerOptions::secure() }));
        for object in TALKATIVE {
            server.put(object);
        }
        let kubeconfig = server.kubeconfig_text();
        let (_, token) = kubeconfig.split_once("token: ").expect("the credentials of this server are a token");
        let token = token.split(['}', '\n']).next().expect("a token");
        machine.write("kubeconfig", &kubeconfig);
        let mut running = machine.start_bare(&["--config", &config, "-v=2"]);
        running.until("a snapshot", |_| path.exists());
        let text = fs::read_to_string(&path).expect("the snapshot");
        for used in ["192.0.2.10", "10.96.0.1", "30080", "10.244.0.7", "10.244.0.0/24"] {
            assert!(text.contains(used), "{used}: {text}");
        }
        let marked: Vec<&str> = text.lines().filter(|line| line.to_lowercase().contains(MARK)).collect();
        assert!(marked.is_empty(), "protobuf {protobuf}: {marked:#?}");
        assert!(token.len() > 4 && !text.contains(token), "{text}");
        let mode = fs::metadata(&path).expect("the snapshot").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else may read it");
    }
}
