//! Writes the files of a release to a folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::debian::{self, Package};
use crate::epoch::Epoch;
use crate::{components, elf, man};

/// The file with the checksums of the others, in the format of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";

/// The two builds of the executable, and the plugin of kubectl.
#[derive(Clone, Copy, Debug)]
pub struct Executables<'a> {
    /// for nodes, with the C library that is there
    pub dynamic: &'a Path,
    /// for an image that has nothing else
    pub fixed: &'a Path,
    /// `kubectl-ferry`, for the machines of operators and for nodes
    pub plugin: &'a Path,
}

/// Writes the executables, the package, the list of components, the manual page and the checksums of all of them; returns their paths.
///
/// # Errors
/// If an input can't be read, isn't the build that it should be, a tool fails, or a file can't be written.
pub fn write(executables: &Executables<'_>, workspace: &Path, folder: &Path, epoch: Epoch) -> Result<Vec<PathBuf>> {
    let Executables { dynamic, fixed, plugin } = *executables;
    ensure!(
        elf::is_dynamic(dynamic)?,
        "{} is static: on nodes, libraries of other versions could end it",
        dynamic.display()
    );
    ensure!(!elf::is_dynamic(fixed)?, "{} needs shared libraries: an image from scratch has none", fixed.display());
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let components = components::list(workspace, epoch)?;
    let package = Package {
        executable: dynamic,
        plugin,
        components: &components,
        epoch,
        version: debian::version(),
        compression: "xz",
    };
    let mut files = vec![debian::build(&package, folder)?];
    let platform = format!("{}-linux-{}", debian::version(), debian::architecture()?);
    let name = format!("kube-proxy-{platform}");
    let named =
        [(dynamic, name.clone()), (fixed, format!("{name}-static")), (plugin, format!("kubectl-ferry-{platform}"))];
    for (executable, name) in named {
        let file = folder.join(name);
        std::fs::copy(executable, &file).with_context(|| format!("copying {}", executable.display()))?;
        files.push(file);
    }
    for (name, text) in
        [(format!("{name}.cdx.json"), components.clone()), ("kube-proxy.8".to_owned(), man::page(epoch))]
    {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        files.push(file);
    }
    files.sort();
    let sums = files.iter().map(|file| sum(file)).collect::<Result<String>>()?;
    let file = folder.join(SUMS);
    std::fs::write(&file, sums).with_context(|| format!("writing {}", file.display()))?;
    files.push(file);
    Ok(files)
}

/// The line of a file in [`SUMS`].
fn sum(file: &Path) -> Result<String> {
    let content = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{digest}  {name}\n"))
}
