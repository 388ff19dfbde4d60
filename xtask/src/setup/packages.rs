//! Installs missing packages with the distribution's package manager.

use super::distribution::{Distribution, DistributionFamily};
use super::needs::{Need, names, packages};
use crate::shell::{on_path, run_quietly};
use anyhow::{Context, Result, bail, ensure};
use std::process::{Command, Stdio};

/// Seconds that apt waits for its lock, which unattended upgrades hold for a while on a machine that has just booted.
const APT_LOCK: &str = "DPkg::Lock::Timeout=120";

/// One run of a package manager.
#[derive(Debug, PartialEq, Eq)]
struct Installation {
    family: DistributionFamily,
    packages: Vec<&'static str>,
}

/// Installs the packages that meet these needs, and prints their names first.
///
/// # Errors
/// If the distribution is unknown, the package manager or root is missing, or the package manager fails.
pub(super) fn install(missing: &[&Need], distribution: &Distribution) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let installation = plan(missing, distribution, on_path, is_root()?)?;
    println!("installing with {}: {}", installation.family.manager(), installation.packages.join(" "));
    installation.commands().iter_mut().try_for_each(run_quietly)
}

/// The packages for these needs, if this machine can install them.
fn plan(
    missing: &[&Need],
    distribution: &Distribution,
    has_command: impl Fn(&str) -> bool,
    root: bool,
) -> Result<Installation> {
    let (name, needed) = (&distribution.name, names(missing));
    let Some(family) = distribution.family else {
        bail!(
            "no package names are known for {name} (ID and ID_LIKE of os-release): install {needed}; {}",
            everywhere(missing)
        );
    };
    let packages = packages(missing, family);
    let command = family.command(&packages);
    ensure!(has_command(family.manager()), "{name} has no {}: install {needed}; {command}", family.manager());
    ensure!(root, "installing {needed} needs root: run this command as root, or first: {command}");
    Ok(Installation { family, packages })
}

/// The command that meets these needs on this distribution, or the commands of all families.
pub(super) fn advice(missing: &[&Need], distribution: &Distribution) -> String {
    match distribution.family {
        Some(family) => family.command(&packages(missing, family)),
        None => everywhere(missing),
    }
}

/// The commands of all families.
fn everywhere(missing: &[&Need]) -> String {
    let command =
        |family: DistributionFamily| format!("on {}: {}", family.name(), family.command(&packages(missing, family)));
    DistributionFamily::ALL.map(command).join("; ")
}

fn is_root() -> Result<bool> {
    let output = Command::new("id").arg("-u").output().context("starting id")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

// === impl Installation ===

impl Installation {
    /// The commands, in order. None of them is interactive.
    fn commands(&self) -> Vec<Command> {
        let run = |arguments: &[&str]| {
            let mut command = Command::new(self.family.manager());
            command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
            command
        };
        let mut commands = Vec::new();
        let mut install = match self.family {
            DistributionFamily::Apt => {
                commands.push(run(&["update", "-qq"]));
                run(&["install", "-y", "-qq", "--no-install-recommends", "-o", APT_LOCK])
            }
            DistributionFamily::Dnf => run(&["install", "-y", "-q", "--setopt=install_weak_deps=False"]),
        };
        install.args(&self.packages);
        commands.push(install);
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::needs::{Use, needs_of};
    use crate::shell::line;

    fn distribution(name: &str, family: Option<DistributionFamily>) -> Distribution {
        Distribution { name: name.into(), family }
    }

    fn demo() -> Vec<&'static Need> {
        needs_of(&[Use::Demo]).collect()
    }

    fn error(of: &Distribution, manager: bool, root: bool) -> String {
        plan(&demo(), of, |_| manager, root).unwrap_err().to_string()
    }

    #[test]
    fn the_commands_of_each_family() {
        let commands = |family| {
            let of = distribution("one", Some(family));
            let installation = plan(&demo(), &of, |command| command == family.manager(), true).unwrap();
            installation.commands().iter().map(line).collect::<Vec<_>>()
        };
        assert_eq!(
            commands(DistributionFamily::Apt),
            [
                "apt-get update -qq",
                "apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 gcc iproute2 util-linux libc6-dev"
            ]
        );
        assert_eq!(
            commands(DistributionFamily::Dnf),
            ["dnf install -y -q --setopt=install_weak_deps=False gcc iproute util-linux glibc-devel"]
        );
    }

    #[test]
    fn an_unknown_distribution_gets_the_packages_of_all_families() {
        let said = error(&distribution("Arch Linux", None), true, true);
        for part in ["Arch Linux", "cc, ip, ", "apt-get install -y gcc iproute2", "dnf install -y gcc iproute util"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn without_the_package_manager_or_root_packages_and_commands_are_named() {
        let fedora = distribution("Fedora Linux 42", Some(DistributionFamily::Dnf));
        for (manager, said) in [(false, "Fedora Linux 42 has no dnf"), (true, "needs root")] {
            let text = error(&fedora, manager, false);
            for part in [said, "cc, ip, ", "dnf install -y gcc iproute util-linux"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn nothing_missing_installs_nothing() {
        install(&[], &distribution("Arch Linux", None)).unwrap();
    }
}
