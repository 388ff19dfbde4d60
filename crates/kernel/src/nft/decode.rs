//! Decodes nf_tables objects. Each function takes a message's payload: the nfnetlink header and attributes.

use std::time::Duration;

use super::wire::{self, chain, element, rule, set, table};
use super::{BaseChain, BaseHook, Chain, ChainKind, Element, Expr, Hook, Octets, OwnedData, Rule, Set};
use super::{SetData, SetFlags, Table, TableFamily, data_type, expr_decode, userdata};
use crate::netlink::{Attribute, Attributes, Malformed, nfnetlink};

const NF_DROP: u32 = 0;
const NF_ACCEPT: u32 = 1;

/// Splits a payload into its family number and its attributes.
pub(super) fn open(payload: &[u8]) -> Result<(u8, Attributes<'_>), Malformed> {
    let (header, attributes) =
        payload.split_at_checked(nfnetlink::HEADER_LEN).ok_or(Malformed("short nfnetlink header"))?;
    Ok((header.first().copied().unwrap_or(0), Attributes::new(attributes)))
}

/// Decodes a table.
///
/// # Errors
/// [`Malformed`] if a length is invalid or the name is missing.
pub fn decode_table(payload: &[u8]) -> Result<Table, Malformed> {
    let (_, mut attributes) = open(payload)?;
    let mut name = None;
    let mut found = Table { name: String::new(), comment: None, dormant: false, owner: None };
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            table::NAME => name = Some(attribute.text().into_owned()),
            table::FLAGS => found.dormant = attribute.be_u32()? & table::DORMANT != 0,
            table::USERDATA => found.comment = userdata::table_comment(attribute.value),
            table::OWNER => found.owner = Some(attribute.be_u32()?),
            _ => {} // handle, use count, padding
        }
    }
    found.name = name.ok_or(Malformed("table without a name"))?;
    Ok(found)
}

/// Decodes a chain and the name of its table. `None` for a chain bound to a rule, which exists only with that.
///
/// # Errors
/// [`Malformed`] if a length is invalid or a name is missing.
pub fn decode_chain(payload: &[u8]) -> Result<Option<(String, Chain)>, Malformed> {
    let (_, mut attributes) = open(payload)?;
    let (mut table, mut name, mut hook, mut flags, mut policy) = (None, None, None, 0, NF_ACCEPT);
    let mut kind = ChainKind::Other;
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            chain::TABLE => table = Some(attribute.text().into_owned()),
            chain::NAME => name = Some(attribute.text().into_owned()),
            chain::HOOK => hook = Some(decode_hook(attribute.nested())?),
            chain::TYPE => kind = chain_kind(&attribute.text()),
            chain::FLAGS => flags = attribute.be_u32()?,
            chain::POLICY => policy = attribute.be_u32()?,
            _ => {} // handle, use count, counters, user data
        }
    }
    let (Some(table), Some(name)) = (table, name) else { return Err(Malformed("chain without a name")) };
    if flags & chain::F_BINDING != 0 {
        return Ok(None);
    }
    let usual = flags & !chain::F_BASE == 0 && policy == NF_ACCEPT;
    let hook = hook.map(|(hook, priority)| match (hook, usual) {
        (Some(hook), true) => BaseHook { kind, hook, priority },
        (hook, _) => BaseHook { kind: ChainKind::Other, hook: hook.unwrap_or(Hook::Prerouting), priority },
    });
    Ok(Some((table, Chain { name, hook })))
}

/// Decodes a base chain. `None` for a chain without a hook, one bound to devices, and one of a family other than `ip`, `ip6` and
/// `inet`.
///
/// # Errors
/// [`Malformed`] if a length is invalid or a name is missing.
pub fn decode_base_chain(payload: &[u8]) -> Result<Option<BaseChain>, Malformed> {
    let (family, attributes) = open(payload)?;
    // Most chains have no hook.
    let Some(hook) = attributes.find(chain::HOOK)? else { return Ok(None) };
    let (Some(family), (Some(hook), priority)) = (TableFamily::from_number(family), decode_hook(hook.nested())?) else {
        return Ok(None);
    };
    let (_, mut attributes) = open(payload)?;
    let (mut table, mut name, mut policy) = (None, None, NF_ACCEPT);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            chain::TABLE => table = Some(attribute.text().into_owned()),
            chain::NAME => name = Some(attribute.text().into_owned()),
            chain::POLICY => policy = attribute.be_u32()?,
            _ => {} // see `decode_chain`
        }
    }
    let (Some(table), Some(name)) = (table, name) else { return Err(Malformed("chain without a name")) };
    Ok(Some(BaseChain { family, table, name, hook, priority, drops: policy == NF_DROP }))
}

