//! Reading, refusing and writing snapshots, with a core that has no engines.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::{Family, Kind, KubeObject, ObjectName, Timestamp};
use ferry_api::snapshot::{Snapshot, SnapshotEncoder, SnapshotHeader};
use ferry_api::wire::decode_object;
use ferry_model::store::Event;
use ferry_model::{Profile, Settings};

use super::refusal::{system_time, timestamp};
use super::restore::Start;
use super::writer::SnapshotWriter;
use super::*;
use crate::core::{Core, CoreSetup, EngineHandle, NodeFacts, NodeWait};
use crate::health::Pulse;
use crate::origin::ClusterIdentity;
use crate::report::{ChangeReporter, Reports};

const NODE: &str = "here";
const SERVER: &str = "https://192.0.2.1:6443";
/// Times that make tests short, and two of them too long to be reached.
const QUICK: SnapshotTiming = SnapshotTiming {
    first: Duration::from_millis(20),
    silence: Duration::from_millis(200),
    longest: Duration::from_secs(60),
    quiet: Duration::from_millis(10),
    pause: Duration::from_millis(20),
    refresh: Duration::from_secs(600),
};
const PATIENCE: Duration = Duration::from_secs(20);

/// Changes the bytes of a file.
type Damage = fn(&mut Vec<u8>);

/// A folder, removed when dropped.
struct Folder(PathBuf);

/// A core whose node is in a cluster, and everything that a snapshot needs.
struct Bench {
    folder: Folder,
    file: SnapshotFile,
    acceptance: Acceptance,
    freshness: Arc<Freshness>,
    peers: SnapshotPeers,
    core: Mutex<Receiver<Input>>,
}

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ferry-snapshot-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn service(name: &str, port: u32) -> KubeObject {
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"demo"}},
            "spec":{{"clusterIP":"10.96.0.1","ports":[{{"port":{port}}}]}}}}"#
    );
    decode_object(&text).unwrap()
}

fn node() -> KubeObject {
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{NODE}"}},
            "status":{{"addresses":[{{"type":"InternalIP","address":"192.0.2.9"}}]}}}}"#
    );
    decode_object(&text).unwrap()
}

fn objects() -> Vec<KubeObject> {
    vec![node(), service("a", 80), service("b", 81)]
}

/// A cluster with these authorities.
fn cluster(authorities: &'static str) -> CurrentCluster {
    CurrentCluster::new(move || ClusterIdentity { server: SERVER.to_owned(), authorities: authorities.to_owned() })
}

fn header(age: Duration) -> SnapshotHeader {
    let confirmed = timestamp(SystemTime::now() - age);
    SnapshotHeader { server: SERVER.into(), authorities: "aa".into(), node: NODE.into(), confirmed }
}

fn write(file: &SnapshotFile, header: &SnapshotHeader, objects: &[KubeObject]) {
    let fill =
        |encoder: &mut SnapshotEncoder<&mut dyn Write>| objects.iter().try_for_each(|object| encoder.push(object));
    file.replace(header, fill).unwrap();
}

impl Bench {
    fn new() -> Self {
        Self::beside(|_| Ok(false))
    }

    /// A core beside rules of an earlier run, if `in_use` returns true.
    fn beside(in_use: fn(Family) -> io::Result<bool>) -> Self {
        let folder = Folder::new();
        let file = SnapshotFile::new(folder.0.join("snapshot"));
        let max_age = Some(Duration::from_secs(60));
        let acceptance = Acceptance { cluster: cluster("aa"), node: NODE.to_owned(), max_age };
        let freshness = Arc::new(Freshness::new(Instant::now(), &crate::source::api::KINDS));
        let mut config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
        config.apply_platform_defaults();
        let metrics = Arc::new(Metrics::new().unwrap());
        let settings = Settings::from_config(&config, NODE);
        let (sender, _mailbox) = ferry_plane::mailbox::Mailbox::new();
        let engine = EngineHandle::new(Family::V4, sender, Arc::new(Pulse::new(Instant::now())));
        let core = Core::new(CoreSetup {
            node: NodeFacts::Cluster(NodeWait::new(&settings.detect_local)),
            settings,
            config,
            profile: Profile::NFTABLES,
            addresses: vec!["192.0.2.9".parse().unwrap()],
            engines: vec![engine],
            changes: ChangeReporter::new(Arc::clone(&metrics), Reports::default(), vec![Family::V4]),
            eligible: Arc::new(AtomicBool::new(false)),
            recorder: Recorder::nobody(),
            in_use,
            changed: None,
        });
        let (inputs, core_inputs) = sync_channel(8);
        let peers = SnapshotPeers { desk: Desk::new(core), inputs, metrics, recorder: Recorder::nobody() };
        Self { folder, file, acceptance, freshness, peers, core: Mutex::new(core_inputs) }
    }

