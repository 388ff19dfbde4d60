//! The half that touches the kernel: one transaction per commit, notifications of what others do, and the purge of
//! affinity memories.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Changed, CommitFailure, Monitor, Socket};
use ferry_plane::{Batch, CommitError, Extent, Kernel, Object, Op, Tended};

use crate::encode::{ChainRelease, Encoded, Marks, kernel_family};
use crate::memory::Memories;
use crate::names::{ChainName, SetName, TABLE};
use crate::object::{ElementKey, NftKey, NftObject};
use crate::probe;
use crate::read::{Reader, Whose};
use crate::wire;

/// One family's table in the kernel.
#[derive(Debug)]
pub struct NftablesKernel {
    family: Family,
    socket: Socket,
    monitor: Monitor,
    turn: CommitTurn,
    /// somebody may have committed while nobody listened
    suspect: bool,
    memories: Memories,
    release: ChainRelease,
    /// chains that are flushed and will be deleted; since when, once the time was told
    retired: Vec<(ChainName, Option<Instant>)>,
    written: Written,
}

/// Lets one commit of this process follow the other, so that a generation that moved by more than one tells of somebody
/// else. The kernel does the same with all commits of a network namespace, so nobody waits longer.
#[derive(Clone, Debug, Default)]
pub struct CommitTurn(Arc<Mutex<()>>);

/// What was sent to the kernel so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// transactions that were accepted
    pub commits: usize,
    /// netlink messages in them
    pub messages: usize,
    /// their bytes
    pub bytes: usize,
}

/// From so many operations on, a commit is made without listening: each element costs its maker an event as long as
/// anybody listens.
const QUIET_OPERATIONS: usize = 256;
/// Beyond so many changes by others, everything is compared.
const TOUCHED: usize = 1024;
/// How long a chain that was referred to stays busy on kernels that release references late.
const RELEASE: Duration = Duration::from_secs(1);

// === impl CommitTurn ===

impl CommitTurn {
    /// Waits for the turn, and has it as long as the guard lives.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl NftablesKernel ===

impl NftablesKernel {
    /// Opens the sockets, in the network namespace of this thread.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; whatever else the system says.
    pub fn open(family: Family, turn: CommitTurn) -> io::Result<Self> {
        Ok(Self {
            family,
            socket: Socket::open()?,
            monitor: Monitor::open()?,
            turn,
            suspect: false,
            memories: Memories::default(),
            release: ChainRelease::Now,
            retired: Vec::new(),
            written: Written::default(),
        })
    }

    /// What was sent to the kernel so far.
    pub fn written(&self) -> Written {
        self.written
    }

    /// Commits what is encoded, without listening if it is large.
    fn send(&mut self, batch: nft::Batch, quiet: bool) -> Result<(), CommitFailure> {
        let turn = self.turn.clone();
        let _turn = turn.take();
        if !quiet {
            return self.send_in_turn(batch);
        }
        let before = self.socket.generation().map_err(CommitFailure::Io)?;
        self.monitor.leave().map_err(CommitFailure::Io)?;
        let result = self.send_in_turn(batch);
        self.monitor.join().map_err(CommitFailure::Io)?;
        let after = self.socket.generation().map_err(CommitFailure::Io)?;
        self.suspect |= after != before.wrapping_add(u32::from(result.is_ok()));
        result
    }

    fn send_in_turn(&mut self, batch: nft::Batch) -> Result<(), CommitFailure> {
        let stats = self.socket.commit(batch)?;
        self.written.commits += 1;
        self.written.messages += stats.messages;
        self.written.bytes += stats.bytes;
        Ok(())
    }

    fn try_commit(&mut self, objects: &Batch<NftObject>) -> Result<(), CommitError> {
        let (batch, marks) = Encoded::new(self.family, objects, self.release).into_parts();
        if batch.is_empty() {
            return Ok(());
        }
        self.send(batch, objects.len() > QUIET_OPERATIONS).map_err(|failure| verdict(failure, &marks, objects))
    }

    /// Chains that were flushed and not deleted wait for their time; one that is made again doesn't.
    fn note_chains(&mut self, objects: &Batch<NftObject>) {
        for object in objects.create.iter().chain(&objects.replace) {
            if let NftObject::Chain(name, _) = object {
                self.retired.retain(|(retired, _)| retired != name);
            }
        }
        if self.release == ChainRelease::Later {
            let chains = objects.delete.iter().filter_map(|object| match object {
                NftObject::Chain(name, _) => Some((*name, None)),
                NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => None,
            });
            self.retired.extend(chains);
        }
    }

