//! Declares sets and maps: key fields, value type, size, flags, and the userdata that the `nft` tool needs to print them.

use ferry_api::object::Family;
use ferry_kernel::nft::userdata::{self, PayloadField, SetUserdata, TypeofExpr};
use ferry_kernel::nft::{self, SetData, SetFlags, concat_type, data_type};

use crate::names::{FixedSet, SLOTS, SetName};

/// One part of a key.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Address,
    Protocol,
    Port,
    Slot,
    Octet,
}

/// Value type of a map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    Verdict,
    Endpoint,
}

/// Key fields, value type and kind of a set or map.
pub(crate) struct Layout {
    pub(crate) key: &'static [Part],
    pub(crate) data: Data,
    pub(crate) interval: bool,
    expires: bool,
}

/// Maximum number of clients in one affinity map.
const AFFINITY_SIZE: u32 = 65_536;
/// The elements of `same-octet`: with a declared size the kernel chooses a table that never grows.
const OCTETS: u32 = 256;

// === impl Part ===

impl Part {
    fn data_type(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) => data_type::IPV4_ADDR,
            (Self::Address, Family::V6) => data_type::IPV6_ADDR,
            (Self::Protocol, _) => data_type::INET_PROTO,
            (Self::Port, _) => data_type::INET_SERVICE,
            (Self::Slot | Self::Octet, _) => data_type::INTEGER,
        }
    }

    /// Bytes without padding.
    fn len(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) | (Self::Slot, _) => 4,
            (Self::Address, Family::V6) => 16,
            (Self::Protocol | Self::Octet, _) => 1,
            (Self::Port, _) => 2,
        }
    }
}

// === impl Layout ===

impl Layout {
    pub(crate) fn of(name: SetName) -> Self {
        use Part::{Address, Octet, Port, Protocol, Slot};
        let (key, data): (&'static [Part], Data) = match name {
            SetName::Affinity(..) => (&[Address], Data::Endpoint),
            SetName::Members(..) => (&[Address, Port], Data::None),
            SetName::Pool(_) => (&[Slot], Data::Endpoint),
            SetName::Sources(_) => (&[Address], Data::None),
            SetName::Fixed(fixed) => match fixed {
                FixedSet::Endpoints => (&[Address, Protocol, Port, Slot], Data::Endpoint),
                FixedSet::NodePortEndpoints => (&[Protocol, Port, Slot], Data::Endpoint),
                FixedSet::ServiceIps
                | FixedSet::RestrictedIps
                | FixedSet::LocalIps
                | FixedSet::ClusterPolicyIps
                | FixedSet::AffinityPick
                | FixedSet::AffinityPickLocal => (&[Address, Protocol, Port], Data::Verdict),
                FixedSet::ServiceNodePorts
                | FixedSet::LocalNodePorts
                | FixedSet::ClusterPolicyNodePorts
                | FixedSet::AffinityPickNodePorts
                | FixedSet::AffinityPickLocalNodePorts => (&[Protocol, Port], Data::Verdict),
                FixedSet::RecordTcp | FixedSet::RecordUdp | FixedSet::RecordSctp => (&[Address, Port], Data::Verdict),
                FixedSet::RecordNodePortsTcp | FixedSet::RecordNodePortsUdp | FixedSet::RecordNodePortsSctp => {
                    (&[Port], Data::Verdict)
                }
                FixedSet::ClusterIps | FixedSet::NodePortIps => (&[Address], Data::None),
                FixedSet::SameOctet => (&[Octet, Octet], Data::None),
            },
        };
        Self {
            key,
            data,
            interval: matches!(name, SetName::Sources(_)),
            expires: matches!(name, SetName::Affinity(..)),
        }
    }
}

