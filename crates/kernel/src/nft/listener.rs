//! Distinguishes foreign changes of nf_tables from those of this process, by the sender of a notification or by the generation.
//!
//! The generation moves by one with each commit in the network namespace. If it has moved by as many as a change of our own
//! has committed, no other process committed meanwhile.
//!
//! While any process listens, each element and rule of a commit costs the committing process an event: 220,000 elements take ten
//! times as long. So large changes are made with the subscription suspended ([`Accounting::Quiet`]), and the generation shows
//! afterwards if a change was missed.
//!
//! The kernel drops notifications of own sockets, so that they cause no wake-up. The end of a transaction names the process that
//! committed it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use super::{Monitor, NftEvent, NftNotice, NftSocket};
use crate::netlink::wait_readable;

/// Collects foreign changes, in whatever form a mode needs them.
pub trait ForeignChanges: Default {
    /// Adds a notified change.
    fn record(&mut self, event: &NftEvent);

    /// All changes recorded so far were committed by a thread of this name. Without this call the writer is unknown.
    fn committed_by(&mut self, process: &str);

    /// Adds that anything may have changed: notifications were lost, or, with an error, the subscription was.
    fn lost(&mut self, error: Option<&io::Error>);

    /// Adds that other processes committed something while the subscription was suspended.
    fn unobserved(&mut self);

    /// Adds changes that came later.
    fn merge(&mut self, later: Self);
}

/// The subscription of a process to changes of nf_tables in one network namespace, and the foreign changes not yet taken.
#[derive(Debug, Default)]
pub struct NftListener<C> {
    /// open from the first subscription on, and the same from then on
    monitor: Option<Monitor>,
    /// not before the first subscription, nor after it was lost
    is_subscribed: bool,
    /// port ids of sockets of this process
    own: BTreeSet<u32>,
    /// changes of a transaction whose end was not read yet, and the port id of its socket
    transaction: Option<(u32, C)>,
    changes: C,
}

/// Method that separates foreign changes from an own change in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// The subscription is suspended: for large changes. If the generation moved by more or less than was committed, there are
    /// unobserved foreign ones.
    Quiet,
    /// For a change whose sender can't be known beforehand, such as that of a child process. If the generation moved by more or
    /// less than was committed, all that was notified meanwhile counts as foreign.
    ByGeneration,
}

/// Waits for notifications, beside the [`NftListener`] that reads them.
#[derive(Debug)]
pub struct Arrivals(OwnedFd);

/// Result of reading notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// everything was read
    Complete,
    /// the end of a transaction is still to come, at any moment
    MidTransaction,
}

/// After a reading the next one waits so long, so that a neighbour that commits without end costs ten readings a second.
const PAUSE: Duration = Duration::from_millis(100);
/// Wait for the end of a transaction, and how often. The kernel notifies it right after the changes.
const MOMENT: Duration = Duration::from_millis(1);
const MOMENTS: usize = 10;

// === impl NftListener ===

