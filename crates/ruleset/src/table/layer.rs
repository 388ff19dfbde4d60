//! The table as a layer of a mode: reads it, commits transactions, reports foreign changes.

use std::collections::HashSet;
use std::fmt::{self, Debug};
use std::marker::PhantomData;
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::nft::{Changed, NftSocket};
use ferry_plane::layered::Layer;
use ferry_plane::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Served};

use super::encode::{self, Encoded};
use super::membership::InTable;
use super::probe;
use super::read::{Found, Reader};
use super::{ChainName, SetName, TableKey, TableObject, Vocabulary};
use crate::failure::{of_io, verdict};
use crate::names::Name as _;
use crate::read::TableOwner;
use crate::serves::complete;
use crate::watch::{CommitLock, QUIET_ELEMENTS, TableKeys};

/// The tables of a mode, for the notifications of their changes.
pub struct Watched<V, O>(PhantomData<fn() -> (V, O)>);

/// Engines of one process commit to their tables one after another.
pub type TableCommitLock<V, O> = CommitLock<Watched<V, O>>;

/// One family's table in the kernel.
pub struct TableLayer<V: Vocabulary, O: InTable<V>> {
    family: Family,
    world: V::World,
    socket: NftSocket,
    commit_lock: TableCommitLock<V, O>,
}

// === impl Watched ===

impl<V: Vocabulary, O: InTable<V>> TableKeys for Watched<V, O> {
    type Key = O::Key;

    const TABLE: &'static str = V::TABLE;

    fn keys_of(family: Family, what: &Changed) -> Option<Vec<O::Key>> {
        let of_table = |key| vec![O::key_of_table(key)];
        match what {
            // The notification of a renamed chain has the new name only.
            Changed::Table | Changed::Set(_) | Changed::Chain { deleted: false, .. } | Changed::Other => None,
            Changed::Chain { name: chain, deleted: true } | Changed::Rule { chain } => {
                Some(of_table(TableKey::Chain(ChainName::parse(chain)?)))
            }
            Changed::Elements { set, elements } => match SetName::<V>::parse(set)? {
                set @ SetName::Sources(_) => Some(of_table(TableKey::Set(set))),
                SetName::Fixed(set) => {
                    let key = |bytes: &[u8]| V::key(None, set, family, bytes);
                    let key = |bytes: &[u8]| key(bytes).map(|key| O::key_of_table(TableKey::Element(key)));
                    elements.iter().map(|element| key(&element.key)).collect()
                }
            },
        }
    }
}

impl<V, O> Debug for Watched<V, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watched")
    }
}

// === impl TableLayer ===

impl<V: Vocabulary, O: InTable<V>> TableLayer<V, O> {
    /// Opens the socket, in the network namespace of this thread.
    ///
    /// # Errors
    /// [`CommitError::Unusable`] with advice if the kernel has no nf_tables, and without `CAP_NET_ADMIN`; otherwise by the class of the
    /// system's error.
    pub fn open(family: Family, world: V::World, commit_lock: TableCommitLock<V, O>) -> Result<Self, CommitError> {
        let socket = NftSocket::open_required().map_err(of_io)?;
        Ok(Self { family, world, socket, commit_lock })
    }

    fn reader(&mut self) -> Reader<'_, V> {
        Reader::new(&mut self.socket, self.family, &self.world)
    }

    fn send(&mut self, encoded: Encoded, large: bool, objects: &Batch<O>) -> Result<(), CommitFailure> {
        let Encoded { batch, marks } = encoded;
        let mut watch = self.commit_lock.take();
        let sent = match large {
            true => watch.commit_quietly(&mut self.socket, batch),
            false => self.socket.commit(batch),
        };
        sent.map(drop).map_err(|failure| verdict(failure, &marks, objects))
    }
}

impl<V: Vocabulary, O: InTable<V>> Debug for TableLayer<V, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableLayer").field("family", &self.family).finish_non_exhaustive()
    }
}

