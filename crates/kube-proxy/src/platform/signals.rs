//! Signals, as upstream's process treats them: those that log rotation and timers send have no effect, SIGQUIT ends the program with
//! status 2, and termination signals end it at once, with the rules left in the kernel. SIGHUP, which ends upstream's, has the
//! configuration read again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ferry_kernel::process;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
use signal_hook::{flag, low_level};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::supervisor;

/// Signals without an effect. They have handlers: ignored signals would stay ignored in child processes. SIGHUP has an effect once
/// [`hang_ups`] receives it; before, the configuration has just been read.
const IGNORED: [i32; 4] = [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM];
/// Set by a termination signal that has a handler.
static ASKED_TO_END: OnceLock<Arc<AtomicBool>> = OnceLock::new();
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
    process::accept_passing_signals()?;
    // The first process accepts them once it has handlers.
    if is_first() { Ok(()) } else { process::accept_ending_signals() }
}

/// True in the first process of a container, which the kernel spares signals that it has no handlers for.
fn is_first() -> bool {
    std::process::id() == 1
}

/// True once a termination signal has come that has a handler.
pub fn is_asked_to_end() -> bool {
    ASKED_TO_END.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// Receives SIGHUP, within a runtime.
///
/// # Errors
/// The system's.
pub fn hang_ups() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// A termination signal that has come, and that the program has a handler for.
#[derive(Clone, Copy, Debug)]
pub struct EndingSignal(SignalKind);

/// Waits for a termination signal where it needs a handler: in the first process of a container, where systemd is notified, and if there
/// is something to do at the end. Any other program is ended by the signal itself.
///
/// # Errors
/// If the signals can't be handled.
pub async fn asked_to_end(ends_by_itself: bool) -> io::Result<EndingSignal> {
    if !is_first() && !supervisor::is_present() && !ends_by_itself {
        return std::future::pending().await;
    }
    let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
    let (mut terminated, mut interrupted) = (signal(terminate)?, signal(interrupt)?);
    let asked = ASKED_TO_END.get_or_init(Arc::default);
    for kind in [terminate, interrupt] {
        flag::register(kind.as_raw_value(), Arc::clone(asked))?;
    }
    process::accept_ending_signals()?;
    let kind = tokio::select! {
        _ = terminated.recv() => terminate,
        _ = interrupted.recv() => interrupt,
    };
    supervisor::stopping();
    Ok(EndingSignal(kind))
}

// === impl EndingSignal ===

impl EndingSignal {
    /// Ends the program as the signal itself does; the first process of a container, which that spares, with the exit code that
    /// stands for it.
    ///
    /// # Errors
    /// If the signal has no effect.
    pub fn end(self) -> io::Result<std::convert::Infallible> {
        let number = self.0.as_raw_value();
        if !is_first() {
            low_level::emulate_default_handler(number)?;
        }
        std::process::exit(128 + number)
    }
}
