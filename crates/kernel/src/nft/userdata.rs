//! User data of nf_tables objects: annotations for the `nft` tool, opaque to the kernel. They are comments, and the expressions
//! by which the key and the value of a map were declared (`typeof`). Without the latter the tool can list a map with an untyped
//! number in its key, but cannot load the listing.
//!
//! The format is a list of records: a type byte, a length byte and the value; numbers are in host byte order.

/// An expression of a `typeof` declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeofExpr {
    /// a field of a header
    Payload(PayloadField),
    /// `meta l4proto`
    L4Proto,
    /// `numgen … mod … offset …`
    Numgen {
        /// `random`, else `inc`
        random: bool,
        /// number of distinct values
        modulus: u32,
        /// the lowest value; the tool omits 0
        offset: u32,
    },
    /// a concatenation, written with dots
    Concat(Vec<TypeofExpr>),
}

/// A field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadField {
    /// `ip ttl`
    IpTtl,
    /// `ip saddr`
    IpSaddr,
    /// `ip daddr`
    IpDaddr,
    /// `ip6 hoplimit`
    Ip6Hoplimit,
    /// `ip6 saddr`
    Ip6Saddr,
    /// `ip6 daddr`
    Ip6Daddr,
    /// `th sport`
    ThSport,
    /// `th dport`
    ThDport,
}

/// The annotations of a set or map; none by default. A declaration that does not fit the set's types makes the tool abort with
/// a failed assertion when it lists the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetUserdata<'a> {
    /// the key's declaration
    pub key: Option<TypeofExpr>,
    /// the value's declaration; only maps have one
    pub data: Option<TypeofExpr>,
    /// the comment
    pub comment: Option<&'a str>,
}

/// `NFTNL_UDATA_TABLE_COMMENT`
const TABLE_COMMENT: u8 = 0;
/// `NFTNL_UDATA_RULE_COMMENT`
const RULE_COMMENT: u8 = 0;

/// `NFTNL_UDATA_SET_…`
mod set_record {
    pub(super) const KEY_BYTE_ORDER: u8 = 0;
    pub(super) const DATA_BYTE_ORDER: u8 = 1;
    pub(super) const KEY_TYPEOF: u8 = 3;
    pub(super) const DATA_TYPEOF: u8 = 4;
    pub(super) const DATA_INTERVAL: u8 = 6;
    pub(super) const COMMENT: u8 = 7;
}

/// records of a `typeof`, and the tool's numbers for its expressions
mod typeof_record {
    pub(super) const EXPRESSION: u8 = 0;
    pub(super) const DATA: u8 = 1;
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const META: u32 = 9;
    pub(super) const CONCAT: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
}

/// The byte order of values without one, such as concatenations.
const NO_BYTE_ORDER: u32 = 0;
/// Maximum length of a comment's record, including the final NUL.
const COMMENT_BYTES: usize = 255;

/// Encodes the user data of a table.
pub fn table(comment: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    record_text(&mut bytes, TABLE_COMMENT, comment);
    bytes
}

/// Encodes the user data of a rule.
pub fn rule(comment: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    record_text(&mut bytes, RULE_COMMENT, comment);
    bytes
}

/// Finds the comment in a table's user data.
pub fn table_comment(notes: &[u8]) -> Option<String> {
    find_text(notes, TABLE_COMMENT)
}

/// Finds the comment in a rule's user data.
pub fn rule_comment(notes: &[u8]) -> Option<String> {
    find_text(notes, RULE_COMMENT)
}

/// Finds the comment in a set's or map's user data.
pub fn set_comment(notes: &[u8]) -> Option<String> {
    find_text(notes, set_record::COMMENT)
}

