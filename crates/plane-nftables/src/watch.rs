//! What others do to our tables: one listener for the whole process, whose engines take turns at committing.
//!
//! As long as anybody listens, each element of a commit costs its maker an event: 220,000 of them take ten times as long.
//! So a large commit is made while nobody here listens, and the generation, which moves by one with each commit of the
//! network namespace, tells afterwards whether somebody else committed meanwhile.

use std::collections::BTreeSet;
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Changed, CommitFailure, Event, Monitor, Socket};
use ferry_model::PerFamily;
use ferry_plane::{Extent, Turn};

use crate::encode::kernel_family;
use crate::names::{ChainName, SetName, TABLE};
use crate::object::NftKey;
use crate::wire;

/// Beyond so many changes by others, everything is compared.
const TOUCHED: usize = 1024;

/// Engines of one process commit one after another.
pub type CommitTurn = Turn<Watch>;

/// The listener, and what it heard.
#[derive(Debug, Default)]
pub struct Watch {
    /// open once somebody listens
    monitor: Option<Monitor>,
    /// sockets of this process
    own: BTreeSet<u32>,
    heard: PerFamily<Heard>,
}

/// What others changed in one family's table.
#[derive(Debug, Default)]
struct Heard {
    touched: BTreeSet<NftKey>,
    /// or anything else
    everything: bool,
}

// === impl Watch ===

impl Watch {
    /// Listens from now on, in the network namespace of this thread; what this socket does is no news.
    pub(crate) fn join(&mut self, socket: &Socket) -> io::Result<()> {
        self.own.insert(socket.port_id());
        if self.monitor.is_none() {
            let mut monitor = Monitor::open()?;
            monitor.join()?;
            self.monitor = Some(monitor);
        }
        Ok(())
    }

    /// Commits while nobody here listens.
    pub(crate) fn commit_quietly(
        &mut self,
        socket: &mut Socket,
        batch: nft::Batch,
    ) -> Result<nft::CommitStats, CommitFailure> {
        let Some(monitor) = &mut self.monitor else { return socket.commit(batch) };
        let before = socket.generation().map_err(CommitFailure::Io)?;
        monitor.leave().map_err(CommitFailure::Io)?;
        let result = socket.commit(batch);
        let after = monitor.join().and_then(|()| socket.generation());
        if after.as_ref().ok() != Some(&before.wrapping_add(u32::from(result.is_ok()))) {
            self.heard.v4.everything = true;
            self.heard.v6.everything = true;
        }
        if after.is_err() {
            // Better deaf and known to be than deaf: the next turn listens anew, and compares everything.
            self.monitor = None;
        }
        result
    }

    /// What others changed in the family's table since the last call.
    pub(crate) fn news(&mut self, family: Family) -> io::Result<Option<Extent<NftKey>>> {
        self.listen()?;
        let heard = std::mem::take(self.heard.of_mut(family));
        if heard.everything {
            return Ok(Some(Extent::All));
        }
        Ok((!heard.touched.is_empty()).then(|| Extent::Keys(heard.touched.into_iter().collect())))
    }

    fn listen(&mut self) -> io::Result<()> {
        let (own, heard) = (&self.own, &mut self.heard);
        let overrun = match &mut self.monitor {
            Some(monitor) => monitor.read(&mut |event| note(own, heard, &event))?.0,
            None => {
                let mut monitor = Monitor::open()?;
                monitor.join()?;
                self.monitor = Some(monitor);
                true
            }
        };
        self.heard.v4.everything |= overrun;
        self.heard.v6.everything |= overrun;
        Ok(())
    }
}

fn note(own: &BTreeSet<u32>, heard: &mut PerFamily<Heard>, event: &Event) {
    if own.contains(&event.port_id) || event.table != TABLE {
        return;
    }
    let Some(family) = Family::ALL.into_iter().find(|family| event.family == Some(kernel_family(*family))) else {
        return;
    };
    let heard = heard.of_mut(family);
    match keys_of(family, &event.what) {
        Some(keys) if heard.touched.len() < TOUCHED => heard.touched.extend(keys),
        Some(_) | None => heard.everything = true,
    }
}

/// What a change is about; `None` if it may be anything.
fn keys_of(family: Family, what: &Changed) -> Option<Vec<NftKey>> {
    match what {
        // A chain that got another name is told by its new one alone.
        Changed::Table | Changed::Set(_) | Changed::Chain(_) | Changed::Other => None,
        Changed::Rule { chain } => Some(vec![NftKey::Chain(ChainName::parse(chain)?)]),
        Changed::Elements { set, elements } => {
            let set = SetName::parse(set)?;
            if matches!(set, SetName::Memory(..)) {
                // What clients are remembered with is the packets' to write.
                return Some(Vec::new());
            }
            if matches!(set, SetName::Sources(_)) {
                return Some(vec![NftKey::Set(set)]);
            }
            elements.iter().map(|element| wire::key(set, family, element).map(NftKey::Element)).collect()
        }
    }
}
