use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

use ferry_api::object::{KubeObject, ObjectName};

use super::*;
use crate::input::Input;

/// A test's directory, and the state of its objects in a store.
struct Bench {
    root: PathBuf,
    directory: DirectorySource,
    /// the cluster IP of each service
    services: BTreeMap<String, String>,
    /// every event since the start
    events: usize,
}

const SOON: Duration = Duration::from_secs(5);

fn fresh_root() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ferry-directory-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let root = std::env::temp_dir().join(name);
    fs::create_dir_all(root.join("m")).unwrap();
    root
}

fn service(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  clusterIP: {ip}\n  ports: [{{port: 80}}]\n"
    )
}

impl Bench {
    /// Starts on these files.
    fn new(files: &[(&str, &str)]) -> Self {
        let root = fresh_root();
        for (name, text) in files {
            fs::write(root.join("m").join(name), text).unwrap();
        }
        Self::at(root)
    }

    /// A directory with a link to a file elsewhere, `target.yaml`, that has Service `a`.
    fn linked() -> Self {
        let root = fresh_root();
        let target = root.join("target.yaml");
        fs::write(&target, service("a", "10.0.0.1")).unwrap();
        symlink(&target, root.join("m").join("a.yaml")).unwrap();
        Self::at(root)
    }

    fn at(root: PathBuf) -> Self {
        let mut directory = DirectorySource::open(&root.join("m")).unwrap();
        let mut all = Vec::new();
        let last = directory.read_all(&mut |events| {
            all.extend(events);
            Ok::<(), ()>(())
        });
        all.extend(last.unwrap());
        assert_eq!(all[..4], KINDS.map(Event::Restart));
        assert_eq!(all[all.len() - 4..], KINDS.map(Event::Synced));
        let mut bench = Self { root, directory, services: BTreeMap::new(), events: 0 };
        bench.apply(all);
        bench.events = 0;
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join("m").join(name)
    }

