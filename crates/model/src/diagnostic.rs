//! What is wrong with an object, for its owner.

use std::fmt;

use ferry_api::object::{Kind, ObjectName};

/// Something about one object that is not served as written. The edges log it once per object until it changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// the kind of object
    pub kind: Kind,
    /// the object
    pub name: ObjectName,
    /// the field, as a path within the object: `spec.ports[1].nodePort`
    pub field: String,
    /// what is wrong, and what happens instead
    pub message: String,
    /// whose fault it is
    pub cause: Cause,
}

/// Why something is not served as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// what is written
    Object,
    /// another Service has the address: this one takes over when that one goes
    Contest,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.name, self.field, self.message)
    }
}