/// Declaration of a set or map: key and value types, flags, size.
pub(crate) fn shape(name: SetName, family: Family) -> nft::Set {
    let layout = Layout::of(name);
    let fields: Vec<u32> = layout.key.iter().map(|field| field.data_type(family)).collect();
    let lens: Vec<u32> = layout.key.iter().map(|field| field.len(family)).collect();
    let address = Part::Address;
    let endpoint_type = concat_type(&[address.data_type(family), data_type::INET_SERVICE]);
    nft::Set {
        name: name.to_string(),
        key_type: concat_type(&fields),
        key_len: match lens.as_slice() {
            [len] => *len,
            lens => lens.iter().map(|len| len.next_multiple_of(4)).sum(),
        },
        data: match layout.data {
            Data::None => None,
            Data::Verdict => Some(SetData::Verdict),
            Data::Endpoint => Some(SetData::Value { data_type: endpoint_type, len: address.len(family) + 4 }),
        },
        flags: SetFlags {
            interval: layout.interval,
            // For a concatenation the kernel uses another set type for intervals, which is slow beyond some thousand elements.
            concat: false,
            timeout: layout.expires,
            dynamic: layout.expires,
        },
        field_lens: Vec::new(),
        size: match name {
            SetName::Affinity(..) => Some(AFFINITY_SIZE),
            SetName::Fixed(FixedSet::SameOctet) => Some(OCTETS),
            SetName::Fixed(_) | SetName::Members(..) | SetName::Pool(_) | SetName::Sources(_) => None,
        },
        timeout: None,
        userdata: declared_types(name, family),
    }
}

/// Userdata with the `typeof` declarations of keys that hold numbers, which have no plain type: `nft` needs them to print such
/// sets and to load its own output.
fn declared_types(name: SetName, family: Family) -> Vec<u8> {
    if name == SetName::Fixed(FixedSet::SameOctet) {
        // Any header field of one octet works, as long as `nft` has no symbolic names for its values.
        let octet = || match family {
            Family::V4 => TypeofExpr::Payload(PayloadField::IpTtl),
            Family::V6 => TypeofExpr::Payload(PayloadField::Ip6Hoplimit),
        };
        let key = Some(TypeofExpr::Concat(vec![octet(), octet()]));
        return userdata::set(&SetUserdata { key, ..SetUserdata::default() });
    }
    let daddr = match family {
        Family::V4 => PayloadField::IpDaddr,
        Family::V6 => PayloadField::Ip6Daddr,
    };
    let port = || TypeofExpr::Payload(PayloadField::ThDport);
    let slot = TypeofExpr::Numgen { random: true, modulus: SLOTS, offset: 0 };
    let key = match name {
        SetName::Fixed(FixedSet::Endpoints) => {
            TypeofExpr::Concat(vec![TypeofExpr::Payload(daddr), TypeofExpr::L4Proto, port(), slot])
        }
        SetName::Fixed(FixedSet::NodePortEndpoints) => TypeofExpr::Concat(vec![TypeofExpr::L4Proto, port(), slot]),
        SetName::Pool(_) => slot,
        SetName::Fixed(_) | SetName::Affinity(..) | SetName::Members(..) | SetName::Sources(_) => return Vec::new(),
    };
    userdata::set(&SetUserdata {
        key: Some(key),
        data: Some(TypeofExpr::Concat(vec![TypeofExpr::Payload(daddr), port()])),
        comment: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_affinity_maps_expire_and_only_source_ranges_are_intervals() {
        use ferry_api::object::{ObjectName, Protocol};
        use ferry_model::Scope;

        use crate::names::{PortId, SourcesId};
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        let sources = SetName::Sources(SourcesId::of_digest(&[7; 32]));
        let affinity = SetName::Affinity(id, Scope::Local);
        let more = [sources, affinity, SetName::Members(id, Scope::Local), SetName::Pool(id)];
        for name in FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain(more) {
            for family in Family::ALL {
                let flags = shape(name, family).flags;
                assert_eq!((flags.timeout, flags.dynamic), (name == affinity, name == affinity), "{name}");
                assert_eq!((flags.interval, flags.concat), (name == sources, false), "{name}");
            }
        }
    }
}
