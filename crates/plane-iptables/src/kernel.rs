//! Implements `Kernel` by the iptables tools, and by ipset where source ranges are many: reads tables, commits each batch with one run, and
//! reports foreign changes.

mod commit;
mod ipsets;
mod retirement;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::Family;
use ferry_kernel::iptables::{Restorer, Table, Tool};
use ferry_kernel::sysctl;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel};

use crate::base;
use crate::counters::Counters;
use crate::drift;
use crate::knowledge::{Depth, Knowledge};
use crate::object::{IptKey, IptObject};
use crate::read;
use crate::sets::SourceSets;
use crate::sort::Found;
use crate::variant::{self, Variant};
use crate::verdict::{of_failure, of_io};
use crate::watch::{IptablesCommitLock, Writers};

use ipsets::NamespaceIpsets;

pub use ipsets::retire_sets;
pub use retirement::{retire_of_ipvs, retire_of_userspace};

/// One family's tables in the kernel.
#[derive(Debug)]
pub struct IptablesKernel {
    restorer: Restorer,
    variant: Box<dyn Variant>,
    counters: Arc<Counters>,
    /// `None` if only the rules of this variant are to be removed: those of the other one may name the sets
    sets: Option<SourceSets<NamespaceIpsets>>,
    knowledge: Knowledge,
    /// something was written at least once
    wrote: bool,
    /// long chains are edited by position; not after such a run failed, until one succeeds
    edits: bool,
}

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

// === impl IptablesKernel ===

impl IptablesKernel {
    /// Of the tool's family, in the network namespace of the thread that uses it. Engines of one process share the `commit_lock`.
    pub fn new(tool: Tool, commit_lock: IptablesCommitLock, counters: Arc<Counters>) -> Self {
        let variant = variant::of(&tool, commit_lock);
        let sets = Some(SourceSets::new(NamespaceIpsets, tool.family()));
        Self {
            restorer: Restorer::new(tool),
            variant,
            counters,
            sets,
            knowledge: Knowledge::START,
            wrote: false,
            edits: true,
        }
    }

    /// Without ipsets: it neither reads nor deletes any.
    #[must_use]
    pub fn without_sets(self) -> Self {
        Self { sets: None, ..self }
    }

    /// Counters of its runs.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The tool that it runs.
    pub fn tool(&self) -> &Tool {
        self.restorer.tool()
    }

    fn family(&self) -> Family {
        self.tool().family()
    }

    fn count_rules(&self) {
        for table in Table::ALL {
            if let Some(size) = self.knowledge.size(table) {
                self.counters.set_rules(table, size.rules);
            }
        }
    }

    // --- reading

    fn read_all(&mut self) -> Result<Vec<IptObject>, CommitError> {
        self.note_changes()?;
        let changed = self.variant.take_changed(&Table::ALL.into());
        let mut found = self.variant.tables(self.restorer.tool(), &Table::ALL).map_err(|failure| {
            self.variant.put_back(changed);
            of_failure(failure)
        })?;
        if let Some(known) = self.knowledge.known() {
            found = found.completed(self.restorer.tool().family(), &known.mirror);
        }
        let Found { mut objects, mirror, unreadable } = found;
        self.knowledge = Knowledge::of_all(mirror, unreadable);
        self.count_rules();
        objects.extend(self.route_localnet());
        Ok(objects)
    }

    fn read_keys(&mut self, keys: &[IptKey]) -> Result<Vec<IptObject>, CommitError> {
        let chains = read::chains_of(keys);
        let mut objects = Vec::new();
        if !chains.is_empty() {
            self.note_changes()?;
            let tool = self.restorer.tool();
            let read = || self.variant.chains(tool, &chains).map_err(of_failure);
            let found = match self.knowledge.known() {
                None => read()?,
                Some(known) => {
                    let mut found = match known.take_read_to_compare(&chains) {
                        Some(found) => found,
                        None => read()?.completed(tool.family(), &known.mirror),
                    };
                    // Differences in these chains that were not requested would be hidden from now on.
                    let differing = drift::differing(&known.mirror, &found, &chains);
                    known.renew(&chains, std::mem::take(&mut found.mirror), differing, keys);
                    found
                }
            };
            objects = found.objects;
            read::only(&mut objects, keys);
        }
        if keys.contains(&IptKey::RouteLocalnet) {
            objects.extend(self.route_localnet());
        }
        Ok(objects)
    }

    fn route_localnet(&self) -> Option<IptObject> {
        let is_set = || sysctl::read(ROUTE_LOCALNET).is_ok_and(|value| value == "1");
        (self.family() == Family::V4 && is_set()).then_some(IptObject::RouteLocalnet)
    }

    // --- changes by others

    /// Takes note of what others have done until now.
    fn note_changes(&mut self) -> Result<(), CommitError> {
        let touched = self.variant.changes(self.family()).map_err(of_io)?;
        if let Some(known) = self.knowledge.known() {
            known.touch(touched);
        }
        Ok(())
    }

