//! Encodes nf_tables objects as attributes.

use std::time::Duration;

use ferry_family::Family;

use super::wire::{self, chain, expr, set};
use super::{Chain, ChainKind, VerdictRef, data_type};
use super::{CmpOp, CtKey, DynsetOp, ElementData, Expr, FibAddress, MetaKey, PayloadBase, Reg, Set, SetData};
use crate::netlink::MessageWriter;

/// Writes the attributes of a chain that follow its table's name.
pub(super) fn chain(writer: &mut MessageWriter, wanted: &Chain) {
    writer.text(chain::NAME, &wanted.name);
    let Some(base) = &wanted.hook else { return };
    let hook = writer.nest(chain::HOOK);
    writer.be_u32(chain::HOOK_NUMBER, base.hook.number());
    writer.attribute(chain::HOOK_PRIORITY, &base.priority.to_be_bytes());
    writer.end_nest(hook);
    writer.text(
        chain::TYPE,
        match base.kind {
            ChainKind::Nat => "nat",
            ChainKind::Filter => "filter",
            ChainKind::Other => "", // never written by us; the kernel refuses the type
        },
    );
}

/// Writes the attributes of a set that follow its table's name. `id` distinguishes the new sets of a transaction.
pub(super) fn set(writer: &mut MessageWriter, wanted: &Set, id: u32) {
    let flags = [
        (wanted.flags.interval, set::F_INTERVAL),
        (wanted.flags.concat, set::F_CONCAT),
        (wanted.flags.timeout, set::F_TIMEOUT),
        (wanted.flags.dynamic, set::F_EVAL),
        (wanted.data.is_some(), set::F_MAP),
    ];
    writer.text(set::NAME, &wanted.name);
    writer.be_u32(set::FLAGS, flags.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag));
    writer.be_u32(set::KEY_TYPE, wanted.key_type);
    writer.be_u32(set::KEY_LEN, wanted.key_len);
    match wanted.data {
        None => {}
        Some(SetData::Verdict) => writer.be_u32(set::DATA_TYPE, data_type::VERDICT),
        Some(SetData::Value { data_type, len }) => {
            writer.be_u32(set::DATA_TYPE, data_type);
            writer.be_u32(set::DATA_LEN, len);
        }
    }
    set_description(writer, wanted);
    writer.be_u32(set::ID, id);
    if let Some(timeout) = wanted.timeout {
        writer.be_u64(set::TIMEOUT, milliseconds(timeout));
    }
    if !wanted.userdata.is_empty() {
        writer.attribute(set::USERDATA, &wanted.userdata);
    }
}

fn set_description(writer: &mut MessageWriter, wanted: &Set) {
    if wanted.size.is_none() && wanted.field_lens.is_empty() {
        return;
    }
    let description = writer.nest(set::DESC);
    if let Some(size) = wanted.size {
        writer.be_u32(set::DESC_SIZE, size);
    }
    if !wanted.field_lens.is_empty() {
        let fields = writer.nest(set::DESC_CONCAT);
        for length in &wanted.field_lens {
            let field = writer.nest(wire::LIST_ELEMENT);
            writer.be_u32(set::FIELD_LEN, *length);
            writer.end_nest(field);
        }
        writer.end_nest(fields);
    }
    writer.end_nest(description);
}

/// Writes one element of a list of elements. An empty key is the catch-all element.
pub(super) fn element(writer: &mut MessageWriter, key: &[u8], key_end: Option<&[u8]>, data: ElementData<'_>) {
    let list_element = writer.nest(wire::LIST_ELEMENT);
    if key.is_empty() {
        writer.be_u32(wire::element::FLAGS, wire::element::F_CATCHALL);
    } else {
        value(writer, wire::element::KEY, key);
    }
    if let Some(end) = key_end {
        value(writer, wire::element::KEY_END, end);
    }
    match data {
        ElementData::None => {}
        ElementData::IntervalEnd => writer.be_u32(wire::element::FLAGS, wire::element::F_INTERVAL_END),
        ElementData::Value(bytes) => value(writer, wire::element::DATA, bytes),
        ElementData::Verdict(of) => verdict(writer, wire::element::DATA, of),
    }
    writer.end_nest(list_element);
}

