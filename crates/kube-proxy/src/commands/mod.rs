//! Executes the command line: one module per command, after the common steps in upstream's order, on which the class of an error
//! depends.

mod cleanup;
mod config;
mod init_only;
mod inputs;
mod inspect;
mod reload;
mod subject;
mod watch;
mod write_config;

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use ferry_api::config::GivenGate;
use ferry_kernel::text::escaped_lines;

use crate::app::{self, RunOptions};
use crate::cli::{self, Flags, Inspection, RequestedAction};
use crate::logging;
use crate::planes::InheritedSockets;
use crate::platform::{self, HandedOver, supervisor};

pub use config::{Configured, complete};

/// Executes a command line; returns the exit code.
pub fn execute(args: Vec<std::ffi::OsString>) -> ExitCode {
    let flags = match cli::parse(args) {
        Ok(RequestedAction::Run(flags)) => flags,
        Ok(RequestedAction::Inspect(inspection, flags, asked)) => {
            return inspected(inspection, &flags, &asked);
        }
        Ok(RequestedAction::Print(text)) => return print(&mut io::stdout(), &text, ExitCode::SUCCESS),
        Err(error) => return print(&mut io::stderr(), &error.to_string(), ExitCode::FAILURE),
    };
    for text in flags.deprecations() {
        print(&mut io::stderr(), &text, ExitCode::SUCCESS);
    }
    match dispatch(&flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::command_failed(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Executes a subcommand: prints its output, or why there is none.
fn inspected(inspection: Inspection, flags: &Flags, asked: &str) -> ExitCode {
    let output = if flags.is_true("watch") {
        watch::follow(flags, asked).map(|()| (String::new(), ExitCode::SUCCESS))
    } else {
        inspect::output(inspection, flags, asked)
    };
    match output {
        Ok((text, code)) => print(&mut io::stdout(), &text, code),
        Err(error) => print(&mut io::stderr(), &error_text(&error), ExitCode::FAILURE),
    }
}

/// An error for a terminal: it may quote files, objects and other programs.
fn error_text(error: &anyhow::Error) -> String {
    escaped_lines(&format!("Error: {error:#}"))
}

/// Prints a text. A closed pipe doesn't change the exit code.
fn print(stream: &mut dyn io::Write, text: &str, code: ExitCode) -> ExitCode {
    let _ = stream.write_all(text.as_bytes());
    code
}

/// Logs the value of a feature gate that is set, from `-v=1`.
fn note_gate(gate: GivenGate) {
    let GivenGate { name, maturity, value } = gate;
    tracing::info!(target: logging::V1, name, stage = %maturity, value, "Feature gate is set");
}

fn dispatch(flags: &Flags) -> anyhow::Result<()> {
    let HandedOver { configuration, objects, sockets } = platform::handed_over();
    let configured = match configuration {
        // After a reload: the text that the former run validated. The file may have changed again.
        Some(memory) => io::read_to_string(memory)
            .context("reading the configuration of the run before")
            .and_then(|text| config::complete_with(flags, Some(text))),
        None => complete(flags),
    };
    let configured = configured.context("failed complete")?;
    configured.config.validate_logging().context("initialize logging")?;
    logging::start(&configured.config.logging);
    configured.notices.iter().for_each(config::ConfigNotice::log);
    configured.config.given_feature_gates().for_each(note_gate);
    if configured.config.logging.verbosity >= 1 {
        let of_flags = flags.path("config").is_none().then_some(&configured.config);
        flags.describe_all(of_flags).for_each(|text| logging::plain("flag", "flags.go", 64, &text));
    }
    configured.config.validate().context("failed validate")?;
    if let Some(file) = flags.path("write-config-to") {
        return write_config::write(&configured.config, file);
    }
    if flags.is_true("cleanup") || flags.is_true("cleanup-iptables") {
        return cleanup::all(&configured.config);
    }
    if flags.is_true("cleanup-leftovers") {
        return cleanup::leftovers();
    }
    if flags.is_true("init-only") {
        return init_only::initialize(&configured);
    }
    // Before the kubeconfig is read: what changes meanwhile is a change.
    let reload = reload::of(flags, &configured);
    supervisor::forget(sockets.iter().map(|(name, _)| name.as_str()));
    let options = RunOptions { sockets: InheritedSockets::new(sockets), ..inputs::options(&configured)? };
    app::run(options, inputs::origin(&configured)?, reload, objects)
}
