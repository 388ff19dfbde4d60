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

#[cfg(test)]
mod tests {
    use ferry_kernel::iptables::Target;
    use ferry_plane::Object as _;

    use super::*;
    use crate::encode::tests::{after, endpoint_chain, id, jump, own, refusing, services, vip};
    use crate::names;

    fn found(objects: Vec<IptObject>) -> Found {
        Found { mirror: after(objects.clone()), objects, unreadable: false }
    }

    fn refusal(last: u8, target: Target) -> IptObject {
        vip(refusing(), last, 80, target)
    }

    #[test]
    fn a_touched_chain_of_one_unit_is_a_key_and_a_shared_one_is_read_first() {
        let (chain, served) = (endpoint_chain(1), vip(services(), 1, 80, Target::Return));
        let mirror = after(vec![IptObject::SharedChain(services()), served.clone()]);
        for own in [BTreeSet::new(), [chain].into()] {
            let keys = keys(&mirror, &own, |_| panic!("no shared chain was touched")).unwrap();
            assert_eq!(keys, own.into_iter().map(IptKey::Chain).collect::<Vec<_>>());
        }
        let (now, mut read) = (found(vec![IptObject::SharedChain(services())]), BTreeSet::new());
        let touched = [chain, services()].into();
        let both = keys(&mirror, &touched, |shared| {
            read.clone_from(shared);
            Ok(&now)
        });
        assert_eq!((both.unwrap(), read), (vec![IptKey::Chain(chain), served.key()], [services()].into()));
        let failed = keys(&mirror, &touched, |_| Err(ToolFailure::Missing { tool: "iptables".to_owned() }));
        assert!(matches!(failed, Err(ToolFailure::Missing { .. })));
    }

    #[test]
    fn changed_lost_and_added_rules_of_the_compared_chains_differ_and_foreign_ones_do() {
        let same = refusal(1, Target::Drop);
        let mirror = after(vec![same.clone(), refusal(2, Target::Drop), refusal(3, Target::Drop)]);
        let foreign = |chain| IptObject::ForeignRule(chain, "-j RETURN".into());
        let more = vip(services(), 5, 80, Target::Return);
        let (changed, added) = (refusal(2, Target::Reject), refusal(4, Target::Drop));
        let now =
            found(vec![same, changed.clone(), added.clone(), foreign(refusing()), more.clone(), foreign(services())]);
        let filter = [changed.key(), refusal(3, Target::Drop).key(), added.key(), foreign(refusing()).key()];
        assert_eq!(differing(&mirror, &now, &[refusing(), endpoint_chain(1)].into()), filter);
        let nat = [IptKey::SharedChain(services()), more.key(), foreign(services()).key()];
        assert_eq!(differing(&mirror, &now, &[refusing(), services()].into()), [&filter[..], &nat].concat());
    }

    #[test]
    fn a_shared_chain_that_came_or_went_differs_and_a_built_in_one_is_always_there() {
        let input = ChainId { table: Table::Filter, name: base::INPUT };
        let jump = jump(input, names::NODE_PORTS);
        let some = || vec![IptObject::SharedChain(services()), jump.clone()];
        let chains = [input, refusing(), services()].into();
        for (before, now, wanted) in [
            (some(), Vec::new(), vec![jump.key(), IptKey::SharedChain(services())]),
            (Vec::new(), some(), vec![jump.key(), IptKey::SharedChain(services())]),
            (some(), some(), Vec::new()),
            (Vec::new(), Vec::new(), Vec::new()),
        ] {
            assert_eq!(differing(&after(before.clone()), &found(now.clone()), &chains), wanted, "{before:?}, {now:?}");
        }
    }

    #[test]
    fn of_tables_read_as_a_whole_shared_and_other_chains_are_compared() {
        let [same, changed, lost, added] = [1, 2, 3, 4].map(endpoint_chain);
        let forward = id(Table::Filter, "KUBE-FORWARD");
        let (served, refused) = (vip(services(), 1, 80, Target::Return), refusal(1, Target::Drop));
        let mirror = after(vec![
            own(same, &[Target::Return]),
            own(changed, &[Target::Return]),
            own(lost, &[Target::Return]),
            own(forward, &[Target::Return]),
            served.clone(),
            refused.clone(),
        ]);
        let now = found(vec![
            own(same, &[Target::Return]),
            own(changed, &[Target::Accept]),
            own(added, &[Target::Return]),
            IptObject::SharedChain(services()),
            IptObject::SharedChain(refusing()),
        ]);
        let nat: BTreeSet<IptKey> =
            [changed, lost, added].map(IptKey::Chain).into_iter().chain([served.key()]).collect();
        let filter: BTreeSet<IptKey> = [IptKey::Chain(forward), refused.key()].into();
        let keys = |tables: &[Table]| keys_in(&mirror, &now, &tables.iter().copied().collect());
        let set = |tables: &[Table]| keys(tables).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(set(&[Table::Nat]), nat);
        assert_eq!(set(&[Table::Filter]), filter);
        assert_eq!(set(&[Table::Nat, Table::Filter]), &nat | &filter);
        assert_eq!(keys(&[Table::Nat, Table::Filter]).len(), 6, "each once");
        assert_eq!(set(&[Table::Mangle]), BTreeSet::new());
    }

    #[test]
    fn up_to_1024_keys_are_repaired_one_by_one() {
        let keys = |count| (0..count).map(|number| IptKey::Chain(endpoint_chain(number))).collect::<Vec<_>>();
        assert_eq!(extent(Vec::new()), None);
        for count in [1, 2, 1024] {
            assert_eq!(extent(keys(count)), Some(Extent::Keys(keys(count))));
        }
        assert_eq!(extent(keys(1025)), Some(Extent::All));
    }

    #[test]
    fn drift_is_other_programs_if_only_commands_wrote() {
        let drift = by(Writers::Commands, Some(Extent::All));
        assert_eq!((drift.by_proxies, drift.by_others), (None, Some(Extent::All)));
        let drift = by(Writers::MaybeProxies, Some(Extent::All));
        assert_eq!((drift.by_proxies, drift.by_others), (Some(Extent::All), None));
        assert!(by(Writers::Commands, None).is_empty() && by(Writers::MaybeProxies, None).is_empty());
    }
}
