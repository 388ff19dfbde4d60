//! Declares the sets and maps of the table: key fields, value type, size.

use ferry_api::object::Family;
use ferry_kernel::nft;
use ferry_ruleset::layout::{Data, Layout, Part};

use crate::names::{FixedSet, SetName};

/// The elements of `same-octet`: with a declared size the kernel chooses a table that never grows.
const OCTETS: u32 = 256;

/// Key fields, value type and kind of a set or map.
pub(crate) const fn layout(name: SetName) -> Layout {
    match name {
        SetName::Sources(_) => Layout { interval: true, ..Layout::new(&[Part::Address], Data::None) },
        SetName::Fixed(fixed) => match fixed {
            FixedSet::ServiceIps | FixedSet::RestrictedIps => {
                Layout::new(&[Part::Address, Part::Protocol, Part::Port], Data::Verdict)
            }
            FixedSet::ServiceNodePorts => Layout::new(&[Part::Protocol, Part::Port], Data::Verdict),
            FixedSet::BoundIps | FixedSet::NodePortIps | FixedSet::PingedIps => {
                Layout::new(&[Part::Address], Data::None)
            }
            FixedSet::HealthPorts => Layout::new(&[Part::Port], Data::None),
            FixedSet::SameOctet => {
                Layout { size: Some(OCTETS), ..Layout::new(&[Part::Octet, Part::Octet], Data::None) }
            }
        },
    }
}

/// Declaration of a set or map, as sent to the kernel.
pub(crate) fn shape(name: SetName, family: Family) -> nft::Set {
    layout(name).set(name.to_string(), family)
}
