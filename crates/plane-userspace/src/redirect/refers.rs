//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_plane::memory::Refers;
use ferry_ruleset::table::{TableObject, refers_to};

use super::element::{Door, ElementKey, Entrance, Userspace, Value};
use super::object::{UserspaceKey, UserspaceObject};

impl Refers for UserspaceObject {
    fn refers_to(&self) -> Vec<UserspaceKey> {
        match self {
            Self::Port(..) | Self::Listener(Door::Gate(_)) => Vec::new(),
            Self::Listener(Door::Datagrams(port)) | Self::Route(_, _, port) => vec![UserspaceKey::Port(port.clone())],
            Self::Table(object) => {
                let in_table = refers_to(object).into_iter().map(UserspaceKey::Table);
                in_table.chain(door_of(object).map(|door| UserspaceKey::Listener(door.clone()))).collect()
            }
        }
    }
}

/// The listener that an element leads to, or guards.
fn door_of(object: &TableObject<Userspace>) -> Option<&Door> {
    match object {
        TableObject::Element(_, Value::Relay(_, door))
        | TableObject::Element(ElementKey::Listener(Entrance::Of(door)), _) => Some(door),
        TableObject::Element(..)
        | TableObject::Table(_)
        | TableObject::Set(_)
        | TableObject::Ranges(..)
        | TableObject::Chain(..) => None,
    }
}
