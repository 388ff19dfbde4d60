//! Decodes expressions. An expression that this crate would not write becomes [`Expr::Opaque`].

use std::time::Duration;

use ferry_family::Family;

use super::wire::{self, expr};
use super::{CmpOp, CtKey, DynsetOp, Expr, FibAddress, MetaKey, PayloadBase, Reg, Verdict, encode};
use crate::netlink::{Attribute, Attributes, Malformed};

/// Upper bound (exclusive) of attribute numbers of the known expressions.
const KINDS: usize = 12;

/// The attributes of an expression by number. An unknown attribute makes the expression opaque.
struct ExpressionFields<'a> {
    by_kind: [Option<Attribute<'a>>; KINDS],
}

// === impl ExpressionFields ===

impl<'a> ExpressionFields<'a> {
    fn collect(mut attributes: Attributes<'a>, known: &[u16]) -> Result<Option<Self>, Malformed> {
        let mut fields = Self { by_kind: [None; KINDS] };
        while let Some(attribute) = attributes.next_attribute()? {
            match fields.by_kind.get_mut(usize::from(attribute.kind)) {
                Some(field) if known.contains(&attribute.kind) => *field = Some(attribute),
                _ => return Ok(None),
            }
        }
        Ok(Some(fields))
    }

    fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.by_kind.get(usize::from(kind)).copied().flatten()
    }

    fn number(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.be_u32().ok()
    }

    fn byte(&self, kind: u16) -> Option<u8> {
        match self.get(kind)?.value {
            [byte] => Some(*byte),
            _ => None,
        }
    }

    fn register(&self, kind: u16) -> Option<Reg> {
        self.number(kind).map(Reg::from_kernel)
    }

    fn text(&self, kind: u16) -> Option<String> {
        Some(self.get(kind)?.text().into_owned())
    }

    fn data(&self, kind: u16) -> Option<Vec<u8>> {
        let value = self.get(kind)?.nested().find(wire::DATA_VALUE).ok()??;
        Some(value.value.to_vec())
    }
}

/// Decodes one expression.
pub(super) fn expression(mut attributes: Attributes<'_>) -> Result<Expr, Malformed> {
    let (mut name, mut data) = (None, None);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            wire::EXPR_NAME => name = Some(attribute.text()),
            wire::EXPR_DATA => data = Some(attribute),
            _ => {} // attributes of later kernels
        }
    }
    let name = name.ok_or(Malformed("expression without a name"))?;
    // `notrack` and similar expressions have no data
    let attributes = data.map(|data| data.nested()).unwrap_or(Attributes::new(&[]));
    match known(&name, attributes)? {
        Some(expression) => Ok(expression),
        None => {
            Ok(Expr::Opaque { name: name.into_owned(), data: data.map(|data| data.value.to_vec()).unwrap_or_default() })
        }
    }
}

