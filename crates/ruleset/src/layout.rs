//! Declares sets and maps: key fields, value type, size, flags, and the userdata that the `nft` tool needs to print them.

use ferry_api::object::Family;
use ferry_kernel::nft::userdata::{self, PayloadField, SetUserdata, TypeofExpr};
use ferry_kernel::nft::{self, SetData, SetFlags, concat_type, data_type};

use crate::rules::keyword;

/// One part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// an address of the table's family
    Address,
    /// the number of a transport protocol
    Protocol,
    /// a port
    Port,
    /// a slot; one more than the highest slot
    Slot(u32),
    /// one octet
    Octet,
}

/// Value type of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// none: it is a set
    None,
    /// verdicts
    Verdict,
    /// addresses with ports
    Endpoint,
}

/// Key fields, value type and kind of a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// the fields of a key
    pub key: &'static [KeyPart],
    /// the values
    pub data: Data,
    /// elements are ranges: for each field, if the key has several
    pub interval: bool,
    /// elements are added by rules, and expire
    pub expires: bool,
    /// maximum number of elements
    pub size: Option<u32>,
}

// === impl KeyPart ===

impl KeyPart {
    fn data_type(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) => data_type::IPV4_ADDR,
            (Self::Address, Family::V6) => data_type::IPV6_ADDR,
            (Self::Protocol, _) => data_type::INET_PROTO,
            (Self::Port, _) => data_type::INET_SERVICE,
            (Self::Slot(_) | Self::Octet, _) => data_type::INTEGER,
        }
    }

    /// Bytes without padding.
    fn len(self, family: Family) -> u32 {
        match (self, family) {
            (Self::Address, Family::V4) | (Self::Slot(_), _) => 4,
            (Self::Address, Family::V6) => 16,
            (Self::Protocol | Self::Octet, _) => 1,
            (Self::Port, _) => 2,
        }
    }

    /// A number without a plain type: the tool knows it by an expression of this type only.
    fn is_number(self) -> bool {
        matches!(self, Self::Slot(_) | Self::Octet)
    }

    /// The expression that yields such values, in userdata.
    fn typeof_expr(self, family: Family) -> TypeofExpr {
        match (self, family) {
            (Self::Address, Family::V4) => TypeofExpr::Payload(PayloadField::IpDaddr),
            (Self::Address, Family::V6) => TypeofExpr::Payload(PayloadField::Ip6Daddr),
            (Self::Protocol, _) => TypeofExpr::L4Proto,
            (Self::Port, _) => TypeofExpr::Payload(PayloadField::ThDport),
            (Self::Slot(slots), _) => TypeofExpr::Numgen { random: true, modulus: slots, offset: 0 },
            // Any header field of one octet works, as long as `nft` has no symbolic names for its values.
            (Self::Octet, Family::V4) => TypeofExpr::Payload(PayloadField::IpTtl),
            (Self::Octet, Family::V6) => TypeofExpr::Payload(PayloadField::Ip6Hoplimit),
        }
    }

    /// The expression that yields such values, as text.
    fn expression(self, family: Family) -> String {
        match (self, family) {
            (Self::Address, _) => format!("{} daddr", keyword(family)),
            (Self::Protocol, _) => "meta l4proto".to_owned(),
            (Self::Port, _) => "th dport".to_owned(),
            (Self::Slot(slots), _) => format!("numgen random mod {slots}"),
            (Self::Octet, Family::V4) => "ip ttl".to_owned(),
            (Self::Octet, Family::V6) => "ip6 hoplimit".to_owned(),
        }
    }

    /// The plain type, as text; the expression if there is none.
    fn type_name(self, family: Family) -> String {
        match (self, family) {
            (Self::Address, Family::V4) => "ipv4_addr".to_owned(),
            (Self::Address, Family::V6) => "ipv6_addr".to_owned(),
            (Self::Protocol, _) => "inet_proto".to_owned(),
            (Self::Port, _) => "inet_service".to_owned(),
            (Self::Slot(_) | Self::Octet, _) => self.expression(family),
        }
    }
}

// === impl Layout ===

impl Layout {
    /// A set, or a map, of this key without flags and size.
    pub const fn new(key: &'static [KeyPart], data: Data) -> Self {
        Self { key, data, interval: false, expires: false, size: None }
    }

    /// The set or map of this name without its elements, as sent to the kernel.
    pub fn set(&self, name: String, family: Family) -> nft::Set {
        let fields: Vec<u32> = self.key.iter().map(|field| field.data_type(family)).collect();
        let lens: Vec<u32> = self.key.iter().map(|field| field.len(family)).collect();
        let address = KeyPart::Address;
        let endpoint_type = concat_type(&[address.data_type(family), data_type::INET_SERVICE]);
        let concat = self.interval && self.key.len() > 1;
        nft::Set {
            name,
            key_type: concat_type(&fields),
            key_len: match lens.as_slice() {
                [len] => *len,
                lens => lens.iter().map(|len| len.next_multiple_of(4)).sum(),
            },
            data: match self.data {
                Data::None => None,
                Data::Verdict => Some(SetData::Verdict),
                Data::Endpoint => Some(SetData::Value { data_type: endpoint_type, len: address.len(family) + 4 }),
            },
            flags: SetFlags { interval: self.interval, concat, timeout: self.expires, dynamic: self.expires },
            field_lens: if concat { lens } else { Vec::new() },
            size: self.size,
            timeout: None,
            userdata: self.userdata(family),
        }
    }

