//! Builds that run beside other steps, at a lower priority.

use crate::shell::{CargoMetadata, last_lines, line};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A build that was started.
pub(crate) struct Build {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

// === impl Build ===

impl Build {
    /// Starts a program in the workspace. Its output goes to a file of this name in the target folder.
    ///
    /// # Errors
    /// If it can't be started.
    pub(crate) fn start(name: &'static str, program: &[&str], metadata: &CargoMetadata) -> Result<Self> {
        let log =
            metadata.target_directory.join(name.replace(|c: char| !c.is_alphanumeric(), "-")).with_extension("log");
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let mut command = Command::new("nice");
        command.args(["-n", "10"]).args(program).current_dir(&metadata.workspace_root);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {}", line(&command)))?;
        Ok(Self { name, child, log })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it has failed: the end of its output.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        ensure!(status.success(), "{}: {status}\n{}", self.name, last_lines(&log).join("\n"));
        Ok(())
    }
}
