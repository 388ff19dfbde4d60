//! The way to the server: from a kubeconfig, `--master` or a pod's environment.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::kubeconfig::{self, Authorization, Chosen, Content, Impersonate, ServerAddress, User, without_credentials};
use hyper::Uri;

use super::authorities::Authorities;
use super::credentials;
use super::error::AccessError;
use super::file;
use super::proxy::Proxy;
use super::settings::{Http2, Settings};
use super::tls::{self, Material};
use ferry_kernel::text::reason;

/// Where a pod finds its account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What a kubeconfig, `--master` or the pod's environment says about the server and who asks. All that it names is
/// read and checked when it is loaded; no connection is made.
#[derive(Clone)]
pub struct Access {
    pub(super) settings: Arc<Settings>,
    /// what was read at the start
    pub(super) material: Material,
}

// === impl Access ===

impl Access {
    /// The way that upstream would take: a kubeconfig (blank for none), whose server `master` replaces; `master` alone,
    /// without credentials; or else what a pod is given. `KUBECONFIG` and `~/.kube/config` aren't looked at.
    pub fn load(kubeconfig: &str, master: Option<&str>) -> Result<Self, AccessError> {
        let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::load_with(kubeconfig, master, &env, Path::new(SERVICE_ACCOUNT))
    }

    /// The same with an environment and a pod's account of the caller's.
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
        let uri: Uri = server.parse().map_err(|_| unusable("server", format!("{shown:?} is no URL")))?;
        let proxy = match &chosen.proxy {
            Some(url) => Some(Proxy::of_url(url).ok_or_else(|| unusable("proxy-url", "it is no URL".to_owned()))?),
            None => Proxy::of_environment(&uri, env),
        };
        credentials::check(&chosen.user).map_err(|(what, reason)| unusable(what, reason))?;
        let (authorities, http2) = (Authorities::default(), Http2::of_environment(env));
        let settings = Settings { chosen, origin: origin.clone(), shown, proxy, authorities, http2 };
        let material = Material::read(&settings.chosen, None).map_err(|fault| unusable(fault.what, fault.reason))?;
        if settings.chosen.server.tls {
            tls::config(&settings, &material).map_err(|fault| unusable(fault.what, fault.reason))?;
        }
        Ok(Self { settings: Arc::new(settings), material })
    }

    /// The server's URL, for messages: without anything that may be a password.
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
    let text = String::from_utf8(bytes).map_err(|_| fail("read", "it is no text".to_owned()))?;
    let mut chosen =
        kubeconfig::decode(&text, master).map_err(|error| AccessError::Kubeconfig { path: path.to_owned(), error })?;
    resolve(&mut chosen, Path::new(path).parent().unwrap_or(Path::new("")));
    Ok(chosen)
}

/// The content of a file, or why it can't be had, without its path.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    file::read(path).map_err(|error| reason(&error))
}

/// Relative paths begin at the kubeconfig's folder; so does a plugin's if it has more than a name.
fn resolve(chosen: &mut Chosen, folder: &Path) {
    let absolute = |path: &mut String| *path = folder.join(&*path).to_string_lossy().into_owned();
    let file = |content: &mut Content| {
        if let Content::File(path) = content {
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
        authorities: Some(Content::File(file("ca.crt"))),
        insecure: false,
        server_name: None,
        proxy: None,
        disable_compression: false,
        user,
        exec_config: None,
    })
}