/// Writes one expression of a list of expressions.
pub(super) fn expression(writer: &mut MessageWriter, expression: &Expr) {
    let list_element = writer.nest(wire::LIST_ELEMENT);
    writer.text(wire::EXPR_NAME, expression_name(expression));
    let data = writer.nest(wire::EXPR_DATA);
    match expression {
        Expr::Payload { dreg, base, offset, len } => payload(writer, *dreg, *base, *offset, *len),
        Expr::Meta { key, dreg } => numbers(writer, &[(expr::meta::KEY, meta_key(*key)), (expr::meta::DREG, dreg.0)]),
        Expr::SetMeta { key, sreg } => {
            numbers(writer, &[(expr::meta::KEY, meta_key(*key)), (expr::meta::SREG, sreg.0)]);
        }
        Expr::Cmp { sreg, op, data } => {
            numbers(writer, &[(expr::cmp::SREG, sreg.0), (expr::cmp::OP, cmp_op(*op))]);
            value(writer, expr::cmp::DATA, data);
        }
        Expr::Bitwise { sreg, dreg, mask, xor } => bitwise(writer, *sreg, *dreg, mask, xor),
        Expr::Lookup { set, sreg, dreg, invert } => lookup(writer, set, *sreg, *dreg, *invert),
        Expr::Dynset { set, op, key, data, timeout } => dynset(writer, set, *op, (*key, *data), *timeout),
        Expr::Numgen { dreg, modulus, random, offset } => numgen(writer, *dreg, *modulus, *random, *offset),
        Expr::Dnat { family, address, port } => dnat(writer, *family, *address, *port),
        Expr::Masquerade { fully_random: true } => writer.be_u32(expr::masq::FLAGS, expr::masq::F_FULLY_RANDOM),
        Expr::Masquerade { fully_random: false } => {}
        Expr::RejectTcpReset => writer.be_u32(expr::reject::TYPE, expr::reject::TCP_RESET),
        Expr::RejectIcmp { code } => {
            writer.be_u32(expr::reject::TYPE, expr::reject::ICMP);
            writer.attribute(expr::reject::CODE, &[*code]);
        }
        Expr::Fib { dreg, of } => fib(writer, *dreg, *of),
        Expr::Ct { key, original, dreg } => ct(writer, *key, *original, *dreg),
        Expr::Verdict(to) => {
            writer.be_u32(expr::immediate::DREG, Reg::VERDICT.0);
            verdict(writer, expr::immediate::DATA, to.into());
        }
        Expr::Opaque { data, .. } => writer.raw(data),
    }
    writer.end_nest(data);
    writer.end_nest(list_element);
}

fn expression_name(expression: &Expr) -> &str {
    match expression {
        Expr::Payload { .. } => expr::payload::NAME,
        Expr::Meta { .. } | Expr::SetMeta { .. } => expr::meta::NAME,
        Expr::Cmp { .. } => expr::cmp::NAME,
        Expr::Bitwise { .. } => expr::bitwise::NAME,
        Expr::Lookup { .. } => expr::lookup::NAME,
        Expr::Dynset { .. } => expr::dynset::NAME,
        Expr::Numgen { .. } => expr::numgen::NAME,
        Expr::Dnat { .. } => expr::nat::NAME,
        Expr::Masquerade { .. } => expr::masq::NAME,
        Expr::RejectTcpReset | Expr::RejectIcmp { .. } => expr::reject::NAME,
        Expr::Fib { .. } => expr::fib::NAME,
        Expr::Ct { .. } => expr::ct::NAME,
        Expr::Verdict(_) => expr::immediate::NAME,
        Expr::Opaque { name, .. } => name,
    }
}

fn numbers(writer: &mut MessageWriter, attributes: &[(u16, u32)]) {
    attributes.iter().for_each(|(kind, value)| writer.be_u32(*kind, *value));
}

fn payload(writer: &mut MessageWriter, dreg: Reg, base: PayloadBase, offset: u32, len: u32) {
    use expr::payload::{BASE, DREG, LEN, NETWORK, OFFSET, TRANSPORT};
    let base = match base {
        PayloadBase::Network => NETWORK,
        PayloadBase::Transport => TRANSPORT,
    };
    numbers(writer, &[(DREG, dreg.0), (BASE, base), (OFFSET, offset), (LEN, len)]);
}

fn bitwise(writer: &mut MessageWriter, sreg: Reg, dreg: Reg, mask: &[u8], xor: &[u8]) {
    use expr::bitwise::{DREG, LEN, MASK, SREG, XOR};
    let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    numbers(writer, &[(SREG, sreg.0), (DREG, dreg.0), (LEN, len)]);
    value(writer, MASK, mask);
    value(writer, XOR, xor);
}

fn lookup(writer: &mut MessageWriter, set: &str, sreg: Reg, dreg: Option<Reg>, invert: bool) {
    use expr::lookup::{DREG, F_INVERT, FLAGS, SET, SREG};
    writer.text(SET, set);
    writer.be_u32(SREG, sreg.0);
    if let Some(dreg) = dreg {
        writer.be_u32(DREG, dreg.0);
    }
    if invert {
        writer.be_u32(FLAGS, F_INVERT);
    }
}

