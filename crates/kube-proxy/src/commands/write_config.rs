//! `--write-config-to`: writes the configuration to a file.

use std::fs;

use anyhow::anyhow;
use ferry_api::config::KubeProxyConfiguration;

use ferry_kernel::text::reason;

/// Writes the configuration as upstream writes it; a blank mode is upstream's default, iptables.
pub(super) fn write(config: &KubeProxyConfiguration, file: &str) -> anyhow::Result<()> {
    let config = config.in_mode(config.configured_mode());
    fs::write(file, config.to_yaml()).map_err(|error| anyhow!("open {file}: {}", reason(&error)))?;
    tracing::info!(file, "Wrote configuration");
    Ok(())
}
