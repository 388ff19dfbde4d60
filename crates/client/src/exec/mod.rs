//! Exec plugins: programs that print credentials. One runs at a time, and all requests wait for it.

mod answer;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::kubeconfig::Exec;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::TimeLimits;
use super::credential::Credential;
use super::error::CallError;
use super::settings::ClientSettings;
use super::tls::Material;
use crate::observe::Observe;

pub(super) use answer::ExecAnswer;
use run::ExecOutcome;

/// An exec plugin and its last result.
#[derive(Debug)]
pub(super) struct Plugin {
    exec: Exec,
    /// the environment variable KUBERNETES_EXEC_INFO
    about: String,
    /// time limit of a run
    limit: Duration,
    /// least time between two runs: any result is reused for so long, failures and rejected credentials included
    pause: Duration,
    metrics: Arc<dyn Observe>,
    state: Mutex<ExecState>,
    /// the last run whose credentials the server rejected
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct ExecState {
    /// number of runs
    run: u64,
    /// end of the last run
    ended: Option<Instant>,
    credential: Option<Credential>,
    expires: Option<SystemTime>,
    /// error of the last run
    failure: Option<String>,
    /// start of the certificate's use, for the metric
    pair_since: Option<SystemTime>,
}

// === impl Plugin ===

impl Plugin {
    pub(super) fn new(exec: &Exec, settings: &ClientSettings, timing: &TimeLimits, metrics: Arc<dyn Observe>) -> Self {
        Self {
            about: about(exec, settings),
            exec: exec.clone(),
            limit: timing.plugin,
            pause: timing.plugin_pause,
            metrics,
            state: Mutex::new(ExecState::default()),
            refused: AtomicU64::new(0),
        }
    }

    /// The last credentials, or those of another run if they have expired or were rejected. Where that run fails, the last ones
    /// stay in use until they expire: the server may have rejected them for a moment only.
    pub(super) async fn credential(&self) -> Result<Credential, CallError> {
        let mut state = self.state.lock().await;
        let paused = state.ended.is_some_and(|ended| ended.elapsed() < self.pause);
        let refused = self.refused.load(Ordering::Relaxed) >= state.run;
        if !paused && (refused || state.failure.is_some() || state.unexpired().is_none()) {
            self.renew(&mut state).await;
        }
        let usable = if state.failure.is_some() { state.unexpired() } else { state.credential.as_ref() };
        usable.cloned().ok_or_else(|| {
            let failure = state.failure.as_deref().unwrap_or("the exec plugin hasn't run yet");
            CallError::Credentials(failure.to_owned())
        })
    }

    /// Notes that the server rejected the credentials of this run. True if another run may follow at once.
    pub(super) fn refused(&self, run: u64) -> bool {
        self.refused.fetch_max(run, Ordering::Relaxed);
        let Ok(state) = self.state.try_lock() else { return true };
        state.run > run || state.ended.is_none_or(|ended| ended.elapsed() >= self.pause)
    }

    async fn renew(&self, state: &mut ExecState) {
        let outcome = run::run(&self.exec, &self.about, self.limit).await;
        state.run += 1;
        state.ended = Some(Instant::now());
        let (status, code) = outcome.status();
        self.metrics.plugin_call(status, code);
        let answer = match outcome {
            ExecOutcome::Printed(printed) => {
                ExecAnswer::parse(&printed, &self.exec.api_version).map_err(|reason| self.failure(&reason))
            }
            ExecOutcome::Failed { reason, .. } => Err(self.failure(&reason)),
            ExecOutcome::Missing(reason) => Err(self.missing(&reason)),
        };
        match answer {
            Ok(answer) => self.keep(state, answer),
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
