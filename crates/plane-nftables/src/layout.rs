//! Key fields, value types and sizes of the sets and maps.

use ferry_api::object::Family;
use ferry_kernel::nft;
use ferry_ruleset::layout::{Data, KeyPart, Layout};

use crate::names::{FixedSet, SLOTS, SetName};

/// Maximum number of clients in one affinity map.
const AFFINITY_SIZE: u32 = 65_536;
/// The elements of `same-octet`: with a declared size the kernel chooses a table that never grows.
const OCTETS: u32 = 256;

/// Key fields, value type and kind of a set or map.
pub(crate) fn layout(name: SetName) -> Layout {
    use KeyPart::{Address, Octet, Port, Protocol};
    const SLOT: KeyPart = KeyPart::Slot(SLOTS);
    let fixed = match name {
        SetName::Affinity(..) => {
            let map = Layout::new(&[Address], Data::Endpoint);
            return Layout { expires: true, size: Some(AFFINITY_SIZE), ..map };
        }
        SetName::Members(..) => return Layout::new(&[Address, Port], Data::None),
        SetName::Pool(_) => return Layout::new(&[SLOT], Data::Endpoint),
        // For a concatenation the kernel uses another set type for intervals, which is slow beyond some thousand elements.
        SetName::Sources(_) => return Layout { interval: true, ..Layout::new(&[Address], Data::None) },
        SetName::Fixed(fixed) => fixed,
    };
    match fixed {
        FixedSet::Endpoints => Layout::new(&[Address, Protocol, Port, SLOT], Data::Endpoint),
        FixedSet::NodePortEndpoints => Layout::new(&[Protocol, Port, SLOT], Data::Endpoint),
        FixedSet::ServiceIps
        | FixedSet::RestrictedIps
        | FixedSet::LocalIps
        | FixedSet::ClusterPolicyIps
        | FixedSet::AffinityPick
        | FixedSet::AffinityPickLocal => Layout::new(&[Address, Protocol, Port], Data::Verdict),
        FixedSet::ServiceNodePorts
        | FixedSet::LocalNodePorts
        | FixedSet::ClusterPolicyNodePorts
        | FixedSet::AffinityPickNodePorts
        | FixedSet::AffinityPickLocalNodePorts => Layout::new(&[Protocol, Port], Data::Verdict),
        FixedSet::RecordTcp | FixedSet::RecordUdp | FixedSet::RecordSctp => {
            Layout::new(&[Address, Port], Data::Verdict)
        }
        FixedSet::RecordNodePortsTcp | FixedSet::RecordNodePortsUdp | FixedSet::RecordNodePortsSctp => {
            Layout::new(&[Port], Data::Verdict)
        }
        FixedSet::ClusterIps | FixedSet::NodePortIps => Layout::new(&[Address], Data::None),
        FixedSet::SameOctet => Layout { size: Some(OCTETS), ..Layout::new(&[Octet, Octet], Data::None) },
    }
}

/// Declaration of a set or map: key and value types, flags, size.
pub(crate) fn shape(name: SetName, family: Family) -> nft::Set {
    layout(name).set(name.to_string(), family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_maps_expire_source_ranges_are_intervals_and_few_sets_have_a_size() {
        use ferry_api::object::{ObjectName, Protocol};
        use ferry_model::Scope;
        use ferry_ruleset::sources::SourcesId;

        use crate::names::PortId;
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        let sources = SetName::Sources(SourcesId::of_digest(&[7; 32]));
        let affinity = SetName::Affinity(id, Scope::Local);
        let more = [sources, affinity, SetName::Members(id, Scope::Local), SetName::Pool(id)];
        for name in FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain(more) {
            for family in Family::ALL {
                let shape = shape(name, family);
                let size = match name {
                    SetName::Affinity(..) => Some(65_536),
                    SetName::Fixed(FixedSet::SameOctet) => Some(256),
                    _ => None,
                };
                assert_eq!(shape.size, size, "{name}");
                let flags = shape.flags;
                assert_eq!((flags.timeout, flags.dynamic), (name == affinity, name == affinity), "{name}");
                assert_eq!((flags.interval, flags.concat), (name == sources, false), "{name}");
            }
        }
    }
}
