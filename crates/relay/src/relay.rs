//! The relay: a set of listeners that changes while it runs, and its end.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::balancer::Balancer;
use crate::config::{RelayConfig, Removal};
use crate::counters::Totals;
use crate::endpoint::Endpoint;
use crate::gate::{Gate, ServedPorts};
use crate::listener::{self, Listener, ListenerError, ListenerState, ListenerStatus, Reopening, Serving};
use crate::protocol::Protocol;
use crate::socket::Bind;
use crate::system::OpenSocket;
use crate::worker::{Worker, WorkerHandle};

/// Interval of the looks for the end of the last connection while draining.
const DRAIN_STEP: Duration = Duration::from_millis(5);

/// Time limit of a method that waits for a thread to close a removed listener's socket; only a stuck thread takes so long.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The identity of a listener or gate, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Listeners and the threads that serve them. All methods take effect at once and may be called from any thread. When this is
/// dropped, the threads stop and open connections are reset.
#[derive(Debug)]
pub struct Relay {
    config: Arc<RelayConfig>,
    totals: Arc<Totals>,
    workers: Arc<[WorkerHandle]>,
    next_worker: AtomicUsize,
    listeners: Mutex<HashMap<ListenerId, ListenerTask>>,
    /// set before the listeners are closed for the last time, so that none is added afterwards
    has_ended: AtomicBool,
}

/// One listener of the set, and the task that serves it.
#[derive(Debug)]
struct ListenerTask {
    status: Arc<ListenerStatus>,
    reopening: Option<Reopening>,
    task: AbortHandle,
    /// Disconnected when the task has ended, and with it the last use of the socket.
    ended: Receiver<()>,
}

// === impl Relay ===