    /// Reads tables of which it is only known that others have changed them, and compares what is ours there.
    fn look_closer(&mut self, tables: BTreeSet<Table>) -> Result<(), CommitError> {
        let Some(known) = self.knowledge.known().filter(|_| !tables.is_empty()) else { return Ok(()) };
        let begin = Instant::now();
        match self.variant.tables(self.restorer.tool(), &tables.iter().copied().collect::<Vec<_>>()) {
            Ok(found) => {
                self.variant.was_read(&tables, begin.elapsed());
                let found = found.completed(self.restorer.tool().family(), &known.mirror);
                known.differ(drift::keys_in(&known.mirror, &found, &tables));
                Ok(())
            }
            Err(failure) => {
                self.variant.put_back(tables);
                Err(of_failure(failure))
            }
        }
    }

    /// Foreign changes.
    fn drift(&mut self) -> Result<Drift<IptKey>, CommitError> {
        if self.knowledge.report() {
            return Ok(Drift::by_proxies(Extent::All));
        }
        let Some(known) = self.knowledge.known() else { return Ok(Drift::default()) };
        known.possible_drift.read_to_compare = None;
        let mut touched = std::mem::take(&mut known.possible_drift.touched);
        if touched.everything || touched.unobserved && known.depth != Depth::Unreadable {
            return Ok(drift::by(touched.writers, Some(Extent::All)));
        }
        let (tool, variant) = (self.restorer.tool(), &self.variant);
        // A full read would find the chains of services unreadable once more, and they would be rewritten without end, each time
        // unnoticed.
        let lost = if touched.unobserved { variant.lost(tool, &known.mirror) } else { Ok(Vec::new()) };
        let looked = lost.and_then(|lost| {
            if touched.unobserved {
                known.possible_drift.unreported.extend(lost);
                touched.chains.extend(base::shared_chains());
            }
            drift::keys(&known.mirror, &touched.chains, |shared| {
                let found = variant.chains(tool, shared)?.completed(tool.family(), &known.mirror);
                Ok(&known.possible_drift.read_to_compare.insert((shared.clone(), found)).1)
            })
        });
        let keys = match looked {
            Ok(keys) => keys,
            Err(failure) => {
                known.possible_drift.touched.merge(touched);
                return Err(of_failure(failure));
            }
        };
        known.compared(&touched.chains, &keys);
        let unreported = std::mem::take(&mut known.possible_drift.unreported).into_iter().collect();
        let mut drift = drift::by(touched.writers, drift::extent(keys));
        drift.merge(drift::by(Writers::MaybeProxies, drift::extent(unreported)));
        Ok(drift)
    }
}

impl Kernel<IptObject> for IptablesKernel {
    /// Tries the tool, and listens.
    fn prepare(&mut self) -> Result<(), CommitError> {
        let tried = [Table::Nat, Table::Filter].map(|table| self.tool().try_table(table).map_err(of_failure));
        let listens = self.variant.listen().map_err(of_io);
        // A temporary error is reported at the first use.
        let unusable = |result| match result {
            Err(error @ CommitError::Unusable(_)) => Some(error),
            Err(_) | Ok(()) => None,
        };
        tried.into_iter().chain([listens]).find_map(unusable).map_or(Ok(()), Err)
    }

    fn read_back(&mut self, extent: &Extent<IptKey>) -> Result<Vec<IptObject>, CommitError> {
        let mut objects = match extent {
            Extent::All => self.read_all(),
            Extent::Keys(keys) => self.read_keys(keys),
        }?;
        if let Some(sets) = &mut self.sets {
            objects.extend(sets.read(extent).map_err(of_io)?);
        }
        Ok(objects)
    }

    fn commit(&mut self, batch: &Batch<IptObject>) -> Result<(), CommitFailure> {
        let wrote = self.sets.as_mut().map_or(Ok(false), |sets| sets.write(batch))?;
        self.write(batch).map_err(|failure| if wrote { CommitFailure::unknown(failure.error) } else { failure })?;
        if let Some(sets) = &mut self.sets {
            sets.delete(batch, Instant::now());
        }
        let wants = |object: &IptObject| *object == IptObject::RouteLocalnet;
        if batch.create.iter().chain(&batch.replace).any(wants) && self.route_localnet().is_none() {
            sysctl::write(ROUTE_LOCALNET, "1").map_err(|error| {
                self.knowledge = Knowledge::UNCERTAIN;
                let text = format!("writing net.ipv4.conf.all.route_localnet: {error}");
                CommitFailure::unknown(CommitError::Unusable(io::Error::new(error.kind(), text)))
            })?;
            tracing::info!(entry = "net.ipv4.conf.all.route_localnet", value = "1", "Set sysctl");
        }
        Ok(())
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<IptKey>, CommitError> {
        self.restorer.tend(now);
        self.note_changes()?;
        let tables = self.variant.due(now);
        self.look_closer(tables)?;
        let mut drift = match &mut self.sets {
            Some(sets) => sets.tend(now).map_err(of_io)?,
            None => Drift::default(),
        };
        drift.merge(self.drift()?);
        Ok(drift)
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        if self.knowledge.is_unreported() {
            return Some(now);
        }
        let sets = self.sets.as_ref().and_then(|sets| sets.wake(now));
        [self.variant.wake(now), sets, self.restorer.wake()].into_iter().flatten().min()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.variant.wake_by(self.family(), waker);
    }
}
