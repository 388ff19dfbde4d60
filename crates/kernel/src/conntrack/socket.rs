//! Lists and removals.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::wire::{self, msg};
use super::{Entry, Filter, decode_entry, proc};
use crate::errno::ErrorClass;
use crate::netlink::{Answer, End, Interrupted, Malformed, Session, Writer, flag, nfnetlink};

/// So many entries [`Socket::delete`] removes by one send: their errors, should all fail, fit into a receive buffer of the
/// size that everybody may have.
pub const AT_ONCE: usize = 128;

/// So many single entries are asked for by one send: the answers fit, too.
const ASKED_AT_ONCE: usize = 32;

/// A connection to connection tracking in the network namespace of the thread that opened it. Nothing here waits for
/// anything but the kernel's own work.
#[derive(Debug)]
pub struct Socket {
    session: Session,
}

/// Why a list is not whole, or an entry still there, by what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// do it again: the list changed under the kernel's hands, an answer got lost, or memory was short
    #[error("interrupted: {0}")]
    Interrupted(#[source] io::Error),
    /// nothing can be done: no permission, or no connection tracking in this kernel
    #[error("not usable here: {0}")]
    Unusable(#[source] io::Error),
    /// anything else
    #[error(transparent)]
    Io(io::Error),
}

/// What became of a removal.
#[derive(Debug, Default)]
#[must_use]
pub struct Deletion {
    /// how many were removed
    pub deleted: usize,
    /// how many were gone already, or are other flows by now
    pub gone: usize,
    /// why others are still there; the first reason
    pub error: Option<Error>,
}

// === impl Error ===

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match ErrorClass::of(&error) {
            // in use: kernels up to 5.12 keep flows that are offloaded
            class if class.is_temporary() => Self::Interrupted(error),
            class if class.is_unusable() => Self::Unusable(error),
            _ => Self::Io(error),
        }
    }
}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        io::Error::from(malformed).into()
    }
}

// === impl Socket ===

impl Socket {
    /// Opens a connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { session: Session::open(NETLINK_NETFILTER)? })
    }

    /// Shows all entries that match, one after the other; none is kept. An entry that comes or goes meanwhile may be among
    /// them or not; all others are.
    ///
    /// # Errors
    /// [`Error`]; what was shown until then is right, but not all.
    pub fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), Error> {
        match self.list(filter, true, each) {
            // a kernel that knows filters, but not this one, says so before it lists anything
            Err(Error::Unusable(error) | Error::Io(error)) if ErrorClass::of(&error).lacks_subsystem() => {
                self.list(filter, false, each).map_err(without_tracking)
            }
            listed => listed,
        }
    }

    fn list(&mut self, filter: &Filter, in_kernel: bool, each: &mut dyn FnMut(&Entry)) -> Result<(), Error> {
        let fill = |writer: &mut Writer| {
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
            Ok::<_, Error>(())
        });
        match listed? {
            Interrupted(false) => Ok(()),
            Interrupted(true) => Err(Error::Interrupted(io::ErrorKind::Interrupted.into())),
        }
    }

    /// As [`Self::dump`], where the table is small and the calling thread is in the socket's namespace: in a fraction of the time.
    /// One entry may be missing if another ends meanwhile. False if nothing was shown since the table is not small, or the
    /// kernel doesn't show it in `/proc`.
    ///
    /// # Errors
    /// [`Error`]; what was shown until then is right, but not all.
    pub fn dump_few(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<bool, Error> {
        let Some(found) = proc::entries(filter) else { return Ok(false) };
        for some in found.chunks(ASKED_AT_ONCE) {
            self.ask(some, &mut |entry| {
                if filter.matches(entry) && some.iter().any(|known| known.original == entry.original) {
                    each(entry);
                }
            })
            .map_err(without_tracking)?;
        }
        Ok(true)
    }

    /// Asks for single entries, by the tuples of their answers. Those that are gone are left out.
    fn ask(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry)) -> Result<(), Error> {
        let mut requests = self.session.requests();
        for entry in entries {
            requests.add(wire::kind(msg::GET), 0, |writer| {
                nfnetlink::header(writer, entry.reply.family().number());
                entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
            });
        }
        self.session.exchange(&requests, End::Any, &mut |answer| match answer {
            Answer::Object(message) if message.kind == wire::kind(msg::NEW) => {
                if let Some(entry) = decode_entry(message.payload)? {
                    each(&entry);
                }
                Ok(())
            }
            Answer::Object(_) => Ok(()),
            Answer::Refused(refusal) => {
                let error = io::Error::from(refusal);
                if ErrorClass::of(&error) == ErrorClass::Missing { Ok(()) } else { Err(error.into()) }
            }
        })
    }

    /// Removes these entries, each only as long as it is the same: with the same tuples and the same number.
    pub fn delete(&mut self, entries: &[Entry]) -> Deletion {
        let mut all = Deletion::default();
        for some in entries.chunks(AT_ONCE) {
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

    /// One send. Only its last message asks for an answer; the others are answered if they fail.
    fn delete_some(&mut self, entries: &[Entry], all: &mut Deletion) -> Result<(), Error> {
        let mut requests = self.session.requests();
        for (n, entry) in entries.iter().enumerate() {
            let acknowledge = if n + 1 == entries.len() { flag::ACK } else { 0 };
            requests.add(wire::kind(msg::DELETE), acknowledge, |writer| encode_deletion(writer, entry));
        }
        let mut failed = 0;
        self.session.exchange(&requests, End::Reply, &mut |answer| {
            if let Answer::Refused(refusal) = answer {
                failed += 1;
                all.note(refusal.into());
            }
            Ok::<_, Error>(())
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

/// The removal of one entry.
///
/// It is looked for by the tuple of its answers, and the number must be the same. The number alone does not tell it from
/// a newer flow: the kernel makes it of the entry's place in memory, which is used again at once, and of the original
/// tuple. The tuple of the answers says where the flow leads.
///
/// A tuple must be there, or else the kernel would remove everything; and a filter must not, for which newer kernels would
/// remove all that match.
fn encode_deletion(writer: &mut Writer, entry: &Entry) {
    nfnetlink::header(writer, entry.reply.family().number());
    entry.reply.encode(writer, wire::TUPLE_REPLY, entry.protocol);
    if entry.zone != 0 {
        writer.attribute(wire::ZONE, &entry.zone.to_be_bytes());
    }
    writer.be_u32(wire::ID, entry.id);
}

/// A kernel that refuses even the simplest list has no connection tracking that could be listed.
fn without_tracking(error: Error) -> Error {
    match error {
        Error::Io(error) if ErrorClass::of(&error) == ErrorClass::Invalid => Error::Unusable(error),
        error => error,
    }
}
