//! Reads and tries the configuration while the proxy runs.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, bail};
use ferry_api::config::{KubeProxyConfiguration, ValidationErrors};
use ferry_api::object::Family;

use super::config::ConfigNotice;
use super::{Configured, complete, inputs};
use crate::app::{self, RunOptions};
use crate::cli::Flags;
use crate::reload::{Reload, ReloadOutcome};

/// Returns the files to watch (the configuration file and the kubeconfig) and the check of their content. A configuration file that
/// can be read only once, such as a pipe, is never reloaded.
pub(super) fn of(flags: &Flags, running: &Configured) -> Reload {
    let (flags, running) = (flags.clone(), running.clone());
    let file = flags.path("config").map(PathBuf::from);
    if let Some(path) = file.as_deref().filter(|path| path.exists() && !path.is_file()) {
        let file = path.display().to_string();
        let check = move || {
            tracing::debug!(file, "Configuration source can be read only once, not watching it");
            ReloadOutcome::Same
        };
        return Reload { files: Vec::new(), check: Box::new(check), served: Arc::default() };
    }
    let mut files: Vec<PathBuf> = file.into_iter().collect();
    files.extend(kubeconfig(&running));
    // One that can't be read is refused by the start.
    let credentials = kubeconfig(&running).and_then(|path| fs::read(path).ok());
    let served = Arc::new(OnceLock::new());
    let serves = Arc::clone(&served);
    let check = move || match read(&flags) {
        Ok(next) => {
            let content = kubeconfig(&next).and_then(|path| fs::read(path).ok());
            let mut changed = differences(&running.config, &next.config);
            if content != credentials {
                changed.push("the kubeconfig's content".to_owned());
            }
            if changed.is_empty() {
                return ReloadOutcome::Same;
            }
            match rehearse(&running, serves.get(), &next) {
                Ok(()) => ReloadOutcome::Changed { changed, text: next.text },
                Err(error) => ReloadOutcome::Unusable { error, also: kubeconfig(&next) },
            }
        }
        Err(error) => ReloadOutcome::Unusable { error, also: None },
    };
    Reload { files, check: Box::new(check), served }
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
    let placed = |errors: ValidationErrors| errors.placed_in(next.text.as_deref().unwrap_or_default());
    next.config.validate().map_err(placed).context("failed validate")?;
    Ok(next)
}

/// Tries what a start with it does before its first rule.
fn rehearse(running: &Configured, served: Option<&Vec<Family>>, next: &Configured) -> anyhow::Result<()> {
    next.notices.iter().for_each(ConfigNotice::log);
    let options = inputs::options(next)?;
    try_addresses(&inputs::options(running)?, &options)?;
    let families = app::rehearse(&options, inputs::origin(next)?)?;
    // The rules of a family that the new mode can't serve would be frozen.
    if let Some(family) = served.into_iter().flatten().find(|family| !families.contains(family)) {
        bail!("it can't serve {family} here, which the running configuration serves: see the warning above");
    }
    Ok(())
}

/// Tries the addresses of servers without which the next run would end. Those that have a port of a running server can't be tried.
fn try_addresses(running: &RunOptions, next: &RunOptions) -> anyhow::Result<()> {
    if !next.config.bind_address_hard_fail {
        return Ok(());
    }
    let of = |options: &RunOptions| [options.healthz, Some(options.metrics)].into_iter().flatten().collect::<Vec<_>>();
    let ports: Vec<u16> = of(running).into_iter().map(|address| address.port()).collect();
    for address in of(next).into_iter().filter(|address| !ports.contains(&address.port())) {
        TcpListener::bind(address).with_context(|| format!("listening at {address}, with bindAddressHardFail"))?;
    }
    Ok(())
}

/// Lists the changed settings for the log; the list is empty only if nothing has changed. Usually it has the lines of the new
/// configuration (in the form of `--write-config-to`) that the running one lacks, or else the removed lines.
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