impl<V: Vocabulary, O: InTable<V>> Layer<O> for TableLayer<V, O> {
    fn holds(&self, key: &O::Key) -> bool {
        O::key_in_table(key).is_some()
    }

    fn waiting(&self, part: &Batch<O>) -> HashSet<O::Key> {
        O::waiting(part)
    }

    /// The table of another mode serves until everything else is there.
    fn comes_last(&self, batch: &Batch<O>) -> bool {
        batch.replace.iter().any(|object| matches!(object.in_table(), Some(TableObject::Table(_))))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<O> {
        self
    }
}

impl<V: Vocabulary, O: InTable<V>> Kernel<O> for TableLayer<V, O> {
    /// Subscribes to notifications. If there is no table of ours, which would show that this kernel supports the mode, probes
    /// every kind of object once.
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.commit_lock.take().join(&self.socket).map_err(of_io)?;
        if self.reader().owner().map_err(of_io)? != Some(TableOwner::Ours) {
            probe::probe::<V>(&mut self.socket, self.family)?;
        }
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<O::Key>) -> Result<Vec<O>, CommitError> {
        let found = match extent {
            Extent::All => self.reader().all(),
            Extent::Keys(keys) => {
                let keys: Vec<TableKey<V>> = keys.iter().filter_map(O::key_in_table).cloned().collect();
                self.reader().some(&keys)
            }
        };
        match (found.map_err(of_io)?, extent) {
            (Found::Objects(objects), _) => Ok(objects.into_iter().map(O::of_table).collect()),
            (Found::Foreign, Extent::All) => Ok(vec![O::of_table(TableObject::Table(TableOwner::Foreign))]),
            (Found::Foreign, Extent::Keys(_)) => Err(CommitError::Drifted { object: TableKey::<V>::Table.to_string() }),
        }
    }

    /// Unreadable elements are left out.
    fn foreign_serves(&mut self) -> Vec<Served> {
        if !matches!(self.reader().owner(), Ok(Some(TableOwner::Foreign))) {
            return Vec::new();
        }
        let (family, mut served) = (self.family, Vec::new());
        for set in V::SERVING {
            let read = self.socket.elements(family, V::TABLE, set.name(), &mut |element| {
                let key = V::key(None, *set, family, &element.key);
                served.extend(key.and_then(|key| V::served_elsewhere(&key)));
            });
            // Without the set, nothing is served by it.
            drop(read);
        }
        complete(&mut served);
        served
    }

    fn news(&mut self) -> Result<Drift<O::Key>, CommitError> {
        self.commit_lock.take().news(self.family).map_err(of_io)
    }

    fn commit(&mut self, batch: &Batch<O>) -> Result<(), CommitFailure> {
        let large = elements_of(batch) > QUIET_ELEMENTS;
        let transactions = encode::transactions((self.family, &self.world), batch)?;
        for (done, encoded) in transactions.into_iter().enumerate() {
            self.send(encoded, large, batch).map_err(|failure| match failure.applied {
                Applied::Nothing if done == 0 => failure,
                Applied::Nothing | Applied::Unknown => CommitFailure::unknown(failure.error),
            })?;
        }
        Ok(())
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<O::Key>, CommitError> {
        self.news()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.commit_lock.take().wake_by(self.family, waker);
    }
}

/// The number of objects and elements that a batch writes or deletes.
pub(super) fn elements_of<V: Vocabulary, O: InTable<V>>(batch: &Batch<O>) -> usize {
    let written = batch.create.iter().chain(&batch.replace).map(|object| match object.in_table() {
        Some(TableObject::Ranges(_, ranges)) => 2 * ranges.as_slice().len(),
        Some(TableObject::Table(_) | TableObject::Set(_) | TableObject::Chain(..) | TableObject::Element(..))
        | None => 1,
    });
    written.sum::<usize>() + batch.delete.len()
}
