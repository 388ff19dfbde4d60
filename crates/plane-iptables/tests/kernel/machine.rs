//! A machine with empty tables for tests: a network namespace, a variant of the tool, and a lock file of its own.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Environment, Tool};
use ferry_kernel::netns::Namespace;
use ferry_kernel::nft::NftSocket;
use ferry_plane::{Extent, Kernel, Object, SyncEngine};
use ferry_plane_iptables::{
    Counters, Features, IptObject, IptablesCommitLock, IptablesEngine, IptablesKernel, engine, why_no_sets,
};

/// Features without counters, which need kernel support.
pub(crate) const FEATURES: Features = Features {
    counts_invalid: false,
    counts_localhost: false,
    drops_invalid: true,
    guards_loopback: false,
    has_sets: true,
    lacks_mangle: false,
};

/// Runs a test in each variant and family, all at once.
pub(crate) fn inside(test: impl Fn(&Machine) + Send + Sync) {
    std::thread::scope(|scope| {
        for backend in Backend::ALL {
            for family in Family::ALL {
                let test = &test;
                scope.spawn(move || on(backend, family, test));
            }
        }
    });
}

/// Runs a test in this variant and family.
pub(crate) fn on(backend: Backend, family: Family, test: &(impl Fn(&Machine) + Send + Sync)) {
    let machine = Machine::new(backend, family);
    Namespace::new().expect("root and CAP_SYS_ADMIN are needed").run(|| test(&machine)).unwrap();
}

/// One family's tables, in one variant.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) backend: Backend,
    pub(crate) family: Family,
    pub(crate) environment: Environment,
    folder: PathBuf,
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(backend: Backend, family: Family) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ferry-iptables-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let environment = Environment { lock_file: folder.join("lock"), ..Environment::of_process() };
        Self { backend, family, environment, folder }
    }

    /// The test's own folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn tool(&self) -> Tool {
        Tool::find_in(&self.environment, self.family, Some(self.backend)).expect("both variants are needed")
    }

    pub(crate) fn engine(&self) -> IptablesEngine {
        self.engine_with(IptablesCommitLock::default())
    }

    pub(crate) fn engine_with(&self, commit_lock: IptablesCommitLock) -> IptablesEngine {
        engine(self.existing(FEATURES), self.tool(), commit_lock, Arc::new(Counters::default()))
    }

    /// An engine with other features.
    pub(crate) fn engine_of(&self, features: Features) -> IptablesEngine {
        engine(self.existing(features), self.tool(), IptablesCommitLock::default(), Arc::new(Counters::default()))
    }

    /// Those of these features that the kernel has.
    fn existing(&self, features: Features) -> Features {
        Features { has_sets: features.has_sets && self.has_sets(), ..features }
    }

    /// True if the machine has what ipsets need.
    pub(crate) fn has_sets(&self) -> bool {
        why_no_sets(&self.tool()).is_none()
    }

    /// All objects as read back, sorted.
    pub(crate) fn read_back(&self) -> Vec<IptObject> {
        let mut kernel = IptablesKernel::new(self.tool(), IptablesCommitLock::default(), Arc::new(Counters::default()));
        let mut objects = kernel.read_back(&Extent::All).unwrap();
        objects.sort();
        objects
    }

    pub(crate) fn program(&self, what: &str) -> String {
        let family = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{family}-{}{what}", self.backend)
    }

    pub(crate) fn run(&self, what: &str, arguments: &[&str], input: &str) -> (bool, String, String) {
        let mut child = Command::new(self.program(what))
            .args(arguments)
            .env("XTABLES_LOCKFILE", &self.environment.lock_file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("both variants of the tool are needed");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    /// A foreign change: `iptables …`.
    pub(crate) fn iptables(&self, arguments: &str) -> String {
        let words: Vec<&str> = arguments.split(' ').collect();
        let (good, output, error) = self.run("", &words, "");
        assert!(good, "{} {arguments}: {error}", self.program(""));
        output
    }

    /// A foreign change: `iptables-restore --noflush`.
    pub(crate) fn restore(&self, text: &str) {
        let (good, _, error) = self.run("-restore", &["--noflush"], text);
        assert!(good, "{}: {error}", self.program("-restore"));
    }

    /// The output of `iptables-save`, without counters, with chains in any order.
    pub(crate) fn saved(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for table in ["mangle", "filter", "nat"] {
            let (good, output, error) = self.run("-save", &["-t", table], "");
            assert!(good, "{}: {error}", self.program("-save"));
            let telling = |line: &&str| line.starts_with([':', '-']);
            lines.extend(output.lines().filter(telling).map(|line| {
                let end = if line.starts_with(':') { line.find(" [") } else { None };
                let line = &line[..end.unwrap_or(line.len())];
                format!("{table} {line}")
            }));
        }
        lines.sort();
        lines
    }

    /// The generation of nf_tables, which grows with every commit. Legacy tables have none.
    pub(crate) fn moved(&self) -> u32 {
        NftSocket::open().unwrap().generation().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// The engine's desired objects, sorted.
pub(crate) fn wanted(engine: &IptablesEngine) -> Vec<IptObject> {
    let mut wanted = engine.objects();
    wanted.sort();
    wanted
}

/// Asserts that both lists are equal; prints only the differences.
pub(crate) fn assert_same(found: &[IptObject], wanted: &[IptObject], when: &str) {
    let keyed = |objects: &[IptObject]| -> BTreeMap<_, IptObject> {
        objects.iter().map(|object| (object.key(), object.clone())).collect()
    };
    let (found_keys, wanted_keys) = (keyed(found), keyed(wanted));
    // Objects shared with the kubelet stay when no unit wants them.
    let stays = |object: &IptObject| object.spare() && !wanted_keys.contains_key(&object.key());
    let differs = |object: &&IptObject| wanted_keys.get(&object.key()) != Some(object) && !stays(object);
    let extra: Vec<_> = found.iter().filter(differs).collect();
    let missing: Vec<_> = wanted.iter().filter(|object| found_keys.get(&object.key()) != Some(object)).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{when}: extra {extra:?}, missing {missing:?}");
}

/// Runs sync passes until nothing is left to do.
pub(crate) fn settle(engine: &mut IptablesEngine, mut now: Instant) -> Instant {
    let mut quiet = 0;
    for _ in 0..20 {
        now += Duration::from_secs(400);
        let outcome = engine.tend(now);
        // Drift that is found now is checked again later.
        quiet = if outcome.error.is_none() && !outcome.worked { quiet + 1 } else { 0 };
        if quiet == 2 {
            return now;
        }
    }
    panic!("does not settle");
}
