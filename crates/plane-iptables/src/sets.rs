//! The ipsets of one family: creates, replaces, deletes and reads those of source ranges, and looks for changes by others, of which the
//! kernel sends no notifications.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, IpNet};
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipset::{self, Destroyed, Member};
use ferry_kernel::iptables::IptablesChainName;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Op};

use crate::names;
use crate::object::{IptKey, IptObject};

/// Time between two looks at the numbers of members.
const LOOK: Duration = Duration::from_secs(10);
/// From a commit to the deletion of sets that no rule names any more. In the nft variant the kernel frees a deleted rule, and with it the
/// reference to a set, some milliseconds later.
const LATER: Duration = Duration::from_millis(100);
/// Attempts to delete such sets at this distance; then one at each look.
const SOON: u32 = 5;

/// The ipsets of one network namespace, with the errors of [`ipset`].
pub(crate) trait Ipsets: fmt::Debug + Send {
    /// All sets of both families; none if the kernel lacks ipset.
    fn list(&self) -> io::Result<Vec<ipset::Set>>;
    /// The members of a set.
    fn members(&self, name: &str) -> io::Result<Vec<Member>>;
    /// Creates a set of these networks.
    fn create(&self, name: &str, family: Family, nets: &[IpNet]) -> io::Result<()>;
    /// Exchanges the names of two sets.
    fn swap(&self, one: &str, other: &str) -> io::Result<()>;
    /// Destroys a set.
    fn destroy(&self, name: &str) -> io::Result<()>;
    /// Destroys those of these sets that are there, and that nothing refers to.
    fn destroy_all(&self, names: &[IptablesChainName]) -> io::Result<Destroyed>;
}

/// The sets of source ranges of one family.
#[derive(Debug)]
pub(crate) struct SourceSets<I> {
    ipsets: I,
    family: Family,
    /// random: what this process fills has names of its own
    process: u64,
    /// the sets that are there, with the number of their members
    known: BTreeMap<IptablesChainName, u32>,
    /// sets that are to be deleted
    leaving: BTreeSet<IptablesChainName>,
    /// sets that a process has filled, and not put in place before it ended, as of the last full reading
    unfinished: BTreeSet<IptablesChainName>,
    /// the next look at the numbers, and the next attempt at the deletions
    look: Option<Instant>,
    deletion: Option<Instant>,
    /// attempts at the deletions in a row that left a set
    attempts: u32,
}

// === impl SourceSets ===

impl<I: Ipsets> SourceSets<I> {
    /// Those of a family, not read yet.
    pub(crate) fn new(ipsets: I, family: Family) -> Self {
        Self {
            ipsets,
            family,
            process: RandomState::new().build_hasher().finish(),
            known: BTreeMap::new(),
            leaving: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            look: None,
            deletion: None,
            attempts: 0,
        }
    }

    /// Makes the sets that a batch creates or replaces, before the rules that name them. True if there were any.
    pub(crate) fn write(&mut self, batch: &Batch<IptObject>) -> Result<bool, CommitFailure> {
        let mut wrote = false;
        for (op, index, object) in batch.operations().filter(|(op, ..)| *op != Op::Delete) {
            let IptObject::SourceSet(name, nets) = object else { continue };
            if let Err(error) = self.put(*name, nets, op) {
                let error = verdict(error, (op, index), *name);
                return Err(if wrote { CommitFailure::unknown(error) } else { error.into() });
            }
            wrote = true;
        }
        Ok(wrote)
    }

