//! Implements `Kernel` by netlink: reads tables, commits each batch as one transaction, reports foreign changes, and purges stale
//! affinity entries.

use std::io;
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::nft::{self, NftBatch, NftSocket};
use ferry_plane::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Served};
use ferry_ruleset::failure::{of_io, verdict};
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::watch::QUIET_ELEMENTS;

use crate::affinity::{self, PURGES, SuspectMaps, TRIES};
use crate::ahead::{self, Ahead};
use crate::encode::{ChainRelease, Encoded};
use crate::names::TABLE;
use crate::object::{NftKey, NftObject};
use crate::probe;
use crate::read::{Found, ObjectReader};
use crate::retired::Retired;
use crate::serves;
use crate::watch::NftablesCommitLock;

/// One family's table in the kernel.
#[derive(Debug)]
pub struct NftablesKernel {
    family: Family,
    socket: NftSocket,
    commit_lock: NftablesCommitLock,
    prepared: bool,
    suspect_maps: SuspectMaps,
    release: ChainRelease,
    retired: Retired,
    /// the table was another maker's when everything was read the last time
    strange: bool,
    written: Written,
}

/// Counters of the transactions sent to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// transactions that were accepted
    pub commits: usize,
    /// netlink messages in them
    pub messages: usize,
    /// their bytes
    pub bytes: usize,
}

// === impl NftablesKernel ===

impl NftablesKernel {
    /// Opens the sockets, in the network namespace of this thread.
    ///
    /// # Errors
    /// [`CommitError::Unusable`] with advice if the kernel has no nf_tables, and without `CAP_NET_ADMIN`; otherwise by the class of the
    /// system's error.
    pub fn open(family: Family, commit_lock: NftablesCommitLock) -> Result<Self, CommitError> {
        Ok(Self {
            family,
            socket: NftSocket::open_required().map_err(of_io)?,
            commit_lock,
            prepared: false,
            suspect_maps: SuspectMaps::default(),
            release: ChainRelease::Now,
            retired: Retired::default(),
            strange: false,
            written: Written::default(),
        })
    }

    /// Counters of the transactions sent to the kernel so far.
    pub fn written(&self) -> Written {
        self.written
    }

    /// Commits an encoded batch, a large one with the subscription suspended.
    fn send(&mut self, batch: NftBatch, large: bool) -> Result<(), nft::CommitFailure> {
        let mut watch = self.commit_lock.take();
        let stats = match large {
            true => watch.commit_quietly(&mut self.socket, batch)?,
            false => self.socket.commit(batch)?,
        };
        self.written.commits += 1;
        self.written.messages += stats.messages;
        self.written.bytes += stats.bytes;
        Ok(())
    }

    fn try_commit(&mut self, objects: &Batch<NftObject>, ahead: &Ahead) -> Result<(), CommitFailure> {
        let (batch, marks) = Encoded::new(self.family, objects, self.release, ahead).into_parts();
        if batch.is_empty() {
            return Ok(());
        }
        self.send(batch, elements_of(objects) > QUIET_ELEMENTS).map_err(|failure| verdict(failure, &marks, objects))
    }

    /// Commits a batch, and detects whether this kernel deletes chains in the transaction that drops their last reference.
    fn exchange(&mut self, batch: &Batch<NftObject>, ahead: &Ahead) -> Result<(), CommitFailure> {
        let result = self.try_commit(batch, ahead);
        let deletes_chains = batch.delete.iter().any(|object| matches!(object, NftObject::Chain(..)));
        let in_use = |failure: &CommitFailure| {
            failure.applied == Applied::Nothing && matches!(failure.error, CommitError::Resources(_))
        };
        if result.as_ref().is_err_and(in_use) && deletes_chains && self.release == ChainRelease::Now {
            self.release = ChainRelease::Later;
            let result = self.try_commit(batch, ahead);
            if result.is_err() {
                // Another object is in use.
                self.release = ChainRelease::Now;
            }
            return result;
        }
        result
    }

    /// Commits a batch, and purges the affinity entries of deleted endpoints, so that no client is sent there any more.
    fn exchange_and_forget(&mut self, batch: &Batch<NftObject>, mut ahead: Ahead) -> Result<(), CommitFailure> {
        let (members, maps) = ahead::members(batch);
        let untaught = ahead::step(Vec::new(), members);
        let first = if untaught.is_empty() { None } else { Some(self.try_commit(&untaught, &Ahead::default())) };
        if !matches!(first, Some(Ok(()))) {
            let is_unknown = first.and_then(Result::err).is_some_and(|failure| failure.applied == Applied::Unknown);
            self.exchange(batch, &ahead).map_err(|failure| match is_unknown {
                true => CommitFailure::unknown(failure.error),
                false => failure,
            })?;
            self.suspect_maps.suspect(&maps, PURGES);
            return Ok(());
        }
        let deleted = untaught.delete.iter().filter_map(|object| match object {
            NftObject::Element(key, _) => Some(*key),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Ranges(..) | NftObject::Chain(..) => None,
        });
        ahead.deleted = deleted.collect();
        for _ in 0..TRIES {
            let stale = maps.iter().map(|(id, scope)| affinity::stale(&mut self.socket, self.family, *id, *scope));
            let Ok(stale) = stale.collect::<io::Result<Vec<_>>>() else { break };
            ahead.stale_affinity = stale.into_iter().flatten().collect();
            if self.exchange(batch, &ahead).is_ok() {
                self.suspect_maps.suspect(&maps, PURGES - 1);
                return Ok(());
            }
        }
        // Entries expire while they are deleted; or it is the batch that the kernel doesn't want.
        ahead.stale_affinity.clear();
        // The members' deletion is in force.
        self.exchange(batch, &ahead).map_err(|failure| CommitFailure::unknown(failure.error))?;
        self.suspect_maps.suspect(&maps, PURGES);
        Ok(())
    }

