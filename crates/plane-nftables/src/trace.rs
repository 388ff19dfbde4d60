//! Simulates the objects on the first packet of a connection: evaluates the same expressions that the kernel evaluates.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ferry_api::object::Family;
use ferry_kernel::nft::{CmpOp, CtKey, Expr, FibAddress, Hook, MetaKey, PayloadBase, Verdict as Go};
use ferry_model::{Context, Endpoint, Packet, Snat, Verdict};
use ferry_plane::Trace;

use crate::compile::Nftables;
use crate::fields;
use crate::names::{ChainName, SetName};
use crate::object::{NftObject, Rules, Value};
use crate::rules::octets;
use crate::sources::Ranges;
use crate::wire;

/// `RTN_LOCAL` and `RTN_UNICAST` of linux/rtnetlink.h.
const RTN_LOCAL: u32 = 2;
const RTN_UNICAST: u32 = 1;
/// `IPS_DST_NAT`
const IPS_DST_NAT: u32 = 1 << 5;
/// The kernel's limit of nested jumps (`NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;
/// Bytes of the kernel's registers, from register 8 on.
const REGISTERS: usize = 64;

/// Traces many packets through the same objects.
pub struct Tracer<'a>(World<'a>);

/// The objects, indexed for lookups.
struct World<'a> {
    family: Family,
    chains: HashMap<String, &'a Rules>,
    /// base chains by hook, in order of priority
    hooks: Vec<(Hook, i32, String)>,
    elements: HashMap<(String, Vec<u8>), Data>,
    ranges: HashMap<String, &'a Ranges>,
}

/// Value of an element in the kernel's form.
#[derive(Clone, Debug)]
enum Data {
    None,
    Value(Vec<u8>),
    Go(Go),
}

/// State of a packet on its way through the hooks.
struct Walk<'a> {
    world: &'a World<'a>,
    packet: &'a Packet,
    destination: IpAddr,
    port: u16,
    translated: bool,
    mark: u32,
    masqueraded: bool,
    registers: [u8; REGISTERS],
    /// the random number that `numgen` yields
    draw: u32,
    drawn: Option<u32>,
}

/// The outcome of a chain.
enum End {
    /// the packet goes on
    Accept,
    Drop,
    Reject,
    /// back to the chain that jumped here
    Return,
}

impl Trace for Nftables {
    fn trace(&self, objects: &[NftObject], packet: &Packet, _context: &Context) -> Verdict {
        Tracer::new(self.family(), objects).trace(packet)
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    pub fn new(family: Family, objects: &'a [NftObject]) -> Self {
        Self(World::new(family, objects))
    }

    /// The verdict of the objects on a packet: with all endpoints that random numbers may yield.
    pub fn trace(&self, packet: &Packet) -> Verdict {
        let mut endpoints = BTreeMap::new();
        let mut draw = 0;
        loop {
            let mut walk = Walk::new(&self.0, packet, draw);
            let verdict = walk.run();
            match verdict {
                Verdict::Forward(to) => endpoints.extend(to),
                other => return other,
            }
            draw += 1;
            if walk.drawn.is_none_or(|of| draw >= of) {
                return Verdict::Forward(endpoints);
            }
        }
    }
}

// === impl World ===

impl<'a> World<'a> {
    fn new(family: Family, objects: &'a [NftObject]) -> Self {
        let mut world =
            Self { family, chains: HashMap::new(), hooks: vec![], elements: HashMap::new(), ranges: HashMap::new() };
        for object in objects {
            match object {
                NftObject::Table(_) | NftObject::Set(_) => {}
                NftObject::Ranges(id, ranges) => {
                    world.ranges.insert(SetName::Sources(*id).to_string(), ranges);
                }
                NftObject::Chain(name, rules) => world.chain(*name, rules),
                NftObject::Element(key, value) => {
                    let (set, bytes) = (key.set().to_string(), wire::key_bytes(key));
                    world.elements.insert((set, bytes.as_slice().to_vec()), Data::of(value));
                }
            }
        }
        world.hooks.sort_by_key(|(_, priority, _)| *priority);
        world.hooks.dedup();
        world
    }

    fn chain(&mut self, name: ChainName, rules: &'a Rules) {
        if let Some(hook) = name.chain().hook {
            self.hooks.push((hook.hook, hook.priority, name.to_string()));
        }
        self.chains.insert(name.to_string(), rules);
    }

    fn lookup(&self, set: &str, key: &[u8]) -> Option<Data> {
        if let Some(ranges) = self.ranges.get(set) {
            let address = fields::address(self.family, key)?;
            return contains(ranges, address).then_some(Data::None);
        }
        self.elements.get(&(set.to_owned(), key.to_vec())).cloned()
    }