impl Relay {
    /// A relay without listeners, and its threads: the caller runs each [`Worker`] on a thread of its own.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    pub fn new(config: RelayConfig) -> io::Result<(Self, Vec<Worker>)> {
        let (config, totals) = (Arc::new(config), Arc::new(Totals::default()));
        let workers: Vec<_> =
            (0..config.workers.max(1)).map(|_| Worker::new(&config, &totals)).collect::<io::Result<_>>()?;
        let (workers, handles): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        let relay = Self {
            config,
            totals,
            workers: handles.into(),
            next_worker: AtomicUsize::new(0),
            listeners: Mutex::new(HashMap::new()),
            has_ended: AtomicBool::new(false),
        };
        Ok((relay, workers))
    }

    /// The counters of all ports together.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Adds a listener. One with this identity that has the same protocol and address is not touched, except that its new
    /// connections are of the given port; another one is replaced.
    ///
    /// Returns its state: one that can't be opened is tried again. A socket given open always replaces a listener, an inherited one
    /// as an address does.
    pub fn add(&self, id: ListenerId, listener: Listener) -> ListenerState {
        self.insert(id, listener.protocol, listener.bind, ServedPorts::Port(listener.port))
    }

    /// Adds a gate, which is a listener in all other respects, with an identity among those of listeners. As [`Self::add`]: one that has
    /// the same address is not touched, except that its new connections follow the given route.
    pub fn add_gate(&self, id: ListenerId, gate: Gate) -> ListenerState {
        self.insert(id, Protocol::Tcp, gate.bind, ServedPorts::Gate(gate.name.into(), gate.route))
    }

    fn insert(&self, id: ListenerId, protocol: Protocol, bind: Bind, target: ServedPorts) -> ListenerState {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended.load(Ordering::Relaxed) {
            return ListenerState::Lost(ListenerError::gone("the relay has ended"));
        }
        let reopening = bind.address().map(|(address, reuse_port)| Reopening { protocol, address, reuse_port });
        if let Some(present) =
            listeners.get(&id).filter(|listener| reopening.is_some() && listener.reopening == reopening)
        {
            present.status.serve(target);
            return present.status.state();
        }
        // Two listeners can't have one address, so the old one goes first.
        close(listeners.remove(&id));
        let at = self.next_worker.fetch_add(1, Ordering::Relaxed) % self.workers.len();
        let Some(worker) = self.workers.get(at) else {
            return ListenerState::Lost(ListenerError::gone("the relay has no threads"));
        };
        let opened = {
            let _registered_there = worker.runtime.enter();
            Serving::new(protocol, bind, self.config.keepalive)
        };
        if let Err(error) = &opened {
            self.totals.listener_errors.increment();
            tracing::warn!(%error, listener = target.name(), "Failed to open a listener, retrying");
        }
        let status = Arc::new(ListenerStatus::new(target, opened.as_ref(), reopening.is_some()));
        let serving = opened.ok();
        let (alive, ended) = channel();
        let task = listener::run(Arc::clone(&status), serving, reopening, Arc::clone(&self.workers), at);
        let task = async move {
            task.await;
            drop(alive);
        };
        let task = worker.runtime.spawn(task).abort_handle();
        let state = status.state();
        listeners.insert(id, ListenerTask { status, reopening, task, ended });
        state
    }

    /// Removes a listener or a gate: its socket is closed, and its UDP associations end. Established connections live on. Returns false
    /// if there is none.
    pub fn remove(&self, id: ListenerId) -> bool {
        let listener = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let found = listener.is_some();
        close(listener);
        found
    }

    /// Replaces the whole set of listeners: removes those that are not in it and adds the others, as [`Self::add`] does. Gates stay.
    pub fn replace(&self, wanted: Vec<(ListenerId, Listener)>) {
        let kept: HashSet<ListenerId> = wanted.iter().map(|&(id, _)| id).collect();
        self.close_where(|id, listener| !kept.contains(&id) && listener.status.target().port().is_some());
        for (id, listener) in wanted {
            self.add(id, listener);
        }
    }

    fn close_where(&self, condition: impl Fn(ListenerId, &ListenerTask) -> bool) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        close(listeners.extract_if(|&id, listener| condition(id, listener)).map(|(_, listener)| listener));
    }

    /// The states of all listeners and gates, in the order of their identities.
    pub fn states(&self) -> Vec<(ListenerId, ListenerState)> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut states: Vec<_> = listeners.iter().map(|(&id, listener)| (id, listener.status.state())).collect();
        states.sort_unstable_by_key(|&(id, _)| id);
        states
    }

    /// The listeners and gates that are not open, with the reason of each. Without a system call.
    pub fn failing(&self) -> HashMap<ListenerId, ListenerError> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().filter_map(|(&id, listener)| Some((id, listener.status.error()?))).collect()
    }

    /// Duplicates of all open sockets of listeners and gates, to hand them over to another process: either process can accept the
    /// connections that wait in them, and new ones. The caller, who knows the use of each, names it by a
    /// [`SocketName`](crate::SocketName) on the way.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    pub fn sockets(&self) -> io::Result<Vec<(ListenerId, OpenSocket)>> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners
            .iter()
            .filter_map(|(&id, listener)| Some(listener.status.socket()?.map(|socket| (id, socket))))
            .collect()
    }

    /// Replaces the endpoints of a port's balancer. From now on no connection is made to others. The established ones of those that are
    /// `kept` stay as they are, all others are treated as [`RelayConfig::removal`] says.
    pub fn replace_endpoints(
        &self,
        balancer: &Balancer,
        addresses: &[SocketAddr],
        kept: impl IntoIterator<Item = SocketAddr>,
    ) {
        let removed = balancer.replace(addresses, kept);
        match self.config.removal {
            Removal::Keep => {}
            Removal::Grace(time) => self.cut_after(removed, time),
            Removal::Cut => removed.iter().for_each(|endpoint| endpoint.cut()),
        }
    }

    /// Resets the connections of removed endpoints that still exist after this time, unless the endpoint has come back.
    pub fn cut_after(&self, removed: Vec<Arc<Endpoint>>, time: Duration) {
        if let Some(worker) = self.workers.first().filter(|_| !removed.is_empty()) {
            let removed: Vec<_> = removed.into_iter().map(|endpoint| (endpoint.removals(), endpoint)).collect();
            worker.runtime.spawn(async move {
                tokio::time::sleep(time).await;
                removed.iter().for_each(|(removals, endpoint)| endpoint.cut_if_gone_since(*removals));
            });
        }
    }

    /// Ends the relay: closes all listeners and gates, which ends their UDP associations, waits until the last TCP connection has
    /// ended or the time is over, and stops the threads, which resets what is left. Returns the number of connections that were
    /// reset. Nothing can be added any more.
    ///
    /// Blocks the calling thread, which must not be one of a [`Worker`]. Connections that wait to be accepted are reset, unless
    /// another process has the sockets ([`Self::sockets`]).
    pub fn drain(&self, within: Duration) -> usize {
        let end = Instant::now() + within;
        self.has_ended.store(true, Ordering::Relaxed);
        self.close_where(|_, _| true);
        let left = loop {
            let open = self.totals.open_connections.value();
            if open == 0 || Instant::now() >= end {
                break open;
            }
            std::thread::sleep(DRAIN_STEP);
        };
        self.stop();
        left
    }

    fn stop(&self) {
        self.workers.iter().for_each(WorkerHandle::stop);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Closes listeners: each gets the order before the first one is waited for.
fn close(tasks: impl IntoIterator<Item = ListenerTask>) {
    let closing = |listener: ListenerTask| {
        listener.task.abort();
        listener.status.close();
        listener.ended
    };
    let ended: Vec<Receiver<()>> = tasks.into_iter().map(closing).collect();
    let limit = Instant::now() + CLOSE_LIMIT;
    for ended in ended {
        // Nothing is ever sent: the wait ends with the sender, or at the limit.
        if ended.recv_timeout(limit.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("Removed listener is not closed yet, its thread is busy");
        }
    }
}
