//! Kubeconfig files: server, certificate authorities, client credentials. [`decode`] resolves the current context; the files
//! that it names are read at each connection.

mod address;
mod choose;
mod raw;
#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

pub use address::{ServerAddress, without_credentials};

/// The resolved current context of a kubeconfig, validated as far as possible without reading further files.
#[derive(Clone, PartialEq)]
pub struct Chosen {
    /// the server
    pub server: ServerAddress,
    /// `certificate-authority` or its data; `None` for the system's own authorities
    pub authorities: Option<FileContent>,
    /// `insecure-skip-tls-verify`
    pub insecure: bool,
    /// `tls-server-name`
    pub server_name: Option<String>,
    /// `proxy-url`: http, https or socks5; it may hold a password
    pub proxy: Option<String>,
    /// `disable-compression`
    pub disable_compression: bool,
    /// client credentials; none for a server without TLS
    pub user: User,
    /// the cluster's extension `client.authentication.k8s.io/exec`, which is passed to plugins
    pub exec_config: Option<serde_json::Value>,
}

/// Client credentials.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// its name in the kubeconfig; empty if there is none
    pub name: String,
    /// the client's certificate and key
    pub certificate: Option<(FileContent, FileContent)>,
    /// source of the header Authorization
    pub authorization: Authorization,
    /// the impersonated user
    pub impersonate: Option<Impersonate>,
}

/// Source of the header Authorization. A token file takes precedence over a token, and both over a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Authorization {
    /// no such header
    #[default]
    None,
    /// `token`, or `id-token` of the auth provider oidc
    Token(Secret),
    /// `tokenFile`
    TokenFile(String),
    /// `username` and `password`
    Basic {
        /// may be empty
        username: String,
        /// may be empty
        password: Secret,
    },
    /// a program that prints credentials
    Exec(Box<Exec>),
}

/// A program that prints credentials. Arguments and environment may hold secrets, so that Debug shows neither.
#[derive(Clone, PartialEq)]
pub struct Exec {
    /// its path, or its name within PATH
    pub command: String,
    /// its arguments
    pub args: Vec<String>,
    /// environment variables, added to those of this process
    pub env: Vec<(String, String)>,
    /// the version of its output: `client.authentication.k8s.io/v1` or `…/v1beta1`
    pub api_version: String,
    /// printed if the plugin isn't installed
    pub install_hint: String,
    /// true if the plugin gets the cluster's data
    pub provide_cluster_info: bool,
}

/// `as`, `as-uid`, `as-groups` and `as-user-extra`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonate {
    /// as
    pub user: String,
    /// as-uid
    pub uid: Option<String>,
    /// as-groups
    pub groups: Vec<String>,
    /// as-user-extra, sorted by key
    pub extra: Vec<(String, Vec<String>)>,
}

/// The content of a file.
#[derive(Clone, PartialEq, Eq)]
pub enum FileContent {
    /// embedded
    Data(Vec<u8>),
    /// by its path, relative ones from the kubeconfig's folder
    File(String),
}

/// A secret; its Debug output is redacted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

/// A kubeconfig that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KubeconfigError {
    /// no YAML, or a field of the wrong type
    #[error("{}{message}", place(*.line, *.column))]
    Malformed {
        /// 1-based, where known
        line: Option<usize>,
        /// 1-based, where known
        column: Option<usize>,
        /// the cause
        message: String,
    },
    /// fields that are missing, contradict each other or hold nothing usable
    #[error("invalid configuration: {0}")]
    Invalid(String),
}

fn place(line: Option<usize>, column: Option<usize>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!("yaml: line {line}, column {column}: "),
        (Some(line), None) => format!("yaml: line {line}: "),
        (None, _) => String::new(),
    }
}

/// Decodes a kubeconfig, YAML or JSON, and resolves its current context. `master` replaces the server, and `tls-server-name`
/// is ignored then. Unknown fields are ignored, as upstream does.
pub fn decode(text: &str, master: Option<&str>) -> Result<Chosen, KubeconfigError> {
    choose::choose(raw::parse(text)?, master)
}

/// The context of a bare server address: no credentials, the system's authorities.
pub fn of_master(master: &str) -> Result<Chosen, KubeconfigError> {
    choose::choose(raw::RawConfig::default(), Some(master))
}

// === impl Chosen ===

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, authorities, insecure, server_name, proxy, disable_compression, user, exec_config } = self;
        f.debug_struct("Chosen")
            .field("server", &without_credentials(&server.to_string()))
            .field("authorities", authorities)
            .field("insecure", insecure)
            .field("server_name", server_name)
            .field("proxy", &proxy.as_deref().map(without_credentials))
            .field("disable_compression", disable_compression)
            .field("user", user)
            .field("exec_config", exec_config)
            .finish()
    }
}

// === impl Exec ===

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exec").field("command", &self.command).finish_non_exhaustive()
    }
}

// === impl FileContent ===

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The data may be a private key.
            Self::Data(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Self::File(path) => write!(f, "File({path:?})"),
        }
    }
}

// === impl Secret ===

impl Secret {
    /// Wraps a text that no log may show.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the request that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