    /// Renames a complete file into place.
    fn put(&self, name: &str, text: &str) {
        let temporary = self.root.join("temporary");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.path(name)).unwrap();
    }

    fn apply(&mut self, events: Vec<Event>) {
        self.events += events.len();
        for event in events {
            match event {
                Event::Upsert(KubeObject::Service(service)) => {
                    let ip = service.cluster_ip.unwrap().unwrap().to_string();
                    self.services.insert(service.name.name().to_owned(), ip);
                }
                Event::Delete(_, name) => drop(self.services.remove(name.name()).unwrap()),
                Event::Upsert(_) | Event::Unreadable(..) | Event::Restart(_) | Event::Synced(_) => {}
            }
        }
    }

    fn have(&self) -> Vec<(&str, &str)> {
        self.services.iter().map(|(name, ip)| (name.as_str(), ip.as_str())).collect()
    }

    /// Waits until the services are these.
    #[track_caller]
    fn until(&mut self, wanted: &[(&str, &str)]) {
        let deadline = Instant::now() + SOON;
        while self.have() != wanted {
            assert!(Instant::now() < deadline, "{:?} instead of {wanted:?}", self.have());
            let events = self.directory.next_changes();
            self.apply(events);
        }
    }

    /// Asserts that nothing changes for this time.
    #[track_caller]
    fn quiet(&mut self, time: Duration) {
        let (before, deadline) = (self.events, Instant::now() + time);
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let events = self.directory.changes_within(left);
            assert!(events.is_empty(), "{events:?}");
        }
        assert_eq!(self.events, before);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn files_that_count() {
    for (name, counts) in
        [("a.yaml", true), ("a.yml", true), ("a.json", true), (".a.yaml", false), ("a.yaml~", false), ("yaml", false)]
    {
        assert_eq!(file::is_manifest(OsStr::new(name)), counts, "{name}");
    }
    let text = service("a", "10.0.0.1");
    let bench = Bench::new(&[("a.yaml", &text), (".b.yaml", &service("b", "10.0.0.2")), ("c.txt", "{")]);
    fs::create_dir(bench.path("d.yaml")).unwrap();
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let root = fresh_root();
    assert_eq!(DirectorySource::open(&root.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn renames_into_place_and_deletions() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1"))]);
    bench.put("a.yaml", &service("a", "10.0.0.2"));
    bench.until(&[("a", "10.0.0.2")]);
    bench.put("b.yaml", &service("b", "10.0.0.3"));
    bench.until(&[("a", "10.0.0.2"), ("b", "10.0.0.3")]);
    fs::remove_file(bench.path("a.yaml")).unwrap();
    bench.until(&[("b", "10.0.0.3")]);
    fs::rename(bench.path("b.yaml"), bench.root.join("away.yaml")).unwrap();
    bench.until(&[]);
    assert_eq!(bench.events, 4);
}

#[test]
fn a_rename_is_taken_at_once() {
    let mut bench = Bench::new(&[]);
    let mut times: Vec<Duration> = (0..20)
        .map(|count| {
            bench.put("a.yaml", &service("a", &format!("10.0.0.{count}")));
            let start = Instant::now();
            bench.until(&[("a", &format!("10.0.0.{count}"))]);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    // Much more than needed, and less than any pause of this module.
    assert!(times[times.len() / 2] < PAUSE / 2, "{times:?}");
}

#[test]
fn only_what_differs_is_delivered() {
    let both = |ip| format!("{}---\n{}", service("a", "10.0.0.1"), service("b", ip));
    let mut bench = Bench::new(&[("ab.yaml", &both("10.0.0.2"))]);
    bench.put("ab.yaml", &both("10.0.0.3"));
    bench.until(&[("a", "10.0.0.1"), ("b", "10.0.0.3")]);
    assert_eq!(bench.events, 1);
    bench.put("ab.yaml", &both("10.0.0.3"));
    bench.quiet(Duration::from_millis(50));
}

#[test]
fn an_object_that_moves_to_another_file_stays() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1")), ("z.yaml", &service("z", "10.0.0.9"))]);
    fs::rename(bench.path("z.yaml"), bench.path("b.yaml")).unwrap();
    fs::rename(bench.path("b.yaml"), bench.path("c.yaml")).unwrap();
    bench.put("d.yaml", &service("d", "10.0.0.4"));
    bench.until(&[("a", "10.0.0.1"), ("d", "10.0.0.4"), ("z", "10.0.0.9")]);
    assert!(bench.directory.catalog.len() == 3);
}

#[test]
fn a_swapped_link_as_config_maps_have_it() {
    let root = fresh_root();
    let directory = root.join("m");
    for (version, ip) in [("..1", "10.0.0.1"), ("..2", "10.0.0.2")] {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join("a.yaml"), service("a", ip)).unwrap();
    }
    symlink("..1", directory.join("..data")).unwrap();
    symlink("..data/a.yaml", directory.join("a.yaml")).unwrap();
    let mut bench = Bench::at(root);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    symlink("..2", bench.path("..data_tmp")).unwrap();
    fs::rename(bench.path("..data_tmp"), bench.path("..data")).unwrap();
    let start = Instant::now();
    bench.until(&[("a", "10.0.0.2")]);
    assert!(start.elapsed() < CHECK_INTERVAL, "found by looking, not by a notice");
    fs::remove_dir_all(bench.path("..1")).unwrap();
    bench.quiet(Duration::from_millis(50));
}

#[test]
fn links_to_files_elsewhere_are_followed() {
    let mut bench = Bench::new(&[]);
    let target = bench.root.join("target.yaml");
    symlink(&target, bench.path("a.yaml")).unwrap();
    bench.quiet(Duration::from_millis(50));
    fs::write(&target, service("a", "10.0.0.1")).unwrap();
    bench.until(&[("a", "10.0.0.1")]);
    fs::write(&target, service("a", "10.0.0.22")).unwrap();
    bench.until(&[("a", "10.0.0.22")]);
    fs::remove_file(&target).unwrap();
    bench.until(&[]);
}

/// The pause of an emptied file and the check of its link end in the same turn, as on a thread that wakes late.
#[test]
fn an_emptied_target_counts_after_a_while_though_its_link_is_checked() {
    let mut bench = Bench::linked();
    fs::write(bench.root.join("target.yaml"), "").unwrap();
    bench.directory.next_check = Instant::now();
    assert!(bench.directory.changes_within(Duration::ZERO).is_empty());
    bench.directory.open.get_mut(OsStr::new("a.yaml")).unwrap().written -= LONG_PAUSE;
    bench.directory.next_check = Instant::now();
    let events = bench.directory.changes_within(Duration::ZERO);
    bench.apply(events);
    assert_eq!(bench.have(), []);
}

#[test]
fn a_half_written_file_deletes_nothing() {
    let text = format!("{}---\n{}", service("a", "10.0.0.1"), service("b", "10.0.0.2"));
    let mut bench = Bench::new(&[("ab.yaml", &text)]);
    let mut file = OpenOptions::new().write(true).truncate(true).open(bench.path("ab.yaml")).unwrap();
    bench.quiet(Duration::from_millis(100));
    let new = text.replace("10.0.0.1", "10.0.0.3");
    let (first, second) = new.split_at(new.find("---").unwrap() + 20);
    file.write_all(first.as_bytes()).unwrap();
    bench.quiet(Duration::from_millis(100));
    file.write_all(second.as_bytes()).unwrap();
    // Complete, though still open: added and changed objects are read after a pause.
    bench.until(&[("a", "10.0.0.3"), ("b", "10.0.0.2")]);
    drop(file);
    bench.quiet(Duration::from_millis(100));
}

#[test]
fn a_file_that_stays_open_counts_after_a_while() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1"))]);
    let file = OpenOptions::new().write(true).truncate(true).open(bench.path("a.yaml")).unwrap();
    let start = Instant::now();
    bench.until(&[]);
    assert!(start.elapsed() >= LONG_PAUSE - Duration::from_millis(50));
    drop(file);
}

#[test]
fn a_broken_file_keeps_its_last_good_objects() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1")), ("bad.yaml", "kind: [\n")]);
    let broken = |bench: &Bench, name: &str| {
        let seen = bench.directory.files.get(OsStr::new(name)).unwrap();
        seen.broken.first().map(|broken| (broken.line, broken.column))
    };
    assert!(broken(&bench, "bad.yaml").unwrap().0 >= 1);
    bench.put("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports: 7\n");
    bench.quiet(Duration::from_millis(50));
    let (line, column) = broken(&bench, "a.yaml").unwrap();
    assert_eq!(line, 5);
    assert!(column > 0);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    bench.put("a.yaml", "a\n\u{e4}\n");
    fs::write(bench.path("a.yaml"), b"a\nb\xff").unwrap();
    bench.quiet(Duration::from_millis(50));
    assert_eq!(broken(&bench, "a.yaml"), Some((2, 2)));
    bench.put("a.yaml", &service("a", "10.0.0.2"));
    bench.until(&[("a", "10.0.0.2")]);
    assert_eq!(broken(&bench, "a.yaml"), None);
    fs::remove_file(bench.path("a.yaml")).unwrap();
    bench.until(&[]);
}

/// Three services, the port of the middle one as given.
fn three(port: &str, ips: [&str; 3]) -> String {
    let middle = service("b", ips[1]).replace("port: 80", &format!("port: {port}"));
    format!("{}---\n{middle}---\n{}", service("a", ips[0]), service("c", ips[2]))
}

#[test]
fn a_broken_document_costs_its_object_only() {
    // At start the others are served.
    let mut bench = Bench::new(&[("abc.yaml", &three("abc", ["10.0.0.1", "10.0.0.2", "10.0.0.3"]))]);
    assert_eq!(bench.have(), [("a", "10.0.0.1"), ("c", "10.0.0.3")]);
    bench.put("abc.yaml", &three("80", ["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    bench.until(&[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]);
    // Live, its last good state stays, while the others change,
    bench.put("abc.yaml", &three("'80'", ["10.0.0.11", "10.0.0.12", "10.0.0.3"]));
    bench.until(&[("a", "10.0.0.11"), ("b", "10.0.0.2"), ("c", "10.0.0.3")]);
    // go, and come.
    let text = three("80.5", ["10.0.0.11", "10.0.0.12", "10.0.0.3"]).replace("name: c", "name: d");
    bench.put("abc.yaml", &text);
    bench.until(&[("a", "10.0.0.11"), ("b", "10.0.0.2"), ("d", "10.0.0.3")]);
    bench.put("abc.yaml", &text.replace("80.5", "80"));
    bench.until(&[("a", "10.0.0.11"), ("b", "10.0.0.12"), ("d", "10.0.0.3")]);
    bench.put("abc.yaml", &text.replace("name: b", "name: b2").replace("80.5", "80"));
    bench.until(&[("a", "10.0.0.11"), ("b2", "10.0.0.12"), ("d", "10.0.0.3")]);
}

#[test]
fn a_document_that_may_be_any_object_deletes_none() {
    let mut bench = Bench::new(&[("abc.yaml", &three("80", ["10.0.0.1", "10.0.0.2", "10.0.0.3"]))]);
    let text = format!("{}---\nkind: [\n---\n{}", service("a", "10.0.0.11"), service("d", "10.0.0.4"));
    bench.put("abc.yaml", &text);
    bench.until(&[("a", "10.0.0.11"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("d", "10.0.0.4")]);
    bench.put("abc.yaml", &text.replace("kind: [", "# none"));
    bench.until(&[("a", "10.0.0.11"), ("d", "10.0.0.4")]);
    // only malformed documents: all objects stay
    bench.put("abc.yaml", "kind: [\n");
    bench.quiet(Duration::from_millis(50));
    assert_eq!(bench.directory.catalog.len(), 2);
    fs::remove_file(bench.path("abc.yaml")).unwrap();
    bench.until(&[]);
}

#[test]
fn a_document_with_a_name_that_no_object_has_keeps_nobody() {
    let misnamed = format!("{}---\n{}", service("a", "10.0.0.1"), service("'web:http'", "10.0.0.9"));
    let mut bench = Bench::new(&[("a.yaml", &misnamed)]);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    assert_eq!(bench.directory.unreadable(), 0, "no rules of an earlier run can be those of this object");
    bench.put("a.yaml", &misnamed.replace("name: a", "name: b"));
    bench.until(&[("b", "10.0.0.1")]);
    assert!(!bench.directory.files[OsStr::new("a.yaml")].broken.is_empty(), "and it is said");
}

#[test]
fn what_was_never_read_is_counted() {
    let ips = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let mut bench = Bench::new(&[("a.yaml", "kind: [\n"), ("b.yaml", &three("x", ips)), ("c.yaml", "")]);
    assert_eq!(bench.directory.unreadable(), 2);
    // The valid documents don't identify the malformed one.
    bench.put("a.yaml", &format!("{}---\nkind: [\n", service("d", "10.0.0.4")));
    bench.until(&[("a", "10.0.0.1"), ("c", "10.0.0.3"), ("d", "10.0.0.4")]);
    assert_eq!(bench.directory.unreadable(), 2);
    bench.put("a.yaml", &service("d", "10.0.0.5"));
    bench.put("b.yaml", &three("80", ips));
    bench.until(&[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3"), ("d", "10.0.0.5")]);
    assert_eq!(bench.directory.unreadable(), 0);
    // From then on there is a last good state.
    bench.put("a.yaml", "kind: [\n");
    bench.put("b.yaml", &three("x", ips));
    bench.put("c.yaml", "kind: [\n");
    bench.quiet(Duration::from_millis(50));
    assert!(!bench.directory.files[OsStr::new("c.yaml")].broken.is_empty());
    assert_eq!(bench.directory.unreadable(), 0);
    bench.put("e.yaml", "kind: [\n");
    bench.quiet(Duration::from_millis(50));
    assert_eq!(bench.directory.unreadable(), 1);
    fs::remove_file(bench.path("e.yaml")).unwrap();
    bench.quiet(Duration::from_millis(50));
    assert_eq!(bench.directory.unreadable(), 0);
}

#[test]
fn what_was_never_read_is_told_before_the_lists_are_complete() {
    let root = fresh_root();
    fs::write(root.join("m/a.yaml"), "kind: [\n").unwrap();
    let directory = DirectorySource::open(&root.join("m")).unwrap();
    let (inputs, input) = std::sync::mpsc::sync_channel(8);
    let source = std::thread::spawn(move || directory.run(&Sink::new(inputs)));
    let next = || input.recv_timeout(SOON).unwrap();
    assert_eq!(next(), Input::Events(KINDS.map(Event::Restart).into()));
    assert_eq!(next(), Input::Unreadable(1));
    assert_eq!(next(), Input::Events(KINDS.map(Event::Synced).into()));
    // Its objects are delivered before it counts as read.
    fs::write(root.join("new"), service("a", "10.0.0.1")).unwrap();
    fs::rename(root.join("new"), root.join("m/a.yaml")).unwrap();
    assert!(matches!(next(), Input::Events(events) if events.len() == 1));
    assert_eq!(next(), Input::Unreadable(0));
    drop(input);
    fs::write(root.join("m/b.yaml"), service("b", "10.0.0.2")).unwrap();
    assert!(source.join().unwrap().is_err());
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn other_kinds_may_be_as_they_like() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {a: 1, a: 2}\n";
    let bench = Bench::new(&[("a.yaml", &format!("{map}---\n{}", service("a", "10.0.0.1")))]);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    assert!(bench.directory.files[OsStr::new("a.yaml")].broken.is_empty());
}

#[test]
fn each_broken_document_is_remembered_until_it_changes() {
    let broken = |bench: &Bench| -> Vec<(Option<String>, usize)> {
        let seen = bench.directory.files[OsStr::new("a.yaml")].broken.iter();
        seen.map(|broken| (broken.object.as_ref().map(|(_, name)| name.to_string()), broken.line)).collect()
    };
    let mut bench =
        Bench::new(&[("a.yaml", &format!("{}---\nkind: [\n", three("x", ["10.0.0.1", "10.0.0.2", "10.0.0.3"])))]);
    assert_eq!(broken(&bench), [(Some("default/b".to_owned()), 13), (None, 22)]);
    bench.put("a.yaml", &three("x", ["10.0.0.1", "10.0.0.2", "10.0.0.4"]));
    bench.until(&[("a", "10.0.0.1"), ("c", "10.0.0.4")]);
    assert_eq!(broken(&bench), [(Some("default/b".to_owned()), 13)]);
    bench.put("a.yaml", &three("80", ["10.0.0.1", "10.0.0.2", "10.0.0.4"]));
    bench.until(&[("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.4")]);
    assert_eq!(broken(&bench), []);
}

#[test]
fn an_heir_with_a_broken_document_passes_that_on() {
    let broken = format!("{}---\n{}", service("a", "10.0.0.2").replace("80", "x"), service("b", "10.0.0.5"));
    let both = format!("{}---\n{}", service("a", "10.0.0.2"), service("b", "10.0.0.5"));
    let mut bench =
        Bench::new(&[("a.yaml", &service("a", "10.0.0.1")), ("b.yaml", &both), ("c.yaml", &service("a", "10.0.0.3"))]);
    bench.put("b.yaml", &broken);
    bench.quiet(Duration::from_millis(50));
    fs::remove_file(bench.path("a.yaml")).unwrap();
    bench.until(&[("a", "10.0.0.3"), ("b", "10.0.0.5")]);
}

#[test]
fn the_first_file_by_name_wins() {
    let (one, two) = (service("a", "10.0.0.1"), service("a", "10.0.0.2"));
    let mut bench = Bench::new(&[("b.yaml", &one), ("c.yaml", &two)]);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    bench.put("c.yaml", &service("a", "10.0.0.3"));
    bench.quiet(Duration::from_millis(50));
    bench.put("a.yaml", &service("a", "10.0.0.4"));
    bench.until(&[("a", "10.0.0.4")]);
    // Each time one goes, the next takes over, as it is now.
    fs::remove_file(bench.path("a.yaml")).unwrap();
    bench.until(&[("a", "10.0.0.1")]);
    bench.put("b.yaml", &service("b", "10.0.0.5"));
    bench.until(&[("a", "10.0.0.3"), ("b", "10.0.0.5")]);
    fs::remove_file(bench.path("c.yaml")).unwrap();
    bench.until(&[("b", "10.0.0.5")]);
}

#[test]
fn an_heir_that_is_broken_inherits_nothing() {
    let mut bench = Bench::new(&[
        ("a.yaml", &service("a", "10.0.0.1")),
        ("b.yaml", &service("a", "10.0.0.2")),
        ("c.yaml", &service("a", "10.0.0.3")),
    ]);
    bench.put("b.yaml", "kind: [");
    bench.quiet(Duration::from_millis(50));
    fs::remove_file(bench.path("a.yaml")).unwrap();
    bench.until(&[("a", "10.0.0.3")]);
    bench.put("b.yaml", &service("a", "10.0.0.4"));
    bench.until(&[("a", "10.0.0.4")]);
}

#[test]
fn twice_in_one_file_the_first_counts() {
    let text = format!("{}---\n{}", service("a", "10.0.0.1"), service("a", "10.0.0.2"));
    assert_eq!(Bench::new(&[("a.yaml", &text)]).have(), [("a", "10.0.0.1")]);
}

#[test]
fn a_directory_that_comes_back_is_followed() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1"))]);
    fs::rename(bench.root.join("m"), bench.root.join("old")).unwrap();
    bench.quiet(Duration::from_millis(300));
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    fs::create_dir(bench.root.join("m")).unwrap();
    bench.put("b.yaml", &service("b", "10.0.0.2"));
    bench.until(&[("b", "10.0.0.2")]);
    bench.put("c.yaml", &service("c", "10.0.0.3"));
    bench.until(&[("b", "10.0.0.2"), ("c", "10.0.0.3")]);
    fs::remove_dir_all(bench.root.join("m")).unwrap();
    bench.until(&[]);
    fs::create_dir(bench.root.join("m")).unwrap();
    bench.put("d.yaml", &service("d", "10.0.0.4"));
    bench.until(&[("d", "10.0.0.4")]);
}

/// Links that lead out of the directory are checked by time, but say nothing while the directory itself is missing.
#[test]
fn a_missing_directory_keeps_the_objects_of_its_links() {
    let mut bench = Bench::linked();
    fs::rename(bench.root.join("m"), bench.root.join("old")).unwrap();
    bench.quiet(Duration::from_millis(300));
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    // The directory is back without the link, which is thus gone.
    fs::create_dir(bench.root.join("m")).unwrap();
    bench.until(&[]);
}

#[test]
fn a_path_that_is_a_swapped_link_is_followed() {
    let root = fresh_root();
    fs::remove_dir(root.join("m")).unwrap();
    for (name, ip) in [("one", "10.0.0.1"), ("two", "10.0.0.2")] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("a.yaml"), service("a", ip)).unwrap();
    }
    symlink("one", root.join("m")).unwrap();
    let mut bench = Bench::at(root);
    assert_eq!(bench.have(), [("a", "10.0.0.1")]);
    symlink("two", bench.root.join("new")).unwrap();
    fs::rename(bench.root.join("new"), bench.root.join("m")).unwrap();
    bench.until(&[("a", "10.0.0.2")]);
    bench.put("b.yaml", &service("b", "10.0.0.3"));
    bench.until(&[("a", "10.0.0.2"), ("b", "10.0.0.3")]);
}

#[test]
fn many_files_at_once() {
    let mut bench = Bench::new(&[]);
    let names: Vec<(String, String)> =
        (0..3000).map(|count| (format!("s{count:04}"), format!("10.0.{}.{}", count / 250, count % 250))).collect();
    for (name, ip) in &names {
        fs::write(bench.path(&format!("{name}.yaml")), service(name, ip)).unwrap();
    }
    let wanted: Vec<(&str, &str)> = names.iter().map(|(name, ip)| (name.as_str(), ip.as_str())).collect();
    bench.until(&wanted);
    assert_eq!(bench.directory.catalog.len(), 3000);
}

#[test]
fn a_lost_notice_leads_to_reading_all_files() {
    let mut bench = Bench::new(&[("a.yaml", &service("a", "10.0.0.1"))]);
    std::thread::sleep(Duration::from_millis(150));
    bench.put("a.yaml", &service("a", "10.0.0.2"));
    bench.put("b.yaml", &service("b", "10.0.0.3"));
    bench.directory.watch = Some(DirectoryWatch::new(&bench.root.join("m")).unwrap());
    let mut reads = ReadSet::default();
    bench.directory.note(FileNotice::Everything, &mut reads);
    let mut changes = CatalogChanges::default();
    bench.directory.refresh_all(reads, &mut changes);
    let events = changes.take();
    assert!(
        events.iter().all(
            |event| !matches!(event, Event::Delete(Kind::Service, name) if *name == ObjectName::new("default", "a"))
        )
    );
    bench.apply(events);
    assert_eq!(bench.have(), [("a", "10.0.0.2"), ("b", "10.0.0.3")]);
}