    /// Userdata with the `typeof` declarations of keys that hold numbers, which have no plain type: `nft` needs them to print such
    /// sets and to load its own output.
    fn userdata(&self, family: Family) -> Vec<u8> {
        if !self.has_numbers() {
            return Vec::new();
        }
        let exprs = |parts: &[KeyPart]| match parts {
            [part] => part.typeof_expr(family),
            parts => TypeofExpr::Concat(parts.iter().map(|part| part.typeof_expr(family)).collect()),
        };
        let data = (self.data == Data::Endpoint).then(|| exprs(ENDPOINT));
        userdata::set(&SetUserdata { key: Some(exprs(self.key)), data, comment: None })
    }

    /// The types of keys and values as `nft` prints them. Keys with a number have no plain type and are declared by expressions
    /// (`typeof`).
    pub(crate) fn declaration(&self, family: Family) -> String {
        let numbers = self.has_numbers();
        let of = |part: &KeyPart| if numbers { part.expression(family) } else { part.type_name(family) };
        let join = |parts: &[KeyPart]| parts.iter().map(of).collect::<Vec<_>>().join(" . ");
        let data = match self.data {
            Data::None => String::new(),
            Data::Verdict => " : verdict".to_owned(),
            Data::Endpoint => format!(" : {}", join(ENDPOINT)),
        };
        format!("{} {}{data}", if numbers { "typeof" } else { "type" }, join(self.key))
    }

    fn has_numbers(&self) -> bool {
        self.key.iter().any(|part| part.is_number())
    }
}

/// The parts of an endpoint.
const ENDPOINT: &[KeyPart] = &[KeyPart::Address, KeyPart::Port];

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[KeyPart] = &[KeyPart::Address, KeyPart::Protocol, KeyPart::Port, KeyPart::Address];

    #[test]
    fn a_key_of_several_fields_is_padded_and_its_ranges_need_the_fields_lengths() {
        for (family, lens) in [(Family::V4, [4, 1, 2, 4]), (Family::V6, [16, 1, 2, 16])] {
            let plain = Layout::new(KEY, Data::None).set("plain".to_owned(), family);
            assert_eq!((plain.flags, plain.field_lens), (SetFlags::default(), vec![]));
            assert_eq!(plain.key_len, lens.iter().map(|len: &u32| len.next_multiple_of(4)).sum::<u32>());
            let ranges = Layout { interval: true, ..Layout::new(KEY, Data::None) }.set("ranges".to_owned(), family);
            assert_eq!(ranges.flags, SetFlags { interval: true, concat: true, ..SetFlags::default() });
            assert_eq!((ranges.key_len, ranges.field_lens), (plain.key_len, lens.to_vec()));
            let one = Layout { interval: true, ..Layout::new(&KEY[..1], Data::None) }.set("one".to_owned(), family);
            assert_eq!((one.flags.concat, one.key_len, one.field_lens), (false, lens[0], vec![]));
        }
    }

    #[test]
    fn each_part_of_a_key_has_the_kernels_number_of_its_type() {
        let number =
            |part: &'static [KeyPart], family| Layout::new(part, Data::None).set(String::new(), family).key_type;
        let of = |part| [Family::V4, Family::V6].map(|family| number(part, family));
        assert_eq!(of(&[KeyPart::Address]), [7, 8]);
        assert_eq!(of(&[KeyPart::Protocol]), [12, 12]);
        assert_eq!(of(&[KeyPart::Port]), [13, 13]);
        assert_eq!([of(&[KeyPart::Slot(2)]), of(&[KeyPart::Octet])], [[4, 4]; 2]);
    }

    #[test]
    fn only_a_map_to_endpoints_declares_its_values() {
        let declared = |data| Layout::new(&[KeyPart::Slot(9)], data).set("slots".to_owned(), Family::V4).userdata;
        assert_eq!(declared(Data::None), declared(Data::Verdict));
        let key = TypeofExpr::Numgen { random: true, modulus: 9, offset: 0 };
        let endpoint = [TypeofExpr::Payload(PayloadField::IpDaddr), TypeofExpr::Payload(PayloadField::ThDport)];
        let data = Some(TypeofExpr::Concat(endpoint.into()));
        assert_eq!(declared(Data::Endpoint), userdata::set(&SetUserdata { key: Some(key), data, comment: None }));
    }

    #[test]
    fn only_keys_with_numbers_are_declared_by_expressions() {
        let plain = Layout::new(&KEY[..3], Data::Verdict);
        assert_eq!(plain.declaration(Family::V6), "type ipv6_addr . inet_proto . inet_service : verdict");
        assert!(plain.set("plain".to_owned(), Family::V6).userdata.is_empty());
        let slots = Layout::new(&[KeyPart::Port, KeyPart::Slot(9)], Data::Endpoint);
        assert_eq!(slots.declaration(Family::V4), "typeof th dport . numgen random mod 9 : ip daddr . th dport");
        assert!(!slots.set("slots".to_owned(), Family::V4).userdata.is_empty());
    }
}
