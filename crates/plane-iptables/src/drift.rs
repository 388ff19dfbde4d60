//! Finds drift: compares chains that other programs have changed with the mirror, and returns the keys that differ.

use std::collections::BTreeSet;

use ferry_kernel::iptables::{Table, ToolFailure};
use ferry_plane::{Drift, Extent};

use crate::base;
use crate::mirror::{ChainOwnership, Mirror};
use crate::object::{ChainId, IptKey, IptObject, OwnedRulesKey, RuleOwner};
use crate::sort::Found;
use crate::watch::Writers;

/// Most keys that are repaired one by one; beyond that, a full sync compares everything.
const KEYS: usize = 1024;

/// Keys of drift candidates in changed chains. Shared chains are read by `read`, since only their rules show the differing
/// objects.
pub(crate) fn keys<'a>(
    mirror: &Mirror,
    touched: &BTreeSet<ChainId>,
    read: impl FnOnce(&BTreeSet<ChainId>) -> Result<&'a Found, ToolFailure>,
) -> Result<Vec<IptKey>, ToolFailure> {
    let (own, shared): (BTreeSet<ChainId>, BTreeSet<ChainId>) =
        touched.iter().partition(|id| ChainOwnership::of(**id) == Some(ChainOwnership::Own));
    let mut keys: Vec<IptKey> = own.into_iter().map(IptKey::Chain).collect();
    if !shared.is_empty() {
        let found = read(&shared)?;
        keys.extend(differing(mirror, found, &shared));
    }
    Ok(keys)
}

/// Differing keys in tables that were read as a whole: rules in shared chains, foreign rules there, and chains of one unit.
pub(crate) fn keys_in(mirror: &Mirror, found: &Found, tables: &BTreeSet<Table>) -> Vec<IptKey> {
    let shared = base::shared_chains();
    let shared: BTreeSet<ChainId> = shared.filter(|id| tables.contains(&id.table)).collect();
    let mut keys = differing(mirror, found, &shared);
    let chains = mirror.chains_unlike(&found.mirror).filter(|id| tables.contains(&id.table));
    keys.extend(chains.map(IptKey::Chain));
    keys
}

/// The extent of a repair: these keys, or everything if they are many.
pub(crate) fn extent(keys: Vec<IptKey>) -> Option<Extent<IptKey>> {
    match keys.len() {
        0 => None,
        1..=KEYS => Some(Extent::Keys(keys)),
        _ => Some(Extent::All),
    }
}

/// Drift of this extent by these writers.
pub(crate) fn by(writers: Writers, extent: Option<Extent<IptKey>>) -> Drift<IptKey> {
    match writers {
        Writers::Commands => Drift { by_proxies: None, by_others: extent },
        Writers::MaybeProxies => Drift { by_proxies: extent, by_others: None },
    }
}

/// Differing keys in shared chains.
pub(crate) fn differing(mirror: &Mirror, found: &Found, chains: &BTreeSet<ChainId>) -> Vec<IptKey> {
    let mut keys = Vec::new();
    for id in chains.iter().filter(|id| ChainOwnership::of(**id) != Some(ChainOwnership::Own)) {
        compare(*id, mirror, found, &mut keys);
    }
    keys
}

/// Adds the owned rules that differ, and the foreign rules.
fn compare(id: ChainId, mirror: &Mirror, found: &Found, keys: &mut Vec<IptKey>) {
    let (before, now) = (mirror.shared_chain(id), found.mirror.shared_chain(id));
    if before.is_some() != now.is_some() && ChainOwnership::of(id) != Some(ChainOwnership::BuiltIn) {
        keys.push(IptKey::SharedChain(id));
    }
    let owned = |chain: Option<&crate::mirror::SharedChain>| -> BTreeSet<(RuleOwner, String)> {
        let all = chain.iter().flat_map(|chain| chain.owned());
        all.map(|(owner, lines)| (*owner, lines.iter().collect::<Vec<_>>().join("\n"))).collect()
    };
    let (before, now) = (owned(before), owned(now));
    let owners: BTreeSet<RuleOwner> = before.symmetric_difference(&now).map(|(owner, _)| *owner).collect();
    keys.extend(owners.into_iter().map(|owner| IptKey::OwnedRules(OwnedRulesKey { chain: id, owner })));
    keys.extend(found.objects.iter().filter_map(|object| match object {
        IptObject::ForeignRule(of, text) if *of == id => Some(IptKey::ForeignRule(id, text.clone())),
        _ => None,
    }));
}