    /// The length of a set's keys, taken from any element.
    fn key_len(&self, set: &str) -> Option<usize> {
        if self.ranges.contains_key(set) {
            return Some(octets_of(self.family));
        }
        self.elements.keys().find(|(name, _)| *name == set).map(|(_, key)| key.len())
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

// === impl Data ===

impl Data {
    fn of(value: &Value) -> Self {
        match value {
            Value::None | Value::Foreign => Self::None,
            Value::Endpoint(endpoint) => Self::Value(fields::endpoint_bytes(*endpoint).as_slice().to_vec()),
            Value::Drop => Self::Go(Go::Drop),
            Value::Goto(chain) => Self::Go(Go::Goto(chain.to_string())),
        }
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(world: &'a World<'a>, packet: &'a Packet, draw: u32) -> Self {
        Self {
            world,
            packet,
            destination: packet.destination,
            port: packet.port,
            translated: false,
            mark: 0,
            masqueraded: false,
            registers: [0; REGISTERS],
            draw,
            drawn: None,
        }
    }

    fn run(&mut self) -> Verdict {
        let entry = if self.packet.interface.is_some() { Hook::Prerouting } else { Hook::Output };
        match self.hook(entry) {
            End::Drop => return Verdict::Drop,
            End::Reject => return Verdict::Reject,
            End::Accept | End::Return => {}
        }
        if !self.translated {
            return Verdict::Pass;
        }
        match self.hook(Hook::Postrouting) {
            End::Drop => Verdict::Drop,
            End::Reject => Verdict::Reject,
            End::Accept | End::Return => {
                let snat = if self.masqueraded { Snat::Masquerade } else { Snat::Keep };
                Verdict::Forward([(Endpoint { address: self.destination, port: self.port }, snat)].into())
            }
        }
    }

    /// Runs the base chains of a hook, until one has translated the packet.
    fn hook(&mut self, hook: Hook) -> End {
        let world = self.world;
        for (_, _, chain) in world.hooks.iter().filter(|(at, _, _)| *at == hook) {
            let before = (self.translated, self.masqueraded);
            match self.chain(chain, 0) {
                End::Accept | End::Return => {}
                end @ (End::Drop | End::Reject) => return end,
            }
            if before != (self.translated, self.masqueraded) {
                break;
            }
        }
        End::Accept
    }

    fn chain(&mut self, name: &str, depth: usize) -> End {
        let Some(rules) = self.world.chains.get(name).filter(|_| depth < DEPTH) else { return End::Drop };
        for rule in &*rules.0 {
            match self.rule(&rule.exprs) {
                Some(Step::End(end)) => return end,
                Some(Step::Go(Go::Accept)) => return End::Accept,
                Some(Step::Go(Go::Drop)) => return End::Drop,
                Some(Step::Go(Go::Return)) => return End::Return,
                Some(Step::Go(Go::Goto(chain))) => return self.chain(&chain, depth + 1),
                Some(Step::Go(Go::Jump(chain))) => match self.chain(&chain, depth + 1) {
                    End::Return => {}
                    end => return end,
                },
                None => {}
            }
        }
        End::Return
    }

    /// Runs one rule; `None` if it doesn't match or has no verdict.
    fn rule(&mut self, exprs: &[Expr]) -> Option<Step> {
        self.registers = [0; REGISTERS];
        for expr in exprs {
            if let Some(step) = self.expr(expr)? {
                return Some(step);
            }
        }
        None
    }

    /// Runs one expression: the outer `None` ends the rule, the inner one goes on.
    #[expect(clippy::option_option, reason = "a rule that ends and one that goes on differ")]
    fn expr(&mut self, expr: &Expr) -> Option<Option<Step>> {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                let field = self.payload(*base, *offset, *len)?;
                self.store(dreg.0, &field);
            }
            Expr::Meta { key, dreg } => {
                let value = self.meta(*key)?;
                self.store(dreg.0, &value);
            }
            Expr::SetMeta { sreg, .. } => self.mark = u32::from_ne_bytes(self.load(sreg.0, 4).try_into().ok()?),
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
                return Some(Some(Step::End(End::Accept)));
            }
            Expr::RejectTcpReset | Expr::RejectIcmp { .. } => return Some(Some(Step::End(End::Reject))),
            Expr::Verdict(go) => return Some(Some(Step::Go(go.clone()))),
            Expr::Opaque { .. } => return None,
        }
        Some(None)
    }

    #[expect(clippy::option_option, reason = "as `expr`")]
    fn look(&mut self, set: &str, sreg: u32, dreg: Option<u32>, invert: bool) -> Option<Option<Step>> {
        let found = self.world.key_len(set).and_then(|len| self.world.lookup(set, &self.load(sreg, len)));
        if invert {
            return found.is_none().then_some(None);
        }
        match (found?, dreg) {
            (Data::Go(go), Some(0)) => Some(Some(Step::Go(go))),
            (Data::Value(value), Some(dreg)) => {
                self.store(dreg, &value);
                Some(None)
            }
            (Data::None, None) => Some(None),
            (Data::Go(_) | Data::Value(_) | Data::None, _) => None,
        }
    }

    fn dnat(&mut self, address: u32, port: Option<u32>) -> Step {
        let bytes = self.load(address, octets_of(self.world.family));
        self.destination = match (<[u8; 4]>::try_from(&*bytes), <[u8; 16]>::try_from(&*bytes)) {
            (Ok(v4), _) => v4.into(),
            (_, Ok(v6)) => v6.into(),
            (Err(_), Err(_)) => self.destination,
        };
        if let Some(Ok(port)) = port.map(|port| <[u8; 2]>::try_from(&*self.load(port, 2))) {
            self.port = u16::from_be_bytes(port);
        }
        self.translated = true;
        Step::End(End::Accept)
    }

    fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> Option<Vec<u8>> {
        let before = match self.world.family {
            Family::V4 => 12,
            Family::V6 => 8,
        };
        let (field, at) = match base {
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
            MetaKey::NfProto => return None,
        })
    }

    fn ct(&self, key: CtKey, original: bool) -> Option<Vec<u8>> {
        match (key, original) {
            (CtKey::Status, _) => Some(if self.translated { IPS_DST_NAT } else { 0 }.to_ne_bytes().to_vec()),
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

/// The result of a rule.
enum Step {
    Go(Go),
    End(End),
}

/// Byte offset of a register; the first four-byte one is number 8.
fn offset_of(register: u32) -> usize {
    usize::try_from(register.saturating_sub(8)).unwrap_or(REGISTERS) * 4
}
