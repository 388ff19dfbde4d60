//! Exec plugins: programs that print credentials. One runs at a time. Requests without usable credentials wait for it; others use
//! the last ones while it runs.

mod answer;
mod run;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::kubeconfig::Exec;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use super::TimeLimits;
use super::credential::Credential;
use super::error::CallError;
use super::settings::ClientSettings;
use super::tls::Material;
use crate::observe::Observe;

pub use answer::ExecAnswer;
use run::ExecOutcome;

/// An exec plugin. Its run ends with this.
#[derive(Debug)]
pub(super) struct Plugin {
    shared: Arc<PluginShared>,
    /// the last run whose credentials the server rejected
    refused: AtomicU64,
}

/// The program, and its last result.
#[derive(Debug)]
struct PluginShared {
    exec: Exec,
    /// the environment variable KUBERNETES_EXEC_INFO
    about: String,
    /// time limit of a run
    limit: Duration,
    /// longest wait for a run in place of credentials that haven't expired
    patience: Duration,
    /// least time between two runs: any result is reused for so long, failures and rejected credentials included
    pause: Duration,
    metrics: Arc<dyn Observe>,
    state: Mutex<ExecState>,
}

#[derive(Debug, Default)]
struct ExecState {
    /// number of runs
    run: u64,
    /// end of the last run
    ended: Option<Instant>,
    /// the run that is under way, or the last one
    renewal: Option<Renewal>,
    credential: Option<Credential>,
    expires: Option<SystemTime>,
    /// error of the last run
    failure: Option<String>,
    /// start of the certificate's use, for the metric
    pair_since: Option<SystemTime>,
}

/// A run on a task of its own: no request that gives up ends it.
#[derive(Clone, Debug)]
struct Renewal {
    begun: Instant,
    task: AbortHandle,
    /// closed at the run's end
    end: watch::Receiver<()>,
}

// === impl Plugin ===

impl Plugin {
    pub(super) fn new(exec: &Exec, settings: &ClientSettings, timing: &TimeLimits, metrics: Arc<dyn Observe>) -> Self {
        let shared = PluginShared {
            about: about(exec, settings),
            exec: exec.clone(),
            limit: timing.plugin,
            patience: timing.plugin_patience,
            pause: timing.plugin_pause,
            metrics,
            state: Mutex::default(),
        };
        Self { shared: Arc::new(shared), refused: AtomicU64::new(0) }
    }

    /// The last credentials, or those of another run if they have expired or were rejected. Where that run fails or takes long, the
    /// last ones stay in use until they expire: the server may have rejected them for a moment only.
    pub(super) async fn credential(&self) -> Result<Credential, CallError> {
        if let Some(renewal) = self.renewal() {
            let refused = self.refused.load(Ordering::Relaxed);
            let is_refused = self.shared.state().unexpired().map(|last| last.run <= refused);
            match is_refused {
                None => renewal.wait().await,
                // The last ones serve if it takes longer.
                Some(true) => drop(timeout_at(renewal.begun + self.shared.patience, renewal.wait()).await),
                Some(false) => {}
            }
        }
        let state = self.shared.state();
        let usable = if state.failure.is_some() { state.unexpired() } else { state.credential.as_ref() };
        usable.cloned().ok_or_else(|| {
            let failure = state.failure.as_deref().unwrap_or("the exec plugin hasn't run yet");
            CallError::Credentials(failure.to_owned())
        })
    }

    /// Notes that the server rejected the credentials of this run. True if another run may follow at once, or is under way.
    pub(super) fn refused(&self, run: u64) -> bool {
        self.refused.fetch_max(run, Ordering::Relaxed);
        let state = self.shared.state();
        let is_paused = state.ended.is_some_and(|ended| ended.elapsed() < self.shared.pause);
        state.run > run || state.running().is_some() || !is_paused
    }

    /// The run that is under way, or one that begins now if it is due.
    fn renewal(&self) -> Option<Renewal> {
        let mut state = self.shared.state();
        if let Some(renewal) = state.running() {
            return Some(renewal.clone());
        }
        let paused = state.ended.is_some_and(|ended| ended.elapsed() < self.shared.pause);
        let refused = self.refused.load(Ordering::Relaxed) >= state.run;
        if paused || !refused && state.failure.is_none() && state.unexpired().is_some() {
            return None;
        }
        let (ends, end) = watch::channel(());
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            shared.renew().await;
            drop(ends);
        });
        let renewal = Renewal { begun: Instant::now(), task: task.abort_handle(), end };
        state.renewal = Some(renewal.clone());
        Some(renewal)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(renewal) = &self.shared.state().renewal {
            renewal.task.abort();
        }
    }
}

