//! What the tests share: the executable as it is shipped, packages of it, and the root of a Debian machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ferry_deploy::debian::{self, Package};
use ferry_deploy::epoch::Epoch;

/// The programs under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-ferry");
/// Packages that a minimal Debian needs to boot, and those of mode iptables.
const PACKAGES: &str = "dbus,iptables,kmod,systemd,systemd-sysv";
/// The time of all files in packages.
pub(crate) const EPOCH: Epoch = Epoch(1_700_000_000);

/// A folder of this test binary, by the name of its user.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("deploy").join(name);
    std::fs::create_dir_all(&folder).expect("making a folder");
    folder
}

/// An empty folder of this test binary.
pub(crate) fn fresh_folder(name: &str) -> PathBuf {
    let folder = folder(name);
    std::fs::remove_dir_all(&folder).expect("emptying a folder");
    self::folder(name)
}

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two folders below it")
}

/// Reads a file of the repository.
pub(crate) fn read(path: &str) -> String {
    let file = repository().join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Runs a command to its end; returns its output, errors behind it.
///
/// # Panics
/// If it fails.
pub(crate) fn run(command: &mut Command) -> String {
    attempt(command).unwrap_or_else(|complaint| panic!("{complaint}"))
}

/// Runs a command to its end; returns its output, errors behind it.
///
/// # Errors
/// If it fails: the command with its exit status and output.
pub(crate) fn attempt(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("starting {:?}: {error}", command.get_program()));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{command:?}: {}\n{text}", output.status)) }
}

/// The executable without symbols, as it is shipped.
pub(crate) fn executable() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| stripped(EXECUTABLE, "kube-proxy"))
}

/// The plugin of kubectl without symbols.
pub(crate) fn plugin() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| stripped(PLUGIN, "kubectl-ferry"))
}

fn stripped(executable: &str, name: &str) -> PathBuf {
    let stripped = folder("executable").join(name);
    run(Command::new("strip").arg("-o").arg(&stripped).arg(executable));
    stripped
}

/// Builds a package of this version in a folder.
pub(crate) fn package(version: &str, folder: &Path) -> PathBuf {
    let (executable, plugin) = (executable(), plugin());
    let package = Package { executable, plugin, components: "{}\n", epoch: EPOCH, version, compression: "gzip" };
    debian::build(&package, folder).expect("building a package")
}

/// An archive with the root of a minimal Debian; made once, since it is fetched from Debian's mirror.
pub(crate) fn debian() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let folder = folder("debian");
        let archive = folder.join(format!("{}.tar", PACKAGES.replace(',', "-")));
        if !archive.exists() {
            let draft = folder.join("draft.tar");
            let mut command = Command::new("mmdebstrap");
            command.args(["--quiet", "--variant=apt", &format!("--include={PACKAGES}"), "bookworm"]);
            run(command.arg(&draft));
            std::fs::rename(draft, &archive).expect("naming the archive");
        }
        archive
    })
}

/// Unpacks the root of a minimal Debian into an empty folder.
pub(crate) fn unpacked(name: &str) -> PathBuf {
    let root = fresh_folder(name);
    // devices are mounted when they are needed
    run(Command::new("tar").args(["--extract", "--exclude=./dev/*", "--file"]).arg(debian()).arg("-C").arg(&root));
    root
}
