//! Resolves the current context of a kubeconfig.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::KubeconfigError::{self, Invalid};
use super::address::{is_scheme, without_credentials};
use super::raw::{RawCluster, RawConfig, RawContext, RawUser};
use super::{Authorization, Chosen, Exec, FileContent, Impersonate, Secret, ServerAddress, User, raw};

/// The cluster's extension that is passed to plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
const EXEC_V1: &str = "client.authentication.k8s.io/v1";
const EXEC_V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

type Result<T> = std::result::Result<T, KubeconfigError>;

/// A named entry, for messages.
#[derive(Clone, Copy)]
struct NamedEntry<'a> {
    /// `cluster` or `user`
    kind: &'static str,
    name: &'a str,
}

pub(super) fn choose(config: RawConfig, master: Option<&str>) -> Result<Chosen> {
    check_kind(&config)?;
    check_names(&config)?;
    let current = given(config.current_context);
    let context = match &current {
        None => RawContext::default(),
        Some(name) => config
            .contexts
            .unwrap_or_default()
            .into_iter()
            .find(|context| context.name.as_ref() == Some(name))
            .ok_or_else(|| Invalid(format!("context was not found for specified context: {name}")))?
            .context
            .unwrap_or_default(),
    };
    let cluster_name = given(context.cluster).unwrap_or_default();
    let clusters = config.clusters.unwrap_or_default();
    let cluster = clusters.into_iter().find(|cluster| cluster.name.as_deref().unwrap_or_default() == cluster_name);
    let missing = cluster.is_none();
    let mut cluster = cluster.and_then(|cluster| cluster.cluster).unwrap_or_default();
    if let Some(master) = master.filter(|master| !master.is_empty()) {
        cluster.server = Some(master.to_owned());
        // It is the name of the replaced server.
        cluster.tls_server_name = None;
    }
    let Some(server) = given(cluster.server.take()) else {
        return Err(Invalid(match (current, missing) {
            (None, _) => "no configuration has been provided, there is no current-context".to_owned(),
            (Some(context), true) => format!("cluster {cluster_name:?} was not found for context {context:?}"),
            (Some(_), false) => format!("no server found for cluster {cluster_name:?}"),
        }));
    };
    let mut chosen = of_cluster(&cluster_name, &server, cluster)?;
    let user_name = given(context.user).unwrap_or_default();
    let user = config.users.unwrap_or_default().into_iter().find(|user| user.name.as_deref() == Some(&user_name));
    // A server without TLS gets no credentials, so that they aren't checked either.
    if chosen.server.tls {
        chosen.user = match user {
            Some(user) => of_user(&user_name, user.user.unwrap_or_default())?,
            None if user_name.is_empty() => User::default(),
            None => return Err(Invalid(format!("user {user_name:?} was not found for the current context"))),
        };
    }
    Ok(chosen)
}

fn check_kind(config: &RawConfig) -> Result<()> {
    let kind = config.kind.as_deref().unwrap_or("Config");
    let version = config.api_version.as_deref().unwrap_or("v1");
    let known = (kind == "Config" || kind.is_empty()) && (version == "v1" || version.is_empty());
    known.then_some(()).ok_or_else(|| Invalid(format!("no kind {kind:?} is registered for version {version:?}")))
}

/// Rejects two entries of one name, which are ambiguous.
fn check_names(config: &RawConfig) -> Result<()> {
    fn unique<'a>(field: &str, names: impl Iterator<Item = Option<&'a str>>) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        for name in names.map(Option::unwrap_or_default) {
            if !seen.insert(name) {
                return Err(Invalid(format!("{field}: duplicate name {name:?} in list")));
            }
        }
        Ok(())
    }
    unique("clusters", config.clusters.iter().flatten().map(|entry| entry.name.as_deref()))?;
    unique("contexts", config.contexts.iter().flatten().map(|entry| entry.name.as_deref()))?;
    unique("users", config.users.iter().flatten().map(|entry| entry.name.as_deref()))
}

