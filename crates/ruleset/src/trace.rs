//! Simulates chains and sets on the first packet of a connection: evaluates the same expressions that the kernel evaluates.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::net::IpAddr;

use ferry_api::object::Family;
use ferry_kernel::nft::{
    BaseHook, ChainKind, CmpOp, CtKey, Expr, FibAddress, Hook, MetaKey, PayloadBase, Verdict as Go,
};
use ferry_model::{Endpoint, Packet};
use ferry_plane::PacketPath;

use crate::fields;
use crate::rules::octets;
use crate::sources::Ranges;
use crate::{Rules, TableRule};

/// `RTN_LOCAL` and `RTN_UNICAST` of linux/rtnetlink.h.
const RTN_LOCAL: u32 = 2;
const RTN_UNICAST: u32 = 1;
/// Byte of a TCP header with its flags; those of a connection's first packet: SYN.
const TCP_FLAGS: u32 = 13;
const SYN: u8 = 0x02;
/// `IPS_DST_NAT`
const IPS_DST_NAT: u32 = 1 << 5;
/// The kernel's limit of nested jumps (`NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;
/// Expressions of other programs' rules that decide nothing.
const WITHOUT_EFFECT: [&str; 2] = ["counter", "log"];
/// Bytes of the kernel's registers, from register 8 on.
const REGISTERS: usize = 64;

/// The chains and sets of one table, indexed for lookups.
#[derive(Debug)]
pub struct World<'a> {
    family: Family,
    chains: HashMap<String, &'a Rules>,
    /// base chains, in order of priority
    hooks: Vec<(BaseHook, String)>,
    /// by set, and by key
    elements: HashMap<String, HashMap<Vec<u8>, Element<'a>>>,
    ranges: HashMap<String, &'a Ranges>,
}

/// An element.
#[derive(Clone)]
struct Element<'a> {
    data: Data,
    /// the object
    object: &'a dyn Display,
}

/// Value of an element in the kernel's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// a set's element
    None,
    /// a value
    Value(Vec<u8>),
    /// a verdict
    Go(Go),
}

/// State of a packet on its way through the hooks.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    world: &'a World<'a>,
    packet: &'a Packet,
    destination: IpAddr,
    port: u16,
    translated: bool,
    /// `IPS_…`
    status: u32,
    mark: u32,
    masqueraded: bool,
    registers: [u8; REGISTERS],
    /// the random number that `numgen` yields
    draw: u32,
    drawn: Option<u32>,
    path: PacketPath,
    /// the elements that the current rule has found, as text
    found: Vec<String>,
    /// the current rule has an expression that can't be evaluated, and counts as one that doesn't match
    skipped: bool,
}

/// The outcome of a chain, or of all chains of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// the packet goes on
    Accept,
    /// it is dropped
    Drop,
    /// it is rejected
    Reject,
    /// back to the chain that jumped here
    Return,
}

/// The result of a rule.
enum RuleResult {
    Go(Go),
    End(End),
}

// === impl World ===

impl<'a> World<'a> {
    /// A table of this family without chains and sets.
    pub fn new(family: Family) -> Self {
        Self { family, chains: HashMap::new(), hooks: vec![], elements: HashMap::new(), ranges: HashMap::new() }
    }

    /// Adds a chain, at most once for each name. Of several base chains with one priority the first comes first.
    pub fn chain(&mut self, name: impl Display, hook: Option<BaseHook>, rules: &'a Rules) {
        let name = name.to_string();
        if let Some(hook) = hook.filter(|_| !self.chains.contains_key(&name)) {
            let at = self.hooks.partition_point(|(other, _)| other.priority <= hook.priority);
            self.hooks.insert(at, (hook, name.clone()));
        }
        self.chains.insert(name, rules);
    }

    /// Adds an element of a set or map, with its key as the kernel holds it. `object` describes it.
    pub fn element(&mut self, set: impl Display, key: &[u8], data: Data, object: &'a dyn Display) {
        self.elements.entry(set.to_string()).or_default().insert(key.to_vec(), Element { data, object });
    }

    /// Adds a set of source ranges with all its elements.
    pub fn ranges(&mut self, set: impl Display, ranges: &'a Ranges) {
        self.ranges.insert(set.to_string(), ranges);
    }

