//! Hand-over of [`Delta`]s from the core to an engine's thread: the latest state of a unit wins, so behind a slow kernel changes
//! coalesce and never queue. Foreign changes wake the engine's thread through the same mailbox.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use crate::Delta;

/// Makes the two ends.
#[derive(Debug)]
pub struct Mailbox;

/// The end of the core thread.
#[derive(Debug)]
pub struct Sender(Arc<Channel>);

/// The end of an engine's thread.
#[derive(Debug)]
pub struct Receiver(Arc<Channel>);

/// The event that ended [`Receiver::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// a change was put in since the last wait
    Delta,
    /// the waker was woken since the last wait
    Woken,
    /// nothing came in time
    Timeout,
    /// nothing will come any more
    Closed,
}

#[derive(Debug)]
struct Channel {
    state: Mutex<MailboxState>,
    filled: Condvar,
}

#[derive(Debug)]
struct MailboxState {
    delta: Option<Delta>,
    /// a change was put in that no wait has returned yet
    fresh: bool,
    woken: bool,
    senders: usize,
}

// === impl Mailbox ===

impl Mailbox {
    /// Makes a mailbox.
    #[expect(clippy::new_ret_no_self, reason = "a mailbox is its two ends")]
    pub fn new() -> (Sender, Receiver) {
        let state = MailboxState { delta: None, fresh: false, woken: false, senders: 1 };
        let channel = Arc::new(Channel { state: Mutex::new(state), filled: Condvar::new() });
        (Sender(Arc::clone(&channel)), Receiver(channel))
    }
}

// === impl Sender ===

impl Sender {
    /// Adds a change to what waits, and wakes the engine.
    pub fn put(&self, delta: Delta) {
        let mut state = self.0.lock();
        match &mut state.delta {
            Some(waiting) => waiting.merge(delta),
            None => state.delta = Some(delta),
        }
        state.fresh = true;
        drop(state);
        self.0.filled.notify_one();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.senders -= 1;
        if state.senders == 0 {
            drop(state);
            self.0.filled.notify_one();
        }
    }
}

impl Clone for Sender {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

// === impl Receiver ===

impl Receiver {
    /// Waits for a change, or for the waker; without a timeout, for ever. What was put in before the senders went is still
    /// returned.
    pub fn wait(&self, timeout: Option<Duration>) -> Arrival {
        let state = self.0.lock();
        let waits = |state: &mut MailboxState| !state.fresh && !state.woken && state.senders > 0;
        let mut state = match timeout {
            None => self.0.filled.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.0.filled.wait_timeout_while(state, timeout, waits).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        if std::mem::take(&mut state.fresh) {
            Arrival::Delta
        } else if std::mem::take(&mut state.woken) {
            Arrival::Woken
        } else if state.senders == 0 {
            Arrival::Closed
        } else {
            Arrival::Timeout
        }
    }

    /// Takes everything that was put in and not taken.
    pub fn take(&self) -> Option<Delta> {
        let mut state = self.0.lock();
        state.fresh = false;
        state.delta.take()
    }

    /// The number of units that wait to be taken; `None` if nothing does.
    pub fn waiting(&self) -> Option<usize> {
        self.0.lock().delta.as_ref().map(|delta| delta.units.len())
    }

    /// Wakes the thread that waits.
    pub fn waker(&self) -> Waker {
        Arc::clone(&self.0).into()
    }
}

// === impl Channel ===

impl Wake for Channel {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.lock().woken = true;
        self.filled.notify_one();
    }
}

impl Channel {
    /// No holder can leave the state half changed, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Delta ===

impl Delta {
    /// Adds a later change.
    pub fn merge(&mut self, later: Self) {
        if later.context.is_some() {
            self.context = later.context;
        }
        self.units.extend(later.units);
    }

    /// True if it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.context.is_none() && self.units.is_empty()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs a thread")]
mod tests {
    use ferry_api::object::ObjectName;
    use ferry_model::{BaseState, Context, MissingSchedulers, NodePortAddresses, Scheduler};

    use super::*;
    use crate::{Unit, UnitId};

    fn gone(name: &str) -> Delta {
        let id = UnitId::Service(ObjectName::new("default", name));
        Delta { context: None, units: [(id, None)].into() }
    }

