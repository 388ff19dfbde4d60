//! Extensions of iptables in rules: the match `conntrack` (linux/netfilter/xt_conntrack.h), and the expressions by which
//! `iptables-nft` stores extensions (linux/netfilter/nf_tables_compat.h).

use super::Traffic;
use super::walk::States;
use crate::netlink::{Attributes, Malformed, MessageWriter};
use crate::nft::{Expr, Verdict};

/// Name of the expression that holds a match.
pub(super) const MATCH: &str = "match";
/// Name of the expression that holds a target.
pub(super) const TARGET: &str = "target";
/// A match that has no effect.
pub(super) const COMMENT: &str = "comment";
/// A target that ends as a drop does.
pub(super) const REJECT: &str = "REJECT";

const CONNTRACK: &str = "conntrack";
/// Revision with 16-bit states, `struct xt_conntrack_mtinfo3`.
const REVISION: u8 = 3;

/// attributes of the expressions
const NAME: u16 = 1;
const REVISION_NUMBER: u16 = 2;
const INFO: u16 = 3;

/// Size of `struct xt_conntrack_mtinfo3`, aligned as in rules.
const INFO_BYTES: usize = 168;
/// Its 16-bit fields: behind eight addresses, two expirations, a protocol and four ports.
const MATCH_FLAGS_AT: usize = 146;
const INVERT_FLAGS_AT: usize = 148;
const STATES_AT: usize = 150;
/// `XT_CONNTRACK_STATE`: only the state is compared.
const STATE_FLAG: u16 = 1;

/// A match or target of iptables in a rule of any program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// its name, for example `conntrack`; empty for the standard target
    pub name: &'a [u8],
    /// the version of its data; 255 for numbers of more than one byte, which no kernel uses
    pub revision: u8,
    /// its data, whose layout depends on name and revision
    pub info: &'a [u8],
}

/// A rule that `iptables-nft` can list.
pub(super) fn rule(traffic: Traffic) -> Vec<Expr> {
    let mut writer = MessageWriter::new();
    writer.text(NAME, CONNTRACK);
    writer.be_u32(REVISION_NUMBER, REVISION.into());
    writer.attribute(INFO, &conntrack(traffic.states()));
    vec![Expr::Opaque { name: MATCH.to_owned(), data: writer.into_bytes() }, Expr::Verdict(Verdict::Accept)]
}

/// Compares the state of a connection.
fn conntrack(states: States) -> [u8; INFO_BYTES] {
    let mut info = [0; INFO_BYTES];
    for (at, value) in [(MATCH_FLAGS_AT, STATE_FLAG), (STATES_AT, states.0)] {
        info.iter_mut().skip(at).zip(value.to_ne_bytes()).for_each(|(place, byte)| *place = byte);
    }
    info
}

// === impl Extension ===

impl<'a> Extension<'a> {
    /// Decodes the attributes of an nf_tables expression (`NFTA_MATCH_*` and `NFTA_TARGET_*`, which have the same numbers).
    ///
    /// # Errors
    /// [`Malformed`] if a length is invalid.
    pub fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut attributes = Attributes::new(data);
        let mut found = Self { name: &[], revision: 0, info: &[] };
        while let Some(attribute) = attributes.next_attribute()? {
            match attribute.kind {
                NAME => found.name = until_nul(attribute.value),
                REVISION_NUMBER => found.revision = u8::try_from(attribute.be_u32()?).unwrap_or(u8::MAX),
                INFO => found.info = attribute.value,
                _ => {} // attributes of later kernels
            }
        }
        Ok(found)
    }

    /// True if it has this name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name.as_bytes()
    }

    /// The states that it matches, if it is a match `conntrack` with this condition only.
    pub fn states(&self) -> Option<States> {
        let field = |at: usize| {
            let bytes = self.info.get(at..)?.first_chunk()?;
            Some(u16::from_ne_bytes(*bytes))
        };
        let known = self.is(CONNTRACK) && self.revision == REVISION;
        let plain = field(MATCH_FLAGS_AT) == Some(STATE_FLAG) && field(INVERT_FLAGS_AT) == Some(0);
        field(STATES_AT).filter(|_| known && plain).map(States)
    }
}

/// The text of a C string in a field.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
