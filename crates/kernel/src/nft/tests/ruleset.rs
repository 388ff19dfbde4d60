//! A ruleset with every kind of set, chain, expression and element, in the encoding of the `nft` tool.

use ferry_family::Family;

use std::time::Duration;

use crate::nft::userdata::{self, PayloadField, SetUserdata, TypeofExpr};
use crate::nft::*;

use data_type::{INET_PROTO, INET_SERVICE, INTEGER, IPV4_ADDR, IPV6_ADDR};

pub(super) const TCP: u8 = 6;

/// The objects of a ruleset, in the order in which they can be written.
pub(super) struct Ruleset {
    pub(super) sets: Vec<Set>,
    pub(super) chains: Vec<(Chain, Vec<Vec<Expr>>)>,
    pub(super) elements: Vec<(&'static str, Element)>,
}

/// The differences between the families.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) family: Family,
    address_type: u32,
    address_len: u32,
    source_at: u32,
    destination_at: u32,
}

pub(super) const V4: Layout =
    Layout { family: Family::V4, address_type: IPV4_ADDR, address_len: 4, source_at: 12, destination_at: 16 };
pub(super) const V6: Layout =
    Layout { family: Family::V6, address_type: IPV6_ADDR, address_len: 16, source_at: 8, destination_at: 24 };

/// A set with defaults for everything else.
pub(super) fn plain_set(name: &str, key_type: u32, key_len: u32) -> Set {
    Set {
        name: name.to_owned(),
        key_type,
        key_len,
        data: None,
        flags: SetFlags::default(),
        field_lens: Vec::new(),
        size: None,
        timeout: None,
        userdata: Vec::new(),
    }
}

pub(super) fn chain(name: &str) -> Chain {
    Chain { name: name.to_owned(), hook: None }
}

pub(super) fn base_chain(name: &str, kind: ChainKind, hook: Hook, priority: i32) -> Chain {
    Chain { name: name.to_owned(), hook: Some(BaseHook { kind, hook, priority }) }
}

/// A port as a field of a key.
pub(super) fn port(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn meta(key: MetaKey, dreg: u32) -> Expr {
    Expr::Meta { key, dreg: Reg(dreg) }
}

pub(super) fn lookup(set: &str, dreg: Option<u32>) -> Expr {
    Expr::Lookup { set: set.to_owned(), sreg: Reg(8), dreg: dreg.map(Reg), invert: false }
}

fn cmp(data: &[u8]) -> Expr {
    Expr::Cmp { sreg: Reg(8), op: CmpOp::Eq, data: data.to_vec() }
}

fn ct(key: CtKey, original: bool, dreg: u32) -> Expr {
    Expr::Ct { key, original, dreg: Reg(dreg) }
}

fn dport(dreg: u32) -> Expr {
    Expr::Payload { dreg: Reg(dreg), base: PayloadBase::Transport, offset: 2, len: 2 }
}

fn jump(to: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(to.to_owned()))
}

fn goto(to: &str) -> OwnedData {
    OwnedData::Verdict(Verdict::Goto(to.to_owned()))
}

fn octets(fields: &[&[u8]]) -> Octets {
    Octets::new(&fields.concat()).unwrap()
}

fn element(set: &'static str, key: &[&[u8]], data: OwnedData) -> (&'static str, Element) {
    (set, Element { key: octets(key), key_end: None, data, interval_end: false })
}

/// `meta mark set meta mark or 0x4000`
fn set_mark() -> [Expr; 3] {
    let (bit, mask) = (0x4000_u32.to_ne_bytes().to_vec(), (!0x4000_u32).to_ne_bytes().to_vec());
    [
        meta(MetaKey::Mark, 8),
        Expr::Bitwise { sreg: Reg(8), dreg: Reg(8), mask, xor: bit },
        Expr::SetMeta { key: MetaKey::Mark, sreg: Reg(8) },
    ]
}

// === impl Layout ===

impl Layout {
    /// Number of registers of an address.
    fn words(self) -> u32 {
        self.address_len / 4
    }

    pub(super) fn address(self, last: u8) -> Vec<u8> {
        match self.family {
            Family::V4 => vec![192, 0, 2, last],
            Family::V6 => [&[0x20, 1, 0x0d, 0xb8], &[0; 11][..], &[last]].concat(),
        }
    }

    fn source(self, dreg: u32) -> Expr {
        Expr::Payload { dreg: Reg(dreg), base: PayloadBase::Network, offset: self.source_at, len: self.address_len }
    }

    fn destination(self, dreg: u32) -> Expr {
        let (offset, len) = (self.destination_at, self.address_len);
        Expr::Payload { dreg: Reg(dreg), base: PayloadBase::Network, offset, len }
    }