    /// Makes the batch's new sets of source ranges before the rules that ask them. Where that fails they are made with
    /// the rest, and some packet of that moment may be dropped.
    fn make_sets(&mut self, batch: &Batch<NftObject>) -> Ahead {
        let step = ahead::step(ahead::ranges(batch), Vec::new());
        let mut ahead = Ahead::default();
        if self.try_commit(&step, &ahead).is_ok() {
            // Out of use until the batch is committed.
            self.retired.note(&ahead::step(Vec::new(), step.create.clone()), self.release);
            ahead.made = step
                .create
                .iter()
                .filter_map(|object| match object {
                    NftObject::Ranges(id, _) => Some(*id),
                    NftObject::Table(_) | NftObject::Set(_) | NftObject::Chain(..) | NftObject::Element(..) => None,
                })
                .collect();
        }
        ahead
    }

    fn delete_retired(&mut self, now: Instant) {
        for retired in self.retired.due(now) {
            let mut batch = NftBatch::new(self.family, TABLE);
            match retired {
                NftKey::Chain(name) => batch.delete_chain(&name.to_string()),
                NftKey::Set(name) => batch.delete_set(&name.to_string()),
                NftKey::Table | NftKey::Element(_) => {}
            }
            let gone = match self.send(batch, false) {
                Ok(()) => true,
                Err(failure) => failure.class() == ErrorClass::Missing,
            };
            self.retired.tried(retired, gone);
        }
    }
}

impl Kernel<NftObject> for NftablesKernel {
    /// Subscribes to notifications. If there is no table of ours, which would show that this kernel supports the mode, probes
    /// every kind of object once.
    fn prepare(&mut self) -> Result<(), CommitError> {
        if self.prepared {
            return Ok(());
        }
        self.commit_lock.take().join(&self.socket).map_err(of_io)?;
        if ObjectReader::new(&mut self.socket, self.family).owner().map_err(of_io)? != Some(TableOwner::Ours) {
            probe::probe(&mut self.socket, self.family)?;
        }
        self.prepared = true;
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<NftKey>) -> Result<Vec<NftObject>, CommitError> {
        let mut reader = ObjectReader::new(&mut self.socket, self.family);
        let mut objects = match (reader.read(extent).map_err(of_io)?, extent) {
            (Found::Objects(objects), _) => objects,
            (Found::Foreign, Extent::All) => vec![NftObject::Table(TableOwner::Foreign)],
            (Found::Foreign, Extent::Keys(_)) => {
                return Err(CommitError::Drifted { object: NftKey::Table.to_string() });
            }
        };
        objects.retain(|object| !self.retired.holds(object));
        if *extent == Extent::All {
            self.suspect_maps.suspect_all(&objects);
            self.strange = matches!(objects.first(), Some(NftObject::Table(TableOwner::Foreign)));
        }
        Ok(objects)
    }

    fn foreign_serves(&mut self) -> Vec<Served> {
        if self.strange { serves::foreign(&mut self.socket, self.family) } else { Vec::new() }
    }

    fn news(&mut self) -> Result<Drift<NftKey>, CommitError> {
        // A commit follows, and would wait for the other family as well. Without the wait, a change that another proxy has made
        // meanwhile would be overwritten in part: the kernel replaces an element of a map whatever it maps to.
        self.commit_lock.take().news(self.family).map_err(of_io)
    }

    fn commit(&mut self, batch: &Batch<NftObject>) -> Result<(), CommitFailure> {
        let ahead = self.make_sets(batch);
        self.exchange_and_forget(batch, ahead)?;
        self.retired.note(batch, self.release);
        Ok(())
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<NftKey>, CommitError> {
        self.delete_retired(now);
        self.suspect_maps.purge(&mut self.socket, &self.commit_lock, self.family, now);
        self.news()
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        self.retired.wake(now).into_iter().chain(self.suspect_maps.wake(now)).min()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.commit_lock.take().wake_by(self.family, waker);
    }
}

/// The number of objects and elements that a batch writes or deletes.
fn elements_of(objects: &Batch<NftObject>) -> usize {
    let written = objects.create.iter().chain(&objects.replace).map(|object| match object {
        NftObject::Ranges(_, ranges) => 2 * ranges.as_slice().len(),
        NftObject::Table(_) | NftObject::Set(_) | NftObject::Chain(..) | NftObject::Element(..) => 1,
    });
    written.sum::<usize>() + objects.delete.len()
}