fn dynset(
    writer: &mut MessageWriter,
    set: &str,
    op: DynsetOp,
    (key, data): (Reg, Option<Reg>),
    timeout: Option<Duration>,
) {
    use expr::dynset::{ADD, DATA, DELETE, KEY, OP, SET, TIMEOUT, UPDATE};
    let op = match op {
        DynsetOp::Add => ADD,
        DynsetOp::Update => UPDATE,
        DynsetOp::Delete => DELETE,
    };
    writer.text(SET, set);
    numbers(writer, &[(OP, op), (KEY, key.0)]);
    if let Some(data) = data {
        writer.be_u32(DATA, data.0);
    }
    if let Some(timeout) = timeout {
        writer.be_u64(TIMEOUT, milliseconds(timeout));
    }
}

fn numgen(writer: &mut MessageWriter, dreg: Reg, modulus: u32, random: bool, offset: u32) {
    use expr::numgen::{DREG, INCREMENTAL, MODULUS, OFFSET, RANDOM, TYPE};
    let kind = if random { RANDOM } else { INCREMENTAL };
    numbers(writer, &[(DREG, dreg.0), (MODULUS, modulus), (TYPE, kind), (OFFSET, offset)]);
}

fn dnat(writer: &mut MessageWriter, family: Family, address: Reg, port: Option<Reg>) {
    use expr::nat::{ADDRESS_MIN, DNAT, FAMILY, PORT_MIN, TYPE};
    numbers(writer, &[(TYPE, DNAT), (FAMILY, family.number().into()), (ADDRESS_MIN, address.0)]);
    if let Some(port) = port {
        writer.be_u32(PORT_MIN, port.0);
    }
}

fn fib(writer: &mut MessageWriter, dreg: Reg, of: FibAddress) {
    use expr::fib::{ADDRESS_TYPE, DREG, F_DESTINATION, F_SOURCE, FLAGS, RESULT};
    let flags = match of {
        FibAddress::Source => F_SOURCE,
        FibAddress::Destination => F_DESTINATION,
    };
    numbers(writer, &[(FLAGS, flags), (RESULT, ADDRESS_TYPE), (DREG, dreg.0)]);
}

fn ct(writer: &mut MessageWriter, key: CtKey, original: bool, dreg: Reg) {
    use expr::ct::{DIRECTION, DREG, KEY, ORIGINAL};
    numbers(writer, &[(KEY, ct_key(key)), (DREG, dreg.0)]);
    if original {
        writer.attribute(DIRECTION, &[ORIGINAL]);
    }
}

fn value(writer: &mut MessageWriter, kind: u16, bytes: &[u8]) {
    writer.nested_attribute(kind, wire::DATA_VALUE, bytes);
}

fn verdict(writer: &mut MessageWriter, kind: u16, of: VerdictRef<'_>) {
    let (code, to) = match of {
        VerdictRef::Accept => (wire::verdict::ACCEPT, None),
        VerdictRef::Drop => (wire::verdict::DROP, None),
        VerdictRef::Return => (wire::verdict::RETURN, None),
        VerdictRef::Jump(to) => (wire::verdict::JUMP, Some(to)),
        VerdictRef::Goto(to) => (wire::verdict::GOTO, Some(to)),
    };
    let data = writer.nest(kind);
    let nested = writer.nest(wire::DATA_VERDICT);
    writer.attribute(wire::VERDICT_CODE, &code.to_be_bytes());
    if let Some(to) = to {
        writer.text(wire::VERDICT_CHAIN, to);
    }
    writer.end_nest(nested);
    writer.end_nest(data);
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn cmp_op(op: CmpOp) -> u32 {
    match op {
        CmpOp::Eq => expr::cmp::EQ,
        CmpOp::Neq => expr::cmp::NEQ,
    }
}

/// `NFT_META_…`
pub(super) const fn meta_key(key: MetaKey) -> u32 {
    match key {
        MetaKey::Mark => 3,
        MetaKey::IifName => 6,
        MetaKey::OifName => 7,
        MetaKey::NfTrace => 12,
        MetaKey::NfProto => 15,
        MetaKey::L4Proto => 16,
    }
}

/// `NFT_CT_…`
pub(super) const fn ct_key(key: CtKey) -> u32 {
    match key {
        CtKey::State => 0,
        CtKey::Direction => 1,
        CtKey::Status => 2,
        CtKey::ProtoDst => 12,
        CtKey::DstIp => 20,
        CtKey::DstIp6 => 22,
    }
}
