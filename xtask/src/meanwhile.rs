//! Builds, and what else takes no part in the steps, beside them at a lower priority.

use crate::shell::{CargoMetadata, last_lines, line};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A priority at which a program gets only the time that nothing else wants (`SCHED_IDLE`, sched(7)).
pub(crate) const WHEN_IDLE: &[&str] = &["chrt", "--idle", "0"];

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
    pub(crate) fn finish(self) -> Result<()> {
        let name = self.name;
        let (status, output) = self.end()?;
        ensure!(status.success(), "{name}: {status}\n{}", last_lines(&output).join("\n"));
        Ok(())
    }

    /// Waits for its end, and returns its status and output.
    ///
    /// # Errors
    /// If its end or its output can't be read.
    pub(crate) fn end(mut self) -> Result<(ExitStatus, String)> {
        let status = self.child.wait().with_context(|| format!("waiting for {}", self.name))?;
        let output = std::fs::read(&self.log).with_context(|| format!("reading {}", self.log.display()))?;
        Ok((status, String::from_utf8_lossy(&output).into_owned()))
    }
}