fn of_cluster(name: &str, server: &str, cluster: RawCluster) -> Result<Chosen> {
    let owner = NamedEntry { kind: "cluster", name };
    let authority = given(cluster.certificate_authority);
    let authority_data = given(cluster.certificate_authority_data);
    if authority.is_some() && authority_data.is_some() {
        return Err(owner.invalid("certificate-authority-data and certificate-authority are both specified"));
    }
    let insecure = cluster.insecure_skip_tls_verify.unwrap_or(false);
    let authorities = owner.content("certificate-authority-data", authority, authority_data)?;
    if insecure && authorities.is_some() {
        return Err(owner.invalid("a certificate authority with insecure-skip-tls-verify is not allowed"));
    }
    let server = ServerAddress::parse(server, insecure || authorities.is_some())
        .map_err(|why| owner.invalid(&format!("server {:?}: {why}", without_credentials(server))))?;
    let proxy = given(cluster.proxy_url);
    if let Some(proxy) = &proxy {
        check_proxy(proxy).map_err(|why| owner.invalid(&format!("invalid proxy-url: {why}")))?;
    }
    let is_exec = |extension: &raw::Extension| extension.name.as_deref() == Some(EXEC_EXTENSION);
    Ok(Chosen {
        server,
        authorities,
        insecure,
        server_name: given(cluster.tls_server_name),
        proxy,
        disable_compression: cluster.disable_compression.unwrap_or(false),
        user: User::default(),
        exec_config: cluster.extensions.into_iter().flatten().find(is_exec).and_then(|extension| extension.extension),
    })
}

/// Checks a proxy's URL. The message doesn't quote it, since it may contain a password.
fn check_proxy(url: &str) -> std::result::Result<(), String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or("missing scheme")?;
    if !["http", "https", "socks5"].contains(&scheme) {
        return Err(format!("unsupported scheme {scheme:?}, must be http, https, or socks5"));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // An `@` in the path: the parsed host and port are the beginning of a password that contains `/`, `?` or `#`.
    if path.contains('@') {
        return Err("'@' after the host: special characters in a password must be percent-encoded".to_owned());
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    ServerAddress::parse(host, false).map(|_| ())
}

fn of_user(name: &str, mut user: RawUser) -> Result<User> {
    let owner = NamedEntry { kind: "user", name };
    let impersonate = impersonation(owner, &mut user)?;
    let certificate = certificate(owner, &mut user)?;
    Ok(User { name: name.to_owned(), certificate, impersonate, authorization: authorization(owner, user)? })
}

fn certificate(owner: NamedEntry<'_>, user: &mut RawUser) -> Result<Option<(FileContent, FileContent)>> {
    let (file, data) = (given(user.client_certificate.take()), given(user.client_certificate_data.take()));
    if file.is_some() && data.is_some() {
        return Err(owner.invalid("client-certificate-data and client-certificate are both specified"));
    }
    let (key_file, key_data) = (given(user.client_key.take()), given(user.client_key_data.take()));
    if key_file.is_some() && key_data.is_some() {
        return Err(owner.invalid("client-key-data and client-key are both specified"));
    }
    let certificate = owner.content("client-certificate-data", file, data)?;
    let key = owner.content("client-key-data", key_file, key_data)?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (Some(_), None) => Err(owner.invalid("client-key-data or client-key must be specified beside the certificate")),
        (None, Some(_)) => {
            Err(owner.invalid("client-certificate-data or client-certificate must be specified beside the key"))
        }
        (None, None) => Ok(None),
    }
}

fn authorization(owner: NamedEntry<'_>, user: RawUser) -> Result<Authorization> {
    let token = match given(user.token_file) {
        Some(path) => Some(Authorization::TokenFile(path)),
        None => given(user.token).map(|token| Authorization::Token(Secret::new(token))),
    };
    let (username, password) = (given(user.username), given(user.password));
    let basic = (username.is_some() || password.is_some()).then(|| Authorization::Basic {
        username: username.unwrap_or_default(),
        password: Secret::new(password.unwrap_or_default()),
    });
    if token.is_some() && basic.is_some() {
        return Err(
            owner.invalid("more than one authentication method found: token and basicAuth, only one is allowed")
        );
    }
    if user.exec.is_some() && user.auth_provider.is_some() {
        return Err(owner.invalid("auth-provider cannot be provided in combination with an exec plugin"));
    }
    let exec = user.exec.map(|plugin| exec(owner, plugin)).transpose()?;
    let provided = user.auth_provider.map(|provider| oidc(owner, provider)).transpose()?;
    Ok(token.or(basic).or(exec).or(provided).unwrap_or_default())
}

