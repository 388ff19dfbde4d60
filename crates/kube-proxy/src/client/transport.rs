//! Connections of one identity, and their replacement when files change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

use super::Timing;
use super::access::{Access, Settings};
use super::connect::Connector;
use super::credentials::Credential;
use super::proxy::Scheme;
use super::tls::{self, Fault, Material, Pair};
use crate::serve::rest_metrics::RestMetrics;

/// Bounds what one connection reads ahead: there are four or five of them, and memory counts.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Connections kept open between requests. Watches hold theirs.
const IDLE_CONNECTIONS: usize = 2;

/// hyper's client, over connections of one identity.
pub(super) type Http = legacy::Client<Connector, Full<Bytes>>;

/// The transport in use.
pub(super) struct Transports {
    settings: Arc<Settings>,
    timing: Timing,
    metrics: Arc<RestMetrics>,
    state: Mutex<State>,
    /// counts up when the client's certificate changes
    identity: AtomicU64,
}

struct State {
    http: Http,
    material: Material,
    /// the plugin's part of it
    plugin: Option<Arc<Pair>>,
    /// which run of the plugin that is of
    run: u64,
    looked: Instant,
    /// what is wrong with the files now, told once
    trouble: Option<Fault>,
}

// === impl Transports ===

impl Transports {
    pub(super) fn new(access: &Access, timing: &Timing, metrics: &Arc<RestMetrics>) -> Result<Self, Fault> {
        let settings = Arc::clone(&access.settings);
        let material = access.material.clone();
        let http = build(&settings, &material, timing)?;
        metrics.transport_created();
        let state = State { http, material, plugin: None, run: 0, looked: Instant::now(), trouble: None };
        Ok(Self {
            settings,
            timing: timing.clone(),
            metrics: Arc::clone(metrics),
            state: Mutex::new(state),
            identity: AtomicU64::new(0),
        })
    }

    /// The transport for a request, and the number of its identity.
    pub(super) fn current(&self, credential: &Credential) -> (Http, u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // One that waited for its turn may come with less than is known by now.
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
        (state.http.clone(), self.identity.load(Ordering::Relaxed))
    }

    /// The number of the identity that new connections have, after a look at the files if it's time for that.
    pub(super) fn identity(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= self.timing.recheck {
            self.look(&mut state);
        }
        self.identity.load(Ordering::Relaxed)
    }

    /// Reads the files, and replaces the transport if they hold something else that can be used.
    fn look(&self, state: &mut State) {
        state.looked = Instant::now();
        let built = Material::read(&self.settings.chosen, state.plugin.as_deref()).and_then(|material| {
            let http = (material != state.material).then(|| build(&self.settings, &material, &self.timing));
            Ok((material, http.transpose()?))
        });
        match built {
            Ok((material, http)) => {
                state.trouble = None;
                let Some(http) = http else { return };
                // The old one's idle connections end with it.
                state.http = http;
                self.metrics.transport_created();
                if material.pair != state.material.pair {
                    self.identity.fetch_add(1, Ordering::Relaxed);
                    // A plugin's first is no news.
                    if state.material.pair.is_some() {
                        tracing::info!("The client certificate has changed, new connections use it");
                    }
                } else {
                    tracing::info!("The server's certificate authorities have changed, new connections trust them");
                }
                state.material = material;
            }
            Err(fault) => {
                if state.trouble.as_ref() != Some(&fault) {
                    let (what, err) = (fault.what, fault.reason.as_str());
                    tracing::warn!(
                        what,
                        err,
                        "Files of the kubeconfig can't be used, what was read before stays in use"
                    );
                    state.trouble = Some(fault);
                }
            }
        }
    }
}

fn build(settings: &Settings, material: &Material, timing: &Timing) -> Result<Http, Fault> {
    let tls = settings.chosen.server.tls.then(|| tls::config(settings, material)).transpose()?;
    let is_tls_proxy = settings.proxy.as_ref().is_some_and(|proxy| proxy.scheme == Scheme::Https);
    // The proxy is no part of the cluster: the system's authorities count, and it isn't shown the certificate.
    let proxy_tls = is_tls_proxy.then(|| tls::plain_config(settings)).transpose()?;
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .http1_max_buf_size(READ_BUFFER_BYTES)
        .build(Connector::new(settings, tls, proxy_tls, timing)))
}

/// API servers keep idle connections for minutes.
const IDLE: Duration = Duration::from_secs(30);
