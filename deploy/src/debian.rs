//! The Debian package: a tree of files, packed by `dpkg-deb`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use ferry_kube_proxy::version;
use flate2::{Compression, GzBuilder};

use crate::epoch::{self, Epoch};
use crate::{completions, elf, man, tool};

/// The name of the package.
pub const NAME: &str = "ferry-kube-proxy";

/// Files that `dpkg` treats as the administrator's.
const CONFFILES: [(&str, &str); 2] = [
    ("/etc/default/kube-proxy", include_str!("../debian/default")),
    ("/etc/kube-proxy/config.yaml", include_str!("../debian/config.yaml")),
];

/// Scripts that `dpkg` runs.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("../debian/postinst")),
    ("prerm", include_str!("../debian/prerm")),
    ("postrm", include_str!("../debian/postrm")),
];

/// What a package is built from.
#[derive(Clone, Debug)]
pub struct Package<'a> {
    /// the executable, stripped
    pub executable: &'a Path,
    /// the plugin of kubectl, stripped
    pub plugin: &'a Path,
    /// the list of its libraries
    pub components: &'a str,
    /// the time of its files
    pub epoch: Epoch,
    /// the version of the package
    pub version: &'a str,
    /// the compression of `dpkg-deb`: `xz`, or `gzip`, which is faster
    pub compression: &'a str,
}

/// Builds the package in a folder, and returns its path.
///
/// # Errors
/// If a file can't be written, or `dpkg-deb` is missing or fails.
pub fn build(package: &Package<'_>, folder: &Path) -> Result<PathBuf> {
    let architecture = architecture()?;
    let tree = Tree(folder.join("debian-tree"));
    tree.remove()?;
    fill(&tree, package)?;
    let file = folder.join(format!("{NAME}_{}_{architecture}.deb", package.version));
    let control = control(package, &architecture, tree.kibibytes()?)?;
    tree.write("DEBIAN/control", 0o644, control.as_bytes())?;
    tree.write("DEBIAN/conffiles", 0o644, CONFFILES.map(|(path, _)| format!("{path}\n")).concat().as_bytes())?;
    for (name, script) in SCRIPTS {
        tree.write(&format!("DEBIAN/{name}"), 0o755, script.as_bytes())?;
    }
    tree.write("DEBIAN/md5sums", 0o644, tree.sums()?.as_bytes())?;
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Z", package.compression, "--build"]).arg(&tree.0).arg(&file);
    tool::output(command.env(epoch::VARIABLE, package.epoch.0.to_string()))?;
    tree.remove()?;
    Ok(file)
}

/// The processor architecture of this machine, as Debian names it.
///
/// # Errors
/// If `dpkg` is missing.
pub fn architecture() -> Result<String> {
    Ok(tool::output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned())
}

/// Writes all files of the package but those of `DEBIAN`.
fn fill(tree: &Tree, package: &Package<'_>) -> Result<()> {
    for (path, executable) in [("usr/bin/kube-proxy", package.executable), ("usr/bin/kubectl-ferry", package.plugin)] {
        let program = std::fs::read(executable).with_context(|| format!("reading {}", executable.display()))?;
        tree.write(path, 0o755, &program)?;
    }
    for (path, text) in CONFFILES {
        tree.write(path.trim_start_matches('/'), 0o644, text.as_bytes())?;
    }
    let share = [
        ("usr/lib/systemd/system/kube-proxy.service", include_str!("../debian/kube-proxy.service").to_owned()),
        ("usr/lib/tmpfiles.d/kube-proxy.conf", include_str!("../debian/tmpfiles.conf").to_owned()),
        ("usr/share/bash-completion/completions/kube-proxy", completions::bash()),
        ("usr/share/zsh/vendor-completions/_kube-proxy", completions::zsh()),
        ("usr/share/fish/vendor_completions.d/kube-proxy.fish", completions::fish()),
        ("usr/share/doc/ferry-kube-proxy/copyright", include_str!("../debian/copyright").to_owned()),
        ("usr/share/doc/ferry-kube-proxy/sbom.cdx.json", package.components.to_owned()),
    ];
    for (path, text) in share {
        tree.write(path, 0o644, text.as_bytes())?;
    }
    tree.write("usr/share/man/man8/kube-proxy.8.gz", 0o644, &gzip(&man::page(package.epoch))?)?;
    let changes = gzip(include_str!("../../CHANGELOG.md"))?;
    tree.write("usr/share/doc/ferry-kube-proxy/changelog.gz", 0o644, &changes)?;
    // credentials: readable by root alone
    tree.folder("var/lib/kube-proxy", 0o700)
}

fn control(package: &Package<'_>, architecture: &str, kibibytes: u64) -> Result<String> {
    let depends = if elf::is_dynamic(package.executable)? {
        // the build machine's C library is the oldest one known to work
        let library = tool::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
        let version = library.split_whitespace().last().context("getconf names no version of the C library")?;
        format!("Depends: libc6 (>= {version}), libgcc-s1\n")
    } else {
        String::new()
    };
    let text = include_str!("../debian/control")
        .replace("@VERSION@", package.version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@SIZE@", &kibibytes.to_string());
    Ok(text.replace("Depends: @DEPENDS@\n", &depends))
}

/// The version of a package of this source: Ferry's own.
pub fn version() -> &'static str {
    version::FERRY
}

/// A text compressed, without name and time.
fn gzip(text: &str) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(text.as_bytes())?;
    Ok(writer.finish()?)
}

/// The files of a package in a folder.
struct Tree(PathBuf);

// === impl Tree ===

impl Tree {
    fn write(&self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        let file = self.0.join(path);
        if let Some(folder) = Path::new(path).parent() {
            self.folders(folder)?;
        }
        std::fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        set_mode(&file, mode)
    }

    /// Creates a folder with this mode.
    fn folder(&self, path: &str, mode: u32) -> Result<()> {
        self.folders(Path::new(path))?;
        set_mode(&self.0.join(path), mode)
    }

    /// Creates a folder and those above it, whatever the umask.
    fn folders(&self, path: &Path) -> Result<()> {
        let mut folder = self.0.clone();
        for part in std::iter::once(Path::new("")).chain(path.iter().map(Path::new)) {
            folder.push(part);
            if !folder.is_dir() {
                std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
                set_mode(&folder, 0o755)?;
            }
        }
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }

    /// The paths of all files but those of `DEBIAN`, from the package's root, sorted.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.extend((!path.ends_with("DEBIAN")).then_some(path));
                } else {
                    files.push(path.strip_prefix(&self.0)?.to_owned());
                }
            }
        }
        files.sort();
        Ok(files)
    }

    fn kibibytes(&self) -> Result<u64> {
        let size = |file: &PathBuf| Ok(std::fs::metadata(self.0.join(file))?.len().div_ceil(1024));
        self.files()?.iter().map(size).sum()
    }

    /// The checksums by which `dpkg --verify` finds changed files; those of conffiles are `dpkg`'s own.
    fn sums(&self) -> Result<String> {
        let files = self.files()?.into_iter().filter(|file| !file.starts_with("etc"));
        tool::output(Command::new("md5sum").arg("--").args(files).current_dir(&self.0))
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).with_context(|| format!("setting the mode of {}", path.display()))
}
