//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_plane::memory::Refers;
use ferry_ruleset::table::refers_to;

use crate::object::{IpvsKey, IpvsObject};

impl Refers for IpvsObject {
    fn refers_to(&self) -> Vec<IpvsKey> {
        match self {
            Self::Table(object) => refers_to(object).into_iter().map(IpvsKey::Table).collect(),
            Self::Server(..) | Self::Address(..) => Vec::new(),
        }
    }
}