impl<C: ForeignChanges> NftListener<C> {
    /// Subscribes in the network namespace of the calling thread, unless that was done before.
    ///
    /// # Errors
    /// The system's; `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&mut self) -> io::Result<()> {
        if self.is_subscribed {
            return Ok(());
        }
        let monitor = match &mut self.monitor {
            Some(monitor) => monitor,
            None => self.monitor.insert(Monitor::open()?),
        };
        ignore(monitor, &self.own);
        // Older notifications, where the subscription was lost, are part of what counts as lost.
        let _ = monitor.read(&mut |_| {})?;
        monitor.join()?;
        self.is_subscribed = true;
        Ok(())
    }

    /// From now on, commits by this socket are no foreign changes.
    pub fn own(&mut self, socket: &NftSocket) {
        self.own.insert(socket.port_id());
        if let Some(monitor) = &mut self.monitor {
            ignore(monitor, &self.own);
        }
    }

    /// A handle that waits for notifications; subscribes if need be.
    ///
    /// # Errors
    /// As [`NftListener::join`].
    pub fn arrivals(&mut self) -> io::Result<Arrivals> {
        self.join()?;
        let monitor = self.monitor.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Arrivals(monitor.as_fd().try_clone_to_owned()?))
    }

    /// Sets how many bytes of unread notifications the kernel keeps for this subscription.
    ///
    /// # Errors
    /// The system's.
    #[cfg(test)]
    pub(super) fn set_receive_buffer(&mut self, bytes: usize) -> io::Result<()> {
        self.monitor.as_mut().map_or(Ok(()), |monitor| monitor.set_receive_buffer(bytes))
    }

    /// Reads the notifications that have arrived and returns the foreign changes, for the caller to take: those of transactions
    /// that were notified to their end. Where the subscription was lost, it is renewed and counts as an overrun.
    ///
    /// # Errors
    /// The system's.
    pub fn changes(&mut self) -> io::Result<&mut C> {
        match self.monitor.as_mut().filter(|_| self.is_subscribed) {
            Some(monitor) => read(monitor, &self.own, &mut self.transaction, &mut self.changes)?,
            None => {
                self.join()?;
                self.changes.lost(None);
            }
        }
        Ok(&mut self.changes)
    }

    /// True while the end of a transaction is still to be notified.
    pub fn progress(&self) -> ReadProgress {
        if self.transaction.is_some() { ReadProgress::MidTransaction } else { ReadProgress::Complete }
    }

    /// The foreign changes that were read and not taken.
    pub fn read_changes(&self) -> &C {
        &self.changes
    }

    /// Makes a change of our own. `commits` returns the number of transactions that its result stands for, `None` if that isn't
    /// known; `socket` reads the generation.
    ///
    /// # Errors
    /// The system's, before the change is made.
    pub fn around<T>(
        &mut self,
        accounting: Accounting,
        socket: &mut NftSocket,
        change: impl FnOnce(&mut NftSocket) -> T,
        commits: impl FnOnce(&T) -> Option<u32>,
    ) -> io::Result<T> {
        // Without a subscription everything counts as lost when it is renewed.
        let Some(monitor) = self.monitor.as_mut().filter(|_| self.is_subscribed) else { return Ok(change(socket)) };
        // The generation first before the change and last after it: a foreign commit in between is suspected once too often
        // rather than never.
        let before = socket.generation()?;
        if accounting == Accounting::Quiet {
            monitor.leave()?;
        }
        read(monitor, &self.own, &mut self.transaction, &mut self.changes)?;
        // Its end may not be notified, or not be distinguishable from that of the own change.
        if let Some((_, unfinished)) = self.transaction.take() {
            self.changes.merge(unfinished);
        }
        let result = change(socket);
        let mut meanwhile = C::default();
        let observed = match accounting {
            Accounting::Quiet => monitor.join(),
            Accounting::ByGeneration => read(monitor, &self.own, &mut self.transaction, &mut meanwhile),
        };
        match observed.and_then(|()| socket.generation()) {
            Ok(after) if commits(&result).map(|commits| before.wrapping_add(commits)) == Some(after) => {}
            Ok(_) if accounting == Accounting::Quiet => self.changes.unobserved(),
            Ok(_) => self.changes.merge(meanwhile),
            Err(error) => {
                // Leave rather than miss changes silently: the next reading subscribes again.
                let _ = monitor.leave();
                self.is_subscribed = false;
                self.transaction = None;
                self.changes.lost(Some(&error));
            }
        }
        Ok(result)
    }
}

/// If the kernel can't filter, own notifications are recognised when they are read.
fn ignore(monitor: &mut Monitor, own: &BTreeSet<u32>) {
    let _ = monitor.ignore(own);
}

fn read<C: ForeignChanges>(
    monitor: &mut Monitor,
    own: &BTreeSet<u32>,
    transaction: &mut Option<(u32, C)>,
    changes: &mut C,
) -> io::Result<()> {
    let overrun = monitor.read(&mut |notice| match notice {
        NftNotice::Changed(event) if !own.contains(&event.port_id) => {
            // The end of another socket's transaction was lost.
            if let Some((_, unfinished)) = transaction.take_if(|(port_id, _)| *port_id != event.port_id) {
                changes.merge(unfinished);
            }
            transaction.get_or_insert_with(|| (event.port_id, C::default())).1.record(&event);
        }
        NftNotice::Committed { port_id, process } if !own.contains(&port_id) => {
            if let Some((of, mut finished)) = transaction.take() {
                if let Some(process) = process.filter(|_| of == port_id) {
                    finished.committed_by(&process);
                }
                changes.merge(finished);
            }
        }
        NftNotice::Changed(_) | NftNotice::Committed { .. } => {}
    })?;
    if overrun.0 {
        if let Some((_, unfinished)) = transaction.take() {
            changes.merge(unfinished);
        }
        changes.lost(None);
    }
    Ok(())
}

// === impl Arrivals ===

impl Arrivals {
    /// Calls `read`, which reads the notifications, whenever some have arrived: the first time at once, and never within 100 ms
    /// of the time before. Returns only if waiting fails, with the system's error.
    pub fn follow(&self, mut read: impl FnMut() -> ReadProgress) -> io::Error {
        loop {
            if let Err(error) = self.wait() {
                return error;
            }
            for _ in 0..MOMENTS {
                if read() == ReadProgress::Complete {
                    break;
                }
                std::thread::sleep(MOMENT);
            }
            std::thread::sleep(PAUSE);
        }
    }

    #[cfg(test)]
    pub(super) fn is_ready(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    /// Waits until notifications have arrived.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self) -> io::Result<()> {
        wait_readable(self.0.as_fd())
    }
}
