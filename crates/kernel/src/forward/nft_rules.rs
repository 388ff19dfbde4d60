//! Decodes rules of nf_tables, those of `iptables-nft` included, as far as they are understood.

use std::io;

use super::Traffic;
use super::walk::{Effect, ForwardRule, RuleCondition, States};
use super::xt::{self, Extension};
use crate::nft::{CmpOp, CtKey, Expr, NftSocket, OwnedData, PayloadBase, Reg, TableFamily, Verdict};

/// `IPS_DST_NAT`, the bit of `ct status dnat`
const STATUS_TRANSLATED: u32 = 1 << 5;
/// Bits of `ct state` that [`States`] has, too.
const STATE_BITS: u32 = 0b1110;
/// Expressions that have no effect on the packet. `reject` is one whose form this program doesn't write.
const COUNTER: &str = "counter";
const LOG: &str = "log";
const REJECT: &str = "reject";

/// Name of the comment's owner, and the table in which sets are looked up.
struct Decoder<'a> {
    socket: &'a mut NftSocket,
    table: (TableFamily, &'a str),
}

/// Reads the rules of a chain. Own rules are those with this comment.
pub(super) fn read(
    socket: &mut NftSocket,
    table: (TableFamily, &str),
    chain: &str,
    comment: &str,
) -> io::Result<Vec<ForwardRule>> {
    let rules = socket.rules(table.0, table.1, Some(chain))?;
    let mut decoder = Decoder { socket, table };
    let rules = rules.into_iter().map(|(_, rule)| {
        let own = rule.comment.as_deref() == Some(comment) || has_comment(&rule.exprs, comment);
        Ok(ForwardRule { handle: rule.handle, own, effect: decoder.effect(&rule.exprs)? })
    });
    rules.collect()
}

/// The expressions of the rule that accepts this traffic.
pub(super) fn rule(traffic: Traffic) -> Vec<Expr> {
    const REGISTER: Reg = Reg(8);
    let (key, bits) = match traffic {
        Traffic::Established => (CtKey::State, u32::from(traffic.states().0)),
        Traffic::Translated => (CtKey::Status, STATUS_TRANSLATED),
    };
    vec![
        Expr::Ct { key, original: false, dreg: REGISTER },
        Expr::Bitwise { sreg: REGISTER, dreg: REGISTER, mask: bits.to_ne_bytes().into(), xor: vec![0; 4] },
        Expr::Cmp { sreg: REGISTER, op: CmpOp::Neq, data: vec![0; 4] },
        Expr::Verdict(Verdict::Accept),
    ]
}

/// True if a match of iptables holds this comment: versions of the tool before 1.8.10 write it so.
fn has_comment(exprs: &[Expr], comment: &str) -> bool {
    exprs
        .iter()
        .filter_map(extension)
        .any(|found| found.is(xt::COMMENT) && xt::until_nul(found.info) == comment.as_bytes())
}

/// The match of iptables in an expression.
fn extension(expr: &Expr) -> Option<Extension<'_>> {
    match expr {
        Expr::Opaque { name, data } if name == xt::MATCH => Extension::decode(data).ok(),
        _ => None,
    }
}

fn has_effect(expr: &Expr) -> bool {
    match expr {
        Expr::Opaque { name, .. } if name == COUNTER || name == LOG => false,
        _ => extension(expr).is_none_or(|found| !found.is(xt::COMMENT)),
    }
}

/// Expressions after which no other is evaluated, as verdicts; a rejection drops.
fn verdict(expr: &Expr) -> Option<Verdict> {
    match expr {
        Expr::Verdict(verdict) => Some(verdict.clone()),
        Expr::RejectTcpReset | Expr::RejectIcmp { .. } => Some(Verdict::Drop),
        Expr::Opaque { name, .. } if name == REJECT => Some(Verdict::Drop),
        Expr::Opaque { name, data } if name == xt::TARGET => {
            Extension::decode(data).ok().filter(|target| target.is(xt::REJECT)).map(|_| Verdict::Drop)
        }
        _ => None,
    }
}

// === impl Decoder ===