    /// The start of a proxy; returns if the snapshot serves, and the log.
    fn start(&self) -> (bool, String) {
        let Self { file, acceptance, freshness, peers, .. } = self;
        let start = Start { file, acceptance, freshness, timing: QUICK };
        let mut served = false;
        let log = crate::logging::logged(2, || served = start.run(peers).is_some());
        (served, log)
    }

    /// The start with this content of the file; the reason for which it is refused.
    #[track_caller]
    fn refused(&self, reason: &str, text: &str) {
        let (served, log) = self.start();
        assert!(!served && log.contains("Not using the snapshot, nothing is served") && log.contains(text), "{log}");
        let file = self.file.path().display().to_string();
        assert!(log.contains(&file), "{log}");
        let counted = format!("kubeproxy_snapshot_refusals_total{{reason=\"{reason}\"}} 1");
        assert!(self.peers.metrics.encode().contains(&counted), "{reason}");
        assert!(self.services().is_empty());
    }

    /// Delivers the lists of the API server.
    fn list(&self, objects: impl IntoIterator<Item = KubeObject>) {
        let kinds = crate::source::api::KINDS;
        let mut events: Vec<Event> = kinds.map(Event::Restart).into();
        events.extend(objects.into_iter().map(Event::Upsert));
        events.extend(kinds.map(Event::Synced));
        let _ = self.peers.desk.apply(Input::Events(events));
        for kind in kinds {
            self.freshness.connected(kind, Instant::now());
            self.freshness.synced(kind);
        }
    }

    /// The names of the core's Services.
    fn services(&self) -> Vec<String> {
        let page = self.peers.desk.page(None);
        let names = page.into_iter().flat_map(|page| page.objects).filter(|object| object.kind() == Kind::Service);
        names.map(|service| service.name().name().to_owned()).collect()
    }

    fn read(&self) -> Option<Snapshot> {
        self.file.read().unwrap()
    }

    /// Runs the writer beside an action, which gets the sender of signals. Without a timeout of the writer nothing is written but
    /// after a signal.
    fn beside_writer(&self, action: impl FnOnce(&SyncSender<()>)) {
        self.beside_writer_of(&self.file, QUICK, action);
    }

    fn beside_writer_of(&self, file: &SnapshotFile, timing: SnapshotTiming, action: impl FnOnce(&SyncSender<()>)) {
        let (signal, changes) = sync_channel(1);
        thread::scope(|scope| {
            let writer = SnapshotWriter::new(file, &self.acceptance, &self.freshness, timing);
            scope.spawn(move || writer.run(&changes, None, &self.peers));
            action(&signal);
            // The writer ends with the sender.
            drop(signal);
        });
    }

