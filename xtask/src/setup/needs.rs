//! The table of needs: each command or file that `cargo xt` uses, and the package that provides it in each family of
//! distributions.

use super::distribution::DistributionFamily;
use crate::shell::on_path;
use std::path::Path;

/// A group of the project's commands with the same needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// `cargo xt demo`.
    Demo,
    /// `cargo xt demo --rules`.
    Rules,
    /// The tests that run on this machine.
    Tests,
    /// The tests on other kernels, in virtual machines.
    Machines,
    /// `cargo xt package`.
    Package,
    /// `cargo xt windows`.
    Windows,
}

/// A command or a file, and its packages.
#[derive(Debug)]
pub(crate) struct Need {
    /// The command's name, or a description of the file.
    pub(crate) name: &'static str,
    /// The possible paths of a file, one of which is enough; empty for a command.
    files: &'static [&'static str],
    uses: &'static [Use],
    apt: &'static str,
    dnf: &'static str,
}

/// All needs that are met by a distribution's package. Toolchains (Rust, Go) are installed otherwise.
const NEEDS: &[Need] = {
    use Use::{Demo, Machines, Package, Rules, Tests, Windows};
    &[
        command("cc", "gcc", "gcc", &[Demo, Machines, Package, Tests, Windows]),
        command("c++", "g++", "gcc-c++", &[Tests]),
        command("ip", "iproute2", "iproute", &[Demo, Tests, Machines]),
        command("nft", "nftables", "nftables", &[Rules, Tests, Machines]),
        command("iptables-nft", "iptables", "iptables-nft", &[Tests, Machines]),
        command("iptables-legacy", "iptables", "iptables-legacy", &[Tests]),
        command("conntrack", "conntrack", "conntrack-tools", &[Tests]),
        command("ipvsadm", "ipvsadm", "ipvsadm", &[Machines]),
        command("ipset", "ipset", "ipset", &[Machines]),
        command("unshare", "util-linux", "util-linux", &[Demo, Machines, Tests]),
        command("chrt", "util-linux", "util-linux", &[Tests]),
        command("nsenter", "util-linux", "util-linux", &[Demo]),
        command("setpriv", "util-linux", "util-linux", &[Demo, Tests, Machines]),
        command("python3", "python3", "python3", &[Tests]),
        command("openssl", "openssl", "openssl", &[Tests]),
        command("curl", "curl", "curl", &[Tests]),
        command("qemu-system-x86_64", "qemu-system-x86", "qemu-system-x86-core", &[Machines]),
        command("busybox", "busybox-static", "busybox", &[Machines]),
        command("modprobe", "kmod", "kmod", &[Machines]),
        command("xz", "xz-utils", "xz", &[Machines]),
        command("make", "make", "make", &[Machines]),
        command("flex", "flex", "flex", &[Machines]),
        command("bison", "bison", "bison", &[Machines]),
        command("bc", "bc", "bc", &[Machines]),
        command("gzip", "gzip", "gzip", &[Machines]),
        command("tar", "tar", "tar", &[Machines, Tests]),
        command("find", "findutils", "findutils", &[Machines, Tests]),
        command("apt-get", "apt", "apt", &[Machines, Windows]),
        command("dpkg-deb", "dpkg", "dpkg", &[Machines, Package, Tests, Windows]),
        command("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64", "mingw64-gcc", &[Windows]),
        command("wine", "wine", "wine-core", &[Windows]),
        command("mmdebstrap", "mmdebstrap", "mmdebstrap", &[Tests]),
        command("strip", "binutils", "binutils", &[Machines, Tests]),
        command("systemd-analyze", "systemd", "systemd", &[Tests]),
        command("buildah", "buildah", "buildah", &[Machines, Tests]),
        command("crun", "crun", "crun", &[Machines, Tests]),
        command("promtool", "prometheus", "golang-github-prometheus", &[Tests]),
        command("bash", "bash", "bash", &[Tests]),
        command("zsh", "zsh", "zsh", &[Tests]),
        command("fish", "fish", "fish", &[Tests]),
        command("mandoc", "mandoc", "mandoc", &[Tests]),
        Need {
            name: "the headers of the C library",
            files: &["/usr/include/stdio.h"],
            uses: &[Demo, Machines, Package, Tests, Windows],
            apt: "libc6-dev",
            dnf: "glibc-devel",
        },
        Need {
            name: "chromium",
            files: &["/usr/bin/chromium", "/usr/bin/chromium-browser"],
            uses: &[Tests],
            apt: "chromium",
            dnf: "chromium",
        },
        Need {
            name: "a font for the browser",
            files: &[
                "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
                "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
            ],
            uses: &[Tests],
            apt: "fonts-dejavu-core",
            dnf: "dejavu-sans-fonts",
        },
        Need {
            name: "the default seccomp profile of containers",
            files: &["/usr/share/containers/seccomp.json"],
            uses: &[Machines, Tests],
            apt: "golang-github-containers-common",
            dnf: "containers-common",
        },
        Need {
            name: "Debian's archive keys",
            files: &["/usr/share/keyrings/debian-archive-keyring.gpg"],
            uses: &[Machines, Tests, Windows],
            apt: "debian-archive-keyring",
            dnf: "debian-keyring",
        },
        Need {
            name: "certificates of public authorities",
            files: &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"],
            uses: &[Tests],
            apt: "ca-certificates",
            dnf: "ca-certificates",
        },
    ]
};

