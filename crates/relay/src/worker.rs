//! The threads that relay: each runs a single-threaded runtime. A connection stays on its thread, so threads share nothing but
//! counters and the choice of endpoints.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

use crate::config::RelayConfig;
use crate::copy::Pipes;
use crate::counters::Totals;
use crate::system::Datagrams;

/// One of the relay's threads, not started yet: the caller provides the thread, and calls [`Worker::run`] on it.
#[derive(Debug)]
pub struct Worker {
    runtime: Runtime,
    stop: Arc<Notify>,
}

/// The state that the tasks of one thread share.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) config: Arc<RelayConfig>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) pipes: Pipes,
    /// Buffers for datagrams; a task holds them only between two waits.
    pub(crate) datagrams: Mutex<Datagrams>,
    /// Open connections of this thread.
    pub(crate) connections: AtomicUsize,
}

/// The handle by which other threads reach one.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) runtime: Handle,
    pub(crate) context: Arc<WorkerContext>,
    stop: Arc<Notify>,
}

// === impl Worker ===

impl Worker {
    pub(crate) fn new(config: &Arc<RelayConfig>, totals: &Arc<Totals>) -> io::Result<(Self, WorkerHandle)> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let stop = Arc::new(Notify::new());
        let context = Arc::new(WorkerContext {
            config: Arc::clone(config),
            totals: Arc::clone(totals),
            pipes: Pipes::new(config.splice),
            datagrams: Mutex::new(Datagrams::new()),
            connections: AtomicUsize::new(0),
        });
        let handle = WorkerHandle { runtime: runtime.handle().clone(), context, stop: Arc::clone(&stop) };
        Ok((Self { runtime, stop }, handle))
    }

    /// Relays on the calling thread until the relay stops; then its connections are reset. The thread's network namespace is
    /// the one in which endpoints are reached.
    pub fn run(self) {
        self.runtime.block_on(self.stop.notified());
    }
}

// === impl WorkerHandle ===

impl WorkerHandle {
    pub(crate) fn stop(&self) {
        self.stop.notify_one();
    }

    pub(crate) fn connections(&self) -> usize {
        self.context.connections.load(Ordering::Relaxed)
    }
}

/// The thread for a connection that the thread `at` has accepted, if it is another one: one with fewer connections.
pub(crate) fn least_loaded(workers: &[WorkerHandle], at: usize) -> Option<usize> {
    let own = workers.get(at)?.connections();
    let (least, connections) =
        workers.iter().map(WorkerHandle::connections).enumerate().min_by_key(|&(_, connections)| connections)?;
    (connections < own).then_some(least)
}
