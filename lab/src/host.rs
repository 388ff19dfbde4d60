//! One network namespace, with a worker thread that stays in it.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use ferry_kernel::netns::Namespace;

/// Environment variable with the path of the lock file of iptables-legacy.
const LOCK: &str = "XTABLES_LOCKFILE";

type Job = Box<dyn FnOnce() + Send>;

/// A machine of the lab: an unnamed network namespace of this process, with a worker thread that stays in it.
///
/// The kernel removes the namespace with the last thread, socket or child process in it, and kills a child started by
/// [`Host::spawn`] when this process ends for any reason.
pub struct Host {
    name: &'static str,
    thread_id: i32,
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    /// lock file of iptables-legacy, so that its users in this namespace don't wait for users elsewhere
    lock: PathBuf,
}

impl Host {
    /// Creates a namespace with only a loopback device, which is up.
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

    /// Its name in the lab.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Id of the worker thread; tools accept it as the id of a process in the namespace.
    pub fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Runs a closure in the namespace. Threads, sockets and child processes that it creates stay there.
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
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]).args(arguments).env(LOCK, &self.lock);
        set_up(&mut command);
        self.run(move || command.spawn()).unwrap_or_else(|error| panic!("starting setpriv: {error}"))
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
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            // a panic of the worker was reported to the caller of `run`
            let _ = worker.join();
        }
        // absent if iptables-legacy was never run
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
