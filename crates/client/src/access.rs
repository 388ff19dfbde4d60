//! Loads and checks the settings of the connection to the API server, from a kubeconfig, `--master` or a pod's environment.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::kubeconfig::{
    self, Authorization, Chosen, FileContent, Impersonate, ServerAddress, User, without_credentials,
};
use hyper::Uri;

use super::authorities::Authorities;
use super::credentials;
use super::error::AccessError;
use super::file;
use super::proxy::ForwardProxy;
use super::settings::{ClientSettings, Http2};
use super::tls::{self, Material};
use ferry_kernel::text::reason;

/// Directory of a pod's service account: token and certificate authority.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Server and client credentials from a kubeconfig, `--master` or the pod's environment. All files that they name are read and
/// checked on loading; no connection is made.
#[derive(Clone)]
pub struct Access {
    pub(super) settings: Arc<ClientSettings>,
    /// content of the files at start
    pub(super) material: Material,
}

// === impl Access ===

impl Access {
    /// Loads the settings in upstream's order: a kubeconfig (blank for none), whose server `master` replaces; `master` alone,
    /// without credentials; else the pod's service account. `KUBECONFIG` and `~/.kube/config` are ignored.
    ///
    /// # Errors
    /// If a file is missing or unusable, or no source is given outside of a pod.
    pub fn load(kubeconfig: &str, master: Option<&str>) -> Result<Self, AccessError> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::load_with(kubeconfig, master, &env, Path::new(SERVICE_ACCOUNT))
    }

    /// [`Self::load`] with the caller's environment and service account directory.
    pub(super) fn load_with(
        kubeconfig: &str,
        master: Option<&str>,
        env: &dyn Fn(&str) -> Option<String>,
        account: &Path,
    ) -> Result<Self, AccessError> {
        let master = master.filter(|master| !master.is_empty());
        let (chosen, origin) = match (kubeconfig, master) {
            ("", None) => (in_cluster(env, account)?, "in-cluster configuration".to_owned()),
            ("", Some(master)) => (kubeconfig::of_master(master).map_err(AccessError::Master)?, "--master".to_owned()),
            (path, master) => (of_file(path, master)?, path.to_owned()),
        };
        Self::new(chosen, origin, env)
    }

    fn new(chosen: Chosen, origin: String, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, AccessError> {
        let server = chosen.server.to_string();
        let shown = without_credentials(&server).into_owned();
        let unusable =
            |what: &str, reason: String| AccessError::Content { origin: origin.clone(), what: what.to_owned(), reason };
        let uri: Uri = server.parse().map_err(|_| unusable("server", format!("{shown:?} is not a valid URL")))?;
        let proxy = match &chosen.proxy {
            Some(url) => {
                Some(ForwardProxy::of_url(url).ok_or_else(|| unusable("proxy-url", "not a valid URL".to_owned()))?)
            }
            None => ForwardProxy::of_environment(&uri, env),
        };
        credentials::check(&chosen.user).map_err(|(what, reason)| unusable(what, reason))?;
        let (authorities, http2) = (Authorities::default(), Http2::of_environment(env));
        let settings = ClientSettings { chosen, origin: origin.clone(), shown, proxy, authorities, http2 };
        let material = Material::read(&settings.chosen, None).map_err(|fault| unusable(fault.what, fault.reason))?;
        if settings.chosen.server.tls {
            tls::config(&settings, &material).map_err(|fault| unusable(fault.what, fault.reason))?;
        }
        Ok(Self { settings: Arc::new(settings), material })
    }

    /// The server's URL without credentials, for messages.
    pub fn server(&self) -> &str {
        &self.settings.shown
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("server", &self.settings.shown).finish_non_exhaustive()
    }
}

fn of_file(path: &str, master: Option<&str>) -> Result<Chosen, AccessError> {
    let fail = |action, reason| AccessError::File { action, path: path.to_owned(), reason };
    fs::metadata(path).map_err(|error| fail("stat", reason(&error)))?;
    let bytes = read(Path::new(path)).map_err(|error| fail("open", error))?;
    let text = String::from_utf8(bytes).map_err(|_| fail("read", "not UTF-8 text".to_owned()))?;
    let mut chosen =
        kubeconfig::decode(&text, master).map_err(|error| AccessError::Kubeconfig { path: path.to_owned(), error })?;
    resolve(&mut chosen, Path::new(path).parent().unwrap_or(Path::new("")));
    Ok(chosen)
}

/// The content of a file; the error is the system's text without the path.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    file::read(path).map_err(|error| reason(&error))
}

/// Resolves relative paths against the kubeconfig's folder; a plugin's command only if it contains a slash.
fn resolve(chosen: &mut Chosen, folder: &Path) {
    let absolute = |path: &mut String| *path = folder.join(&*path).to_string_lossy().into_owned();
    let file = |content: &mut FileContent| {
        if let FileContent::File(path) = content {
            absolute(path);
        }
    };
    chosen.authorities.iter_mut().for_each(file);
    if let Some((certificate, key)) = &mut chosen.user.certificate {
        file(certificate);
        file(key);
    }
    match &mut chosen.user.authorization {
        Authorization::TokenFile(path) => absolute(path),
        Authorization::Exec(plugin) if plugin.command.contains('/') => absolute(&mut plugin.command),
        Authorization::Exec(_) | Authorization::None | Authorization::Token(_) | Authorization::Basic { .. } => {}
    }
}

fn in_cluster(env: &dyn Fn(&str) -> Option<String>, account: &Path) -> Result<Chosen, AccessError> {
    let (Some(host), Some(port)) = (env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")) else {
        return Err(AccessError::NotInCluster);
    };
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    let server = ServerAddress::parse(&format!("https://{host}:{port}"), true).map_err(|reason| {
        let what = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT".to_owned();
        AccessError::Content { origin: "in-cluster configuration".to_owned(), what, reason }
    })?;
    let file = |name: &str| account.join(name).to_string_lossy().into_owned();
    let user = User {
        name: "service account".to_owned(),
        certificate: None,
        authorization: Authorization::TokenFile(file("token")),
        impersonate: None::<Impersonate>,
    };
    Ok(Chosen {
        server,
        authorities: Some(FileContent::File(file("ca.crt"))),
        insecure: false,
        server_name: None,
        proxy: None,
        disable_compression: false,
        user,
        exec_config: None,
    })
}
