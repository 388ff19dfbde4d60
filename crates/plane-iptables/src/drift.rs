//! What was changed in chains that others have touched.

use std::collections::BTreeSet;

use ferry_kernel::iptables::{Failure, Table};
use ferry_plane::Extent;

use crate::base;
use crate::mirror::{Kind, Mirror};
use crate::object::{ChainId, IptKey, IptObject, OwnedRulesKey, Owner};
use crate::sort::Found;

/// Beyond so many, everything is compared.
const KEYS: usize = 1024;

/// Keys of chains that others have touched. Shared ones are read by `read`, since only their content tells which objects differ.
pub(crate) fn keys(
    mirror: &Mirror,
    touched: &BTreeSet<ChainId>,
    read: impl FnOnce(&BTreeSet<ChainId>) -> Result<Found, Failure>,
) -> Result<Vec<IptKey>, Failure> {
    let (own, shared): (BTreeSet<ChainId>, BTreeSet<ChainId>) =
        touched.iter().partition(|id| Kind::of(**id) == Some(Kind::Own));
    let mut keys: Vec<IptKey> = own.into_iter().map(IptKey::Chain).collect();
    if !shared.is_empty() {
        let found = read(&shared)?;
        keys.extend(differing(mirror, &found, &shared));
    }
    Ok(keys)
}

/// What differs in tables that were read as a whole: entries and other rules next to them, and chains of one unit.
pub(crate) fn keys_in(mirror: &Mirror, found: &Found, tables: &BTreeSet<Table>) -> Vec<IptKey> {
    let shared = base::shared_chains();
    let shared: BTreeSet<ChainId> = shared.filter(|id| tables.contains(&id.table)).collect();
    let mut keys = differing(mirror, found, &shared);
    let chains = mirror.chains_unlike(&found.mirror).filter(|id| tables.contains(&id.table));
    keys.extend(chains.map(IptKey::Chain));
    keys
}

/// All keys of what was suspected; everything if they are many.
pub(crate) fn extent(keys: Vec<IptKey>) -> Option<Extent<IptKey>> {
    match keys.len() {
        0 => None,
        1..=KEYS => Some(Extent::Keys(keys)),
        _ => Some(Extent::All),
    }
}

/// What differs in chains of entries.
pub(crate) fn differing(mirror: &Mirror, found: &Found, chains: &BTreeSet<ChainId>) -> Vec<IptKey> {
    let mut keys = Vec::new();
    for id in chains.iter().filter(|id| Kind::of(**id) != Some(Kind::Own)) {
        compare(*id, mirror, found, &mut keys);
    }
    keys
}

/// The entries that differ, and the rules that are not ours.
fn compare(id: ChainId, mirror: &Mirror, found: &Found, keys: &mut Vec<IptKey>) {
    let (before, now) = (mirror.shared_chain(id), found.mirror.shared_chain(id));
    if before.is_some() != now.is_some() && Kind::of(id) != Some(Kind::BuiltIn) {
        keys.push(IptKey::SharedChain(id));
    }
    let owned = |chain: Option<&crate::mirror::SharedChain>| -> BTreeSet<(Owner, String)> {
        let all = chain.iter().flat_map(|chain| chain.owned());
        all.map(|(owner, lines)| (*owner, lines.iter().collect::<Vec<_>>().join("\n"))).collect()
    };
    let (before, now) = (owned(before), owned(now));
    let owners: BTreeSet<Owner> = before.symmetric_difference(&now).map(|(owner, _)| *owner).collect();
    keys.extend(owners.into_iter().map(|owner| IptKey::OwnedRules(OwnedRulesKey { chain: id, owner })));
    keys.extend(found.objects.iter().filter_map(|object| match object {
        IptObject::ForeignRule(of, text) if *of == id => Some(IptKey::ForeignRule(id, text.clone())),
        _ => None,
    }));
}
