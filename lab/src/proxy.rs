//! Runs the built executable as a child process in a namespace of the lab.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

pub use ferry_api::config::{
    MODE_IPTABLES as IPTABLES, MODE_IPVS as IPVS, MODE_NFTABLES as NFTABLES, MODE_USERSPACE as USERSPACE,
};
use ferry_api::object::Family;
use rustix::process::{Pid, Signal, kill_process};

use crate::host::Host;
use crate::lab::{NODE_NAME, POD_RANGES};
use crate::patience::slowly;

/// Port of the metrics, in the proxy's namespace.
const METRICS: u16 = 10249;
/// Port of the health check.
const HEALTHZ: u16 = 10256;
/// Time limit for reactions of the proxy, which normally take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause between two looks at a condition. On a slow machine it is longer, and looks take a part of the time only, since its only
/// processor has to do what they wait for.
const PAUSE: Duration = Duration::from_millis(2);
/// The longest look that lengthens the pause: one that takes longer has mostly waited, for an answer that didn't come.
const WORK: Duration = Duration::from_millis(50);
/// Bytes of [`ProxyProcess::log_end`].
const END_BYTES: i64 = 32_768;

/// A running proxy; killed when dropped.
pub struct ProxyProcess<'a> {
    host: &'a Host,
    child: Child,
    log: PathBuf,
}

/// The part of a KubeProxyConfiguration that a test varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// clusterCIDR; `None` for no local detector
    pub cluster_cidr: Option<String>,
    /// the mode
    pub mode: &'static str,
    /// further lines of the configuration file
    pub more: String,
}

// === impl ProxyConfig ===

impl Default for ProxyConfig {
    fn default() -> Self {
        Self { cluster_cidr: Some(POD_RANGES.join(",")), mode: NFTABLES, more: String::new() }
    }
}

impl ProxyConfig {
    /// The default with further lines of the file, such as `nodePortAddresses: [10.0.0.0/8]`.
    pub fn with(more: &str) -> Self {
        Self { more: format!("{more}\n"), ..Self::default() }
    }

    /// The default in iptables mode.
    pub fn iptables() -> Self {
        Self { mode: IPTABLES, ..Self::default() }
    }

    /// Writes the configuration file.
    pub fn write(&self, file: &Path) {
        std::fs::write(file, self.yaml()).expect("writing the configuration");
    }

    fn yaml(&self) -> String {
        let (cidr, mode) = (self.cluster_cidr.as_deref().unwrap_or_default(), self.mode);
        // conntrack limits can only be set in the initial network namespace
        let head = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
hostnameOverride: {NODE_NAME}
clusterCIDR: \"{cidr}\"
conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"
        );
        // The only mode without a section of its own.
        let section = if mode == USERSPACE { IPTABLES } else { mode };
        let has_section = self.more.contains(&format!("{section}:"));
        let periods = if has_section { String::new() } else { format!("{section}: {{minSyncPeriod: 1ms}}\n") };
        head + &periods + &self.more
    }
}

// === impl ProxyProcess ===

impl<'a> ProxyProcess<'a> {
    /// Starts the executable in a namespace on a directory of manifests, with its configuration and its log in the folder.
    /// Returns without waiting.
    pub fn start(host: &'a Host, executable: &str, folder: &Path, manifests: &Path, config: &ProxyConfig) -> Self {
        let config_file = folder.join("config.yaml");
        config.write(&config_file);
        let arguments = ["--config", path_text(&config_file), "--manifests", path_text(manifests), "-v=2"];
        Self::start_with(host, executable, folder, &arguments)
    }

    /// Starts the executable with these arguments, under the seccomp profile of `FERRY_SECCOMP`, if there is one.
    pub fn start_with(host: &'a Host, executable: &str, folder: &Path, arguments: &[&str]) -> Self {
        Self::spawn(host, folder, arguments, |arguments, pipes| host.spawn_confined(executable, arguments, pipes))
    }

    /// Starts the executable by another program, which gets these arguments: without a profile, since that program may need more.
    pub fn start_by(host: &'a Host, program: &str, folder: &Path, arguments: &[&str]) -> Self {
        Self::spawn(host, folder, arguments, |arguments, pipes| host.spawn(program, arguments, pipes))
    }

    fn spawn(
        host: &'a Host,
        folder: &Path,
        arguments: &[&str],
        spawn: impl FnOnce(&[String], Box<dyn FnOnce(&mut Command)>) -> Child,
    ) -> Self {
        let log = folder.join("log");
        let file = File::create(&log).expect("making the log");
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let pipes = |command: &mut Command| {
            command.stdin(Stdio::null()).stdout(file.try_clone().expect("a second handle")).stderr(file);
        };
        Self { host, child: spawn(&arguments, Box::new(pipes)), log }
    }

