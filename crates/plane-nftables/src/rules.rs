//! Writes rules: each step adds the kernel's expressions and their text in the language of the `nft` tool.
//!
//! Registers are used as that tool uses them, so that a ruleset which it prints and loads again is the same byte for byte.

use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::time::Duration;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::nft::{CmpOp, CtKey, DynsetOp, Expr, FibAddress, MetaKey, PayloadBase, Reg, Verdict};
use ferry_model::LocalDetector;

use crate::names::{ChainName, FixedSet, SetName};
use crate::object::Rule;

/// Register of keys: the first of the four-byte registers.
const FIRST: Reg = Reg(8);
/// Register of data beside a key of up to 16 bytes.
const SECOND: Reg = Reg(12);
/// `RTN_LOCAL` of linux/rtnetlink.h: an address of this machine.
const RTN_LOCAL: u32 = 2;
/// `IPS_DST_NAT` of linux/netfilter/nf_conntrack_common.h: the connection's destination was translated.
const IPS_DST_NAT: u32 = 1 << 5;
/// Bytes of an interface name in a register.
const IFNAMSIZ: usize = 16;

/// Writes one rule, left to right.
#[derive(Debug)]
pub(crate) struct RuleWriter {
    family: Family,
    exprs: Vec<Expr>,
    text: String,
}

/// One field of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    Source,
    Destination,
    Protocol,
    Port,
    /// a random slot: number of slots, first slot
    Slot(u32, u32),
    OriginalDestination,
    OriginalPort,
    /// an octet of the source address, counted from 0
    SourceOctet(u32),
    /// an octet of the destination address, counted from 0
    DestinationOctet(u32),
}

/// VIP, protocol and port of the packet.
pub(crate) const VIP: &[Field] = &[Field::Destination, Field::Protocol, Field::Port];
/// Protocol and port of the packet.
pub(crate) const NODE_PORT: &[Field] = &[Field::Protocol, Field::Port];

impl RuleWriter {
    pub(crate) fn new(family: Family) -> Self {
        Self { family, exprs: Vec::new(), text: String::new() }
    }

    // --- matches

    /// Matches packets from pods of this node, or all others if `are` is false. `None` if nothing can match.
    pub(crate) fn pods(self, detector: &LocalDetector, are: bool) -> Option<Self> {
        let (op, sign) = if are { (CmpOp::Eq, "") } else { (CmpOp::Neq, "!= ") };
        match detector {
            LocalDetector::Cidr(net) if net.prefix_len() == 0 => are.then_some(self),
            LocalDetector::Cidr(net) => Some(self.source_in(*net, op, sign)),
            // Longer than the kernel's limit: no interface has such a name.
            LocalDetector::Bridge(name) | LocalDetector::InterfacePrefix(name) if name.len() >= IFNAMSIZ => {
                (!are).then_some(self)
            }
            // A prefix of maximum length is the name.
            LocalDetector::InterfacePrefix(prefix) if prefix.len() + 1 < IFNAMSIZ => {
                Some(self.interface(prefix.clone().into_bytes(), op, sign, &format!("{prefix}*")))
            }
            LocalDetector::Bridge(name) | LocalDetector::InterfacePrefix(name) => {
                let mut data = name.clone().into_bytes();
                data.resize(IFNAMSIZ, 0);
                Some(self.interface(data, op, sign, name))
            }
        }
    }

    fn source_in(mut self, net: IpNet, op: CmpOp, sign: &str) -> Self {
        let offset = self.source_offset();
        self.network(net.trunc(), offset, op);
        let net = net.trunc();
        let family = self.keyword();
        match self.family {
            _ if net.prefix_len() == net.max_prefix_len() => {
                self.say(format_args!("{family} saddr {sign}{}", net.addr()))
            }
            _ => self.say(format_args!("{family} saddr {sign}{net}")),
        }
    }

