//! Detects if a kernel module is in the running kernel or could be loaded, and advises the operator if it is not. Reads
//! files only, and loads nothing.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// The file that names modules to load at boot, systemd's modules-load.d(5): the one for this program.
pub const LOADED_AT_BOOT: &str = "/etc/modules-load.d/kube-proxy.conf";

/// A kernel module, as found by [`find`]. Its text is for operators: what is wrong, if anything, and the commands that help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// name, with `_` instead of `-`
    pub name: String,
    /// whether the running kernel has it
    pub state: ModuleState,
    /// release of the running kernel, as of `uname -r`
    pub release: String,
}

/// States of a module, by what an operator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleState {
    /// in the kernel, and initialised
    Loaded,
    /// a part of the kernel's image
    BuiltIn,
    /// not in the kernel; installed on this machine
    Loadable,
    /// not in the kernel, and not installed on this machine
    Absent,
    /// not in the kernel, as far as visible; `/lib/modules/RELEASE` is not, as in a container
    Unknown,
}

// === impl Module ===

impl Module {
    /// True if the kernel has the module now.
    pub const fn is_present(&self) -> bool {
        matches!(self.state, ModuleState::Loaded | ModuleState::BuiltIn)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, state, release } = self;
        let load = format_args!(
            "run `modprobe -- {name}`, and write `{name}` to {LOADED_AT_BOOT}, which loads it at the next boot"
        );
        match state {
            ModuleState::Loaded => write!(f, "kernel module {name} is loaded"),
            ModuleState::BuiltIn => write!(f, "kernel module {name} is built into the kernel"),
            ModuleState::Loadable => write!(f, "kernel module {name} is not loaded: {load}"),
            ModuleState::Absent => write!(
                f,
                "kernel module {name} does not exist on this machine: kernel {release} was built without it, or the package \
                 with its modules is not installed; once it is, {load}"
            ),
            ModuleState::Unknown => write!(
                f,
                "kernel module {name} is not loaded as far as visible here, and /lib/modules/{release} is not visible, as in a \
                 container; on the node, {load}"
            ),
        }
    }
}

/// Finds a module of the running kernel by its name, such as `ip_vs_rr`. An alias is not a name.
pub fn find(name: &str) -> Module {
    find_below(Path::new("/"), name)
}

/// True if the kernel shows a module of this name as present, as it does one that was loaded; of those that are built in only
/// some. Cheaper than [`find`], which also reads the lists of installed modules.
pub fn is_loaded(name: &str) -> bool {
    present(Path::new("/"), &normalised(name)).is_some()
}

/// As [`find`], with the files below this directory.
fn find_below(root: &Path, name: &str) -> Module {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let name = normalised(name);
    let release = read("proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()).unwrap_or_default();
    let state = present(root, &name).unwrap_or_else(|| {
        let installed: PathBuf = ["lib/modules", &release].iter().collect();
        let listed = |list: &str| read(installed.join(list).to_str()?).map(|list| lists_file(&list, &name));
        match (listed("modules.builtin"), listed("modules.dep")) {
            (Some(true), _) => ModuleState::BuiltIn,
            (_, Some(true)) => ModuleState::Loadable,
            (_, Some(false)) => ModuleState::Absent,
            (_, None) => ModuleState::Unknown,
        }
    });
    Module { name, state, release }
}

/// The state of a module that the kernel shows as present; `None` if it shows none, as also of built-in ones without
/// parameters.
fn present(root: &Path, name: &str) -> Option<ModuleState> {
    if fs::read_to_string(root.join("proc/modules")).is_ok_and(|list| lists_live(&list, name)) {
        return Some(ModuleState::Loaded);
    }
    let shown = root.join("sys/module").join(name);
    match fs::read_to_string(shown.join("initstate")) {
        Ok(state) => (state.trim_end() == "live").then_some(ModuleState::Loaded),
        // a loaded module has the file, a built-in one does not
        Err(_) => shown.is_dir().then_some(ModuleState::BuiltIn),
    }
}

/// True if a list in the format of `/proc/modules` has an initialised module of this name: its lines begin with name, size, number
/// of users, users, and state.
fn lists_live(list: &str, name: &str) -> bool {
    list.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace();
        fields.next() == Some(name) && fields.nth(3) == Some("Live")
    })
}

/// True if a list in the format of `modules.builtin` or `modules.dep` has the file of this module at the begin of a line.
fn lists_file(list: &str, name: &str) -> bool {
    list.lines().any(|line| file_module(line).is_some_and(|found| normalised(found) == name))
}

/// The module of a line such as `kernel/net/ip_vs.ko.xz: kernel/lib/libcrc32c.ko.xz`, or `kernel/net/ip_vs.ko`.
fn file_module(line: &str) -> Option<&str> {
    let path = line.split(':').next()?;
    let file = path.rsplit('/').next()?;
    let (module, suffix) = file.split_once(".ko")?;
    matches!(suffix.trim_end(), "" | ".gz" | ".xz" | ".zst").then_some(module)
}

/// The kernel takes both characters for the same, and shows `_`.
fn normalised(name: &str) -> String {
    name.replace('-', "_")
}
