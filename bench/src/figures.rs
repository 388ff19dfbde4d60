//! The figures of one run with both proxies, as a JSON file that the chart is drawn from.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Figures of both proxies, measured one after the other on the same machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figures {
    /// the mode of both
    pub(crate) mode: String,
    /// number of Services
    pub(crate) services: usize,
    /// endpoints of each Service
    pub(crate) endpoints: usize,
    /// the machine's kernel series
    pub(crate) kernel: String,
    /// the machine's cores
    pub(crate) cores: usize,
    /// this project's proxy
    pub(crate) ours: ProxyFigures,
    /// upstream's
    pub(crate) upstream: ProxyFigures,
}

/// Figures of one proxy, served by an API server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ProxyFigures {
    /// the executable's output for `--version`
    pub(crate) version: String,
    /// from the start of the process to the last rule in force
    pub(crate) start_seconds: f64,
    /// processor time of that, of the process and of the tools that it runs
    pub(crate) start_cpu_seconds: f64,
    /// resident memory a while after the start
    pub(crate) resident_mib: f64,
    /// peak memory of the largest tool that the start runs
    pub(crate) tool_peak_mib: f64,
    /// number of single changes whose latency was measured
    pub(crate) changes: usize,
    /// median from writing the event of a replaced endpoint to its rule in force
    pub(crate) change_p50_seconds: f64,
    /// the longest of them
    pub(crate) change_max_seconds: f64,
    /// processor time of 1,000 changes spread over a minute, of the process and of the tools that it runs
    pub(crate) spread_cpu_seconds: f64,
}

// === impl Figures ===

impl Figures {
    /// Reads them from a file.
    ///
    /// # Errors
    /// If the file can't be read, or holds anything else.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} holds no figures of a run", path.display()))
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// If the file can't be written.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}