    fn delete_retired(&mut self, now: Instant) {
        let mut due = Vec::new();
        for (name, since) in &mut self.retired {
            if now.saturating_duration_since(*since.get_or_insert(now)) >= RELEASE {
                due.push(*name);
            }
        }
        for name in due {
            let mut batch = nft::Batch::new(kernel_family(self.family), TABLE);
            batch.delete_chain(&name.to_string());
            let gone = match self.send(batch, false) {
                Ok(()) => true,
                Err(failure) => errno(&failure) == Some(errnos::NOENT),
            };
            self.retired.retain_mut(|(retired, since)| {
                *since = since.filter(|_| *retired != name);
                !(gone && *retired == name)
            });
        }
    }

    /// What others changed in our table since the last look.
    fn look(&mut self) -> io::Result<Option<Extent<NftKey>>> {
        let own = self.socket.port_id();
        let family = self.family;
        let mut touched = BTreeSet::new();
        let mut everything = std::mem::take(&mut self.suspect);
        let overrun = self.monitor.read(&mut |event| {
            if event.port_id == own || event.family != Some(kernel_family(family)) || event.table != TABLE {
                return;
            }
            match keys_of(family, &event.what) {
                Some(keys) if touched.len() < TOUCHED => touched.extend(keys),
                Some(_) | None => everything = true,
            }
        })?;
        if everything || overrun.0 {
            return Ok(Some(Extent::All));
        }
        Ok((!touched.is_empty()).then(|| Extent::Keys(touched.into_iter().collect())))
    }
}

impl Kernel<NftObject> for NftablesKernel {
    /// Listens, and where no table of ours says that it has worked here before, tries every kind of object once.
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.monitor.join().map_err(of_io)?;
        let mut reader = Reader { socket: &mut self.socket, family: self.family };
        if !matches!(reader.whose().map_err(of_io)?, Whose::Ours) {
            probe::probe(&mut self.socket, self.family)?;
        }
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<NftKey>) -> Result<Vec<NftObject>, CommitError> {
        let mut reader = Reader { socket: &mut self.socket, family: self.family };
        let mut objects = reader.read(extent).map_err(of_io)?;
        let retired = |object: &NftObject| match object {
            NftObject::Chain(name, rules) => rules.0.is_empty() && self.retired.iter().any(|(chain, _)| chain == name),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Element(..) => false,
        };
        objects.retain(|object| !retired(object));
        if *extent == Extent::All {
            self.memories.doubt_all(&objects);
        }
        Ok(objects)
    }

    fn commit(&mut self, batch: &Batch<NftObject>) -> Result<(), CommitError> {
        let mut result = self.try_commit(batch);
        let deletes_chains = batch.delete.iter().any(|object| matches!(object, NftObject::Chain(..)));
        if matches!(result, Err(CommitError::Busy(_))) && deletes_chains && self.release == ChainRelease::Now {
            self.release = ChainRelease::Later;
            result = self.try_commit(batch);
        }
        result?;
        self.note_chains(batch);
        self.memories.doubt_removed(batch);
        self.memories.purge(&mut self.socket, &self.turn, self.family);
        Ok(())
    }

    fn tend(&mut self, now: Instant) -> Result<Tended<NftKey>, CommitError> {
        self.delete_retired(now);
        self.memories.purge(&mut self.socket, &self.turn, self.family);
        let drift = self.look().map_err(of_io)?;
        let wake = (!self.retired.is_empty()).then(|| now + RELEASE);
        Ok(Tended { wake, drift })
    }
}

/// What a change is about; `None` if it may be anything.
fn keys_of(family: Family, what: &Changed) -> Option<Vec<NftKey>> {
    let chain = |name: &str| Some(vec![NftKey::Chain(ChainName::parse(name)?)]);
    match what {
        Changed::Table | Changed::Set(_) | Changed::Other => None,
        Changed::Chain(name) => chain(name),
        Changed::Rule { chain: name } => chain(name),
        Changed::Elements { set, elements } => {
            let set = SetName::parse(set)?;
            if matches!(set, SetName::Memory(..)) {
                // What clients are remembered with is the packets' to write.
                return Some(Vec::new());
            }
            let key = |element: &nft::Element| -> Option<ElementKey> {
                wire::key(set, family, &element.key, element.key_end.as_deref())
            };
            elements.iter().map(|element| key(element).map(NftKey::Element)).collect()
        }
    }
}

