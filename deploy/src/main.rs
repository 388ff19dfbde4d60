//! Builds what a release consists of; `cargo xt package` calls it with the built executable.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool talks to its user")]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use ferry_deploy::epoch::Epoch;
use ferry_deploy::release::Executables;
use ferry_deploy::{completions, man, release};

const USAGE: &str =
    "ferry-deploy EXECUTABLE STATIC PLUGIN WORKSPACE FOLDER   the files of a release; SOURCE_DATE_EPOCH is their time
ferry-deploy man|bash|zsh|fish                            prints the manual page, or completions for a shell";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ferry-deploy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<String> {
    Ok(match arguments {
        ["man"] => man::page(Epoch::of_environment()?),
        ["bash"] => completions::bash(),
        ["zsh"] => completions::zsh(),
        ["fish"] => completions::fish(),
        [executable, fixed, plugin, workspace, folder] => {
            let [dynamic, fixed, plugin] = [executable, fixed, plugin].map(Path::new);
            let executables = Executables { dynamic, fixed, plugin };
            let (workspace, folder) = (Path::new(workspace), Path::new(folder));
            let files = release::write(&executables, workspace, folder, Epoch::of_environment()?)?;
            files.iter().map(|file| format!("{}\n", file.display())).collect()
        }
        _ => bail!("unexpected arguments\n\n{USAGE}"),
    })
}
