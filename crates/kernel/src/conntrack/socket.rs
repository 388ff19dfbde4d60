//! Dumps and deletions of conntrack entries.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::entry::decode_with_timeout;
use super::wire::{self, msg};
use super::{Entry, Filter, decode_entry, proc};
use crate::errno::ErrorClass;
use crate::netlink::{
    AnswerEnd, AnswerMessage, Interrupted, Malformed, MessageError, MessageWriter, Session, flag, nfnetlink,
};

/// Maximum number of entries that [`ConntrackSocket::delete`] deletes with one `send`: should all fail, their errors fit into a receive
/// buffer of a size that needs no privilege.
pub const DELETIONS_PER_SEND: usize = 128;

/// Maximum number of single entries queried with one `send`, so that their answers fit, too.
const QUERIES_PER_SEND: usize = 32;

/// A netlink socket for the conntrack table of the network namespace in which it was opened. No method waits for anything but
/// the kernel's own work.
#[derive(Debug)]
pub struct ConntrackSocket {
    session: Session,
}

/// Causes of incomplete dumps and failed deletions, by the caller's next step.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    /// retry: the table changed during the dump, an answer was lost, or memory was short
    #[error("interrupted: {0}")]
    Interrupted(#[source] io::Error),
    /// permanent: no permission, or this kernel has no connection tracking
    #[error("not usable here: {0}")]
    Unusable(#[source] io::Error),
    /// anything else
    #[error(transparent)]
    Io(io::Error),
}

/// The result of a deletion.
#[derive(Debug, Default)]
#[must_use]
pub struct Deletion {
    /// number of deleted entries
    pub deleted: usize,
    /// number of entries that no longer exist, or whose tuple belongs to another flow now
    pub gone: usize,
    /// the first error, if entries could not be deleted
    pub error: Option<ConntrackError>,
}

// === impl ConntrackError ===

impl From<io::Error> for ConntrackError {
    fn from(error: io::Error) -> Self {
        match ErrorClass::of(&error) {
            // EBUSY: kernels up to 5.12 refuse to delete offloaded flows
            class if class.is_temporary() => Self::Interrupted(error),
            class if class.is_unusable() => Self::Unusable(error),
            _ => Self::Io(error),
        }
    }
}

impl From<Malformed> for ConntrackError {
    fn from(malformed: Malformed) -> Self {
        io::Error::from(malformed).into()
    }
}

// === impl ConntrackSocket ===

impl ConntrackSocket {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> Result<Self, ConntrackError> {
        Ok(Self { session: Session::open(NETLINK_NETFILTER)? })
    }

    /// Dumps all matching entries, passing each to `each` without keeping any. Entries that start or end during the dump may be
    /// included or not; all others are.
    ///
    /// # Errors
    /// [`ConntrackError`]; entries passed on until then are valid, but incomplete.
    pub fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError> {
        match self.list(filter, true, each) {
            // a kernel that supports filters, but not this one, refuses before it lists anything
            Err(ConntrackError::Unusable(error) | ConntrackError::Io(error))
                if ErrorClass::of(&error).lacks_subsystem() =>
            {
                self.list(filter, false, each).map_err(unusable_if_invalid)
            }
            listed => listed,
        }
    }

    fn list(&mut self, filter: &Filter, in_kernel: bool, each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError> {
        let fill = |writer: &mut MessageWriter| {
            nfnetlink::header(writer, filter.family.number());
            if in_kernel {
                filter.encode(writer);
            }
        };
        let listed = self.session.list(wire::kind(msg::GET), fill, &mut |message| {
            if message.kind == wire::kind(msg::NEW)
                && let Some(entry) = decode_entry(message.payload)?.filter(|entry| filter.matches(entry))
            {
                each(&entry);
            }
            Ok::<_, ConntrackError>(())
        });
        match listed? {
            Interrupted(false) => Ok(()),
            Interrupted(true) => Err(ConntrackError::Interrupted(io::ErrorKind::Interrupted.into())),
        }
    }

    /// As [`Self::dump`], for small tables, if the calling thread is in the socket's namespace: takes a fraction of the time. An
    /// entry may be missed if another one ends during the read. False, without any entry, if the table is not small or the kernel
    /// doesn't show it in `/proc`.
    ///
    /// # Errors
    /// [`ConntrackError`]; entries passed on until then are valid, but incomplete.
    pub fn dump_few(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<bool, ConntrackError> {
        let Some(found) = proc::entries(filter) else { return Ok(false) };
        for some in found.chunks(QUERIES_PER_SEND) {
            self.query(some, &mut |entry, _| {
                if filter.matches(entry) && some.iter().any(|known| known.original == entry.original) {
                    each(entry);
                }
            })
            .map_err(unusable_if_invalid)?;
        }
        Ok(true)
    }

    /// Queries these entries: passes each with its present status, and the seconds until it ends unless a packet comes. Those
    /// that have ended are left out.
    ///
    /// # Errors
    /// [`ConntrackError`]; entries passed on until then are valid, but incomplete.
    pub fn timeouts(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry, u32)) -> Result<(), ConntrackError> {
        for some in entries.chunks(QUERIES_PER_SEND) {
            self.query(some, &mut |entry, seconds| {
                if some.iter().any(|known| known.is_same_flow(entry)) {
                    each(entry, seconds);
                }
            })?;
        }
        Ok(())
    }

    /// Sets the seconds until these entries end unless a packet comes; the next packet sets an entry's configured timeout again.
    /// Those that have ended are left out. A newer flow with the reply tuple of one that has ended can't be distinguished.
    ///
    /// # Errors
    /// [`ConntrackError`], of the first entry that could not be changed; others may have been.
    pub fn set_timeouts(&mut self, entries: &[(Entry, u32)]) -> Result<(), ConntrackError> {
        for some in entries.chunks(QUERIES_PER_SEND) {
            let mut requests = self.session.requests();
            for (n, (entry, seconds)) in some.iter().enumerate() {
                let acknowledge = if n + 1 == some.len() { flag::ACK } else { 0 };
                // Without the flag that creates entries, only an existing one is changed.
                requests.add(wire::kind(msg::NEW), acknowledge, |writer| {
                    encode_reference(writer, entry);
                    writer.be_u32(wire::TIMEOUT, *seconds);
                });
            }
            self.session.exchange(&requests, AnswerEnd::Reply, &mut |answer| match answer {
                AnswerMessage::Object(_) => Ok(()),
                AnswerMessage::Refused(refusal) => unless_missing(refusal),
            })?;
        }
        Ok(())
    }

    /// Queries single entries by their reply tuples. Entries that have ended are left out.
    fn query(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry, u32)) -> Result<(), ConntrackError> {
        let mut requests = self.session.requests();
        for entry in entries {
            requests.add(wire::kind(msg::GET), 0, |writer| {
                nfnetlink::header(writer, entry.reply.family().number());
                entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
            });
        }
        self.session.exchange(&requests, AnswerEnd::Any, &mut |answer| match answer {
            AnswerMessage::Object(message) if message.kind == wire::kind(msg::NEW) => {
                if let Some((entry, seconds)) = decode_with_timeout(message.payload)? {
                    each(&entry, seconds);
                }
                Ok(())
            }
            AnswerMessage::Object(_) => Ok(()),
            AnswerMessage::Refused(refusal) => unless_missing(refusal),
        })
    }

    /// Deletes these entries, each only if it is still the same flow: with the same tuples and the same id.
    pub fn delete(&mut self, entries: &[Entry]) -> Deletion {
        let mut all = Deletion::default();
        for some in entries.chunks(DELETIONS_PER_SEND) {
            match self.delete_some(some, &mut all) {
                Ok(()) => {}
                Err(error) => {
                    all.error.get_or_insert(error);
                    break;
                }
            }
        }
        all
    }

    /// Deletes entries with one `send`. Only its last message requests an acknowledgement; the others are answered if they fail.
    fn delete_some(&mut self, entries: &[Entry], all: &mut Deletion) -> Result<(), ConntrackError> {
        let mut requests = self.session.requests();
        for (n, entry) in entries.iter().enumerate() {
            let acknowledge = if n + 1 == entries.len() { flag::ACK } else { 0 };
            requests.add(wire::kind(msg::DELETE), acknowledge, |writer| encode_deletion(writer, entry));
        }
        let mut failed = 0;
        self.session.exchange(&requests, AnswerEnd::Reply, &mut |answer| {
            if let AnswerMessage::Refused(refusal) = answer {
                failed += 1;
                all.note(refusal.into());
            }
            Ok::<_, ConntrackError>(())
        })?;
        all.deleted += entries.len().saturating_sub(failed);
        Ok(())
    }
}

// === impl Deletion ===

impl Deletion {
    fn note(&mut self, error: io::Error) {
        if ErrorClass::of(&error) == ErrorClass::Missing {
            self.gone += 1;
        } else {
            self.error.get_or_insert(error.into());
        }
    }
}

/// Writes the deletion of one entry.
///
/// The kernel looks the entry up by its reply tuple, and its id must match. The id alone does not distinguish it from a newer
/// flow: the kernel computes it from the entry's memory address, which is reused at once, and from the original tuple. The
/// reply tuple identifies the endpoint.
///
/// The message must have a tuple, or the kernel would flush the table; and it must not have a filter, or newer kernels would
/// delete all matching entries.
fn encode_deletion(writer: &mut MessageWriter, entry: &Entry) {
    encode_reference(writer, entry);
    writer.be_u32(wire::ID, entry.id);
}

/// Writes the header of a request and the attributes by which the kernel looks one entry up.
fn encode_reference(writer: &mut MessageWriter, entry: &Entry) {
    nfnetlink::header(writer, entry.reply.family().number());
    entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
    if entry.zone != 0 {
        writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
    }
}

/// The error of a refused request; none if the entry has ended.
fn unless_missing(refusal: MessageError) -> Result<(), ConntrackError> {
    let error = io::Error::from(refusal);
    if ErrorClass::of(&error) == ErrorClass::Missing { Ok(()) } else { Err(error.into()) }
}

/// `EINVAL` to even the simplest dump means that this kernel has no conntrack netlink.
fn unusable_if_invalid(error: ConntrackError) -> ConntrackError {
    match error {
        ConntrackError::Io(error) if ErrorClass::of(&error) == ErrorClass::Invalid => ConntrackError::Unusable(error),
        error => error,
    }
}
