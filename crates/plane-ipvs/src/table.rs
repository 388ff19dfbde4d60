//! Implements `Kernel` for the table: reads it, commits transactions, reports foreign changes.

use std::collections::HashSet;
use std::io;
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::nft::{Changed, Socket};
use ferry_plane::layered::Layer;
use ferry_plane::{Applied, Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Object as _};
use ferry_ruleset::failure::{of_io, verdict};
use ferry_ruleset::watch::{CommitLock, QUIET_ELEMENTS, TableKeys};

use crate::encode::{self, Encoded};
use crate::names::{ChainName, SetName, TABLE};
use crate::object::{ElementKey, IpvsKey, IpvsObject, Table, Value, VipMap};
use crate::probe;
use crate::read::{Found, Reader, TableOwner};
use crate::server::ServerId;
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

    /// A connection that isn't masqueraded any more needs a server without endpoints on other nodes. A verdict that takes the mark
    /// away is `accept`, or leads to one by way of source ranges that come with it.
    fn waiting(&self, part: &Batch<IpvsObject>) -> HashSet<IpvsKey> {
        waiting(part)
    }

    /// The table of another mode serves until the virtual servers and their addresses are there.
    fn comes_last(&self, batch: &Batch<IpvsObject>) -> bool {
        batch.replace.iter().any(|object| matches!(object, IpvsObject::Table(_)))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<IpvsObject> {
        self
    }
}

/// The replaced elements that take a mark away.
fn waiting(part: &Batch<IpvsObject>) -> HashSet<IpvsKey> {
    let unmarked_behind = |object: &IpvsObject| match object {
        IpvsObject::Element(ElementKey::Vip { map: VipMap::Restricted, at }, Value::Accept) => Some(*at),
        _ => None,
    };
    let behind: HashSet<ServerId> = part.create.iter().filter_map(unmarked_behind).collect();
    let takes_mark = |object: &&IpvsObject| match object {
        IpvsObject::Element(_, Value::Accept) => true,
        IpvsObject::Element(ElementKey::Vip { map: VipMap::Services, at }, Value::Goto(ChainName::Restricted(_))) => {
            behind.contains(at)
        }
        _ => false,
    };
    part.replace.iter().filter(takes_mark).map(IpvsObject::key).collect()
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

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_ruleset::sources::SourcesId;

    use super::*;
    use crate::names::FixedChain;

    const MARK: Value = Value::Goto(ChainName::Fixed(FixedChain::MasqueradeExternal));

    fn restrict() -> Value {
        Value::Goto(ChainName::Restricted(SourcesId::of_digest(&[7; 32])))
    }

    fn element(map: VipMap, last: u8, value: Value) -> IpvsObject {
        let at = ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, last].into(), port: 80 };
        IpvsObject::Element(ElementKey::Vip { map, at }, value)
    }

    fn assert_waiting(create: &[IpvsObject], replace: &[IpvsObject], expected: &[&IpvsObject]) {
        let part = Batch { create: create.to_vec(), replace: replace.to_vec(), delete: Vec::new() };
        assert_eq!(waiting(&part), expected.iter().map(|object| object.key()).collect(), "{part:?}");
    }

    #[test]
    fn a_verdict_that_takes_the_mark_away_waits() {
        let (accepted, marked) = (element(VipMap::Services, 1, Value::Accept), element(VipMap::Services, 2, MARK));
        assert_waiting(&[], &[accepted.clone(), marked], &[&accepted]);
        let behind = element(VipMap::Restricted, 1, Value::Accept);
        assert_waiting(&[], std::slice::from_ref(&behind), &[&behind]);
    }

    #[test]
    fn source_ranges_that_come_wait_if_no_mark_is_behind_them() {
        let (services, restricted) = (
            |last| element(VipMap::Services, last, restrict()),
            |last, value| element(VipMap::Restricted, last, value),
        );
        let coming = [restricted(1, Value::Accept), restricted(2, MARK)];
        assert_waiting(&coming, &[services(1), services(2)], &[&services(1)]);
        // Other ranges: only the verdict behind them takes the mark away.
        let other = [services(1), restricted(1, Value::Accept)];
        assert_waiting(&[], &other, &[&other[1]]);
        // Nothing was served before.
        assert_waiting(&[services(1), restricted(1, Value::Accept)], &[], &[]);
    }
}
