//! Starts named threads whose end ends the program.

use std::thread;

use anyhow::{Context as _, anyhow};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Enough for what most threads call; only what is touched costs memory.
pub const STACK_BYTES: usize = 1024 * 1024;

/// Starts threads that are guarded: the program ends with an error when one of them returns or panics. Clones share the guard.
#[derive(Clone, Debug)]
pub struct Threads {
    ends: UnboundedSender<anyhow::Error>,
    /// starts none: for a rehearsal
    rehearses: bool,
}

/// Receives the error of the first thread that has ended.
#[derive(Debug)]
pub struct ThreadEnds(UnboundedReceiver<anyhow::Error>);

/// Reports the end of its thread when it is dropped.
struct Guard {
    name: &'static str,
    threads: Threads,
}

// === impl Threads ===

impl Threads {
    /// With the receiver of their ends.
    pub fn new() -> (Self, ThreadEnds) {
        let (sender, receiver) = unbounded_channel();
        (Self { ends: sender, rehearses: false }, ThreadEnds(receiver))
    }

    /// Starts no thread, and drops what each would work with: for a rehearsal in a program that goes on.
    pub fn rehearsal() -> Self {
        let (Self { ends, .. }, _) = Self::new();
        Self { ends, rehearses: true }
    }

    /// Starts a thread with a stack of this number of bytes. The system shows 15 bytes of its name.
    ///
    /// # Errors
    /// If the system has none left.
    pub fn spawn(
        &self,
        name: &'static str,
        stack_bytes: usize,
        work: impl FnOnce() + Send + 'static,
    ) -> anyhow::Result<()> {
        if self.rehearses {
            return Ok(());
        }
        let guard = Guard { name, threads: self.clone() };
        thread::Builder::new()
            .name(name.to_owned())
            .stack_size(stack_bytes)
            .spawn(move || {
                let _guard = guard;
                work();
            })
            .with_context(|| format!("starting the thread {name}"))?;
        Ok(())
    }

    /// Ends the program with this error, which is more specific than the end of a thread.
    pub fn fail(&self, error: anyhow::Error) {
        // Without a receiver the program is ending anyway.
        let _ = self.ends.send(error);
    }
}

// === impl ThreadEnds ===

impl ThreadEnds {
    /// Waits for the first error.
    pub async fn first(&mut self) -> anyhow::Error {
        self.0.recv().await.unwrap_or_else(|| anyhow!("all threads have ended"))
    }
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        self.threads.fail(anyhow!("the thread {} has ended", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(mut ends: ThreadEnds) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(ends.first()).to_string()
    }

    #[test]
    fn the_end_of_a_thread_is_reported_with_its_name() {
        let (threads, ends) = Threads::new();
        let (go_on, stays) = std::sync::mpsc::channel::<()>();
        threads.spawn("stays", STACK_BYTES, move || assert!(stays.recv().is_err())).unwrap();
        threads.spawn("relay", STACK_BYTES, || assert_eq!(thread::current().name(), Some("relay"))).unwrap();
        assert_eq!(first(ends), "the thread relay has ended");
        drop(go_on);
    }

    #[test]
    fn a_panic_is_the_end_of_its_thread() {
        let (threads, ends) = Threads::new();
        threads.spawn("relay", STACK_BYTES, || panic!("as a test wants it")).unwrap();
        assert_eq!(first(ends), "the thread relay has ended");
    }

    #[test]
    fn a_rehearsal_drops_the_work() {
        let (go_on, stays) = std::sync::mpsc::channel::<()>();
        Threads::rehearsal().spawn("stays", STACK_BYTES, move || assert!(stays.recv().is_err())).unwrap();
        assert!(go_on.send(()).is_err(), "nobody receives");
    }

    #[test]
    fn an_error_comes_before_the_end() {
        let (threads, ends) = Threads::new();
        let failing = threads.clone();
        threads.spawn("core", STACK_BYTES, move || failing.fail(anyhow!("no memory"))).unwrap();
        assert_eq!(first(ends), "no memory");
    }
}