// === impl PluginShared ===

impl PluginShared {
    fn state(&self) -> MutexGuard<'_, ExecState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self) {
        let outcome = run::run(&self.exec, &self.about, self.limit).await;
        let (status, code) = outcome.status();
        self.metrics.plugin_call(status, code);
        let answer = match outcome {
            ExecOutcome::Printed(printed) => {
                ExecAnswer::parse(&printed, &self.exec.api_version).map_err(|reason| self.failure(&reason))
            }
            ExecOutcome::Failed { reason, .. } => Err(self.failure(&reason)),
            ExecOutcome::Missing(reason) => Err(self.missing(&reason)),
        };
        let mut state = self.state();
        state.run += 1;
        state.ended = Some(Instant::now());
        match answer {
            Ok(answer) => self.keep(&mut state, answer),
            Err(failure) => state.complain(failure),
        }
    }

    fn keep(&self, state: &mut ExecState, answer: ExecAnswer) {
        let before = state.credential.as_ref().and_then(|credential| credential.pair.clone());
        // The same certificate again is the same identity.
        let pair = match (&before, answer.pair) {
            (Some(before), Some(pair)) if **before == pair => Some(Arc::clone(before)),
            (_, pair) => pair.map(Arc::new),
        };
        if before != pair {
            let now = SystemTime::now();
            let since = state.pair_since.replace(now);
            if let (Some(_), Some(since)) = (before, since) {
                self.metrics.plugin_certificate_replaced(now.duration_since(since).unwrap_or_default());
            }
            self.metrics.plugin_certificate(pair.as_ref().and_then(|pair| pair.expiry()));
        }
        state.expires = answer.expires;
        state.failure = None;
        state.credential = Some(Credential { header: answer.header, pair, run: state.run });
    }

    fn failure(&self, reason: &str) -> String {
        format!("exec plugin {}: {reason}", self.exec.command)
    }

    fn missing(&self, reason: &str) -> String {
        let mut text = self.failure(reason);
        if !self.exec.install_hint.is_empty() {
            text.push_str("; ");
            text.push_str(&self.exec.install_hint);
        }
        text
    }
}

// === impl ExecState ===

impl ExecState {
    /// The run that is under way.
    fn running(&self) -> Option<&Renewal> {
        self.renewal.as_ref().filter(|renewal| renewal.is_running())
    }

    /// The last credentials, unless they have expired.
    fn unexpired(&self) -> Option<&Credential> {
        self.credential.as_ref().filter(|_| self.expires.is_none_or(|at| at > SystemTime::now()))
    }

    /// Keeps the error of a run. It is logged, once a text, if requests don't fail with it.
    fn complain(&mut self, failure: String) {
        if self.unexpired().is_some() && self.failure.as_ref() != Some(&failure) {
            tracing::warn!(err = failure, "Renewing the credentials failed, keeping the last ones until they expire");
        }
        self.failure = Some(failure);
    }
}

// === impl Renewal ===

impl Renewal {
    fn is_running(&self) -> bool {
        self.end.has_changed().is_ok()
    }

    /// Waits until the run has ended and its result is kept.
    async fn wait(&self) {
        // Nothing is sent: an error is the end.
        while self.end.clone().changed().await.is_ok() {}
    }
}

/// KUBERNETES_EXEC_INFO: the API version, `interactive: false`, and the cluster if `provideClusterInfo` is set.
fn about(exec: &Exec, settings: &ClientSettings) -> String {
    let chosen = &settings.chosen;
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        let authorities = Material::read(chosen, None).ok();
        let authorities = authorities.as_ref().and_then(Material::authorities);
        let mut cluster = json!({ "server": chosen.server.to_string() });
        let mut add = |name: &str, value: Option<Value>| {
            if let (Some(cluster), Some(value)) = (cluster.as_object_mut(), value) {
                cluster.insert(name.to_owned(), value);
            }
        };
        add("tls-server-name", chosen.server_name.clone().map(Value::String));
        add("insecure-skip-tls-verify", chosen.insecure.then_some(Value::Bool(true)));
        add("certificate-authority-data", authorities.map(|pem| Value::String(STANDARD.encode(pem))));
        add("proxy-url", chosen.proxy.clone().map(Value::String));
        add("disable-compression", chosen.disable_compression.then_some(Value::Bool(true)));
        add("config", chosen.exec_config.clone());
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("cluster".to_owned(), cluster);
        }
    }
    json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec }).to_string()
}
