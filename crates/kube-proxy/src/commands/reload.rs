//! Reads and tries the configuration while the proxy runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ferry_api::config::KubeProxyConfiguration;

use super::config::Notice;
use super::{Configured, complete, inputs};
use crate::app;
use crate::cli::Flags;
use crate::reload::{Outcome, Reload};

/// Returns the files to watch (the configuration file and the kubeconfig) and the check of their content. A configuration file that
/// can be read only once, such as a pipe, is never reloaded.
pub(super) fn of(flags: &Flags, running: &Configured) -> Reload {
    let (flags, running) = (flags.clone(), running.clone());
    let file = flags.path("config").map(PathBuf::from);
    if file.as_deref().is_some_and(|path| path.exists() && !path.is_file()) {
        return Reload { files: Vec::new(), check: Box::new(|| Outcome::Same) };
    }
    let mut files: Vec<PathBuf> = file.into_iter().collect();
    files.extend(kubeconfig(&running));
    // One that can't be read is refused by the start.
    let credentials = kubeconfig(&running).and_then(|path| fs::read(path).ok());
    let check = move || match read(&flags) {
        Ok(next) => {
            let content = kubeconfig(&next).and_then(|path| fs::read(path).ok());
            let mut changed = differences(&running.config, &next.config);
            if content != credentials {
                changed.push("the kubeconfig's content".to_owned());
            }
            if changed.is_empty() {
                return Outcome::Same;
            }
            match rehearse(&next) {
                Ok(()) => Outcome::Changed { changed, text: next.text },
                Err(error) => Outcome::Unusable { error, also: kubeconfig(&next) },
            }
        }
        Err(error) => Outcome::Unusable { error, also: None },
    };
    Reload { files, check: Box::new(check) }
}

/// The kubeconfig, if objects come from an API server and it has one.
fn kubeconfig(configured: &Configured) -> Option<PathBuf> {
    let path = Path::new(&configured.config.client_connection.kubeconfig);
    (configured.manifests.is_none() && !path.as_os_str().is_empty()).then(|| path.to_owned())
}

/// Reads and validates the configuration as a start does.
fn read(flags: &Flags) -> anyhow::Result<Configured> {
    let next = complete(flags).context("failed complete")?;
    next.config.validate_logging().context("initialize logging")?;
    next.config.validate().context("failed validate")?;
    Ok(next)
}

/// Tries what a start with it does before its first rule.
fn rehearse(next: &Configured) -> anyhow::Result<()> {
    next.notices.iter().for_each(Notice::log);
    app::rehearse(&inputs::options(next)?, inputs::origin(next)?)
}

/// Lists the changed settings for the log; the list is empty only if nothing has changed. Usually it has the lines of the new configuration
/// (in the form of `--write-config-to`) that the running one lacks, or else the removed lines.
fn differences(running: &KubeProxyConfiguration, next: &KubeProxyConfiguration) -> Vec<String> {
    // By their texts: a number that is none differs from itself.
    if format!("{running:?}") == format!("{next:?}") {
        return Vec::new();
    }
    let (running, next) = (running.to_yaml(), next.to_yaml());
    let missing = |of: &str, other: &str| -> Vec<String> {
        of.lines().filter(|line| other.lines().all(|found| found != *line)).map(|line| line.trim().to_owned()).collect()
    };
    let (added, removed) = (missing(&next, &running), missing(&running, &next));
    match (added.is_empty(), removed.is_empty()) {
        (false, _) => added,
        (true, false) => removed.into_iter().map(|line| format!("no {line}")).collect(),
        (true, true) => vec!["the order, the place or the number of settings".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_settings_are_named() {
        let running = KubeProxyConfiguration::default();
        assert_eq!(differences(&running, &running.clone()), [""; 0]);
        let mut next = running.clone();
        next.mode = "nftables".to_owned();
        next.node_port_addresses = vec!["10.0.0.0/8".to_owned()];
        let changed = differences(&running, &next);
        assert!(changed.contains(&"mode: nftables".to_owned()), "{changed:?}");
        assert!(changed.contains(&"- 10.0.0.0/8".to_owned()), "{changed:?}");
        let back = differences(&next, &running);
        assert!(back.iter().any(|line| line.starts_with("mode:")), "{back:?}");
    }

    #[test]
    fn another_order_of_a_list_is_a_change() {
        let with = |modes: [&str; 2]| {
            let mut config = KubeProxyConfiguration::default();
            config.ferry.proxy_mode_fallback = modes.map(str::to_owned).to_vec();
            config
        };
        let changed = differences(&with(["nftables", "iptables"]), &with(["iptables", "nftables"]));
        assert_eq!(changed, ["the order, the place or the number of settings"]);
    }

    #[test]
    fn a_number_that_is_none_is_no_change() {
        let mut running = KubeProxyConfiguration::default();
        running.client_connection.qps = f32::NAN;
        assert_eq!(differences(&running, &running.clone()), [""; 0]);
    }
}
