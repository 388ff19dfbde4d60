//! A subcommand's end of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferry_api::object::KubeObject;
use ferry_api::snapshot::decode_snapshot;
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::{OBJECTS, RunningState, SELF_TEST, STATE};
use crate::http_client;
use crate::platform::{ControlStream, connect_control};

/// The running proxy, seen from a subcommand.
#[derive(Clone, Debug)]
pub struct RunningProxy {
    path: PathBuf,
    /// its state when it was found
    pub state: RunningState,
}

/// Result of looking for a running proxy.
#[derive(Debug)]
pub enum ProxyLookup {
    /// a running proxy
    Running(Box<RunningProxy>),
    /// no process listens at the path
    NotRunning(io::Error),
}

/// Time limit of a request: the tools of mode iptables keep a starting proxy busy.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest answer in bytes: some ten times the objects of 10,000 Services with 100,000 endpoints.
const MOST_BYTES: usize = 256 << 20;

// === impl RunningProxy ===

impl RunningProxy {
    /// Requests the state of the proxy at a path.
    ///
    /// # Errors
    /// If the process that listens there refuses this user, or its answer isn't a [`RunningState`].
    pub fn find(path: &Path) -> anyhow::Result<ProxyLookup> {
        let named = || format!("asking the process at {}", path.display());
        let body = match ask(path, (Method::GET, STATE)).with_context(named)? {
            Ok(body) => body,
            Err(error) => return Ok(ProxyLookup::NotRunning(error)),
        };
        let state = serde_json::from_slice(&body).context("decoding its state").with_context(named)?;
        Ok(ProxyLookup::Running(Box::new(Self { path: path.to_owned(), state })))
    }

    /// All objects that it serves.
    ///
    /// # Errors
    /// If it has ended, serves none yet, or its answer is damaged.
    pub fn objects(&self) -> anyhow::Result<Vec<KubeObject>> {
        let named = || format!("asking the process at {} for its objects", self.path.display());
        let body = ask(&self.path, (Method::GET, OBJECTS)).with_context(named)?.with_context(named)?;
        Ok(decode_snapshot(&*body).with_context(named)?.objects)
    }

    /// Has it test its data path; returns the results as in docs/cli.md.
    ///
    /// # Errors
    /// If it has ended, can't test, or its answer is damaged.
    pub fn self_test(&self) -> anyhow::Result<Value> {
        let named = || format!("asking the process at {} for a test of the data path", self.path.display());
        let body = ask(&self.path, (Method::POST, SELF_TEST)).with_context(named)?.with_context(named)?;
        serde_json::from_slice(&body).with_context(named)
    }
}

/// Returns the body of an answer; the inner error if no process listens at the path.
fn ask(path: &Path, request: (Method, &str)) -> anyhow::Result<io::Result<Vec<u8>>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answered = timeout(LIMIT, async {
            match connect_control(path).await {
                Ok(Ok(stream)) => exchange(stream, request).await.map(Ok),
                Ok(Err(error)) => Ok(Err(error)),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error)
                    .context("only its user and root may ask it: run as root, or name another source of objects"),
                Err(error) => Err(error.into()),
            }
        });
        let late =
            || format!("no answer within {} s: name another source of objects to work without it", LIMIT.as_secs());
        answered.await.with_context(late)?
    })
}

async fn exchange(stream: ControlStream, (method, route): (Method, &str)) -> anyhow::Result<Vec<u8>> {
    let (status, body) = http_client::request(stream, method, ("kube-proxy", route), MOST_BYTES).await?;
    if status != StatusCode::OK {
        bail!("it answers {status}: {}", http_client::shown(&body));
    }
    Ok(body)
}