fn chain_kind(text: &str) -> ChainKind {
    match text {
        "nat" => ChainKind::Nat,
        "filter" => ChainKind::Filter,
        _ => ChainKind::Other,
    }
}

fn decode_hook(mut attributes: Attributes<'_>) -> Result<(Option<Hook>, i32), Malformed> {
    let (mut hook, mut priority) = (None, 0);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            chain::HOOK_NUMBER => hook = Hook::from_number(attribute.be_u32()?),
            chain::HOOK_PRIORITY => priority = attribute.be_u32()?.cast_signed(),
            _ => hook = None, // bound to devices: not one of our hooks
        }
    }
    Ok((hook, priority))
}

/// Decodes a set and the name of its table. `None` for an anonymous set, which exists only with its rule.
///
/// # Errors
/// [`Malformed`] if a length is invalid or a name is missing.
pub fn decode_set(payload: &[u8]) -> Result<Option<(String, Set)>, Malformed> {
    let (_, mut attributes) = open(payload)?;
    let (mut table, mut flags, mut data_type, mut data_len) = (None, 0, None, 0);
    let mut found = Set {
        name: String::new(),
        key_type: 0,
        key_len: 0,
        data: None,
        flags: SetFlags::default(),
        field_lens: Vec::new(),
        size: None,
        timeout: None,
        userdata: Vec::new(),
    };
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            set::TABLE => table = Some(attribute.text().into_owned()),
            set::NAME => found.name = attribute.text().into_owned(),
            set::FLAGS => flags = attribute.be_u32()?,
            set::KEY_TYPE => found.key_type = attribute.be_u32()?,
            set::KEY_LEN => found.key_len = attribute.be_u32()?,
            set::DATA_TYPE => data_type = Some(attribute.be_u32()?),
            set::DATA_LEN => data_len = attribute.be_u32()?,
            set::DESC => (found.size, found.field_lens) = set_description(attribute.nested())?,
            set::TIMEOUT => found.timeout = Some(Duration::from_millis(attribute.be_u64()?)).filter(|t| !t.is_zero()),
            set::USERDATA => found.userdata = attribute.value.to_vec(),
            _ => {} // handle, policy, backend, counts
        }
    }
    let table = table.filter(|_| !found.name.is_empty()).ok_or(Malformed("set without a name"))?;
    found.data = data_type.filter(|_| flags & set::F_MAP != 0).map(|data_type| match data_type {
        data_type::VERDICT => SetData::Verdict,
        data_type => SetData::Value { data_type, len: data_len },
    });
    found.flags = SetFlags {
        interval: flags & set::F_INTERVAL != 0,
        concat: flags & set::F_CONCAT != 0,
        timeout: flags & set::F_TIMEOUT != 0,
        dynamic: flags & set::F_EVAL != 0,
    };
    Ok((flags & set::F_ANONYMOUS == 0).then_some((table, found)))
}

fn set_description(mut attributes: Attributes<'_>) -> Result<(Option<u32>, Vec<u32>), Malformed> {
    let (mut size, mut field_lens) = (None, Vec::new());
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            set::DESC_SIZE => size = Some(attribute.be_u32()?),
            set::DESC_CONCAT => {
                let mut fields = attribute.nested();
                while let Some(field) = fields.next_attribute()? {
                    let length = field.nested().find(set::FIELD_LEN)?.ok_or(Malformed("field without a length"))?;
                    field_lens.push(length.be_u32()?);
                }
            }
            _ => {} // attributes of later kernels
        }
    }
    Ok((size, field_lens))
}

/// Decodes a rule and the names of its table and chain.
///
/// # Errors
/// [`Malformed`] if a length is invalid or a name is missing.
pub fn decode_rule(payload: &[u8]) -> Result<(String, String, Rule), Malformed> {
    let (_, mut attributes) = open(payload)?;
    let (mut table, mut chain) = (None, None);
    let mut found = Rule { exprs: Vec::new(), comment: None, handle: 0 };
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            rule::TABLE => table = Some(attribute.text().into_owned()),
            rule::CHAIN => chain = Some(attribute.text().into_owned()),
            rule::HANDLE => found.handle = attribute.be_u64()?,
            rule::EXPRESSIONS => {
                let mut list = attribute.nested();
                while let Some(expression) = list.next_attribute()? {
                    found.exprs.push(decode_expression(expression.value)?);
                }
            }
            rule::USERDATA => found.comment = userdata::rule_comment(attribute.value),
            _ => {} // position, padding
        }
    }
    let (Some(table), Some(chain)) = (table, chain) else { return Err(Malformed("rule without a chain")) };
    Ok((table, chain, found))
}

