//! Input of a subcommand: configuration and objects of the running proxy, or of the sources that flags name.

use std::io;
use std::path::Path;

use anyhow::{Context as _, bail};
use ferry_api::config::{CONTROL_SOCKET, KubeProxyConfiguration};
use ferry_model::{MissingSchedulers, PerFamily, Settings};

use super::config::{ConfigNotice, Configured, complete, complete_with};
use super::inputs;
use crate::cli::{self, Flags};
use crate::control::{ProxyLookup, Quarantined, RunningProxy};
use crate::inspect::ListedObjects;
use crate::logging;

/// Configuration and objects of a subcommand.
pub(super) struct Subject {
    /// validated; its mode is the inspected one
    pub(super) configured: Configured,
    source: SubjectSource,
    /// the line for stderr where no proxy runs
    pub(super) note: Option<String>,
}

/// Source of the objects.
enum SubjectSource {
    /// the running proxy
    Running(Box<RunningProxy>),
    /// a file
    Dump(String),
    /// the manifests or the API server of the configuration
    Configured,
}

/// The flags that name another source, or another configuration, than the running proxy's.
const OFFLINE: [&str; 5] = ["config", "dump", "kubeconfig", "manifests", "master"];

// === impl Subject ===

impl Subject {
    /// Input from the running proxy; from the flags if one of them names another source or configuration, or no proxy runs.
    ///
    /// # Errors
    /// If the configuration is invalid, flags contradict each other, or the process at the control socket isn't a proxy.
    pub(super) fn of(flags: &Flags) -> anyhow::Result<Self> {
        let path = control_socket(flags);
        if let Some(name) = offline_flag(flags) {
            if flags.path("control-socket").is_some() {
                bail!("--control-socket is about the running proxy, --{name} about something else: give one");
            }
            return Self::offline(flags, None);
        }
        if path.is_empty() {
            return Self::offline(flags, None);
        }
        match RunningProxy::find(Path::new(path))? {
            ProxyLookup::Running(running) => Self::of_running(flags, running),
            ProxyLookup::NotRunning(error) if flags.path("control-socket").is_some() => {
                Err(error).with_context(|| format!("no running kube-proxy at {path}"))
            }
            ProxyLookup::NotRunning(error) if error.kind() == io::ErrorKind::Unsupported => Self::offline(flags, None),
            ProxyLookup::NotRunning(error) => {
                Self::offline(flags, Some(format!("No running kube-proxy at {path} ({error}), working offline\n")))
            }
        }
    }

    /// Input from this running proxy.
    ///
    /// # Errors
    /// If a flag sets the configuration, which is the running proxy's.
    pub(super) fn of_running(flags: &Flags, running: Box<RunningProxy>) -> anyhow::Result<Self> {
        let state = &running.state;
        if let Some(name) = flags.of_configuration().keys().next() {
            bail!(
                "--{name} is about a configuration, and a kube-proxy runs, which has its own: name a source of objects, too (--dump, \
                 --kubeconfig, --manifests, --master), or leave the flag out"
            );
        }
        let given = flags.with_configuration(&state.configuration.flags).or_mode(&state.mode);
        let completed = complete_with(&given, state.configuration.file.clone());
        let mut configured = completed.context("the running kube-proxy's configuration")?;
        state.node.clone_into(&mut configured.node_name);
        configured.config.logging = KubeProxyConfiguration::default().logging;
        cli::apply_logging(flags, &mut configured.config.logging);
        if let Some(way) = state.way.as_ref().filter(|_| configured.config.configured_mode() == state.mode) {
            way.clone_into(&mut configured.config.ferry.userspace.way);
        }
        // The running proxy has logged them.
        configured.notices.clear();
        Self { configured, source: SubjectSource::Running(running), note: None }.prepared()
    }

    fn offline(flags: &Flags, note: Option<String>) -> anyhow::Result<Self> {
        let configured = complete(flags)?;
        let source = match flags.path("dump") {
            Some(_) if configured.manifests.is_some() => {
                bail!("--dump and --manifests are two sources of objects: give one")
            }
            Some("-") => SubjectSource::Dump("/dev/stdin".to_owned()),
            Some(file) => SubjectSource::Dump(file.to_owned()),
            None => SubjectSource::Configured,
        };
        Self { configured, source, note }.prepared()
    }

    /// Validates, and starts the log.
    fn prepared(self) -> anyhow::Result<Self> {
        let config = &self.configured.config;
        config.validate_logging()?;
        logging::start_terse(&config.logging);
        self.configured.notices.iter().for_each(ConfigNotice::log);
        config.validate()?;
        Ok(self)
    }

    /// All objects.
    ///
    /// # Errors
    /// If they can't be read, or the running proxy has ended meanwhile.
    pub(super) fn objects(&self, settings: &Settings) -> anyhow::Result<ListedObjects> {
        match &self.source {
            SubjectSource::Running(running) => {
                Ok(ListedObjects::of_running(running.objects()?, running.state.manifests))
            }
            SubjectSource::Dump(file) => ListedObjects::of_dump(Path::new(file), settings),
            SubjectSource::Configured => ListedObjects::of_origin(inputs::origin(&self.configured)?, settings),
        }
    }

    /// The units in quarantine, if the running proxy is in the inspected mode.
    pub(super) fn quarantined(&self) -> &[Quarantined] {
        match &self.source {
            SubjectSource::Running(running) if self.configured.config.configured_mode() == running.state.mode => {
                &running.state.quarantined
            }
            SubjectSource::Running(_) | SubjectSource::Dump(_) | SubjectSource::Configured => &[],
        }
    }

    /// The schedulers of IPVS that the running proxy's kernel lacks.
    pub(super) fn missing_schedulers(&self) -> PerFamily<MissingSchedulers> {
        self.running().map(|running| running.state.missing_schedulers()).unwrap_or_default()
    }

    /// The running proxy, if it is the source.
    pub(super) fn running(&self) -> Option<&RunningProxy> {
        match &self.source {
            SubjectSource::Running(running) => Some(running),
            SubjectSource::Dump(_) | SubjectSource::Configured => None,
        }
    }
}

/// The path of the control socket that the flags name; empty for none.
pub(super) fn control_socket(flags: &Flags) -> &str {
    flags.text("control-socket").unwrap_or(CONTROL_SOCKET)
}

/// The given flag that names another source or configuration than the running proxy's, if there is one.
pub(super) fn offline_flag(flags: &Flags) -> Option<&'static str> {
    OFFLINE.into_iter().find(|name| flags.path(name).is_some())
}
