//! A network namespace held by a child process, so that nothing outlives the demo, however it ends: the holder exits at the
//! end of its input pipe, and the kernel kills the processes inside when this program ends (PR_SET_PDEATHSIG).

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A network namespace; removed when dropped.
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    /// Creates a namespace with its loopback up. `folder` is removed when the namespace ends.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        // The shell ignores an interrupt from the keyboard, which every process of the demo gets, to remove the folder last.
        let script = r#"trap "" INT TERM HUP; cat >/dev/null; rm -rf "$1""#;
        let holder = Command::new("unshare")
            .args(["--net", "sh", "-c", script, "sh"])
            .arg(folder)
            .stdin(Stdio::piped())
            .spawn()
            .context("starting unshare")?;
        let namespace = Self { holder };
        namespace.entered()?;
        // Without duplicate address detection, which delays the link-local addresses, and with them all IPv6, by two seconds.
        namespace.shell(
            "ip link set lo up; cd /proc/sys/net/ipv6/conf; echo 0 >all/disable_ipv6
             for at in all default; do echo 0 >$at/accept_dad; done",
        )?;
        Ok(namespace)
    }

    /// The process that holds the namespace.
    pub(crate) fn process(&self) -> u32 {
        self.holder.id()
    }

    /// Waits until the holder has left this program's namespace.
    fn entered(&self) -> Result<()> {
        let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
        let ours = of("self").context("reading our network namespace")?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while of(&self.process().to_string()).context("reading the new namespace")? == ours {
            ensure!(Instant::now() < deadline, "no network namespace after 10 s");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A command inside the namespace, killed when this program ends.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.process()));
        command.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program).stdin(Stdio::null());
        command
    }

    /// One of this program's hidden commands inside the namespace.
    pub(crate) fn guest(&self, command: &str) -> Command {
        // Not by its path, where a build may have put another executable in the meantime.
        let mut guest = self.command(format!("/proc/{}/exe", std::process::id()));
        guest.arg(command);
        guest
    }

    /// Runs a shell script inside the namespace, up to the first failing command.
    pub(crate) fn shell(&self, script: &str) -> Result<()> {
        crate::shell::run(self.command("sh").args(["-e", "-c", script]))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The end of the pipe ends the holder.
        drop(self.holder.stdin.take());
        drop(self.holder.wait());
    }
}
