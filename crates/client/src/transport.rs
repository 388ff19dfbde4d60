//! Holds the connections of the current client identity, and replaces them when certificate files change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Uri;
use tokio::time::Instant;

use super::TimeLimits;
use super::access::Access;
use super::connect::Connector;
use super::credential::Credential;
use super::error::CallError;
use super::gate::ConnectGate;
use super::pool::{Lease, Link, Pings, Pool};
use super::proxy::Scheme;
use super::settings::ClientSettings;
use super::tls::{self, FieldFault, Material, Pair};
use crate::observe::Observe;

/// The current transport: connection pool, TLS material and pacing.
pub(super) struct Transports {
    settings: Arc<ClientSettings>,
    /// scheme and authority
    server: Uri,
    timing: TimeLimits,
    metrics: Arc<dyn Observe>,
    gate: ConnectGate,
    state: Mutex<TransportState>,
    /// increases when the client certificate changes
    identity: AtomicU64,
}

struct TransportState {
    pool: Arc<Pool>,
    material: Material,
    /// the plugin's part of the material
    plugin: Option<Arc<Pair>>,
    /// the run of the plugin that returned it
    run: u64,
    looked: Instant,
    /// the current fault of the files; logged once
    trouble: Option<FieldFault>,
}

// === impl Transports ===

impl Transports {
    pub(super) fn new(
        access: &Access,
        server: Uri,
        timing: &TimeLimits,
        metrics: &Arc<dyn Observe>,
    ) -> Result<Self, FieldFault> {
        let settings = Arc::clone(&access.settings);
        let material = access.material.clone();
        let pool = build(&settings, &material, timing)?;
        metrics.transport_created();
        let state = TransportState { pool, material, plugin: None, run: 0, looked: Instant::now(), trouble: None };
        Ok(Self {
            settings,
            server,
            gate: ConnectGate::new(timing),
            timing: timing.clone(),
            metrics: Arc::clone(metrics),
            state: Mutex::new(state),
            identity: AtomicU64::new(0),
        })
    }

    /// A connection for a request, and the number of its identity. If a new one is needed, one of the waiting requests makes the
    /// attempt, and all of them share its result.
    pub(super) async fn lease(&self, credential: &Credential) -> Result<(Lease, u64), CallError> {
        let failures = self.gate.failures();
        let (pool, identity) = self.current(credential);
        if let Some(lease) = pool.take() {
            return Ok((lease, identity));
        }
        let _turn = self.gate.turn(failures).await.map_err(CallError::Connect)?;
        loop {
            let (pool, identity) = self.current(credential);
            if let Some(lease) = pool.take() {
                return Ok((lease, identity));
            }
            let wait = self.gate.wait();
            if wait.is_zero() {
                return self.dial(&pool).await.map(|lease| (lease, identity));
            }
            // With other certificates the next attempt is made at once.
            tokio::time::sleep(wait.min(self.timing.recheck)).await;
        }
    }

    async fn dial(&self, pool: &Arc<Pool>) -> Result<Lease, CallError> {
        let begun = Instant::now();
        let (brisk, failures) = (self.gate.is_brisk(), self.gate.failures());
        let made = pool.dial(self.server.clone(), &self.timing, brisk, failures).await;
        self.metrics.connected(match &made {
            Ok(lease) => lease.protocol(),
            Err(error) if error.answered => "failed",
            Err(_) => "unreachable",
        });
        match &made {
            Ok(_) => self.gate.connected(),
            Err(error) => self.gate.failed(error, begun),
        }
        made.map_err(|error| CallError::Connect(error.to_string()))
    }

    /// Failed attempts to connect so far.
    pub(super) fn failures(&self) -> u64 {
        self.gate.failures()
    }

    /// Resets the backoff: the server has answered.
    pub(super) fn works(&self) {
        self.gate.works();
    }

    /// Notes a failed request. A connection over which no request was ever answered counts as a failed attempt.
    pub(super) fn failed(&self, link: &Link, error: &CallError) {
        if let Some(failures) = link.unanswered() {
            self.gate.unanswered(&error.to_string(), failures);
        }
    }

    /// The current pool, and the number of its identity.
    fn current(&self, credential: &Credential) -> (Arc<Pool>, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A request that waited may carry credentials of an older run.
        let newer = credential.run > state.run;
        if newer {
            state.run = credential.run;
        }
        if newer && state.plugin != credential.pair {
            state.plugin.clone_from(&credential.pair);
            self.look(&mut state);
        } else if state.looked.elapsed() >= self.timing.recheck {
            self.look(&mut state);
        }
        (Arc::clone(&state.pool), self.identity.load(Ordering::Relaxed))
    }

    /// The number of the identity of new connections; reads the files again if that is due.
    pub(super) fn identity(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= self.timing.recheck {
            self.look(&mut state);
            state.pool.tidy();
        }
        self.identity.load(Ordering::Relaxed)
    }

    /// PEM of the cluster's certificate authorities that new connections trust; `None` for the system's.
    pub(super) fn authorities(&self) -> Option<Vec<u8>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.material.authorities().map(<[u8]>::to_vec)
    }

    /// Reads the files, and replaces the transport if their content has changed and is usable.
    fn look(&self, state: &mut TransportState) {
        state.looked = Instant::now();
        let built = Material::read(&self.settings.chosen, state.plugin.as_deref()).and_then(|material| {
            let pool = (material != state.material).then(|| build(&self.settings, &material, &self.timing));
            Ok((material, pool.transpose()?))
        });
        match built {
            Ok((material, pool)) => {
                state.trouble = None;
                let Some(pool) = pool else { return };
                // Connections of the old pool close with their running requests.
                state.pool = pool;
                self.gate.forget();
                self.metrics.transport_created();
                if material.pair != state.material.pair {
                    self.identity.fetch_add(1, Ordering::Relaxed);
                    // A plugin's first certificate is not a change.
                    if state.material.pair.is_some() {
                        tracing::info!("Client certificate changed, new connections use it");
                    }
                } else {
                    tracing::info!("Certificate authorities of the server changed, new connections trust them");
                }
                state.material = material;
            }
            Err(fault) => {
                if state.trouble.as_ref() != Some(&fault) {
                    let (what, err) = (fault.what, fault.reason.as_str());
                    tracing::warn!(
                        what,
                        err,
                        "Files named in the kubeconfig are unusable, keeping their previous content"
                    );
                    state.trouble = Some(fault);
                }
            }
        }
    }
}

fn build(settings: &ClientSettings, material: &Material, timing: &TimeLimits) -> Result<Arc<Pool>, FieldFault> {
    let tls = settings.chosen.server.tls.then(|| tls::config(settings, material)).transpose()?;
    let is_tls_proxy = settings.proxy.as_ref().is_some_and(|proxy| proxy.scheme == Scheme::Https);
    // The proxy isn't part of the cluster: it is checked with the system's authorities, and doesn't get the client certificate.
    let proxy_tls = is_tls_proxy.then(|| tls::plain_config(settings)).transpose()?;
    let after = settings.http2.ping_after.unwrap_or(timing.ping);
    let within = settings.http2.ping_within.unwrap_or(timing.pong);
    let pings = Pings { after: Some(after).filter(|after| !after.is_zero()), within };
    Ok(Arc::new(Pool::new(Connector::new(settings, tls, proxy_tls, timing), pings)))
}