    fn interface(mut self, data: Vec<u8>, op: CmpOp, sign: &str, name: &str) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::IifName, dreg: FIRST });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op, data });
        self.say(format_args!("iifname {sign}\"{name}\""))
    }

    pub(crate) fn destination_in(mut self, net: IpNet) -> Self {
        let offset = self.destination_offset();
        self.network(net.trunc(), offset, CmpOp::Eq);
        let family = self.keyword();
        let net = net.trunc();
        if net.prefix_len() == 0 { self } else { self.say(format_args!("{family} daddr {net}")) }
    }

    pub(crate) fn destination_not_loopback(self) -> Self {
        let offset = self.destination_offset();
        self.not_loopback(offset, "daddr")
    }

    pub(crate) fn source_not_loopback(self) -> Self {
        let offset = self.source_offset();
        self.not_loopback(offset, "saddr")
    }

    fn not_loopback(mut self, offset: u32, side: &str) -> Self {
        let (len, data, net) = match self.family {
            Family::V4 => (1, vec![127], "127.0.0.0/8"),
            Family::V6 => (16, std::net::Ipv6Addr::LOCALHOST.octets().to_vec(), "::1"),
        };
        self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Network, offset, len });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data });
        let family = self.keyword();
        self.say(format_args!("{family} {side} != {net}"))
    }

    /// Matches hairpin packets: from an address to the same address. No expression compares two fields of a packet, but lookups
    /// in a set of all octets, each paired with itself, do so octet by octet; the last octet first, since addresses of a cluster
    /// begin alike.
    pub(crate) fn reaches_itself(mut self) -> Self {
        for octet in (0..4 * self.address_words()).rev() {
            let key = &[Field::SourceOctet(octet), Field::DestinationOctet(octet)];
            self = self.in_set(key, FixedSet::SameOctet);
        }
        self
    }

    pub(crate) fn address_is_local(mut self, of: FibAddress, is: bool) -> Self {
        let op = if is { CmpOp::Eq } else { CmpOp::Neq };
        self.exprs.push(Expr::Fib { dreg: FIRST, of });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op, data: RTN_LOCAL.to_ne_bytes().to_vec() });
        let side = match of {
            FibAddress::Source => "saddr",
            FibAddress::Destination => "daddr",
        };
        self.say(format_args!("fib {side} type {}local", if is { "" } else { "!= " }))
    }

    pub(crate) fn protocol(mut self, protocol: Protocol) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::L4Proto, dreg: FIRST });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![protocol.number()] });
        self.say(format_args!("meta l4proto {}", protocol.lower()))
    }

    pub(crate) fn translated(mut self) -> Self {
        self.exprs.push(Expr::Ct { key: CtKey::Status, original: false, dreg: FIRST });
        self.bits(IPS_DST_NAT, 0);
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data: vec![0; 4] });
        self.say("ct status dnat")
    }

    pub(crate) fn unmarked(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(mark, 0);
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![0; 4] });
        self.say(format_args!("meta mark & {mark:#010x} == 0x00000000"))
    }

    pub(crate) fn in_set(mut self, key: &[Field], set: FixedSet) -> Self {
        self.load(key, FIRST.0);
        self.exprs.push(lookup(set, None));
        let key = self.key_text(key);
        self.say(format_args!("{key} @{}", set.name()))
    }

    pub(crate) fn member(mut self, set: SetName) -> Self {
        let key = &[Field::Destination, Field::Port];
        self.load(key, FIRST.0);
        self.exprs.push(lookup(set, None));
        let key = self.key_text(key);
        self.say(format_args!("{key} @{set}"))
    }

    pub(crate) fn source_outside(mut self, set: SetName) -> Self {
        self.load(&[Field::Source], FIRST.0);
        self.exprs.push(Expr::Lookup { set: set.to_string(), sreg: FIRST, dreg: None, invert: true });
        let family = self.keyword();
        self.say(format_args!("{family} saddr != @{set}"))
    }

    // --- statements

    pub(crate) fn set_mark(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(!mark, mark);
        self.exprs.push(Expr::SetMeta { key: MetaKey::Mark, sreg: FIRST });
        self.say(format_args!("meta mark set meta mark | {mark:#010x}"))
    }

    pub(crate) fn flip_mark(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(u32::MAX, mark);
        self.exprs.push(Expr::SetMeta { key: MetaKey::Mark, sreg: FIRST });
        self.say(format_args!("meta mark set meta mark ^ {mark:#010x}"))
    }

    /// Records the packet's destination, an endpoint, for its source in an affinity map.
    pub(crate) fn update(mut self, map: SetName, timeout: Duration) -> Self {
        self.load(&[Field::Source], FIRST.0);
        self.load(&[Field::Destination, Field::Port], SECOND.0);
        self.exprs.push(Expr::Dynset {
            set: map.to_string(),
            op: DynsetOp::Update,
            key: FIRST,
            data: Some(SECOND),
            timeout: Some(timeout),
        });
        let (family, seconds) = (self.keyword(), timeout.as_secs());
        self.say(format_args!("update @{map} {{ {family} saddr timeout {seconds}s : {family} daddr . th dport }}"))
    }

    // --- ends

    pub(crate) fn verdict_map(mut self, key: &[Field], map: FixedSet) -> Rule {
        self.load(key, FIRST.0);
        self.exprs.push(lookup(map, Some(Reg(0))));
        let key = self.key_text(key);
        self.say(format_args!("{key} vmap @{}", map.name())).end()
    }

    pub(crate) fn translate(mut self, key: &[Field], map: SetName) -> Rule {
        self.load(key, FIRST.0);
        self.exprs.push(lookup(map, Some(FIRST)));
        let port = Reg(FIRST.0 + self.address_words());
        self.exprs.push(Expr::Dnat { family: self.family, address: FIRST, port: Some(port) });
        let (keyword, key) = (self.keyword(), self.key_text(key));
        self.say(format_args!("dnat {keyword} to {key} map @{map}")).end()
    }

    pub(crate) fn masquerade(mut self) -> Rule {
        self.exprs.push(Expr::Masquerade { fully_random: true });
        self.say("masquerade fully-random").end()
    }

    pub(crate) fn reset(mut self) -> Rule {
        self.exprs.push(Expr::RejectTcpReset);
        self.say("reject with tcp reset").end()
    }

    pub(crate) fn reject(mut self) -> Rule {
        // Port unreachable: code 3 of ICMP, 4 of ICMPv6.
        let code = match self.family {
            Family::V4 => 3,
            Family::V6 => 4,
        };
        self.exprs.push(Expr::RejectIcmp { code });
        self.say("reject").end()
    }

    pub(crate) fn drop_it(mut self) -> Rule {
        self.exprs.push(Expr::Verdict(Verdict::Drop));
        self.say("drop").end()
    }

    pub(crate) fn return_it(mut self) -> Rule {
        self.exprs.push(Expr::Verdict(Verdict::Return));
        self.say("return").end()
    }

    pub(crate) fn goto(mut self, chain: ChainName) -> Rule {
        self.exprs.push(Expr::Verdict(Verdict::Goto(chain.to_string())));
        self.say(format_args!("goto {chain}")).end()
    }

    pub(crate) fn jump(mut self, chain: ChainName) -> Rule {
        self.exprs.push(Expr::Verdict(Verdict::Jump(chain.to_string())));
        self.say(format_args!("jump {chain}")).end()
    }

    /// Ends a rule whose last step is a statement.
    pub(crate) fn end(self) -> Rule {
        Rule { exprs: self.exprs, text: self.text }
    }

    // --- parts

    fn say(mut self, part: impl Display) -> Self {
        let blank = if self.text.is_empty() { "" } else { " " };
        // Writing to a String can't fail.
        let _ = write!(self.text, "{blank}{part}");
        self
    }

    fn keyword(&self) -> &'static str {
        match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    fn address_words(&self) -> u32 {
        match self.family {
            Family::V4 => 1,
            Family::V6 => 4,
        }
    }

    fn source_offset(&self) -> u32 {
        match self.family {
            Family::V4 => 12,
            Family::V6 => 8,
        }
    }

    fn destination_offset(&self) -> u32 {
        match self.family {
            Family::V4 => 16,
            Family::V6 => 24,
        }
    }

    fn bits(&mut self, mask: u32, xor: u32) {
        let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
        self.exprs.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask, xor });
    }

    /// Compares an address with a network: prefixes of whole bytes directly, others by a mask.
    fn network(&mut self, net: IpNet, offset: u32, op: CmpOp) {
        if net.prefix_len() == 0 {
            return;
        }
        let (address, mask) = (octets(net.addr()), octets(net.netmask()));
        let bytes = usize::from(net.prefix_len() / 8);
        if net.prefix_len().is_multiple_of(8) {
            let data: Vec<u8> = address.into_iter().take(bytes).collect();
            let len = u32::from(net.prefix_len() / 8);
            self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Network, offset, len });
            self.exprs.push(Expr::Cmp { sreg: FIRST, op, data });
        } else {
            let len = 4 * self.address_words();
            let xor = vec![0; address.len()];
            self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Network, offset, len });
            self.exprs.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask, xor });
            self.exprs.push(Expr::Cmp { sreg: FIRST, op, data: address });
        }
    }

    /// Loads fields into consecutive registers; returns the register behind them.
    fn load(&mut self, key: &[Field], first: u32) -> u32 {
        let address = 4 * self.address_words();
        let mut register = first;
        for field in key {
            let dreg = Reg(register);
            let network = |offset| Expr::Payload { dreg, base: PayloadBase::Network, offset, len: address };
            let octet = |offset| Expr::Payload { dreg, base: PayloadBase::Network, offset, len: 1 };
            let (expr, words) = match field {
                Field::Source => (network(self.source_offset()), self.address_words()),
                Field::Destination => (network(self.destination_offset()), self.address_words()),
                Field::Protocol => (Expr::Meta { key: MetaKey::L4Proto, dreg }, 1),
                Field::Port => (Expr::Payload { dreg, base: PayloadBase::Transport, offset: 2, len: 2 }, 1),
                Field::Slot(modulus, offset) => {
                    (Expr::Numgen { dreg, modulus: *modulus, random: true, offset: *offset }, 1)
                }
                Field::OriginalDestination => {
                    let key = match self.family {
                        Family::V4 => CtKey::DstIp,
                        Family::V6 => CtKey::DstIp6,
                    };
                    (Expr::Ct { key, original: true, dreg }, self.address_words())
                }
                Field::OriginalPort => (Expr::Ct { key: CtKey::ProtoDst, original: true, dreg }, 1),
                Field::SourceOctet(at) => (octet(self.source_offset() + at), 1),
                Field::DestinationOctet(at) => (octet(self.destination_offset() + at), 1),
            };
            self.exprs.push(expr);
            register += words;
        }
        register
    }

    fn key_text(&self, key: &[Field]) -> String {
        let family = self.keyword();
        let parts: Vec<String> = key
            .iter()
            .map(|field| match field {
                Field::Source => format!("{family} saddr"),
                Field::Destination => format!("{family} daddr"),
                Field::Protocol => "meta l4proto".to_owned(),
                Field::Port => "th dport".to_owned(),
                Field::Slot(modulus, 0) => format!("numgen random mod {modulus}"),
                Field::Slot(modulus, offset) => format!("numgen random mod {modulus} offset {offset}"),
                Field::OriginalDestination => format!("ct original {family} daddr"),
                Field::OriginalPort => "ct original proto-dst".to_owned(),
                Field::SourceOctet(at) => format!("@nh,{},8", 8 * (self.source_offset() + at)),
                Field::DestinationOctet(at) => format!("@nh,{},8", 8 * (self.destination_offset() + at)),
            })
            .collect();
        parts.join(" . ")
    }
}