const fn command(name: &'static str, apt: &'static str, dnf: &'static str, uses: &'static [Use]) -> Need {
    Need { name, files: &[], uses, apt, dnf }
}

/// The needs of these uses that this machine lacks.
pub(crate) fn missing(uses: &[Use]) -> Vec<&'static Need> {
    needs_of(uses).filter(|need| !need.is_met()).collect()
}

/// The needs of these uses, each once.
pub(super) fn needs_of(uses: &[Use]) -> impl Iterator<Item = &'static Need> {
    NEEDS.iter().filter(|need| need.uses.iter().any(|one| uses.contains(one)))
}

/// The names of needs as an enumeration in a sentence.
pub(crate) fn names(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.name).collect::<Vec<_>>().join(", ")
}

/// The packages that meet these needs, each once.
pub(crate) fn packages(needs: &[&Need], family: DistributionFamily) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for package in needs.iter().map(|need| need.package(family)) {
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    packages
}

// === impl Need ===

impl Need {
    /// The package that provides it.
    fn package(&self, family: DistributionFamily) -> &'static str {
        match family {
            DistributionFamily::Apt => self.apt,
            DistributionFamily::Dnf => self.dnf,
        }
    }

    fn is_met(&self) -> bool {
        if self.files.is_empty() { on_path(self.name) } else { self.files.iter().any(|file| Path::new(file).exists()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// True for lower case letters, digits and `+-.`, which both package managers accept.
    fn is_package_name(name: &str) -> bool {
        let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "+-.".contains(letter);
        name.starts_with(|letter: char| letter.is_ascii_lowercase()) && name.chars().all(allowed)
    }

    #[test]
    fn each_need_has_a_package_in_each_family_and_a_use() {
        for need in NEEDS {
            for family in DistributionFamily::ALL {
                assert!(is_package_name(need.package(family)), "{}, {family:?}", need.name);
            }
            assert!(!need.uses.is_empty(), "{}", need.name);
            assert!(need.files.iter().all(|file| file.starts_with('/')), "{}", need.name);
        }
        let names: HashSet<_> = NEEDS.iter().map(|need| need.name).collect();
        assert_eq!(names.len(), NEEDS.len(), "a need is listed twice");
    }

    #[test]
    fn a_use_has_its_own_needs_only() {
        let names = |uses: &[Use]| needs_of(uses).map(|need| need.name).collect::<Vec<_>>();
        assert_eq!(names(&[Use::Demo]), ["cc", "ip", "unshare", "nsenter", "setpriv", "the headers of the C library"]);
        assert_eq!(names(&[Use::Rules]), ["nft"]);
        assert_eq!(names(&[]), [""; 0]);
        let all = names(&[Use::Demo, Use::Rules, Use::Tests, Use::Machines, Use::Package, Use::Windows]);
        assert_eq!(all.len(), NEEDS.len(), "no need without a use, none twice");
    }

    #[test]
    fn packages_are_named_once_and_in_order() {
        let of = |names: &[&str]| NEEDS.iter().filter(|need| names.contains(&need.name)).collect::<Vec<_>>();
        let both = of(&["iptables-nft", "iptables-legacy", "cc"]);
        assert_eq!(packages(&both, DistributionFamily::Apt), ["gcc", "iptables"]);
        assert_eq!(packages(&both, DistributionFamily::Dnf), ["gcc", "iptables-nft", "iptables-legacy"]);
    }

    #[test]
    fn a_file_is_met_by_any_of_its_places() {
        let need = |files| Need { name: "a file", files, uses: &[Use::Tests], apt: "a", dnf: "a" };
        assert!(need(&["/absent", "/proc/self/status"]).is_met());
        assert!(!need(&["/absent"]).is_met());
        assert!(command("sh", "dash", "bash", &[]).is_met());
        assert!(!command("no-such-command", "a", "a", &[]).is_met());
    }
}
