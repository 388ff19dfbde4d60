//! One network namespace and a thread that lives in it.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use ferry_kernel::netns::Namespace;

/// Names another lock file to the legacy variant of iptables.
const LOCK: &str = "XTABLES_LOCKFILE";

type Job = Box<dyn FnOnce() + Send>;

/// A machine of the lab: a network namespace that only this process knows, and one thread that stays in it.
///
/// The namespace has no name, so it is gone when the last thread, socket or child process in it is gone; a child
/// started by [`Host::spawn`] is killed by the kernel when this process ends, however it ends.
pub struct Host {
    name: &'static str,
    thread_id: i32,
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    /// who uses the legacy variant of iptables here waits for nobody elsewhere
    lock: PathBuf,
}

impl Host {
    /// Makes a namespace, with nothing in it but a loopback device that is up.
    pub fn new(name: &'static str) -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (ready, is_ready) = channel();
        let worker = thread::Builder::new()
            .name(format!("lab-{name}"))
            .spawn(move || {
                let namespace = Namespace::new().expect("making a network namespace needs root");
                namespace.run(move || work(&ready, inbox)).expect("entering the namespace");
            })
            .expect("starting a thread");
        let thread_id = is_ready.recv().expect("a thread in a namespace of its own");
        let lock = std::env::temp_dir().join(format!("ferry-lab-{}-{thread_id}.lock", std::process::id()));
        let host = Self { name, thread_id, jobs: Some(jobs), worker: Some(worker), lock };
        host.sh("ip", &["link", "set", "lo", "up"]);
        host
    }

    /// What the lab calls it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A thread of this process that stays in the namespace; tools take it where they ask for a process.
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Does something in the namespace. A thread started by it stays there, so does a socket or a child process.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (result, answer) = channel();
        let job = move || {
            let outcome = catch_unwind(AssertUnwindSafe(job));
            result.send(outcome).expect("the caller waits for the result");
        };
        let jobs = self.jobs.as_ref().expect("only dropping takes it");
        jobs.send(Box::new(job)).expect("the host's thread runs until it is dropped");
        match answer.recv().expect("every job answers") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Starts a thread in the namespace.
    pub fn thread<R: Send + 'static>(&self, body: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        self.run(move || thread::spawn(body))
    }

    /// Runs a tool in the namespace and returns what it printed.
    ///
    /// # Panics
    /// If it fails, with what it complained about.
    pub fn sh(&self, program: &str, arguments: &[&str]) -> String {
        self.feed(program, arguments, "").unwrap_or_else(|complaint| {
            panic!("{}: {program} {}: {complaint}", self.name, arguments.join(" "));
        })
    }

    /// Runs a tool in the namespace with this on its standard input; returns what it printed, or what it complained
    /// about if it failed.
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
            // a tool that fails early closes its input: its own complaint says more
            let _ = writer.join().expect("the writer doesn't panic");
            output
        });
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Starts a program in the namespace that must not outlive this process. Its id is the child's.
    pub fn spawn(&self, program: &str, arguments: &[String], set_up: impl FnOnce(&mut Command)) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]).args(arguments).env(LOCK, &self.lock);
        set_up(&mut command);
        self.run(move || command.spawn()).unwrap_or_else(|error| panic!("starting setpriv: {error}"))
    }

    /// The lock file of the legacy variant of iptables for what runs in the namespace.
    pub fn lock(&self) -> &Path {
        &self.lock
    }

    /// Writes a kernel setting of the namespace, say `net/ipv4/ip_forward`.
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
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            // a panic of the worker has already been seen by the job that caused it
            let _ = worker.join();
        }
        // nobody may have needed it
        let _ = std::fs::remove_file(&self.lock);
    }
}

fn work(ready: &Sender<i32>, inbox: Receiver<Job>) {
    let id = rustix::thread::gettid().as_raw_nonzero().get();
    ready.send(id).expect("the maker of the host waits");
    for job in inbox {
        job();
    }
}
