//! Writes rules: each step adds the kernel's expressions and their text in the language of the `nft` tool.
//!
//! Registers are used as that tool uses them, so that a ruleset which it prints and loads again is the same byte for byte.

mod field;

use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::time::Duration;

use ferry_api::object::{Family, IpNet, Protocol};
use ferry_kernel::nft::{CmpOp, CtKey, DynsetOp, Expr, FibAddress, MetaKey, PayloadBase, Reg, Verdict};
use ferry_model::LocalDetector;
use field::{address_words, destination_offset, source_offset};

use crate::TableRule;

pub(crate) use field::keyword;
pub use field::{Field, NODE_PORT, VIP};

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
/// Numbers of linux/in.h and linux/in6.h.
const IPPROTO_ICMP: u8 = 1;
const IPPROTO_ICMPV6: u8 = 58;
/// Types of linux/icmp.h and linux/icmpv6.h.
const ICMP_ECHO: u8 = 8;
const ICMPV6_ECHO_REQUEST: u8 = 128;
/// The byte of a TCP header with its flags, and `SYN` there.
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
/// `enum ip_conntrack_dir` of linux/netfilter/nf_conntrack_tuple_common.h.
const IP_CT_DIR_ORIGINAL: u8 = 0;

/// Writes one rule, left to right.
#[derive(Debug)]
pub struct RuleWriter {
    family: Family,
    exprs: Vec<Expr>,
    text: String,
}

impl RuleWriter {
    /// An empty rule in a table of this family.
    pub fn new(family: Family) -> Self {
        Self { family, exprs: Vec::new(), text: String::new() }
    }

    // --- matches

