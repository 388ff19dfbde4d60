//! Checks that a machine has the tools that a command of `cargo xt` needs, and installs missing ones with `--setup`.

mod distribution;
mod needs;
mod packages;

use crate::shell::{cargo, on_path, run_quietly};
use anyhow::{Context, Result, ensure};
use distribution::Distribution;
pub(crate) use needs::Use;
use std::process::{Command, Stdio};

/// The option that installs missing tools.
pub(crate) const OPTION: &str = "--setup";

/// Not installed as a package: the Go of a distribution is often too old.
const GO: &str = "missing: go 1.26 or newer (go.dev/dl), which builds upstream's kube-proxy, the peer of a test";

/// The cargo subcommands that the checks run, with their rustup components.
const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// Checks that everything these uses need is present and, unless they only build a package or run on Windows, that network namespaces can be created;
/// with `install` adds missing packages and rustup components first.
///
/// # Errors
/// If anything is missing: names it, with the command that installs it.
pub(crate) fn prepare(uses: &[Use], install: bool) -> Result<()> {
    let distribution = Distribution::of_this_machine();
    if install {
        // Checked before any installation: without Go the run fails anyway.
        ensure!(has_go(uses), GO);
        packages::install(&needs::missing(uses), &distribution)?;
        add_components(uses)?;
    }
    let mut lacks = installable(uses, &distribution);
    if !lacks.is_empty() && !install {
        let command = match uses {
            [Use::Windows] => "windows",
            _ if uses.contains(&Use::Demo) => "demo",
            _ => "test",
        };
        lacks.push(format!("`cargo xt {command} {OPTION}` installs packages and components"));
    }
    if !has_go(uses) {
        lacks.push(GO.into());
    }
    ensure!(lacks.is_empty(), "{}", lacks.join("\n"));
    if uses == [Use::Package] || uses == [Use::Windows] { Ok(()) } else { check_namespaces() }
}

/// The missing packages and components, one line for each way to get them.
fn installable(uses: &[Use], distribution: &Distribution) -> Vec<String> {
    let mut lacks = Vec::new();
    let needs = needs::missing(uses);
    if !needs.is_empty() {
        lacks.push(format!("missing: {}; {}", needs::names(&needs), packages::advice(&needs, distribution)));
    }
    let components = missing_components(uses);
    if !components.is_empty() {
        lacks.push(components_advice(&components));
    }
    lacks
}

fn has_go(uses: &[Use]) -> bool {
    !(uses.contains(&Use::Tests) || uses.contains(&Use::Machines)) || on_path("go")
}

fn missing_components(uses: &[Use]) -> Vec<&'static str> {
    let works = |subcommand| {
        let mut probe = cargo();
        probe.args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    let needed = COMPONENTS.iter().filter(|_| uses.contains(&Use::Tests));
    needed.filter(|(subcommand, _)| !works(subcommand)).map(|(_, component)| *component).collect()
}

fn components_advice(components: &[&str]) -> String {
    format!("missing: {}; rustup component add {} (rustup.rs)", components.join(", "), components.join(" "))
}

/// Adds the rustup components that are missing to the toolchain in use.
fn add_components(uses: &[Use]) -> Result<()> {
    let components = missing_components(uses);
    if components.is_empty() {
        return Ok(());
    }
    ensure!(on_path("rustup"), components_advice(&components));
    println!("installing with rustup: {}", components.join(" "));
    run_quietly(Command::new("rustup").args(["component", "add"]).args(components).stdin(Stdio::null()))
}

fn check_namespaces() -> Result<()> {
    let permitted = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
    ensure!(
        permitted.context("starting unshare")?.success(),
        "making a network namespace is not permitted: run as root (in a container: privileged)"
    );
    Ok(())
}
