//! Signals, as upstream's process treats them: those that log rotation and timers send have no effect, SIGQUIT ends the program with
//! status 2, and termination signals end it at once, with the rules left in the kernel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGALRM, SIGQUIT, SIGUSR1, SIGUSR2};
use signal_hook::{flag, low_level};
use tokio::signal::unix::{SignalKind, signal};

use super::supervisor;

/// Signals without an effect. They have handlers: ignored signals would stay ignored in child processes.
const IGNORED: [i32; 3] = [SIGUSR1, SIGUSR2, SIGALRM];
/// Exit status after SIGQUIT, that of Go's runtime.
const QUIT: i32 = 2;

/// Installs the handlers, from the program's first step on.
///
/// # Errors
/// The system's.
pub fn handle_signals() -> io::Result<()> {
    for number in IGNORED {
        flag::register(number, Arc::default())?;
    }
    flag::register_conditional_shutdown(SIGQUIT, QUIT, Arc::new(AtomicBool::new(true)))?;
    Ok(())
}

/// Waits for a termination signal, where it needs a handler: the first process of a container is spared by the kernel otherwise,
/// and systemd is notified. Returns the exit code of the first process; any other is ended by the signal itself.
///
/// # Errors
/// If the signals can't be handled.
pub async fn asked_to_end() -> io::Result<i32> {
    let is_first = std::process::id() == 1;
    if !is_first && !supervisor::is_present() {
        return std::future::pending().await;
    }
    let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
    let (mut terminated, mut interrupted) = (signal(terminate)?, signal(interrupt)?);
    let kind = tokio::select! {
        _ = terminated.recv() => terminate,
        _ = interrupted.recv() => interrupt,
    };
    supervisor::stopping();
    if !is_first {
        low_level::emulate_default_handler(kind.as_raw_value())?;
    }
    Ok(128 + kind.as_raw_value())
}
