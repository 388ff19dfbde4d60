//! Provides the tools of iptables mode to a proxy under measurement: one variant under all of its names, with its runs
//! counted.
//!
//! A run counts when the kernel closes the copy of the tool at the end of its process (inotify): this costs the proxies
//! nothing, is the same for both, and legacy tables send no notifications of changes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_kernel::iptables::Backend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};

use crate::network::mark_variant;

/// The tools of one site, first in the proxy's `PATH`.
pub(super) struct Tools {
    folder: PathBuf,
    runs: OwnedFd,
    variant: Backend,
}

/// Counts of the kernel's rules by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleCount {
    /// service ports with a jump to their chain
    pub(super) dispatched: usize,
    /// endpoints with a DNAT rule
    pub(super) translated: usize,
}

// === impl Tools ===

impl Tools {
    /// Copies the tools to a folder, and creates the kubelet's hint chain of the variant in the kernel.
    pub(super) fn new(folder: PathBuf, variant: Backend) -> anyhow::Result<Self> {
        let name = format!("xtables-{variant}-multi");
        let installed = find(&name).with_context(|| format!("{name} is not installed"))?;
        for inner in ["real", "own"] {
            fs::create_dir_all(folder.join(inner))?;
        }
        for name in ["iptables-restore", "iptables-save"] {
            symlink(&installed, folder.join("own").join(name))?;
        }
        let runs = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        for base in ["iptables", "ip6tables"] {
            for (action, copied) in [("", false), ("-save", false), ("-restore", true)] {
                let real = folder.join("real").join(format!("{base}{action}"));
                if copied {
                    fs::copy(&installed, &real)?;
                    add_watch(&runs, &real, WatchFlags::CLOSE_NOWRITE)?;
                } else {
                    symlink(&installed, &real)?;
                }
                for infix in ["", "-nft", "-legacy"] {
                    symlink(&real, folder.join(format!("{base}{infix}{action}")))?;
                }
            }
        }
        mark_variant(variant)?;
        Ok(Self { folder, runs, variant })
    }

    /// Sets the environment of a proxy's process, so that it uses these tools and its own lock file.
    pub(super) fn apply(&self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.folder.clone()).chain(std::env::split_paths(&path));
        // Fails only for a folder with a colon in its name.
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
        command.env("XTABLES_LOCKFILE", self.folder.join("lock"));
    }

    /// Starts counting the input bytes of the proxies' runs, which costs an additional process per run.
    pub(super) fn count_bytes(&self) -> anyhow::Result<()> {
        for base in ["iptables", "ip6tables"] {
            let (real, given) = (self.folder.join("real").join(format!("{base}-restore")), self.given());
            let script = format!("#!/bin/sh\ntee -a {} | {} \"$@\"\n", given.display(), real.display());
            for infix in ["", "-nft", "-legacy"] {
                let (new, path) = (self.folder.join("new"), self.folder.join(format!("{base}{infix}-restore")));
                fs::write(&new, &script)?;
                fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
                fs::rename(&new, &path)?;
            }
        }
        fs::write(self.given(), "")?;
        Ok(())
    }

    /// Input bytes of the runs since [`Tools::count_bytes`].
    pub(super) fn bytes(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(self.given())?.len())
    }

    fn given(&self) -> PathBuf {
        self.folder.join("given")
    }

    /// Number of runs that have ended since the last call.
    pub(super) fn ended(&self) -> anyhow::Result<u32> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.runs, &mut buffer);
        let mut count = 0;
        loop {
            match reader.next() {
                Ok(_) => count += 1,
                Err(rustix::io::Errno::AGAIN) => return Ok(count),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for the end of a run, and returns its time; `None` after the time limit.
    pub(super) fn wait(&self, patience: Duration) -> anyhow::Result<Option<Instant>> {
        let timeout = Timespec::try_from(patience)?;
        let readable = poll(&mut [PollFd::from_borrowed_fd(self.runs.as_fd(), PollFlags::IN)], Some(&timeout))?;
        Ok((readable > 0).then(Instant::now))
    }

    /// Duration of a run without changes.
    pub(super) fn empty_run(&self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.restore("*nat\nCOMMIT\n")?;
        Ok(started.elapsed())
    }

    fn restore(&self, text: &str) -> anyhow::Result<()> {
        let mut command = Command::new(self.folder.join("own/iptables-restore"));
        self.apply(&mut command);
        let mut child = command.args(["-w", "5", "--noflush"]).stdin(Stdio::piped()).spawn()?;
        // Dropped at the end of the statement, which ends the tool's input.
        child.stdin.take().context("piped")?.write_all(text.as_bytes())?;
        let status = child.wait()?;
        anyhow::ensure!(status.success(), "iptables-{}-restore: {status}", self.variant);
        Ok(())
    }

    /// Counts the kernel's rules.
    pub(super) fn rules(&self) -> anyhow::Result<RuleCount> {
        let mut count = RuleCount::default();
        for line in self.nat()?.lines() {
            count.dispatched += usize::from(line.starts_with("-A KUBE-SERVICES ") && line.contains(" -j KUBE-SVC-"));
            count.translated += usize::from(line.starts_with("-A KUBE-SEP-") && line.contains(" -j DNAT "));
        }
        Ok(count)
    }

    /// Names of the chains in the kernel.
    pub(super) fn chains(&self) -> anyhow::Result<Vec<String>> {
        let text = self.nat()?;
        let names = text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    fn nat(&self) -> anyhow::Result<String> {
        let mut command = Command::new(self.folder.join("own/iptables-save"));
        let mut child = command.args(["-t", "nat"]).stdout(Stdio::piped()).spawn()?;
        let mut text = String::new();
        child.stdout.take().context("piped")?.read_to_string(&mut text)?;
        child.wait()?;
        Ok(text)
    }
}

/// Path of the machine's tool of this name.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")]);
    places.map(|folder| folder.join(name)).find(|path| path.exists())
}