    fn metric(&self, line: &str) -> bool {
        self.peers.metrics.encode().lines().any(|known| known == line)
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_snapshot_serves_where_no_list_comes() {
    let bench = Bench::new();
    write(&bench.file, &header(Duration::from_secs(7)), &objects());
    let (served, log) = bench.start();
    assert!(served && log.contains("API server doesn't answer, serving from the snapshot"), "{log}");
    assert!(log.contains("objects=3") && (log.contains("age=\"7 s\"") || log.contains("age=\"8 s\"")), "{log}");
    assert_eq!(bench.services(), ["a", "b"], "handed over");
    assert!(bench.freshness.snapshot_in_use().is_some());
    // A complete list deletes the snapshot's objects that it lacks.
    bench.list([node(), service("b", 81), service("c", 82)]);
    assert_eq!(bench.services(), ["b", "c"]);
    assert_eq!(bench.freshness.snapshot_in_use(), None);
}

#[test]
fn lists_that_come_are_preferred() {
    let bench = Bench::new();
    write(&bench.file, &header(Duration::ZERO), &objects());
    // A server that is sending its lists gets more time than one that is silent.
    bench.freshness.connected(Kind::Service, Instant::now());
    let (served, log) = thread::scope(|scope| {
        let start = scope.spawn(|| bench.start());
        thread::sleep(QUICK.first * 4);
        bench.list([node(), service("c", 82)]);
        start.join().unwrap()
    });
    assert!(!served && log.is_empty(), "{log}");
    assert_eq!(bench.services(), ["c"]);
    // A core that has started takes no snapshot, whatever the reason.
    assert_eq!(bench.peers.desk.restore(objects()).0, crate::core::Restored::Late);
    assert_eq!(bench.services(), ["c"]);
}

#[test]
fn rules_of_an_earlier_run_are_preferred() {
    let bench = Bench::beside(|_| Ok(true));
    write(&bench.file, &header(Duration::ZERO), &objects());
    let (served, log) = bench.start();
    assert!(!served && log.contains("rules of an earlier run serve and may be newer"), "{log}");
    assert!(bench.services().is_empty() && bench.freshness.snapshot_in_use().is_none());
}

/// The next run of a proxy, after its predecessor has given its objects.
fn handed_over(from: &Bench, to: &Bench, node: &str) -> String {
    let of = |bench: &Bench, node: &str| {
        let cluster = Some(bench.acceptance.cluster.clone());
        ObjectHandOver::new(bench.peers.desk.clone(), node, cluster, Some(Arc::clone(&bench.freshness))).unwrap()
    };
    let giver = of(from, NODE);
    let memory = giver.freeze(PATIENCE).unwrap().encode().unwrap();
    let mut memory = memory.expect("objects are served");
    io::Seek::rewind(&mut memory).unwrap();
    crate::logging::logged(4, || of(to, node).take(memory, &to.peers.inputs, &to.peers.metrics))
}

#[test]
fn a_run_takes_the_objects_of_the_one_before_whose_rules_serve() {
    let before = Bench::new();
    before.list(objects());
    let after = Bench::beside(|_| Ok(true));
    let log = handed_over(&before, &after, NODE);
    assert!(log.contains("Took over the objects of the run before"), "{log}");
    assert_eq!(after.services(), ["a", "b"], "they are decided without a server");
    let confirmed = after.freshness.snapshot_in_use().expect("they are not this run's lists");
    assert!(confirmed.elapsed().unwrap() < PATIENCE, "as fresh as the lists of the run before");
    // An older file is of no use, and its absence is no news.
    let (served, log) = after.start();
    assert!(!served && log.is_empty(), "{log}");
    // A third run while the server is away has the same time.
    let third = Bench::beside(|_| Ok(true));
    handed_over(&after, &third, NODE);
    let again = third.freshness.snapshot_in_use().unwrap();
    assert!(confirmed.duration_since(again).unwrap_or_default() < Duration::from_secs(1));
    // The server's lists come last.
    third.list([node(), service("c", 82)]);
    assert_eq!(third.services(), ["c"]);
}

#[test]
fn objects_of_another_node_are_not_taken_over() {
    let before = Bench::new();
    before.list(objects());
    let after = Bench::beside(|_| Ok(true));
    let log = handed_over(&before, &after, "elsewhere");
    assert!(log.contains("Not taking over the objects of the run before") && log.contains("another node"), "{log}");
    assert!(after.services().is_empty() && after.freshness.snapshot_in_use().is_none());
}

#[test]
fn a_run_without_objects_hands_none_over() {
    let bench = Bench::new();
    let cluster = Some(bench.acceptance.cluster.clone());
    let freshness = Some(Arc::clone(&bench.freshness));
    let giver = ObjectHandOver::new(bench.peers.desk.clone(), NODE, cluster, freshness).unwrap();
    assert!(giver.freeze(PATIENCE).unwrap().encode().unwrap().is_none());
    let frozen = giver.freeze(PATIENCE).unwrap();
    assert!(giver.freeze(Duration::from_millis(5)).is_none(), "somebody has the core");
    drop(frozen);
    assert!(ObjectHandOver::new(bench.peers.desk.clone(), NODE, None, None).is_none(), "manifests are files");
}

#[test]
fn without_a_file_the_server_is_waited_for() {
    let (served, log) = Bench::new().start();
    assert!(!served && log.contains("No snapshot yet"), "{log}");
}

#[test]
fn a_node_without_an_address_leaves_the_decision_to_the_core() {
    let bench = Bench::new();
    let text = format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{NODE}"}}}}"#);
    write(&bench.file, &header(Duration::ZERO), &[decode_object(&text).unwrap(), service("a", 80)]);
    assert!(bench.start().0);
    assert!(bench.services().is_empty(), "not yet");
    assert_eq!(bench.core.lock().unwrap().try_recv().unwrap(), Input::Undecided, "its thread knows when the wait ends");
}

#[test]
fn damaged_and_foreign_snapshots_are_refused_by_name() {
    let ok = header(Duration::from_secs(1));
    let change = |change: fn(&mut SnapshotHeader)| {
        let mut header = header(Duration::from_secs(1));
        change(&mut header);
        header
    };
    for (reason, text, header) in [
        ("cluster", "of another cluster: the API server of https://b", change(|it| it.server = "https://b".into())),
        ("cluster", "had other certificate authorities", change(|it| it.authorities = "bb".into())),
        ("node", "it is of another node: \\\"there\\\", this is \\\"here\\\"", change(|it| it.node = "there".into())),
        ("age", "it is too old: the API server confirmed it 9", header(Duration::from_secs(90))),
    ] {
        let bench = Bench::new();
        write(&bench.file, &header, &objects());
        bench.refused(reason, text);
    }
    let damage: [(&str, &str, Damage); 4] = [
        ("damaged", "the number of objects or the checksum doesn't match", |bytes| {
            let at = bytes.windows(9).position(|text| text == b"10.96.0.1").unwrap();
            bytes[at] = b'2';
        }),
        ("damaged", "the file ends here", |bytes| bytes.truncate(bytes.len() / 2)),
        ("damaged", "the file goes on behind its end", |bytes| bytes.extend(b"more\n")),
        ("version", "it has version \\\"7\\\" of the format", |bytes| bytes[15] = b'7'),
    ];
    for (reason, text, damage) in damage {
        let bench = Bench::new();
        write(&bench.file, &ok, &objects());
        let mut bytes = fs::read(bench.file.path()).unwrap();
        damage(&mut bytes);
        fs::write(bench.file.path(), bytes).unwrap();
        bench.refused(reason, text);
    }
    let bench = Bench::new();
    fs::create_dir(bench.file.path()).unwrap();
    bench.refused("unreadable", "it isn't a regular file");
    let mut bench = Bench::new();
    write(&bench.file, &ok, &objects());
    bench.file = SnapshotFile::bounded(bench.file.path(), 100);
    bench.refused("size", "more than the limit of 100 bytes");
}

#[test]
fn age_has_no_limit_and_clocks_may_go_back() {
    let mut bench = Bench::new();
    let hour = Duration::from_secs(3600);
    let now = SystemTime::now();
    let ahead = SnapshotHeader { confirmed: timestamp(now + hour), ..header(Duration::ZERO) };
    assert_eq!(bench.acceptance.check(&ahead, now).unwrap(), None, "written before the clock was lost");
    bench.acceptance.max_age = None;
    let age = bench.acceptance.check(&header(1000 * hour), now).unwrap().unwrap();
    assert!(age >= 999 * hour);
    write(&bench.file, &ahead, &objects());
    let (served, log) = bench.start();
    assert!(served && log.contains("age=\"unknown: newer than the clock\""), "{log}");
    for time in [now, SystemTime::UNIX_EPOCH] {
        assert_eq!(system_time(timestamp(time)), time);
    }
    assert_eq!(system_time(Timestamp { seconds: -1, nanoseconds: 0 }), SystemTime::UNIX_EPOCH);
}

#[test]
fn objects_are_written_after_a_change() {
    let bench = Bench::new();
    bench.beside_writer(|signal| {
        signal.send(()).unwrap();
        thread::sleep(QUICK.quiet * 10);
        assert_eq!(bench.read(), None, "nothing is known yet");
        // Several pages.
        bench.list(std::iter::once(node()).chain((0..200).map(|at| service(&format!("s{at:03}"), 80))));
        signal.send(()).unwrap();
        wait_until("snapshot", || bench.read().is_some());
        let first = bench.read().unwrap();
        assert_eq!((first.objects.len(), &*first.header.server, &*first.header.node), (201, SERVER, NODE));
        let names: Vec<&ObjectName> = first.objects[1..].iter().map(KubeObject::name).collect();
        assert!(names.is_sorted() && names.len() == 200, "each once");
        let mode = fs::metadata(bench.file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let _ = bench.peers.desk.apply(Input::Events(vec![Event::Upsert(service("new", 80))]));
        signal.send(()).unwrap();
        wait_until("change", || bench.read().unwrap().objects.len() == 202);
        assert_eq!(fs::read_dir(&bench.folder.0).unwrap().count(), 1, "nothing stays beside it");
    });
    assert!(bench.metric("kubeproxy_snapshot_writes_total{result=\"success\"} 2"));
    let size = fs::metadata(bench.file.path()).unwrap().len();
    assert!(bench.metric(&format!("kubeproxy_snapshot_size_bytes {size}")));
}

#[test]
fn many_changes_cause_few_writes() {
    let bench = Bench::new();
    bench.list([node()]);
    let timing = SnapshotTiming { pause: Duration::from_secs(600), ..QUICK };
    let (signal, changes) = sync_channel(1);
    // The pause after the second write outlasts the test, so the thread isn't waited for.
    let Bench { file, acceptance, freshness, peers, folder, .. } = bench;
    let (desk, metrics, path) = (peers.desk.clone(), Arc::clone(&peers.metrics), file.path().to_owned());
    thread::spawn(move || SnapshotWriter::new(&file, &acceptance, &freshness, timing).run(&changes, None, &peers));
    for at in 0..100 {
        let _ = desk.apply(Input::Events(vec![Event::Upsert(service(&format!("s{at}"), 80))]));
        let _ = signal.try_send(());
        thread::sleep(Duration::from_millis(1));
    }
    wait_until("snapshot", || path.exists());
    thread::sleep(Duration::from_millis(100));
    assert!(metrics.encode().contains("kubeproxy_snapshot_writes_total{result=\"success\"} 1\n"));
    drop(folder);
}

#[test]
fn without_changes_only_the_age_is_renewed() {
    let bench = Bench::new();
    bench.list([node(), service("a", 80)]);
    let timing = SnapshotTiming { refresh: Duration::from_millis(5), ..QUICK };
    bench.beside_writer_of(&bench.file, timing, |_| {
        wait_until("first snapshot", || bench.read().is_some());
        thread::sleep(QUICK.pause * 5);
    });
    assert!(bench.metric("kubeproxy_snapshot_writes_total{result=\"success\"} 1"), "it would gain less than a minute");
}

#[test]
fn failures_are_logged_once_and_end() {
    let bench = Bench::new();
    bench.list([node(), service("a", 80)]);
    let missing = SnapshotFile::new(bench.folder.0.join("missing/snapshot"));
    let log = crate::logging::logged(2, || {
        // The log is this thread's, so the writer runs here, and the changes come from another.
        thread::scope(|scope| {
            let (signal, changes) = sync_channel(1);
            let (bench, missing) = (&bench, &missing);
            scope.spawn(move || {
                signal.send(()).unwrap();
                let failed = || {
                    let page = bench.peers.metrics.encode();
                    let line = page
                        .lines()
                        .find(|line| line.starts_with("kubeproxy_snapshot_writes_total{result=\"failure\"}"));
                    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
                };
                wait_until("retries", || failed() >= 3);
                fs::create_dir(bench.folder.0.join("missing")).unwrap();
                wait_until("success", || missing.path().exists());
            });
            SnapshotWriter::new(missing, &bench.acceptance, &bench.freshness, QUICK).run(&changes, None, &bench.peers);
        });
    });
    assert_eq!(log.matches("Writing the snapshot failed").count(), 1, "{log}");
    assert!(log.contains("creating its successor: No such file or directory"), "{log}");
    assert_eq!(log.matches("Snapshot is written again").count(), 1, "{log}");
}

#[test]
fn what_can_not_be_replaced_stays() {
    let bench = Bench::new();
    write(&bench.file, &header(Duration::ZERO), &objects());
    let before = fs::read(bench.file.path()).unwrap();
    let next = bench.folder.0.join("snapshot.new");
    let attempt = |file: &SnapshotFile| {
        let many: Vec<KubeObject> = (0..100).map(|at| service(&format!("s{at}"), 80)).collect();
        let error = file.replace(&header(Duration::ZERO), |encoder| many.iter().try_for_each(|one| encoder.push(one)));
        assert_eq!(fs::read(bench.file.path()).unwrap(), before);
        error.unwrap_err().to_string()
    };
    let small = SnapshotFile::bounded(bench.file.path(), 2000);
    assert_eq!(attempt(&small), "writing its successor: more than 2000 bytes");
    assert!(!next.exists(), "an unfinished one doesn't stay");
    let other = fs::File::create(&next).unwrap();
    other.lock().unwrap();
    assert_eq!(attempt(&bench.file), "creating its successor: another process is writing it");
    drop(other);
    fs::remove_file(&next).unwrap();
    let victim = bench.folder.0.join("victim");
    fs::File::create(&victim).unwrap().write_all(b"precious").unwrap();
    symlink(&victim, &next).unwrap();
    assert_eq!(attempt(&bench.file), "creating its successor: another process is replacing it");
    assert_eq!(fs::read(&victim).unwrap(), b"precious", "a symbolic link isn't followed");
}

#[test]
fn files_of_others_are_not_replaced() {
    let bench = Bench::new();
    let zeros = "\0".repeat(20_000);
    let image = format!("{zeros}precious");
    for (content, is_replaced) in [
        ("apiVersion: v1\nkind: Config\n", false),
        (&*image, false),
        (&*zeros, true),
        ("", true),
        ("\0\0\0", true),
        ("ferry-snapshot 7\n", true),
    ] {
        fs::write(bench.file.path(), content).unwrap();
        let replaced = bench.file.replace(&header(Duration::ZERO), |_| Ok(()));
        assert_eq!(replaced.is_ok(), is_replaced, "{content:?}");
        assert_eq!(fs::read_to_string(bench.file.path()).unwrap() == content, !is_replaced, "{content:?}");
        let text = replaced.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(
            text.contains("it isn't a snapshot: remove it, or correct FerryConfiguration.snapshot"),
            !is_replaced
        );
    }
    fs::remove_file(bench.file.path()).unwrap();
    fs::create_dir(bench.file.path()).unwrap();
    assert!(bench.file.replace(&header(Duration::ZERO), |_| Ok(())).is_err());
}

/// As a rotation of the authorities appends one to the file, and the next start reads all of it.
#[test]
fn what_is_written_after_a_change_of_the_authorities_serves_at_the_next_start() {
    let mut bench = Bench::new();
    let rotated = Arc::new(AtomicBool::new(false));
    let current = Arc::clone(&rotated);
    bench.acceptance.cluster =
        CurrentCluster::new(move || cluster(if current.load(Ordering::Relaxed) { "aabb" } else { "aa" }).identity());
    bench.list(objects());
    rotated.store(true, Ordering::Relaxed);
    bench.beside_writer(|signal| {
        signal.send(()).unwrap();
        wait_until("snapshot", || bench.read().is_some());
    });
    let mut next = Bench::new();
    next.acceptance.cluster = cluster("aabb");
    fs::copy(bench.file.path(), next.file.path()).unwrap();
    assert!(next.start().0);
    assert_eq!(next.services(), ["a", "b"]);
}

#[test]
fn only_an_api_server_has_a_snapshot() {
    let config = FerryConfiguration { snapshot: "/snapshot".to_owned(), ..FerryConfiguration::default() };
    let cluster = cluster("");
    let freshness = Arc::new(Freshness::new(Instant::now(), &[]));
    assert!(
        SnapshotSetup::new(&FerryConfiguration::default(), NODE, Some(cluster.clone()), Some(freshness.clone()))
            .is_none()
    );
    let log = crate::logging::logged(2, || assert!(SnapshotSetup::new(&config, NODE, None, None).is_none()));
    assert!(log.contains("Ignoring FerryConfiguration.snapshot"), "{log}");
    let setup = SnapshotSetup::new(&config, NODE, Some(cluster), Some(freshness)).unwrap();
    assert_eq!(setup.acceptance.max_age, Some(Duration::from_secs(24 * 60 * 60)));
}
