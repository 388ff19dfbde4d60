//! Runs the API server and etcd, and measures their CPU time, memory and requests.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_lab::Host;
use ferry_lab::kubernetes::{ApiRequest, Certificate, ClusterUser, Kubernetes, ServerKind};

use super::audit::{AuditLog, POLICY, Requests};
use super::metrics;
use super::network::{HUB, PORT};
use crate::stats::{memory_mib, stat_cpu};

/// Value for `/proc/PID/clear_refs` that resets a process's peak memory to its current memory.
const RESET_PEAK: &str = "5";

/// kube-apiserver and etcd.
pub(super) struct MeasuredServer<'a> {
    kubernetes: Kubernetes<'a>,
    folder: PathBuf,
    log: AuditLog,
    /// CPU time of ended API server processes
    ended: Duration,
    /// requests to etcd by ended API server processes
    ended_requests: StoreRequests,
}

/// Requests to etcd by operation.
pub(super) type StoreRequests = BTreeMap<String, f64>;

/// CPU time so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerCpu {
    /// of the API server
    pub(super) api: Duration,
    /// of etcd
    pub(super) store: Duration,
}

/// Memory of the API server in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerMemory {
    pub(super) now: f64,
    pub(super) peak: f64,
}

// === impl MeasuredServer ===

impl<'a> MeasuredServer<'a> {
    /// Starts both, with the audit log beside their folder.
    pub(super) fn start(hub: &'a Host, base: &Path) -> anyhow::Result<Self> {
        let (policy, log, folder) = (base.join("audit-policy.yaml"), base.join("audit.log"), base.join("api"));
        fs::write(&policy, POLICY)?;
        let flags = [
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log.display()),
            // In MB: high enough that the log is never rotated.
            "--audit-log-maxsize=100000".to_owned(),
        ];
        let kubernetes = Kubernetes::start_with(hub, &folder, &flags);
        Ok(Self {
            kubernetes,
            folder,
            log: AuditLog::new(&log),
            ended: Duration::ZERO,
            ended_requests: StoreRequests::new(),
        })
    }

    /// The script's folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn address(&self) -> anyhow::Result<SocketAddr> {
        let url = self.kubernetes.url();
        url.trim_start_matches("https://").parse().with_context(|| format!("no address in {url}"))
    }

    /// Writes a kubeconfig with the gate's address and with certificates by path.
    pub(super) fn write_kubeconfig(&self, file: &Path) -> anyhow::Result<()> {
        let text = fs::read_to_string(self.kubernetes.kubeconfig(ClusterUser::Files))?;
        let direct = format!("server: \"{}\"", self.kubernetes.url());
        anyhow::ensure!(text.contains(&direct), "no {direct} in the kubeconfig");
        let gated = format!("server: \"https://{HUB}:{PORT}\", tls-server-name: localhost");
        Ok(fs::write(file, text.replace(&direct, &gated))?)
    }

    pub(super) fn ask(&self, request: &ApiRequest) {
        self.kubernetes.ask(request);
    }

    pub(super) fn ask_all(&self, requests: &[ApiRequest]) {
        self.kubernetes.ask_all(requests);
    }

    /// Replaces the certificates of all clients and of the server.
    pub(super) fn rotate(&mut self) {
        self.kubernetes.rotate(Certificate::KubeProxy);
        self.kubernetes.rotate(Certificate::Server);
    }

    /// Ends the API server.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        self.ended_requests = self.store_requests();
        self.ended = self.used()?.api;
        self.kubernetes.stop(ServerKind::Api);
        Ok(())
    }

    /// Starts the API server again, and waits until it is ready. Returns the time it took.
    pub(super) fn resume(&mut self) -> Duration {
        let started = Instant::now();
        self.kubernetes.resume(ServerKind::Api);
        started.elapsed()
    }

    /// Requests of the proxies answered since the last call.
    pub(super) fn requests(&mut self) -> anyhow::Result<Requests> {
        self.log.read()
    }

    /// CPU time so far, including ended API server processes.
    pub(super) fn used(&self) -> anyhow::Result<ServerCpu> {
        let api = self.ended + self.processor_time("kube-apiserver")?;
        Ok(ServerCpu { api, store: self.processor_time("etcd")? })
    }

    /// Requests to etcd so far, including ended API server processes. Unlike the other measurements, reading them costs the
    /// server CPU time.
    pub(super) fn store_requests(&self) -> StoreRequests {
        let mut requests = self.ended_requests.clone();
        for (operation, count) in metrics::sums(&self.kubernetes.text("/metrics"), "etcd_requests_total", "operation") {
            *requests.entry(operation).or_default() += count;
        }
        requests
    }

    /// Current memory, and the peak since [`MeasuredServer::reset_peak`].
    pub(super) fn memory(&self) -> anyhow::Result<ServerMemory> {
        let process = self.process("kube-apiserver")?;
        Ok(ServerMemory { now: memory_mib(&process, "VmRSS")?, peak: memory_mib(&process, "VmHWM")? })
    }

    pub(super) fn reset_peak(&self) -> anyhow::Result<()> {
        let process = self.process("kube-apiserver")?;
        Ok(fs::write(format!("/proc/{process}/clear_refs"), RESET_PEAK)?)
    }

    fn processor_time(&self, program: &str) -> anyhow::Result<Duration> {
        let (user, system) = stat_cpu(&format!("/proc/{}/stat", self.process(program)?))?;
        Ok(user + system)
    }

    /// The id of a server's process; the script only has the id in its own PID namespace.
    fn process(&self, program: &str) -> anyhow::Result<String> {
        let folder = self.folder.display().to_string();
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            // Some entries are no processes, and a process may have ended.
            let Ok(command) = fs::read_to_string(entry.path().join("cmdline")) else { continue };
            let mut words = command.split('\0');
            let is_program = words.next().is_some_and(|word| word.rsplit('/').next() == Some(program));
            if is_program && words.any(|word| word.starts_with(&folder)) {
                return Ok(entry.file_name().to_string_lossy().into_owned());
            }
        }
        anyhow::bail!("{program} doesn't run; see the logs in {folder}")
    }
}
