//! Client credentials: the header Authorization from its sources, and impersonation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::kubeconfig::{Authorization, Impersonate, User};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use super::TimeLimits;
use super::credential::{Credential, bearer, sensitive};
use super::error::CallError;
use super::exec::Plugin;
use super::file::read_named;
use super::settings::ClientSettings;
use crate::observe::Observe;

/// Source of credentials.
#[derive(Debug)]
pub(super) enum Credentials {
    /// a constant header; `None` for no header
    Fixed(Option<HeaderValue>),
    /// a token file, read again periodically
    File(TokenFile),
    /// an exec plugin
    Plugin(Box<Plugin>),
}

/// A token in a file.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: String,
    /// interval of reading the file again
    fresh: Duration,
    state: Mutex<Token>,
}

#[derive(Debug)]
struct Token {
    /// the last token that was read; without any, requests fail
    header: Option<HeaderValue>,
    looked: Option<Instant>,
    /// why the file is unreadable; logged once per text
    trouble: Option<String>,
}

/// Checks that a user's credentials can be sent; the error is the field and the reason.
pub(super) fn check(user: &User) -> Result<(), (&'static str, String)> {
    match &user.authorization {
        Authorization::None | Authorization::Exec(_) => {}
        Authorization::Token(token) => {
            bearer(token.expose()).map_err(|reason| ("token", reason))?;
        }
        Authorization::TokenFile(path) => {
            read_token(path).map_err(|reason| ("tokenFile", reason))?;
        }
        Authorization::Basic { username, .. } => {
            let colon = username.contains(':').then(|| "must not contain a colon".to_owned());
            colon.map_or(Ok(()), |reason| Err(("username", reason)))?;
        }
    }
    impersonation(user.impersonate.as_ref()).map_err(|reason| ("impersonation", reason)).map(|_| ())
}

/// The headers of user impersonation.
pub(super) fn impersonation(impersonate: Option<&Impersonate>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let Some(Impersonate { user, uid, groups, extra }) = impersonate else { return Ok(headers) };
    let mut add = |name: &str, value: &str| {
        let wrong = |_| format!("the value of {name} is invalid in a header");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name} is not a valid header name"))?;
        headers.append(name, HeaderValue::from_str(value).map_err(wrong)?);
        Ok::<_, String>(())
    };
    add("Impersonate-User", user)?;
    uid.iter().try_for_each(|uid| add("Impersonate-Uid", uid))?;
    groups.iter().try_for_each(|group| add("Impersonate-Group", group))?;
    for (key, values) in extra {
        let name = format!("Impersonate-Extra-{}", escape(&key.to_lowercase()));
        values.iter().try_for_each(|value| add(&name, value))?;
    }
    Ok(headers)
}

/// Percent-encodes the characters that are invalid in a header's name.
fn escape(key: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn read_token(path: &str) -> Result<HeaderValue, String> {
    let bytes = read_named(path)?;
    let text = str::from_utf8(&bytes).map_err(|_| format!("{path}: not UTF-8 text"))?;
    bearer(text).map_err(|reason| format!("{path}: {reason}"))
}

// === impl Credentials ===

impl Credentials {
    pub(super) fn new(settings: &ClientSettings, timing: &TimeLimits, metrics: &Arc<dyn Observe>) -> Self {
        match &settings.chosen.user.authorization {
            Authorization::None => Self::Fixed(None),
            Authorization::Token(token) => Self::Fixed(bearer(token.expose()).ok()),
            Authorization::Basic { username, password } => {
                let login = STANDARD.encode(format!("{username}:{}", password.expose()));
                Self::Fixed(sensitive(&format!("Basic {login}")))
            }
            Authorization::TokenFile(path) => Self::File(TokenFile::new(path, timing.recheck)),
            Authorization::Exec(exec) => {
                Self::Plugin(Box::new(Plugin::new(exec, settings, timing, Arc::clone(metrics))))
            }
        }
    }

    /// The credentials for a request that is sent now.
    pub(super) async fn current(&self) -> Result<Credential, CallError> {
        match self {
            Self::Fixed(header) => Ok(Credential { header: header.clone(), ..Credential::default() }),
            Self::File(file) => Ok(Credential { header: Some(file.header(false)?), ..Credential::default() }),
            Self::Plugin(plugin) => plugin.credential().await,
        }
    }

    /// Notes that the server rejected these credentials. True if others are available, so that an immediate retry makes sense.
    pub(super) fn refused(&self, used: &Credential) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::File(file) => file.header(true).is_ok_and(|header| used.header.as_ref() != Some(&header)),
            Self::Plugin(plugin) => plugin.refused(used.run),
        }
    }
}

// === impl TokenFile ===

impl TokenFile {
    fn new(path: &str, fresh: Duration) -> Self {
        let state = Mutex::new(Token { header: None, looked: None, trouble: None });
        Self { path: path.to_owned(), fresh, state }
    }

    /// The file's token, or the last one that was read; `now` reads the file in any case.
    fn header(&self, now: bool) -> Result<HeaderValue, CallError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = state.looked.is_some_and(|looked| looked.elapsed() < self.fresh);
        if now || !fresh || state.header.is_none() {
            state.looked = Some(Instant::now());
            match read_token(&self.path) {
                Ok(header) => {
                    state.header = Some(header);
                    state.trouble = None;
                }
                Err(err) => state.complain(err),
            }
        }
        let unreadable = || CallError::Credentials(state.trouble.clone().unwrap_or_default());
        state.header.clone().ok_or_else(unreadable)
    }
}

// === impl Token ===

impl Token {
    fn complain(&mut self, err: String) {
        if self.header.is_some() && self.trouble.as_ref() != Some(&err) {
            tracing::warn!(err, "Reading the token file failed, keeping the last token");
        }
        self.trouble = Some(err);
    }
}