    fn context(masquerade_mark: u32) -> Arc<Context> {
        Arc::new(Context {
            node_name: "node".into(),
            zone: None,
            node_ip: None,
            node_addresses: [].into(),
            local_addresses: [].into(),
            relay_address: None,
            local: None,
            masquerade_all: false,
            masquerade_mark,
            scheduler: Scheduler::default(),
            missing_schedulers: MissingSchedulers::new(),
        })
    }

    #[test]
    fn changes_coalesce() {
        let (sender, receiver) = Mailbox::new();
        sender.put(gone("a"));
        sender.put(gone("b"));
        sender.put(gone("a"));
        assert_eq!(receiver.wait(None), Arrival::Delta);
        assert_eq!(receiver.waiting(), Some(2));
        assert_eq!(receiver.take().unwrap().units.len(), 2);
        assert_eq!(receiver.wait(Some(Duration::ZERO)), Arrival::Timeout);
        assert!(receiver.take().is_none() && receiver.waiting().is_none());
    }

    #[test]
    fn the_later_unit_and_the_later_context_win() {
        let (sender, receiver) = Mailbox::new();
        let id = UnitId::Service(ObjectName::new("default", "a"));
        let unit = |affinity| {
            let node_ports = NodePortAddresses::All;
            Arc::new(Unit::Base(BaseState { node_ports, localhost: false, service_cidrs: vec![], affinity }))
        };
        for (affinity, mark) in [(false, Some(1)), (true, Some(2)), (true, None)] {
            let units = [(id.clone(), Some(unit(affinity)))].into();
            sender.put(Delta { context: mark.map(context), units });
        }
        let delta = receiver.take().unwrap();
        assert_eq!(delta.units.get(&id).unwrap().as_deref(), Some(&*unit(true)));
        assert_eq!(delta.context.unwrap().masquerade_mark, 2, "a change without one leaves it");
    }

    #[test]
    fn the_last_change_outlives_its_sender() {
        let (sender, receiver) = Mailbox::new();
        let other = sender.clone();
        drop(sender);
        other.put(gone("a"));
        drop(other);
        assert_eq!(receiver.wait(None), Arrival::Delta);
        assert_eq!(receiver.wait(None), Arrival::Closed);
        assert!(receiver.take().is_some());
    }

    #[test]
    fn what_is_not_taken_is_waited_for_once() {
        let (sender, receiver) = Mailbox::new();
        sender.put(gone("a"));
        assert_eq!(receiver.wait(None), Arrival::Delta);
        assert_eq!(receiver.wait(Some(Duration::ZERO)), Arrival::Timeout, "nothing new");
        sender.put(gone("b"));
        assert_eq!(receiver.wait(None), Arrival::Delta);
        assert_eq!(receiver.take().unwrap().units.len(), 2);
    }

    #[test]
    fn the_waker_is_no_change_and_delays_none() {
        let (sender, receiver) = Mailbox::new();
        let waker = receiver.waker();
        waker.wake_by_ref();
        waker.wake_by_ref();
        sender.put(gone("a"));
        assert_eq!(receiver.wait(None), Arrival::Delta);
        assert_eq!(receiver.wait(None), Arrival::Woken);
        assert_eq!(receiver.wait(Some(Duration::ZERO)), Arrival::Timeout);
    }

    #[test]
    fn a_sleeping_receiver_wakes() {
        let (sender, receiver) = Mailbox::new();
        let (waker, woken) = (receiver.waker(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            for _ in 0..3 {
                woken.0.send(receiver.wait(None)).unwrap();
            }
        });
        sender.put(gone("a"));
        assert_eq!(woken.1.recv(), Ok(Arrival::Delta));
        waker.wake();
        assert_eq!(woken.1.recv(), Ok(Arrival::Woken));
        // It sleeps by then, mostly.
        std::thread::sleep(Duration::from_millis(20));
        drop(sender);
        assert_eq!(woken.1.recv_timeout(Duration::from_secs(10)), Ok(Arrival::Closed));
        thread.join().unwrap();
    }

    #[test]
    fn a_delta_without_units_and_context_is_empty() {
        assert!(Delta::default().is_empty());
        assert!(!gone("a").is_empty());
        assert!(!Delta { context: Some(context(1)), ..Delta::default() }.is_empty());
    }
}