    /// `ip daddr . meta l4proto . th dport`
    pub(super) fn service_key(self) -> [Expr; 3] {
        let behind = 8 + self.words();
        [self.destination(8), meta(MetaKey::L4Proto, behind), dport(behind + 1)]
    }

    fn fields(self) -> (TypeofExpr, TypeofExpr) {
        let address = match self.family {
            Family::V4 => PayloadField::IpDaddr,
            Family::V6 => PayloadField::Ip6Daddr,
        };
        (TypeofExpr::Payload(address), TypeofExpr::Payload(PayloadField::ThDport))
    }

    /// The declaration of the map of endpoints, keyed by service address or, if not `by_address`, by node port.
    pub(super) fn endpoints_notes(self, by_address: bool) -> SetUserdata<'static> {
        let (address, port) = self.fields();
        let slot = TypeofExpr::Numgen { random: true, modulus: 131_072, offset: 0 };
        let mut key = vec![TypeofExpr::L4Proto, port.clone(), slot];
        if by_address {
            key.insert(0, address.clone());
        }
        SetUserdata {
            key: Some(TypeofExpr::Concat(key)),
            data: Some(TypeofExpr::Concat(vec![address, port])),
            comment: None,
        }
    }

    fn sets(self) -> Vec<Set> {
        let address = (self.address_type, self.address_len);
        let endpoint = SetData::Value { data_type: concat_type(&[address.0, INET_SERVICE]), len: address.1 + 4 };
        let service = (concat_type(&[address.0, INET_PROTO, INET_SERVICE]), address.1 + 8);
        let slots = (concat_type(&[address.0, INET_PROTO, INET_SERVICE, INTEGER]), address.1 + 12);
        let node_slots = (concat_type(&[INET_PROTO, INET_SERVICE, INTEGER]), 12);
        let ranges = (concat_type(&[address.0, INET_PROTO, INET_SERVICE, address.0]), 2 * address.1 + 8);
        let map = |name, (key_type, key_len), data| Set { data: Some(data), ..plain_set(name, key_type, key_len) };
        let set = |name, (key_type, key_len)| plain_set(name, key_type, key_len);
        let notes = |by_address| userdata::set(&self.endpoints_notes(by_address));
        vec![
            Set { userdata: notes(true), ..map("endpoints", slots, endpoint) },
            Set { userdata: notes(false), ..map("nodeport-endpoints", node_slots, endpoint) },
            map("service-ips", service, SetData::Verdict),
            map("service-nodeports", (concat_type(&[INET_PROTO, INET_SERVICE]), 8), SetData::Verdict),
            map("learn-tcp", (concat_type(&[address.0, INET_SERVICE]), address.1 + 4), SetData::Verdict),
            map("learn-nodeports-tcp", (INET_SERVICE, 2), SetData::Verdict),
            map("plain", address, SetData::Value { data_type: address.0, len: address.1 }),
            Set {
                flags: SetFlags { interval: true, concat: true, ..SetFlags::default() },
                field_lens: vec![address.1, 1, 2, address.1],
                ..set("source-ranges", ranges)
            },
            set("cluster-ips", address),
            set("hairpin", (concat_type(&[address.0, address.0]), 2 * address.1)),
            Set {
                flags: SetFlags { timeout: true, dynamic: true, ..SetFlags::default() },
                size: Some(65_536),
                timeout: Some(Duration::from_secs(10_800)),
                ..map("affinity-1", address, endpoint)
            },
            Set {
                flags: SetFlags { timeout: true, dynamic: true, ..SetFlags::default() },
                size: Some(1000),
                timeout: Some(Duration::from_secs(60)),
                ..set("seen", address)
            },
            Set { size: Some(512), ..set("endpoints-1", (concat_type(&[address.0, INET_SERVICE]), address.1 + 4)) },
        ]
    }

    fn pick(self, count: u32, offset: u32) -> Vec<Expr> {
        let behind = 8 + self.words();
        let mut rule = self.service_key().to_vec();
        rule.extend([
            Expr::Numgen { dreg: Reg(behind + 2), modulus: count, random: true, offset },
            lookup("endpoints", Some(8)),
            Expr::Dnat { family: self.family, address: Reg(8), port: Some(Reg(behind)) },
        ]);
        rule
    }

    fn service_rules(self) -> Vec<Vec<Expr>> {
        let behind = 8 + self.words();
        let loopback = match self.family {
            Family::V4 => vec![127],
            Family::V6 => [&[0; 15][..], &[1]].concat(),
        };
        let loopback_len = u32::try_from(loopback.len()).unwrap();
        let local = 2_u32.to_ne_bytes();
        let mut ranges = self.service_key().to_vec();
        ranges.push(self.source(behind + 2));
        ranges.push(Expr::Lookup { set: "source-ranges".to_owned(), sreg: Reg(8), dreg: None, invert: true });
        ranges.push(Expr::Verdict(Verdict::Drop));
        vec![
            [&self.service_key()[..], &[lookup("service-ips", Some(0))]].concat(),
            vec![
                Expr::Fib { dreg: Reg(8), of: FibAddress::Destination },
                cmp(&local),
                Expr::Payload {
                    dreg: Reg(8),
                    base: PayloadBase::Network,
                    offset: self.destination_at,
                    len: loopback_len,
                },
                Expr::Cmp { sreg: Reg(8), op: CmpOp::Neq, data: loopback },
                meta(MetaKey::L4Proto, 8),
                dport(9),
                lookup("service-nodeports", Some(0)),
            ],
            [&[Expr::Fib { dreg: Reg(8), of: FibAddress::Source }, cmp(&local)], &set_mark()[..]].concat(),
            ranges,
            vec![
                self.destination(8),
                lookup("cluster-ips", None),
                Expr::Verdict(Verdict::Goto("reject-all".to_owned())),
            ],
        ]
    }

    fn learn_rules(self) -> Vec<Vec<Expr>> {
        let original = match self.family {
            Family::V4 => CtKey::DstIp,
            Family::V6 => CtKey::DstIp6,
        };
        let tcp = [meta(MetaKey::L4Proto, 8), cmp(&[TCP])];
        let behind = 8 + self.words();
        let by_address = [ct(original, true, 8), ct(CtKey::ProtoDst, true, behind), lookup("learn-tcp", Some(0))];
        let by_port = [ct(CtKey::ProtoDst, true, 8), lookup("learn-nodeports-tcp", Some(0))];
        let plain =
            [self.source(8), lookup("plain", Some(8)), Expr::Dnat { family: self.family, address: Reg(8), port: None }];
        vec![[&tcp[..], &by_address].concat(), [&tcp[..], &by_port].concat(), [&tcp[..], &plain].concat()]
    }

    /// `ip daddr . th dport @endpoints-1 update @affinity-1 { ip saddr : ip daddr . th dport }`
    pub(super) fn update_rule(self) -> Vec<Expr> {
        let (words, data) = (self.words(), 12); // the tool gives a key of up to 16 bytes four registers
        vec![
            self.destination(8),
            dport(8 + words),
            lookup("endpoints-1", None),
            self.source(8),
            self.destination(data),
            dport(data + words),
            Expr::Dynset {
                set: "affinity-1".to_owned(),
                op: DynsetOp::Update,
                key: Reg(8),
                data: Some(Reg(data)),
                timeout: None,
            },
        ]
    }

    /// `meta nfproto … accept`, which the tool lists but refuses to load in tables of one family.
    pub(super) fn family_rule(self) -> Vec<Expr> {
        vec![meta(MetaKey::NfProto, 8), cmp(&[self.family.number()]), Expr::Verdict(Verdict::Accept)]
    }

    fn dynset(self, op: DynsetOp, timeout: Option<Duration>) -> Vec<Expr> {
        vec![self.source(8), Expr::Dynset { set: "seen".to_owned(), op, key: Reg(8), data: None, timeout }]
    }

    fn other_rules(self) -> Vec<Vec<Expr>> {
        let mut bridge = b"br0".to_vec();
        bridge.resize(16, 0);
        let mut loopback = b"lo".to_vec();
        loopback.resize(16, 0);
        let not_loopback = Expr::Cmp { sreg: Reg(8), op: CmpOp::Neq, data: loopback };
        let established = vec![
            ct(CtKey::State, false, 8),
            Expr::Bitwise { sreg: Reg(8), dreg: Reg(8), mask: 2_u32.to_ne_bytes().to_vec(), xor: vec![0; 4] },
            Expr::Cmp { sreg: Reg(8), op: CmpOp::Neq, data: vec![0; 4] },
            Expr::Verdict(Verdict::Accept),
        ];
        vec![
            vec![meta(MetaKey::IifName, 8), cmp(&bridge), Expr::Verdict(Verdict::Return)],
            vec![meta(MetaKey::IifName, 8), cmp(b"veth"), jump("empty")],
            vec![meta(MetaKey::OifName, 8), not_loopback, Expr::Verdict(Verdict::Return)],
            vec![ct(CtKey::Direction, false, 8), cmp(&[0]), Expr::Verdict(Verdict::Accept)],
            established,
            vec![
                Expr::Numgen { dreg: Reg(8), modulus: 4, random: false, offset: 10 },
                Expr::SetMeta { key: MetaKey::Mark, sreg: Reg(8) },
            ],
            self.dynset(DynsetOp::Add, Some(Duration::from_secs(30))),
            self.dynset(DynsetOp::Delete, None),
        ]
    }

    fn chains(self) -> Vec<(Chain, Vec<Vec<Expr>>)> {
        let unreachable = match self.family {
            Family::V4 => 3,
            Family::V6 => 4,
        };
        let dnat = {
            let bit = 32_u32.to_ne_bytes().to_vec();
            [
                ct(CtKey::Status, false, 8),
                Expr::Bitwise { sreg: Reg(8), dreg: Reg(8), mask: bit, xor: vec![0; 4] },
                Expr::Cmp { sreg: Reg(8), op: CmpOp::Neq, data: vec![0; 4] },
            ]
        };
        let hairpin = [
            self.source(8),
            self.destination(8 + self.words()),
            lookup("hairpin", None),
            Expr::Masquerade { fully_random: true },
        ];
        let nat = |name, hook, priority| base_chain(name, ChainKind::Nat, hook, priority);
        vec![
            (chain("empty"), vec![]),
            (
                chain("reject-all"),
                vec![
                    vec![meta(MetaKey::L4Proto, 8), cmp(&[TCP]), Expr::RejectTcpReset],
                    vec![Expr::RejectIcmp { code: unreachable }],
                ],
            ),
            (chain("services"), self.service_rules()),
            (chain("learn"), vec![]),
            (chain("int-3"), vec![set_mark().to_vec(), self.pick(3, 0)]),
            (chain("lcl-3"), vec![self.pick(3, 65_536)]),
            (
                nat("nat-prerouting", Hook::Prerouting, -100),
                [vec![vec![jump("services")]], self.learn_rules()].concat(),
            ),
            (nat("nat-output", Hook::Output, -90), vec![vec![jump("services")]]),
            (nat("nat-input", Hook::Input, 100), vec![[&dnat[..], &[jump("learn")]].concat()]),
            (
                nat("nat-postrouting", Hook::Postrouting, 100),
                vec![[&dnat[..], &hairpin].concat(), vec![Expr::Masquerade { fully_random: false }]],
            ),
            (base_chain("filter-forward", ChainKind::Filter, Hook::Forward, 0), self.other_rules()),
        ]
    }

    fn elements(self) -> Vec<(&'static str, Element)> {
        let (vip, pod) = (self.address(1), self.address(200));
        let value = |fields: &[&[u8]]| OwnedData::Value(octets(fields));
        let tcp: &[u8] = &[TCP, 0, 0, 0];
        let endpoint = value(&[&pod, &port(8080)]);
        let range = Element {
            key: octets(&[&vip, tcp, &port(80), &self.address(64)]),
            key_end: Some(octets(&[&vip, tcp, &port(80), &self.address(127)])),
            data: OwnedData::None,
            interval_end: false,
        };
        vec![
            element("endpoints", &[&vip, tcp, &port(80), &0_u32.to_ne_bytes()], endpoint.clone()),
            element("endpoints", &[&vip, tcp, &port(80), &65_536_u32.to_ne_bytes()], endpoint.clone()),
            element("nodeport-endpoints", &[tcp, &port(30080), &7_u32.to_ne_bytes()], endpoint),
            element("service-ips", &[&vip, tcp, &port(80)], goto("int-3")),
            element("service-ips", &[&vip, tcp, &port(81)], OwnedData::Verdict(Verdict::Drop)),
            element("service-ips", &[&vip, tcp, &port(82)], OwnedData::Verdict(Verdict::Jump("empty".to_owned()))),
            element("service-ips", &[&vip, tcp, &port(83)], OwnedData::Verdict(Verdict::Accept)),
            element("service-ips", &[&vip, tcp, &port(84)], OwnedData::Verdict(Verdict::Return)),
            element("service-nodeports", &[tcp, &port(30080)], goto("reject-all")),
            element("learn-nodeports-tcp", &[&30080_u16.to_be_bytes()], goto("learn")),
            element("plain", &[&vip], value(&[&pod])),
            element("cluster-ips", &[&vip], OwnedData::None),
            element("hairpin", &[&pod, &pod], OwnedData::None),
            element("endpoints-1", &[&pod, &port(8080)], OwnedData::None),
            ("source-ranges", range),
        ]
    }

    /// The whole ruleset, except the rule that the tool cannot load in IPv6.
    pub(super) fn ruleset(self) -> Ruleset {
        Ruleset { sets: self.sets(), chains: self.chains(), elements: self.elements() }
    }
}
