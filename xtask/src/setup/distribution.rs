//! Detects the distribution of this machine, by os-release(5), and the package manager of its family.

use std::fs::read_to_string;

/// Distributions with the same package manager and package names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DistributionFamily {
    /// Debian and Ubuntu.
    Apt,
    /// Fedora.
    Dnf,
}

/// The distribution of a machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Distribution {
    /// Its name with the version, for messages.
    pub(crate) name: String,
    /// `None` for a distribution whose package names are not known here.
    pub(crate) family: Option<DistributionFamily>,
}

// === impl DistributionFamily ===

impl DistributionFamily {
    pub(crate) const ALL: [Self; 2] = [Self::Apt, Self::Dnf];

    /// The family of one identifier of `ID` or `ID_LIKE`.
    fn by_id(id: &str) -> Option<Self> {
        match id {
            "debian" | "ubuntu" => Some(Self::Apt),
            "fedora" => Some(Self::Dnf),
            _ => None,
        }
    }

    /// The distributions of the family, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apt => "Debian and Ubuntu",
            Self::Dnf => "Fedora",
        }
    }

    /// The command of the package manager.
    pub(crate) fn manager(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
        }
    }

    /// The shell command that installs these packages, for messages.
    pub(crate) fn command(self, packages: &[&str]) -> String {
        format!("{} install -y {}", self.manager(), packages.join(" "))
    }
}

// === impl Distribution ===

impl Distribution {
    /// Reads `/etc/os-release`, or `/usr/lib/os-release` if that is absent.
    pub(crate) fn of_this_machine() -> Self {
        let text = read_to_string("/etc/os-release").or_else(|_| read_to_string("/usr/lib/os-release"));
        Self::parse(&text.unwrap_or_default())
    }

    /// Parses an os-release file. `ID` precedes the identifiers of `ID_LIKE`, which are ordered by closeness.
    fn parse(text: &str) -> Self {
        let like = value(text, "ID_LIKE").unwrap_or_default();
        let id = value(text, "ID");
        let family = id.iter().map(String::as_str).chain(like.split_whitespace()).find_map(DistributionFamily::by_id);
        let name = value(text, "PRETTY_NAME").or(id).unwrap_or_else(|| "a system without os-release".into());
        Self { name, family }
    }
}

/// The value of a variable; the last assignment counts, as in a shell.
fn value(text: &str, name: &str) -> Option<String> {
    let assigned = text.lines().rev().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='))?;
    let value = unquoted(assigned);
    (!value.is_empty()).then_some(value)
}

/// Removes the quotes around a value, and outside of single quotes the backslashes before special characters.
fn unquoted(value: &str) -> String {
    let inside = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    if let Some(literal) = inside('\'') {
        return literal.to_owned();
    }
    let mut letters = inside('"').unwrap_or(value).chars();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, name: &str, family: Option<DistributionFamily>) {
        assert_eq!(Distribution::parse(text), Distribution { name: name.into(), family });
    }

    #[test]
    fn the_distributions_that_are_known() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nNAME=\"Debian GNU/Linux\"\nID=debian\n";
        check(debian, "Debian GNU/Linux 12 (bookworm)", Some(DistributionFamily::Apt));
        let ubuntu = "PRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\nID=ubuntu\nID_LIKE=debian\n";
        check(ubuntu, "Ubuntu 24.04.1 LTS", Some(DistributionFamily::Apt));
        let fedora =
            "NAME=\"Fedora Linux\"\nID=fedora\nVERSION_ID=42\nPRETTY_NAME=\"Fedora Linux 42 (Workstation Edition)\"\n";
        check(fedora, "Fedora Linux 42 (Workstation Edition)", Some(DistributionFamily::Dnf));
    }

    #[test]
    fn relatives_by_id_like() {
        check("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "linuxmint", Some(DistributionFamily::Apt));
        check("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "rocky", Some(DistributionFamily::Dnf));
        check("ID=odd\nID_LIKE=\"fedora debian\"\n", "odd", Some(DistributionFamily::Dnf));
        check("ID=debian\nID_LIKE=fedora\n", "debian", Some(DistributionFamily::Apt));
    }

    #[test]
    fn others_have_no_family() {
        check("ID=arch\nPRETTY_NAME=\"Arch Linux\"\n", "Arch Linux", None);
        check("ID=opensuse-tumbleweed\nID_LIKE=\"opensuse suse\"\n", "opensuse-tumbleweed", None);
        check("", "a system without os-release", None);
        check("# ID=debian\nVARIANT_ID=debian\nID=\n", "a system without os-release", None);
    }

    #[test]
    fn values_as_in_a_shell() {
        assert_eq!(value("A='x \\y'\n", "A").as_deref(), Some("x \\y"));
        assert_eq!(value("A=\"x \\\"y\\\" \\$z\"\n", "A").as_deref(), Some("x \"y\" $z"));
        assert_eq!(value("A=1\nAB=2\n  A=3\n", "A").as_deref(), Some("3"));
        assert_eq!(value("A=\"\"\n", "A"), None);
        assert_eq!(value("A=\"\n", "A").as_deref(), Some("\""));
    }
}