    fn put(&mut self, name: IptablesChainName, nets: &[IpNet], op: Op) -> io::Result<()> {
        if op == Op::Create && !self.leaving.remove(&name) {
            let created = self.ipsets.create(name.as_str(), self.family, nets);
            if created.as_ref().is_err_and(|error| ErrorClass::of(error) == ErrorClass::Exists)
                && !named(&self.ipsets, self.family)?.contains_key(&name)
            {
                let text = "another program's set, of the other family, has this name";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            created?;
        } else {
            let next = names::next_sources(name, self.process);
            // The one before may have stayed for a moment.
            ignore_missing(self.ipsets.destroy(next.as_str()))?;
            self.ipsets.create(next.as_str(), self.family, nets)?;
            let swapped = self.ipsets.swap(next.as_str(), name.as_str());
            if ignore_missing(self.ipsets.destroy(next.as_str())).is_err() {
                self.leave([next], Instant::now());
            }
            swapped?;
        }
        self.known.insert(name, u32::try_from(nets.len()).unwrap_or(u32::MAX));
        Ok(())
    }

    /// Plans the deletion of sets, once their rules have gone.
    pub(crate) fn delete(&mut self, batch: &Batch<IptObject>, now: Instant) {
        self.leave(
            batch.delete.iter().filter_map(|object| match object {
                IptObject::SourceSet(name, _) => Some(*name),
                _ => None,
            }),
            now,
        );
    }

    fn leave(&mut self, names: impl IntoIterator<Item = IptablesChainName>, now: Instant) {
        for name in names {
            self.known.remove(&name);
            self.leaving.insert(name);
            self.deletion = Some(now + LATER);
            self.attempts = 0;
        }
    }

    /// Reads the sets with these keys.
    pub(crate) fn read(&mut self, extent: &Extent<IptKey>) -> io::Result<Vec<IptObject>> {
        let is_wanted = |name: &IptablesChainName| match extent {
            Extent::All => true,
            Extent::Keys(keys) => keys.contains(&IptKey::SourceSet(*name)),
        };
        if let Extent::Keys(keys) = extent
            && !keys.iter().any(|key| matches!(key, IptKey::SourceSet(_)))
        {
            return Ok(Vec::new());
        }
        let all = named(&self.ipsets, self.family)?;
        if *extent == Extent::All {
            self.unfinished = all.keys().copied().filter(|name| names::is_next_sources(*name)).collect();
        }
        self.known.retain(|name, _| !is_wanted(name));
        let mut objects = Vec::new();
        let wanted: Vec<_> = all.into_keys().filter(|name| self.is_there(*name) && is_wanted(name)).collect();
        for name in wanted {
            let mut nets: Vec<IpNet> = match self.ipsets.members(name.as_str()) {
                Ok(members) => members.into_iter().filter_map(net).collect(),
                Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => continue,
                // Of another type: it can't be replaced, and the error of that names it.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Vec::new(),
                Err(error) => return Err(error),
            };
            nets.sort_unstable();
            self.known.insert(name, u32::try_from(nets.len()).unwrap_or(u32::MAX));
            objects.push(IptObject::SourceSet(name, nets.into()));
        }
        Ok(objects)
    }

    /// True if an existing set of this name has source ranges, and is not about to be deleted.
    fn is_there(&self, name: IptablesChainName) -> bool {
        names::is_sources(name) && !self.leaving.contains(&name)
    }

    /// Deletes what is to be deleted, and reports the sets whose number of members others have changed, if this is due.
    pub(crate) fn tend(&mut self, now: Instant) -> io::Result<Drift<IptKey>> {
        // Not at the reading: that is also done by commands that delete nothing. A set that another process is about to put in place is filled
        // again by that.
        let unfinished = std::mem::take(&mut self.unfinished);
        self.leave(unfinished, now);
        if self.deletion.is_some_and(|due| due <= now) {
            self.delete_leaving();
            self.attempts = self.attempts.saturating_add(1);
            let pause = if self.attempts < SOON { LATER } else { LOOK };
            self.deletion = (!self.leaving.is_empty()).then(|| now + pause);
        }
        if self.known.is_empty() || self.look.is_some_and(|due| due > now) {
            return Ok(Drift::default());
        }
        self.look = Some(now + LOOK);
        let there = named(&self.ipsets, self.family)?;
        let differs = |(name, members): &(&IptablesChainName, &u32)| match there.get(name) {
            Some(found) => found.is_some_and(|found| found != **members),
            None => true,
        };
        let changed: Vec<IptKey> =
            self.known.iter().filter(differs).map(|(name, _)| IptKey::SourceSet(*name)).collect();
        // Whose change it was isn't known.
        Ok(if changed.is_empty() { Drift::default() } else { Drift::by_proxies(Extent::Keys(changed)) })
    }

    /// Time of the next call of [`SourceSets::tend`].
    pub(crate) fn wake(&self, now: Instant) -> Option<Instant> {
        let look = (!self.known.is_empty()).then(|| self.look.unwrap_or(now));
        let unfinished = (!self.unfinished.is_empty()).then_some(now);
        [look, self.deletion, unfinished].into_iter().flatten().min()
    }

    /// One that a foreign rule names stays until that rule has gone.
    fn delete_leaving(&mut self) {
        self.leaving.retain(|name| match ignore_missing(self.ipsets.destroy(name.as_str())) {
            Ok(()) => false,
            Err(error) => {
                tracing::debug!(ipset = %name, err = %error, "Deleting ipset failed, trying again later");
                true
            }
        });
    }
}

/// Deletes the sets of source ranges of a family, once their rules have gone: tries again after pauses while rules name some.
pub(crate) fn retire(ipsets: &impl Ipsets, family: Family, pause: &mut dyn FnMut(Duration)) -> io::Result<Destroyed> {
    let ours = |name: &IptablesChainName| names::is_sources(*name) || names::is_next_sources(*name);
    let attempt = || {
        let names: Vec<_> = named(ipsets, family)?.into_keys().filter(ours).collect();
        ipsets.destroy_all(&names)
    };
    let mut destroyed = attempt()?;
    for _ in 0..SOON {
        if destroyed.referred.is_none() {
            break;
        }
        pause(LATER);
        let more = attempt()?;
        destroyed = Destroyed { count: destroyed.count + more.count, ..more };
    }
    Ok(destroyed)
}

/// The sets of a family whose names a chain could have, too, with the number of their members.
fn named(ipsets: &impl Ipsets, family: Family) -> io::Result<BTreeMap<IptablesChainName, Option<u32>>> {
    let of_family = ipsets.list()?.into_iter().filter(|set| set.family == Some(family));
    Ok(of_family.filter_map(|set| Some((IptablesChainName::new(&set.name)?, set.elements))).collect())
}

fn net(member: Member) -> Option<IpNet> {
    match member {
        Member::Net(net) => Some(net),
        // No member of another type is read from a set of networks.
        Member::Port(_) | Member::Socket { .. } => None,
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if ErrorClass::of(&error) == ErrorClass::Missing => Ok(()),
        result => result,
    }
}

fn verdict(error: io::Error, (op, index): (Op, usize), name: IptablesChainName) -> CommitError {
    match ErrorClass::of(&error) {
        ErrorClass::Exists | ErrorClass::Missing => CommitError::Drifted { object: format!("ipset {name}") },
        class if class.is_temporary() => CommitError::Resources(error),
        _ => {
            let text = format!("ipset {name}: {error}");
            CommitError::Refused(vec![(op, index, io::Error::new(error.kind(), text))])
        }
    }
}

#[cfg(test)]
mod tests;