fn lookup(set: impl Into<SetName>, dreg: Option<Reg>) -> Expr {
    Expr::Lookup { set: set.into().to_string(), sreg: FIRST, dreg, invert: false }
}

impl From<FixedSet> for SetName {
    fn from(set: FixedSet) -> Self {
        Self::Fixed(set)
    }
}

/// The bytes of an address in network order.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods(detector: &LocalDetector, are: bool) -> Option<Rule> {
        RuleWriter::new(Family::V4).pods(detector, are).map(RuleWriter::end)
    }

    fn text(detector: &LocalDetector) -> [Option<String>; 2] {
        [true, false].map(|are| pods(detector, are).map(|rule| rule.text))
    }

    fn cidr(net: &str) -> LocalDetector {
        LocalDetector::Cidr(net.parse().unwrap())
    }

    fn some(texts: [&str; 2]) -> [Option<String>; 2] {
        texts.map(|text| Some(text.to_owned()))
    }

    #[test]
    fn a_range_of_every_address_needs_no_match_and_leaves_none_outside() {
        assert_eq!(text(&cidr("0.0.0.0/0")), [Some(String::new()), None]);
        assert_eq!(pods(&cidr("0.0.0.0/0"), true).unwrap().exprs, []);
        assert_eq!(text(&cidr("10.0.0.0/8")), some(["ip saddr 10.0.0.0/8", "ip saddr != 10.0.0.0/8"]));
        assert_eq!(text(&cidr("10.0.0.1/32")), some(["ip saddr 10.0.0.1", "ip saddr != 10.0.0.1"]));
    }

    #[test]
    fn pod_ranges_are_compared_by_whole_octets_or_by_a_mask() {
        let lens = |net: &str| -> Vec<usize> {
            let exprs = pods(&cidr(net), true).unwrap().exprs;
            exprs
                .iter()
                .filter_map(|expr| if let Expr::Cmp { data, .. } = expr { Some(data.len()) } else { None })
                .collect()
        };
        assert_eq!([lens("10.0.0.0/8"), lens("10.244.0.0/16"), lens("10.240.0.0/12")], [[1], [2], [4]]);
        let masked = pods(&cidr("10.240.0.0/12"), true).unwrap().exprs;
        assert!(matches!(&masked[1], Expr::Bitwise { mask, .. } if *mask == [255, 240, 0, 0]), "{masked:?}");
    }

    #[test]
    fn an_interface_is_compared_by_its_whole_name_and_a_prefix_without_its_end() {
        let data = |detector: &LocalDetector| match &pods(detector, true).unwrap().exprs[..] {
            [Expr::Meta { key: MetaKey::IifName, .. }, Expr::Cmp { data, .. }] => data.clone(),
            exprs => panic!("{exprs:?}"),
        };
        let bridge = LocalDetector::Bridge("cni0".into());
        assert_eq!(text(&bridge), some(["iifname \"cni0\"", "iifname != \"cni0\""]));
        assert_eq!(data(&bridge), b"cni0\0\0\0\0\0\0\0\0\0\0\0\0");
        let prefix = LocalDetector::InterfacePrefix("veth".into());
        assert_eq!(text(&prefix), some(["iifname \"veth*\"", "iifname != \"veth*\""]));
        assert_eq!(data(&prefix), b"veth");
        let longest = LocalDetector::InterfacePrefix("a".repeat(14).as_str().into());
        assert_eq!(data(&longest), "a".repeat(14).as_bytes());
    }

    #[test]
    fn a_prefix_as_long_as_a_name_can_be_is_the_name() {
        let name = "a".repeat(15);
        for detector in [LocalDetector::InterfacePrefix, LocalDetector::Bridge].map(|make| make(name.as_str().into())) {
            let rule = pods(&detector, true).unwrap();
            assert_eq!(rule.text, format!("iifname \"{name}\""));
            let whole = [name.as_bytes(), &[0]].concat();
            assert!(matches!(&rule.exprs[1], Expr::Cmp { data, .. } if *data == whole), "{rule:?}");
        }
    }

    #[test]
    fn no_pod_comes_from_an_interface_whose_name_is_too_long() {
        let name = "a".repeat(16);
        for detector in [LocalDetector::InterfacePrefix, LocalDetector::Bridge].map(|make| make(name.as_str().into())) {
            assert_eq!(text(&detector), [None, Some(String::new())]);
        }
    }
}
