//! Requests to end: of the console (Ctrl-C, Ctrl-Break, closing its window, log-off, shutdown), and of the service manager.
//!
//! Unlike on Linux, where rules stay in the kernel and signals end the process at once, the program takes its service addresses away
//! when it ends, so it ends itself.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_logoff, ctrl_shutdown};
use tokio::sync::Notify;

/// Set by the first request.
static ASKED_TO_END: AtomicBool = AtomicBool::new(false);
/// The service manager's request.
static STOP: OnceLock<Notify> = OnceLock::new();
/// The program has no user's console.
static IS_SERVICE: AtomicBool = AtomicBool::new(false);

/// Requests to read the configuration again, of which Windows has none: files are looked at in intervals.
#[derive(Debug)]
pub struct HangUps(());

/// Nothing is to be done before a runtime exists: until then the console's default ends the program.
///
/// # Errors
/// None.
pub fn handle_signals() -> io::Result<()> {
    Ok(())
}

/// True once the program was asked to end.
pub fn is_asked_to_end() -> bool {
    ASKED_TO_END.load(Ordering::Relaxed)
}

/// Asks the program to end, from any thread.
pub(super) fn ask_to_end() {
    ASKED_TO_END.store(true, Ordering::Relaxed);
    STOP.get_or_init(Notify::new).notify_one();
}

/// The service manager has started the program: it lives on when a user logs off.
pub(super) fn has_no_user() {
    IS_SERVICE.store(true, Ordering::Relaxed);
}

/// Receives requests to read the configuration again.
///
/// # Errors
/// None.
pub fn hang_ups() -> io::Result<HangUps> {
    Ok(HangUps(()))
}

/// Waits for a request to end, within a runtime.
///
/// # Errors
/// If the console's can't be handled.
pub(super) async fn asked_to_end() -> io::Result<()> {
    let (mut interrupt, mut stop) = (ctrl_c()?, ctrl_break()?);
    let (mut close, mut logoff, mut shutdown) = (ctrl_close()?, ctrl_logoff()?, ctrl_shutdown()?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = stop.recv() => {}
        _ = close.recv() => {}
        _ = logoff.recv(), if !IS_SERVICE.load(Ordering::Relaxed) => {}
        _ = shutdown.recv() => {}
        () = STOP.get_or_init(Notify::new).notified() => {}
    }
    ASKED_TO_END.store(true, Ordering::Relaxed);
    tracing::info!("Received a request to end");
    Ok(())
}

// === impl HangUps ===

impl HangUps {
    /// Waits for a request.
    pub async fn recv(&mut self) -> Option<()> {
        std::future::pending().await
    }
}
