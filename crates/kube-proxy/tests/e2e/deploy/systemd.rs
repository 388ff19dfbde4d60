//! A machine with systemd: namespaces of its own, in the network of the lab's node.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferry_lab::Host;
use ferry_lab::patience::{slowly, until};

use crate::support::{attempt, run};

/// The number of machines of this process so far: each has a control group of its own.
static BOOTED: AtomicUsize = AtomicUsize::new(0);
/// Time limit of a boot.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running machine; stopped when dropped.
pub(crate) struct Machine {
    child: Child,
    first: u32,
    group: String,
}

/// The script that boots it.
fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/deploy/boot")
}

// === impl Machine ===

impl Machine {
    /// Boots systemd in a root, in a host's network, and waits until it has started everything.
    pub(crate) fn boot(host: &Host, root: &Path) -> Self {
        let group = format!("ferry-test-{}-{}", std::process::id(), BOOTED.fetch_add(1, Ordering::Relaxed));
        let (script, root) = (script().display().to_string(), root.display().to_string());
        let arguments: Vec<String> =
            ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--", &script, "start", &root, &group]
                .map(str::to_owned)
                .to_vec();
        let log = std::fs::File::create(format!("{root}.log")).expect("making a log");
        let child = host.spawn("unshare", &arguments, |command| {
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        });
        let mut machine = Self { child, first: 0, group };
        until("the first process", slowly(PATIENCE), || {
            machine.first = machine.first_process().unwrap_or(0);
            machine.first != 0
        });
        until("a booted system", slowly(PATIENCE), || {
            machine.attempt("systemctl is-system-running --wait").is_ok_and(|state| state.trim() == "running")
        });
        machine
    }

    /// The only child of `unshare`, which becomes systemd.
    fn first_process(&self) -> Option<u32> {
        let id = self.child.id();
        std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?.trim().parse().ok()
    }

    /// Runs a shell command on the machine.
    ///
    /// # Errors
    /// If it fails, with its output.
    pub(crate) fn attempt(&self, line: &str) -> Result<String, String> {
        let target = self.first.to_string();
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &target,
            "--all",
            "--root",
            "--wd",
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        ]);
        attempt(command.args(["DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "/bin/sh", "-c", line]))
    }

    /// Runs a shell command on the machine.
    ///
    /// # Panics
    /// If it fails, with its output and the journal of the service.
    pub(crate) fn run(&self, line: &str) -> String {
        self.attempt(line).unwrap_or_else(|complaint| panic!("{complaint}\n{}", self.journal()))
    }

    /// The log of the service.
    pub(crate) fn journal(&self) -> String {
        self.attempt("journalctl --no-pager -u kube-proxy -o cat").unwrap_or_else(|complaint| complaint)
    }

    /// A property of the service.
    pub(crate) fn property(&self, name: &str) -> String {
        self.run(&format!("systemctl show --value -p {name} kube-proxy")).trim().to_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // ends all processes of the machine
        let _ = self.child.kill();
        let _ = self.child.wait();
        let clean = || attempt(Command::new("unshare").args(["--mount"]).arg(script()).args(["clean", &self.group]));
        // the last processes may still be ending
        if (0..50).all(|_| {
            std::thread::sleep(Duration::from_millis(100));
            clean().is_err()
        }) && !std::thread::panicking()
        {
            run(Command::new("unshare").args(["--mount"]).arg(script()).args(["clean", &self.group]));
        }
    }
}