    fn lookup(&self, set: &str, key: &[u8]) -> Option<Element<'a>> {
        if let Some(ranges) = self.ranges.get(set) {
            let address = fields::address(self.family, key)?;
            return contains(ranges, address).then_some(Element { data: Data::None, object: &"a range of the set" });
        }
        self.elements.get(set)?.get(key).cloned()
    }

    /// The length of a set's keys, taken from any element.
    fn key_len(&self, set: &str) -> Option<usize> {
        if self.ranges.contains_key(set) {
            return Some(octets_of(self.family));
        }
        self.elements.get(set)?.keys().next().map(Vec::len)
    }
}

fn contains(ranges: &Ranges, address: IpAddr) -> bool {
    let ranges = ranges.as_slice();
    let up_to = ranges.partition_point(|range| range.first <= address);
    up_to.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|range| address <= range.last)
}

fn octets_of(family: Family) -> usize {
    match family {
        Family::V4 => 4,
        Family::V6 => 16,
    }
}

// === impl Element ===

impl fmt::Debug for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.object)
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    /// A packet before its first hook, on this path. `draw` is what random numbers yield, less their lowest value.
    pub fn new(world: &'a World<'a>, packet: &'a Packet, draw: u32, path: PacketPath) -> Self {
        Self {
            world,
            packet,
            destination: packet.destination,
            port: packet.port,
            translated: false,
            status: 0,
            mark: 0,
            masqueraded: false,
            registers: [0; REGISTERS],
            draw,
            drawn: None,
            path,
            found: Vec::new(),
            skipped: false,
        }
    }

    /// The packet's path so far.
    pub fn path(&mut self) -> &mut PacketPath {
        &mut self.path
    }

    /// The packet's whole path.
    pub fn into_path(self) -> PacketPath {
        self.path
    }

    /// Runs the base chains of a hook in order of priority, until one has dropped or rejected the packet. Once one has translated
    /// it, there are no further ones of type nat.
    pub fn hook(&mut self, hook: Hook) -> End {
        let world = self.world;
        let mut translated = false;
        for (base, chain) in world.hooks.iter().filter(|(base, _)| base.hook == hook) {
            if translated && base.kind == ChainKind::Nat {
                continue;
            }
            let before = (self.translated, self.masqueraded);
            if self.path.is_recorded() {
                let at = format!("{hook:?}").to_lowercase();
                self.path.step(0, format_args!("hook {at}, chain {chain} (priority {})", base.priority));
            }
            match self.chain(chain, 0) {
                End::Accept | End::Return => {}
                end @ (End::Drop | End::Reject) => return end,
            }
            translated |= before != (self.translated, self.masqueraded);
        }
        End::Accept
    }

    /// Translates the destination, as something other than a rule does between two hooks.
    pub fn translate(&mut self, to: Endpoint) {
        self.destination = to.address;
        self.port = to.port;
        self.translated = true;
    }

    /// True once the destination has been translated.
    pub fn is_translated(&self) -> bool {
        self.translated
    }

    /// The destination address, after its translation if there was one.
    pub fn destination(&self) -> IpAddr {
        self.destination
    }

    /// The destination port, after its translation if there was one.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The packet's mark.
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// True once a rule has masqueraded the packet.
    pub fn is_masqueraded(&self) -> bool {
        self.masqueraded
    }

    /// The number of values of the last random number; `None` if there was none.
    pub fn drawn(&self) -> Option<u32> {
        self.drawn
    }

    fn chain(&mut self, name: &str, depth: usize) -> End {
        let Some(rules) = self.world.chains.get(name).filter(|_| depth < DEPTH) else {
            self.path.step(depth + 1, format_args!("chain {name} doesn't exist, or the jumps are nested too deep"));
            return End::Drop;
        };
        for rule in &*rules.0 {
            match self.rule(rule, depth) {
                Some(RuleResult::End(end)) => return end,
                Some(RuleResult::Go(Go::Accept)) => return End::Accept,
                Some(RuleResult::Go(Go::Drop)) => return End::Drop,
                Some(RuleResult::Go(Go::Return)) => return End::Return,
                Some(RuleResult::Go(Go::Goto(chain))) => return self.chain(&chain, depth + 1),
                Some(RuleResult::Go(Go::Jump(chain))) => match self.chain(&chain, depth + 1) {
                    End::Return => {}
                    end => return end,
                },
                None => {}
            }
        }
        End::Return
    }

    /// Runs one rule; `None` if it doesn't match or has no verdict.
    fn rule(&mut self, rule: &TableRule, depth: usize) -> Option<RuleResult> {
        self.registers = [0; REGISTERS];
        self.found.clear();
        self.skipped = false;
        let end = self.exprs(&rule.exprs);
        if end.is_some() {
            self.note(rule, depth);
        } else if self.skipped {
            self.path.step(depth + 1, format_args!("not evaluated, as if it didn't match: {rule}"));
        }
        end.flatten()
    }

    /// Runs the expressions of a rule: the outer `None` if one doesn't match, the inner one if none has a verdict.
    #[expect(clippy::option_option, reason = "as `expr`")]
    fn exprs(&mut self, exprs: &[Expr]) -> Option<Option<RuleResult>> {
        for expr in exprs {
            let end = self.expr(expr)?;
            if end.is_some() {
                return Some(end);
            }
        }
        Some(None)
    }

    /// Records a rule that matched, and the elements that it found.
    fn note(&mut self, rule: &TableRule, depth: usize) {
        self.path.step(depth + 1, rule);
        for element in self.found.drain(..) {
            self.path.step(depth + 2, element);
        }
    }

    /// Runs one expression: the outer `None` ends the rule, the inner one goes on.
    #[expect(clippy::option_option, reason = "a rule that ends and one that goes on differ")]
    fn expr(&mut self, expr: &Expr) -> Option<Option<RuleResult>> {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                let field = self.payload(*base, *offset, *len)?;
                self.store(dreg.0, &field);
            }
            Expr::Meta { key, dreg } => {
                let value = self.meta(*key)?;
                self.store(dreg.0, &value);
            }
            Expr::SetMeta { key: MetaKey::Mark, sreg } => {
                self.mark = u32::from_ne_bytes(self.load(sreg.0, 4).try_into().ok()?);
            }
            // Tracing changes no verdict; the kernel refuses to set the others.
            Expr::SetMeta { .. } => {}
            Expr::Cmp { sreg, op, data } => {
                let equal = self.load(sreg.0, data.len()) == *data;
                return (equal == (*op == CmpOp::Eq)).then_some(None);
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                let value = self.load(sreg.0, mask.len());
                let bits: Vec<u8> = value.iter().zip(mask).zip(xor).map(|((v, m), x)| (v & m) ^ x).collect();
                self.store(dreg.0, &bits);
            }
            Expr::Fib { dreg, of } => {
                let local = match of {
                    FibAddress::Source => self.packet.source_local,
                    FibAddress::Destination => self.packet.destination_local && !self.translated,
                };
                let kind = if local { RTN_LOCAL } else { RTN_UNICAST };
                self.store(dreg.0, &kind.to_ne_bytes());
            }
            Expr::Ct { key, original, dreg } => {
                let value = self.ct(*key, *original)?;
                self.store(dreg.0, &value);
            }
            Expr::Numgen { dreg, modulus, offset, .. } => {
                self.drawn = Some(*modulus);
                self.store(dreg.0, &(offset + self.draw).to_ne_bytes());
            }
            Expr::Lookup { set, sreg, dreg, invert } => {
                return self.look(set, sreg.0, dreg.map(|dreg| dreg.0), *invert);
            }
            // Affinity maps start empty, and no verdict of a first packet depends on them.
            Expr::Dynset { .. } => {}
            Expr::Dnat { address, port, .. } => return Some(Some(self.dnat(address.0, port.map(|port| port.0)))),
            Expr::Masquerade { .. } => {
                self.masqueraded = true;
                return Some(Some(RuleResult::End(End::Accept)));
            }
            Expr::RejectTcpReset | Expr::RejectIcmp { .. } => return Some(Some(RuleResult::End(End::Reject))),
            Expr::Verdict(go) => return Some(Some(RuleResult::Go(go.clone()))),
            Expr::Opaque { name, .. } if WITHOUT_EFFECT.contains(&name.as_str()) => {}
            Expr::Opaque { .. } => {
                self.skipped = true;
                return None;
            }
        }
        Some(None)
    }

    #[expect(clippy::option_option, reason = "as `expr`")]
    fn look(&mut self, set: &str, sreg: u32, dreg: Option<u32>, invert: bool) -> Option<Option<RuleResult>> {
        let found = self.world.key_len(set).and_then(|len| self.world.lookup(set, &self.load(sreg, len)));
        if invert {
            return found.is_none().then_some(None);
        }
        let Element { data, object } = found?;
        if self.path.is_recorded() {
            self.found.push(object.to_string());
        }
        match (data, dreg) {
            (Data::Go(go), Some(0)) => Some(Some(RuleResult::Go(go))),
            (Data::Value(value), Some(dreg)) => {
                self.store(dreg, &value);
                Some(None)
            }
            (Data::None, None) => Some(None),
            (Data::Go(_) | Data::Value(_) | Data::None, _) => None,
        }
    }

    fn dnat(&mut self, address: u32, port: Option<u32>) -> RuleResult {
        let bytes = self.load(address, octets_of(self.world.family));
        let address = fields::address(self.world.family, &bytes).unwrap_or(self.destination);
        let port = match port.map(|port| <[u8; 2]>::try_from(&*self.load(port, 2))) {
            Some(Ok(port)) => u16::from_be_bytes(port),
            Some(Err(_)) | None => self.port,
        };
        self.translate(Endpoint { address, port });
        self.status |= IPS_DST_NAT;
        RuleResult::End(End::Accept)
    }

    fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> Option<Vec<u8>> {
        let before = match self.world.family {
            Family::V4 => 12,
            Family::V6 => 8,
        };
        let (field, at) = match base {
            PayloadBase::Transport if offset == TCP_FLAGS => (vec![SYN], TCP_FLAGS),
            PayloadBase::Network => ([octets(self.packet.source), octets(self.destination)].concat(), before),
            PayloadBase::Transport => (self.port.to_be_bytes().to_vec(), 2),
        };
        let first = usize::try_from(offset.checked_sub(at)?).ok()?;
        field.get(first..first + usize::try_from(len).ok()?).map(<[u8]>::to_vec)
    }

    fn meta(&self, key: MetaKey) -> Option<Vec<u8>> {
        Some(match key {
            MetaKey::Mark => self.mark.to_ne_bytes().to_vec(),
            MetaKey::L4Proto => vec![self.packet.protocol.number()],
            MetaKey::IifName => {
                let mut name = self.packet.interface.clone().unwrap_or_default().into_bytes();
                name.resize(16, 0);
                name
            }
            // Unknown: no interface by name, and never loopback.
            MetaKey::OifName => vec![0; 16],
            MetaKey::NfTrace | MetaKey::NfProto => return None,
        })
    }

    fn ct(&self, key: CtKey, original: bool) -> Option<Vec<u8>> {
        match (key, original) {
            (CtKey::Status, _) => Some(self.status.to_ne_bytes().to_vec()),
            // The first packet of a connection is always in its original direction (0).
            (CtKey::Direction, _) => Some(vec![0]),
            (CtKey::DstIp | CtKey::DstIp6, true) => Some(octets(self.packet.destination)),
            (CtKey::ProtoDst, true) => Some(self.packet.port.to_be_bytes().to_vec()),
            (CtKey::DstIp | CtKey::DstIp6 | CtKey::ProtoDst | CtKey::State, _) => None,
        }
    }

    /// Writes whole four-byte registers, as the kernel does.
    fn store(&mut self, register: u32, value: &[u8]) {
        let at = offset_of(register);
        let end = at + value.len().next_multiple_of(4);
        if let Some(room) = self.registers.get_mut(at..end) {
            room.fill(0);
            for (to, from) in room.iter_mut().zip(value) {
                *to = *from;
            }
        }
    }

    fn load(&self, register: u32, len: usize) -> Vec<u8> {
        let at = offset_of(register);
        self.registers.get(at..at + len).unwrap_or_default().to_vec()
    }
}

/// Byte offset of a register; the first four-byte one is number 8.
fn offset_of(register: u32) -> usize {
    usize::try_from(register.saturating_sub(8)).unwrap_or(REGISTERS) * 4
}

#[cfg(test)]
mod tests;
