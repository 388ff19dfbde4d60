//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_plane::memory::Refers;

use super::object::{BindKey, BindObject};

impl Refers for BindObject {
    fn refers_to(&self) -> Vec<BindKey> {
        match self {
            Self::Origins(_) | Self::Port(..) | Self::Address(_) => Vec::new(),
            Self::Listener(_, serves) => serves.ports().map(BindKey::Port).collect(),
        }
    }
}
