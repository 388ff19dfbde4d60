//! Tells foreign changes of nf_tables from those of this process, by the sender of a notification or by the generation.
//!
//! The generation moves by one with each commit in the network namespace. If it has moved by as many as a change of our own
//! has committed, no other process committed meanwhile.
//!
//! While any process listens, each element and rule of a commit costs the committing process an event: 220,000 elements take ten
//! times as long. So large changes are made with the subscription suspended ([`Accounting::Quiet`]), and the generation tells afterwards whether
//! something was missed.

use std::collections::BTreeSet;
use std::io;

use super::{Event, Monitor, Socket};

/// Collects foreign changes, in whatever form a mode needs them.
pub trait ForeignChanges: Default {
    /// Adds a notified change.
    fn record(&mut self, event: &Event);

    /// Adds that anything may have changed: notifications were lost, or, with an error, the subscription was.
    fn lost(&mut self, error: Option<&io::Error>);

    /// Adds that other processes committed something while the subscription was suspended.
    fn unobserved(&mut self);

    /// Adds changes that came later.
    fn merge(&mut self, later: Self);
}

/// The subscription of a process to changes of nf_tables in one network namespace, and the foreign changes not yet taken.
#[derive(Debug, Default)]
pub struct Listener<C> {
    /// open once joined; not after the subscription was lost
    monitor: Option<Monitor>,
    /// port ids of sockets of this process
    own: BTreeSet<u32>,
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

// === impl Listener ===

impl<C: ForeignChanges> Listener<C> {
    /// Subscribes in the network namespace of the calling thread, unless that was done before.
    ///
    /// # Errors
    /// The system's; `EPERM` without `CAP_NET_ADMIN`.
    pub fn join(&mut self) -> io::Result<()> {
        if self.monitor.is_none() {
            let mut monitor = Monitor::open()?;
            monitor.join()?;
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// From now on, commits by this socket are no foreign changes.
    pub fn own(&mut self, socket: &Socket) {
        self.own.insert(socket.port_id());
    }

    /// Sets how many bytes of unread notifications the kernel keeps for this subscription.
    ///
    /// # Errors
    /// The system's.
    #[cfg(test)]
    pub(super) fn set_receive_buffer(&mut self, bytes: usize) -> io::Result<()> {
        self.monitor.as_mut().map_or(Ok(()), |monitor| monitor.set_receive_buffer(bytes))
    }

    /// Reads the notifications that have arrived and returns the foreign changes, for the caller to take. Where the subscription was
    /// lost, it is renewed and counts as an overrun.
    ///
    /// # Errors
    /// The system's.
    pub fn changes(&mut self) -> io::Result<&mut C> {
        match &mut self.monitor {
            Some(monitor) => read(monitor, &self.own, &mut self.changes)?,
            None => {
                self.join()?;
                self.changes.lost(None);
            }
        }
        Ok(&mut self.changes)
    }

    /// Makes a change of our own. `commits` returns the number of transactions that its result stands for, `None` if that isn't
    /// known; `socket` reads the generation.
    ///
    /// # Errors
    /// The system's, before the change is made.
    pub fn around<T>(
        &mut self,
        accounting: Accounting,
        socket: &mut Socket,
        change: impl FnOnce(&mut Socket) -> T,
        commits: impl FnOnce(&T) -> Option<u32>,
    ) -> io::Result<T> {
        // Without a subscription everything counts as lost when it is renewed.
        let Some(monitor) = &mut self.monitor else { return Ok(change(socket)) };
        // The generation first before the change and last after it: a foreign commit in between is suspected once too often
        // rather than never.
        let before = socket.generation()?;
        match accounting {
            Accounting::Quiet => monitor.leave()?,
            Accounting::ByGeneration => read(monitor, &self.own, &mut self.changes)?,
        }
        let result = change(socket);
        let mut meanwhile = C::default();
        let observed = match accounting {
            Accounting::Quiet => monitor.join(),
            Accounting::ByGeneration => read(monitor, &self.own, &mut meanwhile),
        };
        match observed.and_then(|()| socket.generation()) {
            Ok(after) if commits(&result).map(|commits| before.wrapping_add(commits)) == Some(after) => {}
            Ok(_) if accounting == Accounting::Quiet => self.changes.unobserved(),
            Ok(_) => self.changes.merge(meanwhile),
            Err(error) => {
                // Drop the monitor rather than miss changes silently: the next reading subscribes again.
                self.monitor = None;
                self.changes.lost(Some(&error));
            }
        }
        Ok(result)
    }
}

fn read<C: ForeignChanges>(monitor: &mut Monitor, own: &BTreeSet<u32>, changes: &mut C) -> io::Result<()> {
    let overrun = monitor.read(&mut |event| {
        if !own.contains(&event.port_id) {
            changes.record(&event);
        }
    })?;
    if overrun.0 {
        changes.lost(None);
    }
    Ok(())
}