/// Encodes the user data of a set or map. A declaration longer than 255 bytes cannot be encoded and is left out.
pub fn set(notes: &SetUserdata<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if notes.key.is_some() || notes.data.is_some() {
        record_number(&mut bytes, set_record::KEY_BYTE_ORDER, byte_order(notes.key.as_ref()));
    }
    if notes.data.is_some() {
        record_number(&mut bytes, set_record::DATA_BYTE_ORDER, byte_order(notes.data.as_ref()));
    }
    if let Some(key) = &notes.key {
        record(&mut bytes, set_record::KEY_TYPEOF, &declaration(key));
    }
    if let Some(data) = &notes.data {
        record(&mut bytes, set_record::DATA_TYPEOF, &declaration(data));
    }
    if notes.data.is_some() {
        record_number(&mut bytes, set_record::DATA_INTERVAL, 0);
    }
    if let Some(comment) = notes.comment {
        record_text(&mut bytes, set_record::COMMENT, comment);
    }
    bytes
}

fn byte_order(of: Option<&TypeofExpr>) -> u32 {
    const HOST: u32 = 1;
    const BIG: u32 = 2;
    match of {
        None | Some(TypeofExpr::Concat(_)) => NO_BYTE_ORDER,
        Some(TypeofExpr::Payload(_)) => BIG,
        Some(TypeofExpr::L4Proto | TypeofExpr::Numgen { .. }) => HOST,
    }
}

/// Encodes an expression: its number, and the data of its type.
fn declaration(of: &TypeofExpr) -> Vec<u8> {
    use typeof_record::{CONCAT, DATA, EXPRESSION, META, NUMGEN, PAYLOAD};
    const L4PROTO: u32 = 16; // NFT_META_L4PROTO
    let mut data = Vec::new();
    let kind = match of {
        TypeofExpr::Payload(field) => {
            let (header, field) = field.numbers();
            record_number(&mut data, 0, header);
            record_number(&mut data, 1, field);
            PAYLOAD
        }
        TypeofExpr::L4Proto => {
            record_number(&mut data, 0, L4PROTO);
            META
        }
        TypeofExpr::Numgen { random, modulus, offset } => {
            record_number(&mut data, 0, u32::from(*random));
            record_number(&mut data, 1, *modulus);
            record_number(&mut data, 2, *offset);
            NUMGEN
        }
        TypeofExpr::Concat(fields) => {
            (0..).zip(fields).for_each(|(index, field)| record(&mut data, index, &declaration(field)));
            CONCAT
        }
    };
    let mut bytes = Vec::new();
    record_number(&mut bytes, EXPRESSION, kind);
    record(&mut bytes, DATA, &data);
    bytes
}

fn record(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(length) = u8::try_from(value.len()) {
        bytes.extend_from_slice(&[kind, length]);
        bytes.extend_from_slice(value);
    }
}

fn record_number(bytes: &mut Vec<u8>, kind: u8, value: u32) {
    record(bytes, kind, &value.to_ne_bytes());
}

fn record_text(bytes: &mut Vec<u8>, kind: u8, value: &str) {
    let mut end = value.len().min(COMMENT_BYTES - 1);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    let mut text = value.as_bytes().get(..end).unwrap_or_default().to_vec();
    text.push(0);
    record(bytes, kind, &text);
}

fn find_text(notes: &[u8], wanted: u8) -> Option<String> {
    let mut rest = notes;
    while let [kind, length, behind @ ..] = rest {
        let (value, next) = behind.split_at_checked(usize::from(*length))?;
        if *kind == wanted {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        rest = next;
    }
    None
}

// === impl PayloadField ===

impl PayloadField {
    /// The tool's numbers for the header and its field.
    const fn numbers(self) -> (u32, u32) {
        const IP: u32 = 12;
        const IP6: u32 = 13;
        const TH: u32 = 11;
        match self {
            Self::IpTtl => (IP, 8),
            Self::IpSaddr => (IP, 11),
            Self::IpDaddr => (IP, 12),
            Self::Ip6Hoplimit => (IP6, 7),
            Self::Ip6Saddr => (IP6, 8),
            Self::Ip6Daddr => (IP6, 9),
            Self::ThSport => (TH, 1),
            Self::ThDport => (TH, 2),
        }
    }
}
