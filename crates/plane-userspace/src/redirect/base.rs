//! Compiles the base: the table, its sets and maps, its chains, and the listeners for TCP.

use ferry_api::object::Family;
use ferry_model::{BaseState, Context, NodePortAddresses};
use ferry_ruleset::Rules;
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::table::{ChainName, SetName, TableObject};

use super::element::{Door, ElementKey, Entrance, Userspace, Value};
use super::names::{FixedChain, FixedSet};
use super::object::UserspaceObject;
use super::rules::rules;
use crate::port::SCOPES;

/// The objects of the base.
pub(crate) fn compile(family: Family, context: &Context, base: &BaseState, out: &mut Vec<UserspaceObject>) {
    let mut table = |object| out.push(UserspaceObject::Table(object));
    table(TableObject::Table(TableOwner::Ours));
    FixedSet::ALL.iter().for_each(|set| table(TableObject::Set(SetName::Fixed(*set))));
    for chain in FixedChain::ALL {
        table(TableObject::Chain(ChainName::Fixed(*chain), Rules(rules(*chain, family, context, base).into())));
    }
    if let NodePortAddresses::Only(addresses) = &base.node_ports {
        addresses.iter().for_each(|address| table(TableObject::Element(ElementKey::NodePortIp(*address), Value::None)));
    }
    for scope in SCOPES {
        let gate = Door::Gate(scope);
        table(listens(&gate));
        if let Some(address) = context.relay_address {
            table(TableObject::Element(ElementKey::Gate(scope), Value::Relay(address, gate)));
        }
    }
    out.extend(SCOPES.map(|scope| UserspaceObject::Listener(Door::Gate(scope))));
}

/// The element that keeps others away from a listener's own port.
pub(crate) fn listens(door: &Door) -> TableObject<Userspace> {
    TableObject::Element(ElementKey::Listener(Entrance::Of(door.clone())), Value::None)
}
