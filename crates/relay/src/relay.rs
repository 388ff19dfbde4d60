//! The relay: a set of listeners that changes while it runs, and its end.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use crate::balancer::Balancer;
use crate::config::{Config, Removal};
use crate::counters::Totals;
use crate::endpoint::Endpoint;
use crate::listener::{self, Listener, ListenerState, Reopening, Serving, Shared};
use crate::socket::Bind;
use crate::system::OpenSocket;
use crate::worker::{Seat, Worker};

/// Interval of the looks for the end of the last connection while draining.
const DRAIN_STEP: Duration = Duration::from_millis(5);

/// Time limit of a method that waits for a thread to close a removed listener's socket; only a stuck thread takes so long.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The identity of a listener, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Listeners and the threads that serve them. All methods take effect at once and may be called from any thread. When this is
/// dropped, the threads stop and open connections are reset.
#[derive(Debug)]
pub struct Relay {
    config: Arc<Config>,
    totals: Arc<Totals>,
    seats: Arc<[Seat]>,
    next_seat: AtomicUsize,
    listeners: Mutex<HashMap<ListenerId, Entry>>,
}

/// One listener of the set.
#[derive(Debug)]
struct Entry {
    shared: Arc<Shared>,
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
    pub fn new(config: Config) -> io::Result<(Self, Vec<Worker>)> {
        let (config, totals) = (Arc::new(config), Arc::new(Totals::default()));
        let workers: Vec<_> =
            (0..config.workers.max(1)).map(|_| Worker::new(&config, &totals)).collect::<io::Result<_>>()?;
        let (workers, seats): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
        let listeners = Mutex::new(HashMap::new());
        Ok((Self { config, totals, seats: seats.into(), next_seat: AtomicUsize::new(0), listeners }, workers))
    }

    /// The counters of all ports together.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Adds a listener. One with this identity that has the same protocol and address is not touched, except that its new
    /// connections are of the given port; another one is replaced.
    ///
    /// Returns its state: one that can't be opened is tried again. A socket given open always replaces a listener.
    pub fn add(&self, id: ListenerId, listener: Listener) -> ListenerState {
        let Listener { protocol, bind, port } = listener;
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let reopening = match &bind {
            &Bind::Address { address, reuse_port } => Some(Reopening { protocol, address, reuse_port }),
            Bind::Open(_) => None,
        };
        if let Some(present) = listeners.get(&id).filter(|entry| reopening.is_some() && entry.reopening == reopening) {
            present.shared.serve(port);
            return present.shared.state();
        }
        // Two listeners can't have one address, so the old one goes first.
        close(listeners.remove(&id));
        let at = self.next_seat.fetch_add(1, Ordering::Relaxed) % self.seats.len();
        let Some(seat) = self.seats.get(at) else { return ListenerState::Lost("the relay has no threads".to_owned()) };
        let opened = {
            let _registered_there = seat.handle.enter();
            let keepalive = self.config.keepalive;
            match bind {
                Bind::Address { address, reuse_port } => Serving::open(protocol, address, reuse_port, keepalive)
                    .map_err(|error| listener::failure(protocol, address, &error)),
                Bind::Open(socket) => Serving::adopt(protocol, socket, keepalive)
                    .map_err(|error| format!("using an open socket: {error}")),
            }
        };
        if let Err(error) = &opened {
            self.totals.listener_errors.increment();
            tracing::warn!(error, port = port.name(), "cannot open a listener");
        }
        let shared = Arc::new(Shared::new(port, opened.as_ref().map_err(String::as_str), reopening.is_some()));
        let serving = opened.ok();
        let (alive, ended) = channel();
        let task = listener::run(Arc::clone(&shared), serving, reopening, Arc::clone(&self.seats), at);
        let task = async move {
            task.await;
            drop(alive);
        };
        let task = seat.handle.spawn(task).abort_handle();
        let state = shared.state();
        listeners.insert(id, Entry { shared, reopening, task, ended });
        state
    }

    /// Removes a listener: its socket is closed, and its UDP associations end. Established connections live on. Returns false
    /// if there is none.
    pub fn remove(&self, id: ListenerId) -> bool {
        let entry = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let found = entry.is_some();
        close(entry);
        found
    }

    /// Replaces the whole set: removes the listeners that are not in it and adds the others, as [`Self::add`] does.
    pub fn replace(&self, wanted: Vec<(ListenerId, Listener)>) {
        let kept: HashSet<ListenerId> = wanted.iter().map(|&(id, _)| id).collect();
        self.close_others(&kept);
        for (id, listener) in wanted {
            self.add(id, listener);
        }
    }

    /// Removes all listeners but these.
    fn close_others(&self, kept: &HashSet<ListenerId>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        close(listeners.extract_if(|id, _| !kept.contains(id)).map(|(_, entry)| entry));
    }

    /// The states of all listeners, in the order of their identities.
    pub fn states(&self) -> Vec<(ListenerId, ListenerState)> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let mut states: Vec<_> = listeners.iter().map(|(&id, entry)| (id, entry.shared.state())).collect();
        states.sort_unstable_by_key(|&(id, _)| id);
        states
    }

    /// Duplicates of all open listening sockets, to hand them over to another process: either process can accept the connections
    /// that wait in them, and new ones.
    ///
    /// # Errors
    /// The system's error if descriptors are exhausted.
    pub fn sockets(&self) -> io::Result<Vec<(ListenerId, OpenSocket)>> {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().filter_map(|(&id, entry)| Some(entry.shared.socket()?.map(|socket| (id, socket)))).collect()
    }

    /// Replaces the endpoints of a port's balancer. From now on no connection is made to those that are gone; their established
    /// ones are treated as [`Config::removal`] says.
    pub fn replace_endpoints(&self, balancer: &Balancer, addresses: &[SocketAddr]) {
        let removed = balancer.replace(addresses);
        match self.config.removal {
            Removal::Keep => {}
            Removal::Grace(time) => self.cut_after(removed, time),
            Removal::Cut => removed.iter().for_each(|endpoint| endpoint.cut()),
        }
    }

    /// Resets the connections of removed endpoints that still exist after this time.
    pub fn cut_after(&self, removed: Vec<Arc<Endpoint>>, time: Duration) {
        if let Some(seat) = self.seats.first().filter(|_| !removed.is_empty()) {
            seat.handle.spawn(async move {
                tokio::time::sleep(time).await;
                removed.iter().for_each(|endpoint| endpoint.cut());
            });
        }
    }

    /// Ends the relay: closes all listeners, waits until the last TCP connection has ended or the time is over, and stops the
    /// threads, which resets what is left. Returns the number of connections that were reset. Blocks the calling thread.
    pub fn drain(self, within: Duration) -> usize {
        let end = Instant::now() + within;
        self.close_others(&HashSet::new());
        loop {
            let open = self.totals.open_connections.value();
            if open == 0 || Instant::now() >= end {
                return open;
            }
            std::thread::sleep(DRAIN_STEP);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.seats.iter().for_each(Seat::stop);
    }
}

/// Closes listeners: each gets the order before the first one is waited for.
fn close(entries: impl IntoIterator<Item = Entry>) {
    let closing = |entry: Entry| {
        entry.task.abort();
        entry.shared.close();
        entry.ended
    };
    let ended: Vec<Receiver<()>> = entries.into_iter().map(closing).collect();
    let limit = Instant::now() + CLOSE_LIMIT;
    for ended in ended {
        // Nothing is ever sent: the wait ends with the sender, or at the limit.
        if ended.recv_timeout(limit.saturating_duration_since(Instant::now())) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a removed listener is not closed yet, its thread is busy");
        }
    }
}