    /// Waits until it has completed a sync pass of each of these families, with or without changes.
    pub fn wait_until_synced(&mut self, families: &[Family]) {
        self.wait_for("first sync", |proxy| {
            families.iter().all(|family| {
                let label = format!("ip_family=\"{family}\"");
                proxy.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds", &[&label]) > 0.0
            })
        });
    }

    /// Waits until its health check succeeds.
    pub fn wait_until_healthy(&mut self) {
        self.wait_for("health", |proxy| {
            proxy.get(HEALTHZ, "/healthz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If it doesn't hold in time, or the process ends before; with the log.
    pub fn wait_for(&mut self, what: &str, mut is_there: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        loop {
            let begun = Instant::now();
            if is_there(self) {
                return;
            }
            let look = begun.elapsed();
            if let Some(status) = self.child.try_wait().expect("asking for a child's state") {
                panic!("the proxy ended ({status}) before {what}\n{}", self.log());
            }
            assert!(start.elapsed() < slowly(PATIENCE), "no {what} after {:?}\n{}", start.elapsed(), self.log());
            let work = look.min(WORK);
            thread::sleep(slowly(PAUSE + work).saturating_sub(work));
        }
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asking for a child's state").is_none()
    }

    /// The end of its standard error so far, some tens of kilobytes.
    pub fn log_end(&self) -> String {
        let mut file = File::open(&self.log).expect("opening the log");
        // fails in a shorter file, which is read whole
        let _ = file.seek(SeekFrom::End(-END_BYTES));
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("reading the log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("reading the log")
    }

    /// CPU time of its threads, in nanosecond resolution.
    pub fn cpu_time(&self) -> Duration {
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(tasks).expect("the process is there").flatten();
        let times = tasks.filter_map(|task| {
            // a thread may end during the count
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(times.sum())
    }

    /// Its resident memory in KiB.
    pub fn memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim_start().split(' ').next().and_then(|size| size.parse().ok()).expect("a number")
    }

    /// Sends an HTTP GET to one of its ports; returns the response with its head, if any.
    pub fn get(&self, port: u16, path: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.host.run(move || {
            let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(3))).ok()?;
            stream.write_all(request.as_bytes()).ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            Some(answer)
        })
    }

    /// The sum of a metric's samples with all of these labels (`ip_family="IPv4"`); 0 without samples, or without a response.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.samples(name, labels).unwrap_or(0.0)
    }

    /// The same, with `None` instead of 0 without samples.
    pub fn samples(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let answer = whole(&self.get(METRICS, "/metrics").unwrap_or_default());
        let samples = answer.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && labels.iter().all(|label| line.contains(label))
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).reduce(|sum, value| sum + value)
    }

    /// Suspends the process (SIGSTOP) until [`ProxyProcess::go_on`].
    pub fn suspend(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the process is there");
    }

    /// Continues the process (SIGCONT) after [`ProxyProcess::suspend`].
    pub fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the process is there");
    }

    /// Sends SIGTERM and waits for the end; returns the exit status and the time it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let start = Instant::now();
        kill_process(self.pid(), Signal::TERM).expect("the process is there");
        let status = self.wait();
        (status, start.elapsed())
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("asking for a child's state") {
                return status;
            }
            assert!(start.elapsed() < slowly(PATIENCE), "the proxy doesn't end\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills it, if it still runs.
    pub fn kill(&mut self) {
        // fails if the process has ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ProxyProcess<'_> {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let log = self.log();
            let tail: Vec<_> = log.lines().rev().take(40).collect();
            let tail: Vec<_> = tail.into_iter().rev().collect();
            let _ = writeln!(std::io::stderr(), "--- the proxy's log, its end\n{}", tail.join("\n"));
        }
    }
}

/// Joins the chunks of a response: upstream's are chunked, with borders anywhere in a line.
fn whole(answer: &str) -> String {
    let Some((head, mut rest)) = answer.split_once("\r\n\r\n").filter(|(head, _)| head.contains("chunked")) else {
        return answer.to_owned();
    };
    let mut text = format!("{head}\n");
    while let Some((size, chunk)) = rest.split_once("\r\n") {
        let chunk = usize::from_str_radix(size, 16).ok().and_then(|size| chunk.split_at_checked(size));
        let Some((chunk, more)) = chunk.filter(|(chunk, _)| !chunk.is_empty()) else { break };
        text += chunk;
        rest = more.trim_start_matches("\r\n");
    }
    text
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path of this repository is text")
}