/// Error numbers of linux/errno.h that decide what is done next.
mod errnos {
    pub(super) const PERM: i32 = 1;
    pub(super) const NOENT: i32 = 2;
    pub(super) const INTR: i32 = 4;
    pub(super) const AGAIN: i32 = 11;
    pub(super) const NOMEM: i32 = 12;
    pub(super) const ACCES: i32 = 13;
    pub(super) const BUSY: i32 = 16;
    pub(super) const EXIST: i32 = 17;
    pub(super) const RESTART: i32 = 85;
    pub(super) const OPNOTSUPP: i32 = 95;
    pub(super) const NOBUFS: i32 = 105;
    pub(super) const PROTONOSUPPORT: i32 = 93;
    pub(super) const AFNOSUPPORT: i32 = 97;
}

fn errno(failure: &CommitFailure) -> Option<i32> {
    match failure {
        CommitFailure::Io(error) => error.raw_os_error(),
        CommitFailure::Messages(errors) => errors.first().and_then(|error| error.error.error.raw_os_error()),
    }
}

/// An error of the whole exchange.
pub(crate) fn of_io(error: io::Error) -> CommitError {
    use errnos::{ACCES, AFNOSUPPORT, OPNOTSUPP, PERM, PROTONOSUPPORT};
    match error.raw_os_error() {
        Some(PERM | ACCES | AFNOSUPPORT | OPNOTSUPP | PROTONOSUPPORT) => CommitError::Unusable(error),
        _ => CommitError::Busy(error),
    }
}

/// What the kernel's answers to a transaction mean. An operation that is refused makes later ones fail for want of what
/// it would have made, so a refusal outweighs what is missing.
fn verdict(failure: CommitFailure, marks: &Marks, objects: &Batch<NftObject>) -> CommitError {
    use errnos::{ACCES, AGAIN, BUSY, EXIST, INTR, NOBUFS, NOENT, NOMEM, PERM, RESTART};
    let errors = match failure {
        CommitFailure::Io(error) => return of_io(error),
        CommitFailure::Messages(errors) => errors,
    };
    let number = |error: &nft::BatchError| error.error.error.raw_os_error().unwrap_or_default();
    if let Some(error) = errors.iter().find(|error| matches!(number(error), PERM | ACCES)) {
        return CommitError::Unusable(copy(error));
    }
    if let Some(error) =
        errors.iter().find(|error| matches!(number(error), BUSY | INTR | AGAIN | NOMEM | NOBUFS | RESTART))
    {
        return CommitError::Busy(copy(error));
    }
    let refused: Vec<&nft::BatchError> = errors
        .iter()
        .filter(|error| match number(error) {
            NOENT => false,
            EXIST => is_overlap(marks, error, objects),
            _ => true,
        })
        .collect();
    if refused.is_empty() {
        let first = errors.first().and_then(|error| Encoded::operations(marks, error).first().copied());
        let object = first.and_then(|(op, index)| object_of(objects, op, index)).map(|object| object.key().to_string());
        return CommitError::Drifted { object: object.unwrap_or_else(|| "the table".to_owned()) };
    }
    let mut refusals = Vec::new();
    for error in refused {
        let operations = Encoded::operations(marks, error);
        if operations.len() != 1 {
            // The kernel names a message of many elements and not which.
            return CommitError::Refused(Vec::new());
        }
        refusals.extend(operations.into_iter().map(|(op, index)| (op, index, copy(error))));
    }
    CommitError::Refused(refusals)
}

/// A source range that exists is accepted again, so one that is in the way of another overlaps it.
fn is_overlap(marks: &Marks, error: &nft::BatchError, objects: &Batch<NftObject>) -> bool {
    let operations = Encoded::operations(marks, error);
    let range = |object: &NftObject| matches!(object, NftObject::Element(ElementKey::SourceRange { .. }, _));
    operations.into_iter().any(|(op, index)| object_of(objects, op, index).is_some_and(range))
}

fn object_of(objects: &Batch<NftObject>, op: Op, index: usize) -> Option<&NftObject> {
    match op {
        Op::Create => objects.create.get(index),
        Op::Replace => objects.replace.get(index),
        Op::Delete => objects.delete.get(index),
    }
}

/// The kernel's error with its own words, where it has some.
fn copy(error: &nft::BatchError) -> io::Error {
    io::Error::new(error.error.error.kind(), error.error.to_string())
}