/// Decodes one expression: its name and its attributes. Expressions that this crate doesn't write become [`Expr::Opaque`].
///
/// # Errors
/// [`Malformed`] if a length is invalid.
pub fn decode_expression(bytes: &[u8]) -> Result<Expr, Malformed> {
    expr_decode::expression(Attributes::new(bytes))
}

/// Decodes a list of elements one by one, and returns the names of their table and set.
///
/// # Errors
/// [`Malformed`] if a length is invalid, a name is missing, or a key is longer than the registers.
pub fn decode_elements(payload: &[u8], each: &mut dyn FnMut(Element)) -> Result<(String, String), Malformed> {
    let (_, mut attributes) = open(payload)?;
    let (mut table, mut set) = (None, None);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            element::TABLE => table = Some(attribute.text().into_owned()),
            element::SET => set = Some(attribute.text().into_owned()),
            element::LIST => {
                let mut list = attribute.nested();
                while let Some(element) = list.next_attribute()? {
                    each(decode_element(element.nested())?);
                }
            }
            _ => {} // set id
        }
    }
    table.zip(set).ok_or(Malformed("elements without a set"))
}

/// Passes on the identifying bytes of each element of a list: all attributes but its lifetime and its counters.
pub(super) fn element_identities(payload: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Malformed> {
    let (_, attributes) = open(payload)?;
    let Some(list) = attributes.find(element::LIST)? else { return Ok(()) };
    let (mut list, mut identity) = (list.nested(), Vec::new());
    while let Some(found) = list.next_attribute()? {
        identity.clear();
        let mut attributes = found.nested();
        while let Some(attribute) = attributes.next_attribute()? {
            if matches!(attribute.kind, element::KEY | element::KEY_END | element::FLAGS) {
                identity.extend_from_slice(&attribute.kind.to_be_bytes());
                identity.extend_from_slice(attribute.value);
            }
        }
        each(&identity);
    }
    Ok(())
}

fn decode_element(mut attributes: Attributes<'_>) -> Result<Element, Malformed> {
    let mut key = None;
    let mut flags = 0;
    let mut found = Element { key: Octets::default(), key_end: None, data: OwnedData::None, interval_end: false };
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            element::KEY => key = Some(octets(attribute)?),
            element::KEY_END => found.key_end = Some(octets(attribute)?),
            element::DATA => found.data = decode_data(attribute.nested())?,
            element::FLAGS => flags = attribute.be_u32()?,
            element::OBJECT => found.data = OwnedData::Other,
            _ => {} // timeout, expiration, comment, counters
        }
    }
    found.interval_end = flags & element::F_INTERVAL_END != 0;
    match key {
        Some(key) if key.is_empty() => return Err(Malformed("empty key")),
        Some(key) => found.key = key,
        None if flags & element::F_CATCHALL != 0 => {}
        None => return Err(Malformed("element without a key")),
    }
    Ok(found)
}

fn octets(attribute: Attribute<'_>) -> Result<Octets, Malformed> {
    let value = attribute.nested().find(wire::DATA_VALUE)?.ok_or(Malformed("data without a value"))?;
    Octets::new(value.value).ok_or(Malformed("data longer than the registers"))
}

fn decode_data(mut attributes: Attributes<'_>) -> Result<OwnedData, Malformed> {
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            wire::DATA_VALUE => {
                let value = Octets::new(attribute.value).ok_or(Malformed("data longer than the registers"))?;
                return Ok(OwnedData::Value(value));
            }
            wire::DATA_VERDICT => {
                return Ok(
                    expr_decode::decode_verdict(attribute.nested())?.map_or(OwnedData::Other, OwnedData::Verdict)
                );
            }
            _ => {} // attributes of later kernels
        }
    }
    Err(Malformed("data without a value"))
}

/// Decodes the number of the current generation.
///
/// # Errors
/// [`Malformed`] if a length is invalid or the number is missing.
pub fn decode_generation(payload: &[u8]) -> Result<u32, Malformed> {
    let (_, attributes) = open(payload)?;
    attributes.find(wire::GENERATION_ID)?.ok_or(Malformed("generation without a number"))?.be_u32()
}
