//! The nftables mode, as the shared tests of all modes use it.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_conformance::states::pool;
use ferry_conformance::{Mode, neighbours};
use ferry_plane_nftables::names::LOCAL_SLOTS;
use ferry_plane_nftables::object::{ElementKey, Value};
use ferry_plane_nftables::{NftKey, NftObject, Nftables, render};

pub(crate) enum ThisMode {}

impl Mode for ThisMode {
    type Compiler = Nftables;
    const NAME: &'static str = "nftables";
    const GOLDEN: &'static str = "want.nft";

    fn compiler(family: Family, _localhost: bool) -> Nftables {
        Nftables::new(family)
    }

    fn text(family: Family, objects: &[NftObject]) -> String {
        without_fixed_sets(&render::ruleset(family, objects))
    }

    fn is_leaf(key: &NftKey) -> bool {
        matches!(key, NftKey::Element(_))
    }

    /// The endpoints of two neighbouring slots are exchanged, or one slot holds an endpoint of no service.
    fn spoiled(objects: &[NftObject], index: usize) -> Vec<NftObject> {
        let slots: Vec<(ElementKey, Value)> = objects.iter().filter_map(slot).collect();
        let Some([one, other]) = neighbours(&slots, index / 2) else { return Vec::new() };
        if index.is_multiple_of(2) {
            return vec![NftObject::Element(one.0, other.1), NftObject::Element(other.0, one.1)];
        }
        let dead = pool(Family::V4, &[99]);
        dead.0.iter().map(|dead| NftObject::Element(one.0, Value::Endpoint(*dead))).collect()
    }

    /// Normalises the assignment of endpoints to slots, which is free: sorts the endpoints of each pool.
    fn comparable(objects: Vec<NftObject>) -> Vec<NftObject> {
        let mut pools: BTreeMap<ElementKey, Vec<Value>> = BTreeMap::new();
        for object in &objects {
            if let NftObject::Element(key, value) = object
                && let Some(first) = first_slot(*key)
            {
                pools.entry(first).or_default().push(*value);
            }
        }
        pools.values_mut().for_each(|pool| pool.sort_unstable_by(|one, other| other.cmp(one)));
        let in_order = |object: NftObject| match object {
            NftObject::Element(key, value) => {
                let next = first_slot(key).and_then(|first| pools.get_mut(&first)?.pop());
                NftObject::Element(key, next.unwrap_or(value))
            }
            other => other,
        };
        objects.into_iter().map(in_order).collect()
    }
}

/// A slot of a frontend and its endpoint.
fn slot(object: &NftObject) -> Option<(ElementKey, Value)> {
    match object {
        NftObject::Element(key @ (ElementKey::Slot { .. } | ElementKey::NodePortSlot { .. }), value) => {
            Some((*key, *value))
        }
        _ => None,
    }
}

/// The first slot of this slot's pool; `None` if the key is no slot.
fn first_slot(key: ElementKey) -> Option<ElementKey> {
    let first = |slot| if slot >= LOCAL_SLOTS { LOCAL_SLOTS } else { 0 };
    match key {
        ElementKey::Slot { vip, protocol, port, slot } => {
            Some(ElementKey::Slot { vip, protocol, port, slot: first(slot) })
        }
        ElementKey::NodePortSlot { protocol, port, slot } => {
            Some(ElementKey::NodePortSlot { protocol, port, slot: first(slot) })
        }
        ElementKey::PoolSlot { id, slot } => Some(ElementKey::PoolSlot { id, slot: first(slot) }),
        _ => None,
    }
}

/// Leaves out sets without elements and the one of all octets: they are the same in every case, and the tests of this crate's
/// base cover them.
fn without_fixed_sets(text: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for line in text.lines() {
        let opens = line.starts_with("\tset ") || line.starts_with("\tmap ");
        if opens || !block.is_empty() {
            block.push(line);
            if line == "\t}" {
                let dynamic = block.iter().any(|line| line.contains("elements") || line.contains("dynamic"));
                if dynamic && !block.iter().any(|line| line.contains("set same-octet")) {
                    kept.extend(block.iter().map(|line| (*line).to_owned()));
                } else {
                    kept.pop();
                }
                block.clear();
            }
        } else {
            kept.push(line.to_owned());
        }
    }
    kept.join("\n") + "\n"
}
