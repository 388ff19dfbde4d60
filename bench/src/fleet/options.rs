//! Command line options of the fleet benchmark.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};

/// Sides, phases and sizes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FleetOptions {
    /// proxies of each side
    pub(super) nodes: usize,
    pub(super) services: usize,
    /// endpoints of each service
    pub(super) endpoints: usize,
    /// EndpointSlice updates of phase churn
    pub(super) changes: usize,
    /// number of nodes to which the figures are extrapolated
    pub(super) cluster: usize,
    pub(super) phases: Vec<Phase>,
    pub(super) sides: Vec<FleetSide>,
    /// upstream's executable; by default that of the Kubernetes lane
    pub(super) upstream: Option<PathBuf>,
    /// keeps the logs
    pub(super) keep: bool,
}

/// A separately measured part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// all proxies start at once
    Start,
    /// an hour's changes in one minute
    Churn,
    /// a minute of 503 responses instead of the API server's
    Unavailable,
    /// new certificates for the clients and the server
    Certificates,
    /// the API server ends and starts again
    Restart,
}

/// The proxies that are connected to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FleetSide {
    /// no proxies: the server's own costs
    Alone,
    Ours,
    Upstream,
}

// === impl FleetOptions ===

impl FleetOptions {
    /// Parses a command line.
    pub(super) fn parse(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(&name) = arguments.next() {
            if name == "--keep" {
                options.keep = true;
                continue;
            }
            let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
            match name {
                "--nodes" => options.nodes = number(name, value)?,
                "--services" => options.services = number(name, value)?,
                "--endpoints" => options.endpoints = number(name, value)?,
                "--changes" => options.changes = number(name, value)?,
                "--cluster" => options.cluster = number(name, value)?,
                "--phases" => options.phases = list(value)?,
                "--sides" => options.sides = list(value)?,
                "--upstream" => options.upstream = Some(PathBuf::from(value)),
                _ => bail!("unknown option {name}"),
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Checks the bounds that the address plan imposes.
    fn check(&self) -> anyhow::Result<()> {
        for (name, value, most) in [
            ("--nodes", self.nodes, 100),
            ("--services", self.services, 10_000),
            ("--endpoints", self.endpoints, 200),
            ("--cluster", self.cluster, 1_000_000),
        ] {
            anyhow::ensure!((1..=most).contains(&value), "{name} must be between 1 and {most}, not {value}");
        }
        let starts = self.phases.first() == Some(&Phase::Start);
        anyhow::ensure!(starts, "--phases must begin with start: without it no proxy runs");
        Ok(())
    }
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            nodes: 50,
            services: 200,
            endpoints: 10,
            changes: 1000,
            cluster: 5000,
            // Upstream checks its certificate every five minutes from its start: the other phases fill that time.
            phases: vec![Phase::Start, Phase::Churn, Phase::Unavailable, Phase::Certificates, Phase::Restart],
            sides: vec![FleetSide::Alone, FleetSide::Ours, FleetSide::Upstream],
            upstream: None,
            keep: false,
        }
    }
}

fn number(name: &str, value: &str) -> anyhow::Result<usize> {
    value.parse().with_context(|| format!("{name} needs a number, not {value}"))
}

fn list<T: FromStr<Err = anyhow::Error>>(value: &str) -> anyhow::Result<Vec<T>> {
    value.split(',').map(str::parse).collect()
}

// === impl Phase ===

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Churn => "churn",
            Self::Unavailable => "unavailable",
            Self::Certificates => "certificates",
            Self::Restart => "restart",
        })
    }
}

impl FromStr for Phase {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let all = FleetOptions::default().phases;
        all.into_iter()
            .find(|phase| phase.to_string() == text)
            .with_context(|| format!("unknown phase {text}: start, churn, unavailable, certificates or restart"))
    }
}

// === impl FleetSide ===

impl fmt::Display for FleetSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::Ours => "ours",
            Self::Upstream => "upstream",
        })
    }
}

impl FromStr for FleetSide {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let all = FleetOptions::default().sides;
        let found = all.into_iter().find(|side| side.to_string() == text);
        found.with_context(|| format!("unknown side {text}: alone, ours or upstream"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(FleetOptions::parse(&[]).unwrap(), FleetOptions::default());
        let options =
            FleetOptions::parse(&["--nodes", "5", "--phases", "start,churn", "--sides", "ours", "--keep"]).unwrap();
        assert_eq!(options.nodes, 5);
        assert_eq!(options.phases, [Phase::Start, Phase::Churn]);
        assert_eq!(options.sides, [FleetSide::Ours]);
        assert!(options.keep);
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        for (arguments, complaint) in [
            (&["--nodes"][..], "--nodes needs a value"),
            (&["--nodes", "many"], "--nodes needs a number, not many"),
            (&["--nodes", "0"], "--nodes must be between 1 and 100, not 0"),
            (&["--phases", "churn"], "--phases must begin with start"),
            (&["--phases", "start,stop"], "unknown phase stop"),
            (&["--sides", "theirs"], "unknown side theirs"),
            (&["--speed", "1"], "unknown option --speed"),
        ] {
            let error = FleetOptions::parse(arguments).unwrap_err().to_string();
            assert!(error.starts_with(complaint), "{arguments:?}: {error}");
        }
    }
}