/// The auth provider oidc: the file's id-token is sent and not renewed. Upstream has removed all other providers, too.
fn oidc(owner: NamedEntry<'_>, provider: raw::AuthProvider) -> Result<Authorization> {
    let name = provider.name.unwrap_or_default();
    if name != "oidc" {
        return Err(owner.invalid(&format!("no auth provider found for name {name:?}: use an exec plugin")));
    }
    let token = provider.config.unwrap_or_default().remove("id-token").flatten();
    let token = given(token).ok_or_else(|| owner.invalid("auth-provider oidc: id-token is missing"))?;
    Ok(Authorization::Token(Secret::new(token)))
}

fn exec(owner: NamedEntry<'_>, plugin: raw::Exec) -> Result<Authorization> {
    let command = given(plugin.command)
        .ok_or_else(|| owner.invalid("command must be specified to use exec authentication plugin"))?;
    let api_version = given(plugin.api_version)
        .ok_or_else(|| owner.invalid("apiVersion must be specified to use exec authentication plugin"))?;
    if ![EXEC_V1, EXEC_V1BETA1].contains(&api_version.as_str()) {
        return Err(owner.invalid(&format!("exec: invalid apiVersion {api_version:?}, neither v1 nor v1beta1")));
    }
    match given(plugin.interactive_mode).as_deref() {
        Some("Never" | "IfAvailable") => {}
        None if api_version == EXEC_V1BETA1 => {}
        None => return Err(owner.invalid("interactiveMode must be specified to use exec authentication plugin")),
        Some("Always") => {
            return Err(owner.invalid("exec: interactiveMode Always needs a terminal: use IfAvailable or Never"));
        }
        Some(other) => return Err(owner.invalid(&format!("exec: invalid interactiveMode {other:?}"))),
    }
    let mut env = Vec::new();
    for variable in plugin.env.unwrap_or_default() {
        let name = given(variable.name).filter(|name| !name.contains(['=', '\0']));
        let name = name.ok_or_else(|| owner.invalid("env variable name must be specified for exec plugin"))?;
        env.push((name, variable.value.unwrap_or_default()));
    }
    Ok(Authorization::Exec(Box::new(Exec {
        command,
        args: plugin.args.unwrap_or_default(),
        env,
        api_version,
        install_hint: plugin.install_hint.unwrap_or_default(),
        provide_cluster_info: plugin.provide_cluster_info.unwrap_or(false),
    })))
}

fn impersonation(owner: NamedEntry<'_>, user: &mut RawUser) -> Result<Option<Impersonate>> {
    let impersonate = Impersonate {
        user: given(user.impersonate.take()).unwrap_or_default(),
        uid: given(user.as_uid.take()),
        groups: user.as_groups.take().unwrap_or_default(),
        extra: user.as_user_extra.take().into_iter().flatten().map(|(key, v)| (key, v.unwrap_or_default())).collect(),
    };
    if impersonate == Impersonate::default() {
        return Ok(None);
    }
    if impersonate.user.is_empty() {
        return Err(owner.invalid("requesting uid, groups or user-extra without impersonating a user"));
    }
    Ok(Some(impersonate))
}

/// Treats an empty text as absent, as the API does.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

// === impl NamedEntry ===

impl NamedEntry<'_> {
    fn invalid(self, what: &str) -> KubeconfigError {
        Invalid(format!("{} {:?}: {what}", self.kind, self.name))
    }

    /// A file, or base64 data, in which line breaks are ignored.
    fn content(self, field: &str, file: Option<String>, data: Option<String>) -> Result<Option<FileContent>> {
        let Some(data) = data else { return Ok(file.map(FileContent::File)) };
        let data: String = data.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let bytes = STANDARD.decode(data).map_err(|_| self.invalid(&format!("{field}: illegal base64 data")))?;
        Ok(Some(FileContent::Data(bytes)))
    }
}
