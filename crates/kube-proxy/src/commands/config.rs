//! Completes the configuration from the file or from flags.

use std::fmt;
use std::fs;

use anyhow::{Context as _, bail};
use ferry_api::config::{KubeProxyConfiguration, MODE_USERSPACE, MODE_WINUSERSPACE, decode};
use ferry_client::kubeconfig::without_credentials;
use ferry_kernel::text::reason;

use crate::cli::{self, Effect, Flags};
use crate::platform;

/// The complete configuration of a command.
#[derive(Clone)]
pub struct Configured {
    /// defaults applied, not validated
    pub config: KubeProxyConfiguration,
    /// this node's name
    pub node_name: String,
    /// the API server's URL if it replaces the kubeconfig's
    pub master: Option<String>,
    /// the directory to read objects from
    pub manifests: Option<String>,
    /// the given flags
    pub given: Flags,
    /// every flag with its value, sorted by name, without the credentials of URLs
    pub flags: Vec<(String, String)>,
    /// the content of the configuration file, if there is one
    pub text: Option<String>,
    /// messages to log once logging is set up
    pub notices: Vec<ConfigNotice>,
}

/// A message about the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigNotice {
    /// strict decoding of the file failed
    Lenient(String),
    /// the file has a deprecated or ineffective setting
    Odd(String),
    /// a feature gate given by flag has no effect or will be removed
    Gate(String),
    /// the file has documents that no program reads
    OtherDocuments(usize),
    /// the file overrides the flag
    Overruled(&'static str),
    /// the flag has no effect in this build
    WithoutEffect(&'static str),
    /// the flag was removed upstream
    Removed(&'static str),
    /// the flag is about the API server, and objects come from manifests
    Unused(&'static str),
    /// the flag is about the listeners of mode userspace, and no mode that may run is that
    WithoutListeners(&'static str),
}

/// The flag for the ports of listeners.
const PORTS: &str = "proxy-port-range";

/// Reads the configuration file, or else the flags, and applies defaults.
///
/// # Errors
/// If the file is unreadable or malformed, or there is no node name.
pub fn complete(flags: &Flags) -> anyhow::Result<Configured> {
    let text = flags
        .path("config")
        .map(|path| fs::read_to_string(path).map_err(|error| anyhow::anyhow!("open {path}: {}", reason(&error))));
    complete_with(flags, text.transpose()?)
}

/// The same with the content of the configuration file, if the flags name one.
///
/// # Errors
/// If it is malformed, or there is no node name.
pub(super) fn complete_with(flags: &Flags, text: Option<String>) -> anyhow::Result<Configured> {
    let mut notices = Vec::new();
    let mut config = match &text {
        Some(text) => read(text, &mut notices)?,
        None => {
            let mut config = KubeProxyConfiguration::default();
            cli::apply(flags, &mut config);
            notices.extend(config.check_feature_gates()?.into_iter().map(ConfigNotice::Gate));
            config
        }
    };
    cli::apply_logging(flags, &mut config.logging);
    cli::apply_own(flags, &mut config.ferry);
    // The flag of subcommands; the defaults below depend on the mode.
    if let Some(mode) = flags.path("mode") {
        mode.clone_into(&mut config.mode);
    }
    config.apply_platform_defaults();
    note_flags(flags, &mut notices);
    if let Some(name) = flags.path("hostname-override") {
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            bail!("empty hostname-override is invalid");
        }
        config.hostname_override = name;
    }
    let node_name = match config.hostname_override.trim().to_lowercase() {
        name if !name.is_empty() => name,
        _ => platform::host_name().context("empty hostname is invalid")?,
    };
    config.mode = platform::mode_of_system(config.mode);
    let modes = config.modes_to_try();
    let has_listeners = [MODE_USERSPACE, MODE_WINUSERSPACE].iter().any(|mode| modes.contains(mode));
    if flags.path(PORTS).is_some() && flags.path("config").is_none() && !has_listeners {
        notices.push(ConfigNotice::WithoutListeners(PORTS));
    }
    let manifests = flags.path("manifests").map(str::to_owned);
    if manifests.is_some() {
        let unused = ["kubeconfig", "master"].into_iter().filter(|name| flags.path(name).is_some());
        notices.extend(unused.map(ConfigNotice::Unused));
    }
    let master = flags.path("master").map(str::to_owned);
    let given = flags.clone();
    let flags = flags.values(flags.path("config").is_none().then_some(&config)).collect();
    Ok(Configured { config, node_name, master, manifests, given, flags, text, notices })
}

fn read(text: &str, notices: &mut Vec<ConfigNotice>) -> anyhow::Result<KubeProxyConfiguration> {
    let decoded = decode(text)?;
    notices.extend(decoded.strict_error.map(ConfigNotice::Lenient));
    notices.extend(decoded.warnings.into_iter().map(ConfigNotice::Odd));
    if decoded.other_documents > 0 {
        notices.push(ConfigNotice::OtherDocuments(decoded.other_documents));
    }
    Ok(decoded.config)
}

fn note_flags(flags: &Flags, notices: &mut Vec<ConfigNotice>) {
    if flags.path("config").is_some() {
        let overruled = [Effect::Config, Effect::Deprecated].into_iter().flat_map(|effect| flags.with_effect(effect));
        notices.extend(overruled.map(ConfigNotice::Overruled));
    }
    // With --write-config-to these flags have an effect: they are written.
    if flags.path("write-config-to").is_none() {
        notices.extend(flags.with_effect(Effect::Nothing).map(ConfigNotice::WithoutEffect));
    }
    notices.extend(flags.with_effect(Effect::Removed).map(ConfigNotice::Removed));
}

// === impl Configured ===

impl fmt::Debug for Configured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The given flags may have credentials in a URL.
        let Self { config, node_name, master, manifests, given: _, flags, text, notices } = self;
        f.debug_struct("Configured")
            .field("config", config)
            .field("node_name", node_name)
            .field("master", &master.as_deref().map(without_credentials))
            .field("manifests", manifests)
            .field("flags", flags)
            .field("text", text)
            .field("notices", notices)
            .finish()
    }
}

// === impl ConfigNotice ===

impl ConfigNotice {
    /// Logs the message.
    pub fn log(&self) {
        match self {
            Self::Lenient(err) => {
                tracing::info!(err, "Using lenient decoding as strict decoding failed");
            }
            Self::Odd(what) => {
                tracing::warn!(what, "Configuration file has a deprecated or ineffective setting");
            }
            Self::Gate(what) => {
                tracing::warn!(what, "Feature gate is obsolete or has no effect");
            }
            Self::OtherDocuments(documents) => {
                tracing::warn!(documents, "Ignoring further documents of the configuration file");
            }
            Self::Overruled(flag) => {
                tracing::warn!(flag, "Flag is ignored, the configuration file takes precedence");
            }
            Self::WithoutEffect(flag) => {
                tracing::warn!(flag, "Flag has no effect in this build");
            }
            Self::Removed(flag) => {
                tracing::warn!(flag, "Flag was removed upstream and has no effect");
            }
            Self::Unused(flag) => {
                tracing::warn!(flag, "Flag is ignored, objects come from manifests");
            }
            Self::WithoutListeners(flag) => {
                tracing::warn!(flag, "Flag is ignored, only mode userspace has listeners");
            }
        }
    }
}
