//! Errors of configuration and of requests.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::kubeconfig::KubeconfigError;
use thiserror::Error;

use ferry_kernel::text::reason;

/// Kubeconfig, `--master` or the pod's environment is unusable; kube-proxy exits at start. No message contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// the kubeconfig can't be read
    #[error("{action} {path}: {reason}")]
    File {
        /// `stat` if it doesn't exist, else `open` or `read`
        action: &'static str,
        /// its path
        path: String,
        /// the system's error text
        reason: String,
    },
    /// the kubeconfig is malformed, or its settings are
    #[error("error loading config file {path:?}: {error}")]
    Kubeconfig {
        /// its path
        path: String,
        /// the cause
        error: KubeconfigError,
    },
    /// `--master` is wrong
    #[error("--master: {0}")]
    Master(KubeconfigError),
    /// a file named in the kubeconfig, or data embedded in it, is unusable
    #[error("invalid configuration: {origin}: {what}: {reason}")]
    Content {
        /// the kubeconfig's path, or `in-cluster configuration`
        origin: String,
        /// the field
        what: String,
        /// the cause
        reason: String,
    },
    /// neither kubeconfig nor `--master` is given, and the process doesn't run in a pod
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
}

/// A request without a response, or an interrupted response. No message contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// no usable connection: name resolution, TCP, proxy, TLS, a rejected client certificate
    #[error("{0}")]
    Connect(String),
    /// no credentials available: token file, exec plugin
    #[error("getting credentials: {0}")]
    Credentials(String),
    /// the connection broke after the request was sent
    #[error("{0}")]
    Interrupted(String),
    /// no response within the time limit
    #[error("no response within {} s", after.as_secs_f32())]
    Timeout {
        /// the time limit
        after: Duration,
    },
}

/// The texts of an error and its causes, joined; a cause that the text before it contains is left out.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = words(error);
    let mut last = text.clone();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = words(error);
        if !last.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        last = cause;
        next = error.source();
    }
    text
}

/// An error's own text; Go's text for one of the TLS library that refers to its manual.
fn words(error: &dyn Error) -> String {
    let text = error.to_string();
    if text.contains("close_notify") { "unexpected EOF".to_owned() } else { text }
}

/// `open PATH: no such file or directory`.
pub(super) fn opening(path: &Path, error: &io::Error) -> String {
    format!("open {}: {}", path.display(), reason(error))
}
