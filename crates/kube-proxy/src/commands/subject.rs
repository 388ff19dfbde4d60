//! What a subcommand is about: the running proxy of this node, or a configuration and objects that the flags name.

use std::io;
use std::path::Path;

use anyhow::{Context as _, bail};
use ferry_api::config::{CONTROL_SOCKET, FerryConfiguration, KubeProxyConfiguration};
use ferry_model::Settings;

use super::config::{Configured, Notice, complete, complete_with};
use super::inputs;
use crate::cli::{self, Flags};
use crate::control::{Found, Quarantined, Running};
use crate::inspect::Objects;
use crate::logging;

/// Configuration and objects of a subcommand.
pub(super) struct Subject {
    /// valid, in the mode that is asked about
    pub(super) configured: Configured,
    source: Source,
    /// what to say on stderr about the source
    pub(super) note: Option<String>,
}

/// Where the objects come from.
enum Source {
    /// the running proxy
    Running(Box<Running>),
    /// a file
    Dump(String),
    /// as in a run
    Configured,
}

/// The flags that name another source, or another configuration, than the running proxy's.
pub(super) const OFFLINE: [&str; 5] = ["config", "dump", "kubeconfig", "manifests", "master"];

// === impl Subject ===

impl Subject {
    /// The running proxy, unless a flag names another source or configuration, or none runs.
    ///
    /// # Errors
    /// If the configuration is invalid, flags contradict each other, or what listens at the control socket isn't a proxy.
    pub(super) fn of(flags: &Flags) -> anyhow::Result<Self> {
        let path = control_socket(flags);
        if let Some(name) = OFFLINE.into_iter().find(|name| flags.path(name).is_some()) {
            if flags.path("control-socket").is_some() {
                bail!("--control-socket is about the running proxy, --{name} about something else: give one");
            }
            return Self::offline(flags, None);
        }
        if path.is_empty() {
            return Self::offline(flags, None);
        }
        match Running::find(Path::new(&path))? {
            Found::Running(running) => Self::of_running(flags, running),
            Found::Nobody(error) if flags.path("control-socket").is_some() => {
                Err(error).with_context(|| format!("no running kube-proxy at {path}"))
            }
            Found::Nobody(error) if error.kind() == io::ErrorKind::Unsupported => Self::offline(flags, None),
            Found::Nobody(error) => {
                Self::offline(flags, Some(format!("No running kube-proxy at {path} ({error}), working offline\n")))
            }
        }
    }

    /// The running proxy, with its configuration.
    ///
    /// # Errors
    /// If a flag is about another configuration.
    pub(super) fn of_running(flags: &Flags, running: Box<Running>) -> anyhow::Result<Self> {
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
        configured.notices.clear();
        Self { configured, source: Source::Running(running), note: None }.prepared()
    }

    fn offline(flags: &Flags, note: Option<String>) -> anyhow::Result<Self> {
        let configured = complete(flags)?;
        let source = match flags.path("dump") {
            Some(_) if configured.manifests.is_some() => {
                bail!("--dump and --manifests are two sources of objects: give one")
            }
            Some("-") => Source::Dump("/dev/stdin".to_owned()),
            Some(file) => Source::Dump(file.to_owned()),
            None => Source::Configured,
        };
        Self { configured, source, note }.prepared()
    }

    /// Validates, and starts the log.
    fn prepared(self) -> anyhow::Result<Self> {
        let config = &self.configured.config;
        config.validate_logging()?;
        logging::start_terse(&config.logging);
        self.configured.notices.iter().for_each(Notice::log);
        config.validate()?;
        Ok(self)
    }

    /// All objects.
    ///
    /// # Errors
    /// If they can't be read, or the running proxy has ended meanwhile.
    pub(super) fn objects(&self, settings: &Settings) -> anyhow::Result<Objects> {
        match &self.source {
            Source::Running(running) => Ok(Objects::of_running(running.objects()?, running.state.manifests)),
            Source::Dump(file) => Objects::of_dump(Path::new(file), settings),
            Source::Configured => Objects::of_origin(inputs::origin(&self.configured)?, settings),
        }
    }

    /// The units that the kernel refuses in the mode that is asked about, as far as they are known.
    pub(super) fn quarantined(&self) -> &[Quarantined] {
        match &self.source {
            Source::Running(running) if self.configured.config.configured_mode() == running.state.mode => {
                &running.state.quarantined
            }
            Source::Running(_) | Source::Dump(_) | Source::Configured => &[],
        }
    }

    /// True if it is the running proxy.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.source, Source::Running(_))
    }
}

/// The path of the control socket by the flags; empty for none.
pub(super) fn control_socket(flags: &Flags) -> String {
    let mut own = FerryConfiguration { control_socket: CONTROL_SOCKET.to_owned(), ..FerryConfiguration::default() };
    cli::apply_own(flags, &mut own);
    own.control_socket
}
