//! A copy of the workspace in which mutants are compiled.

use crate::scope;
use crate::switches::MODULE;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The copy. A file that doesn't change is not written again, so that cargo finds what it has compiled.
#[derive(Debug)]
pub(crate) struct Tree {
    /// the workspace
    root: PathBuf,
    /// the copy
    pub(crate) folder: PathBuf,
    /// the package with the mutants
    pub(crate) package: String,
}

// === impl Tree ===

impl Tree {
    /// Copies all files that git knows or doesn't ignore, except the source of the package: [`Self::write`] does that.
    ///
    /// # Errors
    /// If git fails, or a file can't be copied.
    pub(crate) fn new(root: &Path, folder: &Path, package: &str) -> Result<Self> {
        let tree = Self { root: root.to_owned(), folder: folder.to_owned(), package: package.to_owned() };
        let mut command = Command::new("git");
        command.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let output = command.stderr(Stdio::inherit()).output().context("starting git")?;
        ensure!(output.status.success(), "git ls-files: {}", output.status);
        let names = String::from_utf8(output.stdout).context("reading the names of files")?;
        // The copy is below the workspace, whose settings of cargo hold for it, too: twice the same flags would be others.
        let is_copied = |name: &&str| !name.is_empty() && !name.starts_with(".cargo/");
        let names: BTreeSet<&str> = names.split('\0').filter(is_copied).collect();
        let source = format!("{}/", scope::source(package));
        for name in &names {
            match fs::read(root.join(name)) {
                // In the index, but deleted.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                _ if name.starts_with(&source) && name.ends_with(".rs") => tree.write(name, &tree.source(name)?)?,
                text => write_changed(&tree.folder.join(name), &text.with_context(|| format!("reading {name}"))?)?,
            }
        }
        let module = format!("{source}{MODULE}.rs");
        write_changed(&tree.folder.join(&module), include_bytes!("switch.rs"))?;
        let is_wanted =
            |name: &str| names.contains(name) && root.join(name).exists() || name == module || name == "Cargo.lock";
        remove_others(&tree.folder, &tree.folder, &is_wanted)?;
        Ok(tree)
    }

    /// The text of a file of the workspace.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn source(&self, name: &str) -> Result<String> {
        fs::read_to_string(self.root.join(name)).with_context(|| format!("reading {name}"))
    }

    /// Writes a file of the package's source; the root of the library gets the module of the switches.
    ///
    /// # Errors
    /// If it can't be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let is_root = name == format!("{}/lib.rs", scope::source(&self.package));
        let module = if is_root { format!("\n#[doc(hidden)]\npub mod {MODULE};\n") } else { String::new() };
        write_changed(&self.folder.join(name), format!("{text}{module}").as_bytes())
    }

    /// A command of cargo in the copy, which prints its messages as JSON.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("cargo");
        command.current_dir(&self.folder).args(arguments).arg("--message-format=json");
        // All packages share the dependencies. Nobody reads the debug information. One change of a file at a time is compiled incrementally.
        command.env("CARGO_TARGET_DIR", self.root.join("target/mutants/target"));
        command.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "1")]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// Removes the files of an earlier copy that are no longer wanted: cargo compiles each file below `tests`.
fn remove_others(tree: &Path, folder: &Path, is_wanted: &impl Fn(&str) -> bool) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry.with_context(|| format!("listing {}", folder.display()))?.path();
        let name = path.strip_prefix(tree)?.to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            remove_others(tree, &path, is_wanted)?;
        } else if !is_wanted(&name) {
            fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        }
    }
    Ok(())
}

fn write_changed(file: &Path, text: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|present| present == text) {
        return Ok(());
    }
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        assert!(Command::new("git").current_dir(folder).args(arguments).status().unwrap().success());
    }

    #[test]
    fn a_copy_follows_the_workspace_and_has_the_switches() {
        let folder = std::env::temp_dir().join(format!("ferry-mutants-tree-{}", std::process::id()));
        let (root, copy) = (folder.join("root"), folder.join("copy"));
        let write = |name: &str, text: &str| write_changed(&root.join(name), text.as_bytes()).unwrap();
        write("crates/a/src/lib.rs", "mod b;\n");
        write("crates/a/tests/old.rs", "");
        write("ignored/c.rs", "");
        write(".gitignore", "/ignored\n");
        write(".cargo/config.toml", "");
        git(&root, &["init", "--quiet"]);
        Tree::new(&root, &copy, "ferry-a").unwrap();
        assert!(copy.join("crates/a/tests/old.rs").exists());
        assert!(!copy.join("ignored").exists() && !copy.join(".cargo").exists());
        fs::remove_file(root.join("crates/a/tests/old.rs")).unwrap();
        write("crates/a/tests/new.rs", "");
        let tree = Tree::new(&root, &copy, "ferry-a").unwrap();
        assert!(copy.join("crates/a/tests/new.rs").exists() && !copy.join("crates/a/tests/old.rs").exists());
        let library = fs::read_to_string(copy.join("crates/a/src/lib.rs")).unwrap();
        assert!(library.starts_with("mod b;\n") && library.contains("pub mod mutant_switch;"));
        assert!(copy.join("crates/a/src/mutant_switch.rs").exists());
        assert_eq!(tree.source("crates/a/src/lib.rs").unwrap(), "mod b;\n");
        fs::remove_dir_all(&folder).unwrap();
    }
}
