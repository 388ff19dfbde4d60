//! Small scripts in place of the tools, for failures.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferry_family::Family;

use crate::iptables::tool::programs;
use crate::iptables::{Backend, Environment, Tool};

/// A directory for programs and a lock file, removed when dropped.
pub(in crate::iptables) struct Folder(pub(in crate::iptables) PathBuf);

// === impl Folder ===

impl Folder {
    pub(in crate::iptables) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ferry-tool-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// The real programs, with a lock file of its own.
    pub(in crate::iptables) fn real(&self) -> Environment {
        Environment { lock_file: self.0.join("lock"), ..Environment::of_process() }
    }

    /// Only programs of this directory.
    pub(in crate::iptables) fn own(&self) -> Environment {
        Environment { path: self.0.clone().into(), ..self.real() }
    }

    /// Writes a script. Another process writes it: otherwise a process started at the same time could inherit the open file,
    /// and executing it would fail (`ETXTBSY`).
    pub(in crate::iptables) fn script(&self, name: &str, text: &str) -> &Self {
        let mut install = Command::new("install");
        install.args(["-m", "755", "/dev/stdin"]).arg(self.0.join(name)).stdin(Stdio::piped());
        let mut child = install.spawn().unwrap();
        io::Write::write_all(&mut child.stdin.take().unwrap(), format!("#!/bin/sh\n{text}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        self
    }

    /// Writes programs that print their version, and otherwise run this script.
    pub(in crate::iptables) fn programs(&self, stem: &str, version: &str, text: &str) -> &Self {
        for name in programs(stem) {
            let version = format!("[ \"$1\" = --version ] && echo '{name} {version}' && exit 0");
            self.script(&name, &format!("PATH=/usr/bin:/bin; export PATH; {version}\n{text}"));
        }
        self
    }

    /// A tool that runs this script.
    pub(in crate::iptables) fn tool(&self, backend: Backend, text: &str) -> Tool {
        let version = match backend {
            Backend::Nft => "v1.8.9 (nf_tables)",
            Backend::Legacy => "v1.8.9 (legacy)",
        };
        self.programs("iptables", version, text);
        Tool::find_in(&self.own(), Family::V4, Some(backend)).unwrap()
    }

    /// A tool that runs this endless script, with a short time limit.
    pub(in crate::iptables) fn endless(&self, backend: Backend, text: &str) -> Tool {
        let mut tool = self.tool(backend, text);
        tool.environment.run_time = Duration::from_millis(400);
        tool
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
