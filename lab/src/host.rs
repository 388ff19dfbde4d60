//! One network namespace, with a worker thread that stays in it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use ferry_kernel::netns::Namespace;
use ferry_kernel::process::end_with_thread;

use crate::seccomp::SeccompProfile;
use crate::worker::Worker;

/// Environment variable with the path of the lock file of iptables-legacy.
const LOCK: &str = "XTABLES_LOCKFILE";

/// A machine of the lab: an unnamed network namespace of this process, with a worker thread that stays in it.
///
/// The kernel removes the namespace with the last thread, socket or child process in it, and kills a child started by
/// [`Host::spawn`] when this process ends for any reason.
pub struct Host {
    name: &'static str,
    /// starts programs under the profile of `FERRY_SECCOMP`: a thread's profile is that of its children, and can't be put off again
    confined: OnceLock<Worker>,
    worker: Worker,
    /// lock file of iptables-legacy, so that its users in this namespace don't wait for users elsewhere
    lock: PathBuf,
}

impl Host {
    /// Creates a namespace with only a loopback device, which is up.
    pub fn new(name: &'static str) -> Self {
        let worker = Worker::start(&format!("lab-{name}"), |work| {
            let namespace = Namespace::new().expect("making a network namespace needs root");
            namespace.run(work).expect("entering the namespace");
        });
        let lock = std::env::temp_dir().join(format!("ferry-lab-{}-{}.lock", std::process::id(), worker.thread_id()));
        let host = Self { name, confined: OnceLock::new(), worker, lock };
        host.sh("ip", &["link", "set", "lo", "up"]);
        host
    }

    /// Its name in the lab.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Id of the worker thread; tools accept it as the id of a process in the namespace.
    pub fn thread_id(&self) -> i32 {
        self.worker.thread_id()
    }

    /// Runs a closure in the namespace. Threads, sockets and child processes that it creates stay there.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        self.worker.run(job)
    }

    /// Starts a thread in the namespace.
    pub fn thread<R: Send + 'static>(&self, body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        self.run(move || thread::spawn(body))
    }

    /// Runs a tool in the namespace and returns its standard output.
    ///
    /// # Panics
    /// If it fails, with its standard error.
    pub fn sh(&self, program: &str, arguments: &[&str]) -> String {
        self.feed(program, arguments, "").unwrap_or_else(|complaint| {
            panic!("{}: {program} {}: {complaint}", self.name, arguments.join(" "));
        })
    }

    /// Runs a tool in the namespace with this standard input; returns its standard output.
    ///
    /// # Errors
    /// If the tool fails: its standard error.
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env(LOCK, &self.lock);
        let input = input.to_owned();
        let program = program.to_owned();
        let output = self.run(move || {
            let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {program}: {error}"));
            let mut stdin = child.stdin.take().expect("piped");
            let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
            let output = child.wait_with_output().expect("waiting for a child");
            // a tool that fails early closes its input: its own error is more specific
            let _ = writer.join().expect("the writer doesn't panic");
            output
        });
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Starts a program in the namespace; the kernel kills it with this process. The child's id is the program's.
    pub fn spawn(&self, program: &str, arguments: &[String], set_up: impl FnOnce(&mut Command)) -> Child {
        self.spawn_by(&self.worker, program, arguments, set_up)
    }

    /// The same, under the seccomp profile of `FERRY_SECCOMP`, if there is one.
    pub(crate) fn spawn_confined(
        &self,
        program: &str,
        arguments: &[String],
        set_up: impl FnOnce(&mut Command),
    ) -> Child {
        let Some(profile) = SeccompProfile::wanted() else { return self.spawn(program, arguments, set_up) };
        let worker = self.confined.get_or_init(|| {
            self.run(move || {
                Worker::start("lab-confined", |work| {
                    profile.apply();
                    work();
                })
            })
        });
        let child = self.spawn_by(worker, program, arguments, set_up);
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a child has a status");
        assert!(status.contains("\nSeccomp:\t2\n"), "{program} runs without the profile: {status}");
        child
    }

    fn spawn_by(
        &self,
        worker: &Worker,
        program: &str,
        arguments: &[String],
        set_up: impl FnOnce(&mut Command),
    ) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).env(LOCK, &self.lock);
        end_with_thread(&mut command);
        set_up(&mut command);
        worker.run(move || command.spawn()).unwrap_or_else(|error| panic!("starting {program}: {error}"))
    }

    /// The lock file of iptables-legacy for processes in the namespace.
    pub fn lock(&self) -> &Path {
        &self.lock
    }

    /// Writes a kernel setting of the namespace, for example `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{key}");
        let value = value.to_owned();
        self.run(move || {
            std::fs::write(&path, value).unwrap_or_else(|error| panic!("writing {path}: {error}"));
        });
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // absent if iptables-legacy was never run
        let _ = std::fs::remove_file(&self.lock);
    }
}