    /// Matches packets from pods of this node, or all others if `are` is false. `None` if nothing can match.
    pub fn pods(self, detector: &LocalDetector, are: bool) -> Option<Self> {
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
                Some(self.interface(whole_name(name), op, sign, name))
            }
        }
    }

    fn source_in(mut self, net: IpNet, op: CmpOp, sign: &str) -> Self {
        let offset = source_offset(self.family);
        self.network(net.trunc(), offset, op);
        let net = net.trunc();
        let family = keyword(self.family);
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

    /// Matches packets that leave by another interface than this one, or that have no output interface yet. A name longer than the
    /// kernel's limit is no interface's.
    pub fn outgoing_not(mut self, interface: &str) -> Self {
        if interface.len() >= IFNAMSIZ {
            return self;
        }
        self.exprs.push(Expr::Meta { key: MetaKey::OifName, dreg: FIRST });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data: whole_name(interface) });
        self.say(format_args!("oifname != \"{interface}\""))
    }

    /// Matches packets to this network.
    pub fn destination_in(mut self, net: IpNet) -> Self {
        let offset = destination_offset(self.family);
        self.network(net.trunc(), offset, CmpOp::Eq);
        let family = keyword(self.family);
        let net = net.trunc();
        if net.prefix_len() == 0 { self } else { self.say(format_args!("{family} daddr {net}")) }
    }

    /// Matches packets to addresses outside the loopback network.
    pub fn destination_not_loopback(self) -> Self {
        let offset = destination_offset(self.family);
        self.not_loopback(offset, "daddr")
    }

    /// Matches packets from addresses outside the loopback network.
    pub fn source_not_loopback(self) -> Self {
        let offset = source_offset(self.family);
        self.not_loopback(offset, "saddr")
    }

    fn not_loopback(mut self, offset: u32, side: &str) -> Self {
        let (len, data, net) = match self.family {
            Family::V4 => (1, vec![127], "127.0.0.0/8"),
            Family::V6 => (16, std::net::Ipv6Addr::LOCALHOST.octets().to_vec(), "::1"),
        };
        self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Network, offset, len });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data });
        let family = keyword(self.family);
        self.say(format_args!("{family} {side} != {net}"))
    }

    /// Matches hairpin packets: from an address to the same address. No expression compares two fields of a packet, but lookups
    /// in `octets`, a set of all octets, each paired with itself, do so octet by octet; the last octet first, since addresses of a
    /// cluster begin alike.
    pub fn reaches_itself(mut self, octets: impl Display) -> Self {
        for octet in (0..4 * address_words(self.family)).rev() {
            let key = &[Field::SourceOctet(octet), Field::DestinationOctet(octet)];
            self = self.in_set(key, &octets);
        }
        self
    }

    /// Matches packets whose address is, or is not, one of this machine.
    pub fn address_is_local(mut self, of: FibAddress, is: bool) -> Self {
        let op = if is { CmpOp::Eq } else { CmpOp::Neq };
        self.exprs.push(Expr::Fib { dreg: FIRST, of });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op, data: RTN_LOCAL.to_ne_bytes().to_vec() });
        let side = match of {
            FibAddress::Source => "saddr",
            FibAddress::Destination => "daddr",
        };
        self.say(format_args!("fib {side} type {}local", if is { "" } else { "!= " }))
    }

    /// Matches packets of this protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.l4_protocol(protocol.number());
        self.say(format_args!("meta l4proto {}", protocol.lower()))
    }

    /// Matches TCP packets to the ports in a set.
    pub fn tcp_port_in(mut self, set: impl Display) -> Self {
        self.l4_protocol(Protocol::Tcp.number());
        self.load(&[Field::Port], FIRST.0);
        self.lookup(&set, None, false);
        self.say(format_args!("tcp dport @{set}"))
    }

    /// Matches ICMP, or ICMPv6, echo requests.
    pub fn icmp_echo_request(mut self) -> Self {
        let (protocol, request, keyword) = match self.family {
            Family::V4 => (IPPROTO_ICMP, ICMP_ECHO, "icmp"),
            Family::V6 => (IPPROTO_ICMPV6, ICMPV6_ECHO_REQUEST, "icmpv6"),
        };
        self.l4_protocol(protocol);
        self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Transport, offset: 0, len: 1 });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![request] });
        self.say(format_args!("{keyword} type echo-request"))
    }

    /// Matches TCP packets that open no connection.
    pub fn tcp_without_syn(mut self) -> Self {
        self.l4_protocol(Protocol::Tcp.number());
        self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Transport, offset: TCP_FLAGS, len: 1 });
        self.exprs.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: vec![SYN], xor: vec![0] });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![0] });
        self.say("tcp flags ! syn")
    }

    /// Matches packets in the direction of the connection's first one.
    pub fn original_direction(mut self) -> Self {
        self.exprs.push(Expr::Ct { key: CtKey::Direction, original: false, dreg: FIRST });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![IP_CT_DIR_ORIGINAL] });
        self.say("ct direction original")
    }

    /// Matches packets of connections whose destination the kernel's NAT has translated.
    pub fn translated(mut self) -> Self {
        self.exprs.push(Expr::Ct { key: CtKey::Status, original: false, dreg: FIRST });
        self.bits(IPS_DST_NAT, 0);
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Neq, data: vec![0; 4] });
        self.say("ct status dnat")
    }

    /// Matches packets without these bits in their mark.
    pub fn unmarked(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(mark, 0);
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![0; 4] });
        self.say(format_args!("meta mark & {mark:#010x} == 0x00000000"))
    }

    /// Matches packets whose key is in a set.
    pub fn in_set(mut self, key: &[Field], set: impl Display) -> Self {
        self.load(key, FIRST.0);
        self.lookup(&set, None, false);
        let key = self.key_text(key);
        self.say(format_args!("{key} @{set}"))
    }

    /// Matches packets whose key is not in a set.
    pub fn outside_set(mut self, key: &[Field], set: impl Display) -> Self {
        self.load(key, FIRST.0);
        self.lookup(&set, None, true);
        let key = self.key_text(key);
        self.say(format_args!("{key} != @{set}"))
    }

    /// Matches packets to the addresses in a set.
    pub fn destination_in_set(self, set: impl Display) -> Self {
        self.in_set(&[Field::Destination], set)
    }

    /// Matches packets from the addresses in a set.
    pub fn source_in_set(self, set: impl Display) -> Self {
        self.in_set(&[Field::Source], set)
    }

    /// Matches packets from other addresses than those in a set.
    pub fn source_outside(self, set: impl Display) -> Self {
        self.outside_set(&[Field::Source], set)
    }

    // --- statements

    /// Sets these bits of the packet's mark.
    pub fn set_mark(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(!mark, mark);
        self.exprs.push(Expr::SetMeta { key: MetaKey::Mark, sreg: FIRST });
        self.say(format_args!("meta mark set meta mark | {mark:#010x}"))
    }

    /// Flips these bits of the packet's mark.
    pub fn flip_mark(mut self, mark: u32) -> Self {
        self.exprs.push(Expr::Meta { key: MetaKey::Mark, dreg: FIRST });
        self.bits(u32::MAX, mark);
        self.exprs.push(Expr::SetMeta { key: MetaKey::Mark, sreg: FIRST });
        self.say(format_args!("meta mark set meta mark ^ {mark:#010x}"))
    }

    /// Records the packet's destination, an endpoint, for its source in a map of clients.
    pub fn update(mut self, map: impl Display, timeout: Duration) -> Self {
        self.load(&[Field::Source], FIRST.0);
        self.load(&[Field::Destination, Field::Port], SECOND.0);
        self.exprs.push(Expr::Dynset {
            set: map.to_string(),
            op: DynsetOp::Update,
            key: FIRST,
            data: Some(SECOND),
            timeout: Some(timeout),
        });
        let (family, seconds) = (keyword(self.family), timeout.as_secs());
        self.say(format_args!("update @{map} {{ {family} saddr timeout {seconds}s : {family} daddr . th dport }}"))
    }

    // --- ends

    /// Applies the verdict that a map holds for the packet's key; without one, the packet goes on to the next rule.
    pub fn verdict_map(mut self, key: &[Field], map: impl Display) -> TableRule {
        self.load(key, FIRST.0);
        self.lookup(&map, Some(Reg::VERDICT), false);
        let key = self.key_text(key);
        self.say(format_args!("{key} vmap @{map}")).end()
    }

    /// Translates the destination to the endpoint that a map holds for the packet's key.
    pub fn translate(mut self, key: &[Field], map: impl Display) -> TableRule {
        self.load(key, FIRST.0);
        self.lookup(&map, Some(FIRST), false);
        let port = Reg(FIRST.0 + address_words(self.family));
        self.exprs.push(Expr::Dnat { family: self.family, address: FIRST, port: Some(port) });
        let (keyword, key) = (keyword(self.family), self.key_text(key));
        self.say(format_args!("dnat {keyword} to {key} map @{map}")).end()
    }

    /// Translates the source to an address of the outgoing interface.
    pub fn masquerade(mut self) -> TableRule {
        self.exprs.push(Expr::Masquerade { fully_random: true });
        self.say("masquerade fully-random").end()
    }

    /// Rejects with a TCP reset.
    pub fn reset(mut self) -> TableRule {
        self.exprs.push(Expr::RejectTcpReset);
        self.say("reject with tcp reset").end()
    }

    /// Rejects with ICMP port unreachable.
    pub fn reject(mut self) -> TableRule {
        // Port unreachable: code 3 of ICMP, 4 of ICMPv6.
        let code = match self.family {
            Family::V4 => 3,
            Family::V6 => 4,
        };
        self.exprs.push(Expr::RejectIcmp { code });
        self.say("reject").end()
    }

    /// Accepts the packet at this hook.
    pub fn accept(mut self) -> TableRule {
        self.exprs.push(Expr::Verdict(Verdict::Accept));
        self.say("accept").end()
    }

    /// Drops the packet.
    pub fn drop_it(mut self) -> TableRule {
        self.exprs.push(Expr::Verdict(Verdict::Drop));
        self.say("drop").end()
    }

    /// Returns to the calling chain.
    pub fn return_it(mut self) -> TableRule {
        self.exprs.push(Expr::Verdict(Verdict::Return));
        self.say("return").end()
    }

    /// Continues in a chain, without return.
    pub fn goto(mut self, chain: impl Display) -> TableRule {
        self.exprs.push(Expr::Verdict(Verdict::Goto(chain.to_string())));
        self.say(format_args!("goto {chain}")).end()
    }

    /// Continues in a chain, and returns from it.
    pub fn jump(mut self, chain: impl Display) -> TableRule {
        self.exprs.push(Expr::Verdict(Verdict::Jump(chain.to_string())));
        self.say(format_args!("jump {chain}")).end()
    }

    /// Ends a rule whose last step is a statement.
    pub fn end(self) -> TableRule {
        TableRule { exprs: self.exprs, text: self.text }
    }

    // --- parts

    fn say(mut self, part: impl Display) -> Self {
        let blank = if self.text.is_empty() { "" } else { " " };
        // Writing to a String can't fail.
        let _ = write!(self.text, "{blank}{part}");
        self
    }

    fn l4_protocol(&mut self, number: u8) {
        self.exprs.push(Expr::Meta { key: MetaKey::L4Proto, dreg: FIRST });
        self.exprs.push(Expr::Cmp { sreg: FIRST, op: CmpOp::Eq, data: vec![number] });
    }

    fn lookup(&mut self, set: &impl Display, dreg: Option<Reg>, invert: bool) {
        self.exprs.push(Expr::Lookup { set: set.to_string(), sreg: FIRST, dreg, invert });
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
            let len = 4 * address_words(self.family);
            let xor = vec![0; address.len()];
            self.exprs.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Network, offset, len });
            self.exprs.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask, xor });
            self.exprs.push(Expr::Cmp { sreg: FIRST, op, data: address });
        }
    }

    /// Loads fields into consecutive registers.
    fn load(&mut self, key: &[Field], first: u32) {
        let mut register = first;
        for field in key {
            let (expr, words) = field.load(self.family, Reg(register));
            self.exprs.push(expr);
            register += words;
        }
    }

    fn key_text(&self, key: &[Field]) -> String {
        let parts: Vec<String> = key.iter().map(|field| field.text(self.family)).collect();
        parts.join(" . ")
    }
}

/// The name of an interface as the kernel holds it.
fn whole_name(interface: &str) -> Vec<u8> {
    let mut name = interface.as_bytes().to_vec();
    name.resize(IFNAMSIZ, 0);
    name
}

/// The bytes of an address in network order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests;
