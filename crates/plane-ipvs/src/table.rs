//! Implements `Kernel` for the table: reads it, commits transactions, reports foreign changes.

use std::io;
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::nft::{Changed, Socket};
use ferry_plane::layered::Layer;
use ferry_plane::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel};
use ferry_ruleset::failure::{of_io, verdict};
use ferry_ruleset::watch::{CommitLock, QUIET_ELEMENTS, TableKeys};

use crate::encode::{self, Encoded};
use crate::names::{ChainName, SetName, TABLE};
use crate::object::{IpvsKey, IpvsObject, Table, Value};
use crate::probe;
use crate::read::{Found, Reader, TableOwner};
use crate::wire;

/// Our tables.
#[derive(Debug)]
pub enum IpvsTable {}

/// Engines of one process commit to their tables one after another.
pub type IpvsCommitLock = CommitLock<IpvsTable>;

/// One family's table in the kernel.
#[derive(Debug)]
pub(crate) struct TableKernel {
    family: Family,
    socket: Socket,
    commit_lock: IpvsCommitLock,
}

// === impl IpvsTable ===

impl TableKeys for IpvsTable {
    type Key = IpvsKey;

    const TABLE: &'static str = TABLE;

    fn keys_of(family: Family, what: &Changed) -> Option<Vec<IpvsKey>> {
        match what {
            // The notification of a renamed chain has the new name only.
            Changed::Table | Changed::Set(_) | Changed::Chain { deleted: false, .. } | Changed::Other => None,
            Changed::Chain { name: chain, deleted: true } | Changed::Rule { chain } => {
                Some(vec![IpvsKey::Chain(ChainName::parse(chain)?)])
            }
            Changed::Elements { set, elements } => match SetName::parse(set)? {
                set @ SetName::Sources(_) => Some(vec![IpvsKey::Set(set)]),
                SetName::Fixed(set) => {
                    elements.iter().map(|element| wire::key(set, family, &element.key).map(IpvsKey::Element)).collect()
                }
            },
        }
    }
}

// === impl TableKernel ===

impl TableKernel {
    /// Opens the socket, in the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error, such as `EPERM` without `CAP_NET_ADMIN`.
    pub(crate) fn open(family: Family, commit_lock: IpvsCommitLock) -> io::Result<Self> {
        Ok(Self { family, socket: Socket::open()?, commit_lock })
    }

    fn send(&mut self, encoded: Encoded, large: bool, objects: &Batch<IpvsObject>) -> Result<(), CommitFailure> {
        let Encoded { batch, marks } = encoded;
        let mut watch = self.commit_lock.take();
        let sent = match large {
            true => watch.commit_quietly(&mut self.socket, batch),
            false => self.socket.commit(batch),
        };
        sent.map(drop).map_err(|failure| verdict(failure, &marks, objects))
    }
}

impl Layer<IpvsObject> for TableKernel {
    fn holds(&self, key: &IpvsKey) -> bool {
        match key {
            IpvsKey::Table | IpvsKey::Set(_) | IpvsKey::Chain(_) | IpvsKey::Element(_) => true,
            IpvsKey::Server(_) | IpvsKey::Address(_) => false,
        }
    }

    /// A connection that isn't masqueraded any more needs a server without endpoints on other nodes.
    fn waits(&self, replacement: &IpvsObject) -> bool {
        matches!(replacement, IpvsObject::Element(_, Value::Accept))
    }

    /// The table of another mode serves until the virtual servers and their addresses are there.
    fn comes_last(&self, batch: &Batch<IpvsObject>) -> bool {
        batch.replace.iter().any(|object| matches!(object, IpvsObject::Table(_)))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<IpvsObject> {
        self
    }
}

impl Kernel<IpvsObject> for TableKernel {
    /// Subscribes to notifications. If there is no table of ours, which would show that this kernel supports the mode, probes
    /// every kind of object once.
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.commit_lock.take().join(&self.socket).map_err(of_io)?;
        let mut reader = Reader { socket: &mut self.socket, family: self.family };
        if !matches!(reader.table_owner().map_err(of_io)?, TableOwner::Ours) {
            probe::probe(&mut self.socket, self.family)?;
        }
        Ok(())
    }

    fn read_back(&mut self, extent: &Extent<IpvsKey>) -> Result<Vec<IpvsObject>, CommitError> {
        let mut reader = Reader { socket: &mut self.socket, family: self.family };
        match (reader.read(extent).map_err(of_io)?, extent) {
            (Found::Objects(objects), _) => Ok(objects),
            (Found::Foreign, Extent::All) => Ok(vec![IpvsObject::Table(Table::Foreign)]),
            (Found::Foreign, Extent::Keys(_)) => Err(CommitError::Drifted { object: IpvsKey::Table.to_string() }),
        }
    }

    fn news(&mut self) -> Result<Drift<IpvsKey>, CommitError> {
        self.commit_lock.take().news(self.family).map_err(of_io)
    }

    fn commit(&mut self, batch: &Batch<IpvsObject>) -> Result<(), CommitFailure> {
        let large = batch.len() > QUIET_ELEMENTS;
        for (done, encoded) in encode::transactions(self.family, batch).into_iter().enumerate() {
            self.send(encoded, large, batch).map_err(|failure| match failure.applied {
                Applied::Nothing if done == 0 => failure,
                Applied::Nothing | Applied::Unknown => CommitFailure::unknown(failure.error),
            })?;
        }
        Ok(())
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<IpvsKey>, CommitError> {
        self.news()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.commit_lock.take().wake_by(self.family, waker);
    }
}
