//! What goes wrong on the way to the API server.

use std::error::Error;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::kubeconfig::KubeconfigError;
use thiserror::Error;

use ferry_kernel::text::reason;

/// There is no usable way to an API server: the start ends. No message holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AccessError {
    /// the kubeconfig can't be read
    #[error("{action} {path}: {reason}")]
    File {
        /// `stat` where it isn't there, else `open`
        action: &'static str,
        /// its path
        path: String,
        /// the system's words
        reason: String,
    },
    /// the kubeconfig, or what it says, is wrong
    #[error("error loading config file {path:?}: {error}")]
    Kubeconfig {
        /// its path
        path: String,
        /// what is wrong
        error: KubeconfigError,
    },
    /// `--master` is wrong
    #[error("--master: {0}")]
    Master(KubeconfigError),
    /// a file that is named, or data that stands in the kubeconfig, can't be used
    #[error("invalid configuration: {origin}: {what}: {reason}")]
    Content {
        /// the kubeconfig's path, or `in-cluster configuration`
        origin: String,
        /// the field
        what: String,
        /// what is wrong with it
        reason: String,
    },
    /// neither a kubeconfig nor `--master`, and this is no pod
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
}

/// A request without an answer, or an answer that broke off. No message holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// nothing reached the server: name, connection, proxy, TLS, a refused client certificate
    #[error("{0}")]
    Connect(String),
    /// there are no credentials to send: token file, exec plugin
    #[error("getting credentials: {0}")]
    Credentials(String),
    /// the connection broke after the request was sent
    #[error("{0}")]
    Interrupted(String),
    /// no answer within this time
    #[error("no answer within {} s", after.as_secs_f32())]
    Timeout {
        /// the time
        after: Duration,
    },
}

/// An error and its causes, joined; a cause whose text the one before it already has is left out.
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

/// An error's own text; in place of one of the TLS library's that refers to its manual, what Go says.
fn words(error: &dyn Error) -> String {
    let text = error.to_string();
    if text.contains("close_notify") { "unexpected EOF".to_owned() } else { text }
}

/// `open PATH: no such file or directory`.
pub(super) fn opening(path: &Path, error: &io::Error) -> String {
    format!("open {}: {}", path.display(), reason(error))
}