type Reader = fn(&ExpressionFields<'_>) -> Option<Expr>;

fn known(name: &str, attributes: Attributes<'_>) -> Result<Option<Expr>, Malformed> {
    let (kinds, reader): (&[u16], Reader) = match name {
        expr::payload::NAME => (expr::payload::ATTRIBUTES, payload),
        expr::meta::NAME => (expr::meta::ATTRIBUTES, meta),
        expr::cmp::NAME => (expr::cmp::ATTRIBUTES, cmp),
        expr::bitwise::NAME => (expr::bitwise::ATTRIBUTES, bitwise),
        expr::lookup::NAME => (expr::lookup::ATTRIBUTES, lookup),
        expr::dynset::NAME => (expr::dynset::ATTRIBUTES, dynset),
        expr::numgen::NAME => (expr::numgen::ATTRIBUTES, numgen),
        expr::nat::NAME => (expr::nat::ATTRIBUTES, nat),
        expr::masq::NAME => (expr::masq::ATTRIBUTES, masquerade),
        expr::reject::NAME => (expr::reject::ATTRIBUTES, reject),
        expr::fib::NAME => (expr::fib::ATTRIBUTES, fib),
        expr::ct::NAME => (expr::ct::ATTRIBUTES, ct),
        expr::immediate::NAME => (expr::immediate::ATTRIBUTES, immediate),
        _ => return Ok(None),
    };
    Ok(ExpressionFields::collect(attributes, kinds)?.and_then(|fields| reader(&fields)))
}

fn payload(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let base = match fields.number(expr::payload::BASE)? {
        expr::payload::NETWORK => PayloadBase::Network,
        expr::payload::TRANSPORT => PayloadBase::Transport,
        _ => return None,
    };
    Some(Expr::Payload {
        dreg: fields.register(expr::payload::DREG)?,
        base,
        offset: fields.number(expr::payload::OFFSET)?,
        len: fields.number(expr::payload::LEN)?,
    })
}

fn meta(fields: &ExpressionFields<'_>) -> Option<Expr> {
    const KEYS: [MetaKey; 6] =
        [MetaKey::Mark, MetaKey::IifName, MetaKey::OifName, MetaKey::NfTrace, MetaKey::L4Proto, MetaKey::NfProto];
    let number = fields.number(expr::meta::KEY)?;
    let key = KEYS.into_iter().find(|key| encode::meta_key(*key) == number)?;
    match (fields.register(expr::meta::DREG), fields.register(expr::meta::SREG)) {
        (Some(dreg), None) => Some(Expr::Meta { key, dreg }),
        (None, Some(sreg)) => Some(Expr::SetMeta { key, sreg }),
        _ => None,
    }
}

fn cmp(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let op = match fields.number(expr::cmp::OP)? {
        expr::cmp::EQ => CmpOp::Eq,
        expr::cmp::NEQ => CmpOp::Neq,
        _ => return None,
    };
    Some(Expr::Cmp { sreg: fields.register(expr::cmp::SREG)?, op, data: fields.data(expr::cmp::DATA)? })
}

fn bitwise(fields: &ExpressionFields<'_>) -> Option<Expr> {
    if fields.number(expr::bitwise::OP).unwrap_or(expr::bitwise::MASK_XOR) != expr::bitwise::MASK_XOR {
        return None;
    }
    Some(Expr::Bitwise {
        sreg: fields.register(expr::bitwise::SREG)?,
        dreg: fields.register(expr::bitwise::DREG)?,
        mask: fields.data(expr::bitwise::MASK)?,
        xor: fields.data(expr::bitwise::XOR)?,
    })
}

fn lookup(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let flags = fields.number(expr::lookup::FLAGS).unwrap_or(0);
    if flags & !expr::lookup::F_INVERT != 0 {
        return None;
    }
    Some(Expr::Lookup {
        set: fields.text(expr::lookup::SET)?,
        sreg: fields.register(expr::lookup::SREG)?,
        dreg: fields.register(expr::lookup::DREG),
        invert: flags & expr::lookup::F_INVERT != 0,
    })
}

fn dynset(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let op = match fields.number(expr::dynset::OP)? {
        expr::dynset::ADD => DynsetOp::Add,
        expr::dynset::UPDATE => DynsetOp::Update,
        expr::dynset::DELETE => DynsetOp::Delete,
        _ => return None,
    };
    if fields.number(expr::dynset::FLAGS).unwrap_or(0) != 0 {
        return None;
    }
    let timeout = fields.get(expr::dynset::TIMEOUT).and_then(|timeout| timeout.be_u64().ok()).unwrap_or(0);
    Some(Expr::Dynset {
        set: fields.text(expr::dynset::SET)?,
        op,
        key: fields.register(expr::dynset::KEY)?,
        data: fields.register(expr::dynset::DATA),
        // the kernel reports a missing timeout as 0
        timeout: (timeout != 0).then(|| Duration::from_millis(timeout)),
    })
}

fn numgen(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let random = match fields.number(expr::numgen::TYPE)? {
        expr::numgen::RANDOM => true,
        expr::numgen::INCREMENTAL => false,
        _ => return None,
    };
    Some(Expr::Numgen {
        dreg: fields.register(expr::numgen::DREG)?,
        modulus: fields.number(expr::numgen::MODULUS)?,
        random,
        offset: fields.number(expr::numgen::OFFSET).unwrap_or(0),
    })
}

/// Decodes only NAT that [`Expr::Dnat`] can express: one address, at most one port, and no flags but the kernel's own.
fn nat(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let family = u8::try_from(fields.number(expr::nat::FAMILY)?).ok().and_then(Family::from_number)?;
    let address = fields.register(expr::nat::ADDRESS_MIN)?;
    let port = fields.register(expr::nat::PORT_MIN);
    let one_address = fields.register(expr::nat::ADDRESS_MAX).is_none_or(|max| max == address);
    let one_port = fields.register(expr::nat::PORT_MAX).is_none_or(|max| Some(max) == port);
    let plain = fields.number(expr::nat::FLAGS).unwrap_or(0) & !expr::nat::F_KERNELS == 0;
    let dnat = fields.number(expr::nat::TYPE)? == expr::nat::DNAT;
    (dnat && one_address && one_port && plain).then_some(Expr::Dnat { family, address, port })
}

fn masquerade(fields: &ExpressionFields<'_>) -> Option<Expr> {
    match fields.number(expr::masq::FLAGS).unwrap_or(0) {
        0 => Some(Expr::Masquerade { fully_random: false }),
        expr::masq::F_FULLY_RANDOM => Some(Expr::Masquerade { fully_random: true }),
        _ => None,
    }
}

fn reject(fields: &ExpressionFields<'_>) -> Option<Expr> {
    match fields.number(expr::reject::TYPE)? {
        expr::reject::TCP_RESET => Some(Expr::RejectTcpReset),
        expr::reject::ICMP => Some(Expr::RejectIcmp { code: fields.byte(expr::reject::CODE)? }),
        _ => None,
    }
}

fn fib(fields: &ExpressionFields<'_>) -> Option<Expr> {
    let of = match fields.number(expr::fib::FLAGS)? {
        expr::fib::F_SOURCE => FibAddress::Source,
        expr::fib::F_DESTINATION => FibAddress::Destination,
        _ => return None,
    };
    let dreg = fields.register(expr::fib::DREG)?;
    (fields.number(expr::fib::RESULT)? == expr::fib::ADDRESS_TYPE).then_some(Expr::Fib { dreg, of })
}

fn ct(fields: &ExpressionFields<'_>) -> Option<Expr> {
    const KEYS: [CtKey; 6] =
        [CtKey::State, CtKey::Direction, CtKey::Status, CtKey::DstIp, CtKey::DstIp6, CtKey::ProtoDst];
    let number = fields.number(expr::ct::KEY)?;
    let key = KEYS.into_iter().find(|key| encode::ct_key(*key) == number)?;
    let original = match fields.get(expr::ct::DIRECTION) {
        None => false,
        Some(_) if fields.byte(expr::ct::DIRECTION)? == expr::ct::ORIGINAL => true,
        Some(_) => return None,
    };
    Some(Expr::Ct { key, original, dreg: fields.register(expr::ct::DREG)? })
}

fn immediate(fields: &ExpressionFields<'_>) -> Option<Expr> {
    if fields.register(expr::immediate::DREG)? != Reg::VERDICT {
        return None;
    }
    let verdict = fields.get(expr::immediate::DATA)?.nested().find(wire::DATA_VERDICT).ok()??;
    decode_verdict(verdict.nested()).ok().flatten().map(Expr::Verdict)
}

/// Decodes a verdict; `None` for one that this crate doesn't write.
pub(super) fn decode_verdict(mut attributes: Attributes<'_>) -> Result<Option<Verdict>, Malformed> {
    let (mut code, mut chain) = (None, None);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            wire::VERDICT_CODE => code = Some(attribute.be_u32()?.cast_signed()),
            wire::VERDICT_CHAIN => chain = Some(attribute.text().into_owned()),
            _ => {} // chain id, only in requests
        }
    }
    Ok(match (code, chain) {
        (Some(wire::verdict::ACCEPT), _) => Some(Verdict::Accept),
        (Some(wire::verdict::DROP), _) => Some(Verdict::Drop),
        (Some(wire::verdict::RETURN), _) => Some(Verdict::Return),
        (Some(wire::verdict::JUMP), Some(chain)) => Some(Verdict::Jump(chain)),
        (Some(wire::verdict::GOTO), Some(chain)) => Some(Verdict::Goto(chain)),
        _ => None,
    })
}