impl Decoder<'_> {
    fn effect(&mut self, exprs: &[Expr]) -> io::Result<Effect> {
        let exprs: Vec<&Expr> = exprs.iter().filter(|expr| has_effect(expr)).collect();
        let Some((last, conditions)) = exprs.split_last() else { return Ok(Effect::Unclear) };
        if let Expr::Lookup { set, sreg, dreg: Some(Reg::VERDICT), invert: false } = last {
            return self.state_map(conditions, *sreg, set);
        }
        Ok(match (verdict(last), conditions) {
            (Some(Verdict::Accept), conditions) => self.condition(conditions)?.map_or(Effect::Unclear, Effect::Accept),
            (Some(Verdict::Drop), []) => Effect::Drop,
            (Some(Verdict::Return), []) => Effect::Return,
            (Some(Verdict::Jump(chain)), []) => Effect::Jump(chain),
            (Some(Verdict::Goto(chain)), []) => Effect::Goto(chain),
            _ => Effect::Unclear,
        })
    }

    /// `ct state vmap { established : accept, … }`
    fn state_map(&mut self, conditions: &[&Expr], key: Reg, map: &str) -> io::Result<Effect> {
        match conditions {
            [Expr::Ct { key: CtKey::State, original: false, dreg }] if *dreg == key => {
                let accepted = |data: &OwnedData| matches!(data, OwnedData::Verdict(Verdict::Accept));
                Ok(Effect::Accept(RuleCondition::States(self.states(map, &accepted)?)))
            }
            _ => Ok(Effect::Unclear),
        }
    }

    fn condition(&mut self, exprs: &[&Expr]) -> io::Result<Option<RuleCondition>> {
        let states = |bits: u32| RuleCondition::States(States(u16::try_from(bits & STATE_BITS).unwrap_or(0)));
        Ok(match exprs {
            [] => Some(RuleCondition::Always),
            [expr] => extension(expr).and_then(|found| found.states()).map(RuleCondition::States),
            [
                Expr::Ct { key: CtKey::State, original: false, dreg },
                Expr::Lookup { set, sreg, dreg: None, invert: false },
            ] if dreg == sreg => Some(RuleCondition::States(self.states(set, &|_| true)?)),
            [
                Expr::Ct { key, original: false, .. },
                Expr::Bitwise { mask, .. },
                Expr::Cmp { op: CmpOp::Neq, data, .. },
            ] if data.iter().all(|byte| *byte == 0) => match (key, host_number(mask)) {
                (CtKey::State, Some(bits)) => Some(states(bits)),
                (CtKey::Status, Some(bits)) if bits & STATUS_TRANSLATED != 0 => {
                    Some(RuleCondition::States(States::TRANSLATED))
                }
                _ => None,
            },
            [Expr::Payload { .. }, ..] => network(exprs),
            _ => None,
        })
    }

    /// The states that are keys of a set or map, of elements with such data.
    fn states(&mut self, set: &str, counts: &dyn Fn(&OwnedData) -> bool) -> io::Result<States> {
        let (mut states, (family, table)) = (0, self.table);
        self.socket.elements(family, table, set, &mut |element| {
            if counts(&element.data) {
                states |= host_number(&element.key).unwrap_or(0);
            }
        })?;
        Ok(States(u16::try_from(states & STATE_BITS).unwrap_or(0)))
    }
}

/// A comparison of the source or of the destination address with one prefix.
fn network(exprs: &[&Expr]) -> Option<RuleCondition> {
    let (payload, mask, address) = match exprs {
        [payload, Expr::Cmp { op: CmpOp::Eq, data, .. }] => (payload, None, data),
        [payload, Expr::Bitwise { mask, .. }, Expr::Cmp { op: CmpOp::Eq, data, .. }] => (payload, Some(mask), data),
        _ => return None,
    };
    let Expr::Payload { base: PayloadBase::Network, offset, len, .. } = payload else { return None };
    let network = [address.as_slice(), mask.map_or(&[], Vec::as_slice)].concat();
    // Offsets in an IPv4 header, and in an IPv6 header. A prefix of whole bytes is loaded alone.
    match (offset, len) {
        (12, 1..=4) | (8, 5..=16) => Some(RuleCondition::From(network)),
        (16, 1..=4) | (24, 5..=16) => Some(RuleCondition::To(network)),
        _ => None,
    }
}

fn host_number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
