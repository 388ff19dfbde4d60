//! Decodes entries of `iptables-legacy`: `struct ipt_entry` and `struct ip6t_entry` of linux/netfilter_ipv4/ip_tables.h and
//! linux/netfilter_ipv6/ip6_tables.h, with matches and a target (linux/netfilter/x_tables.h).

use std::io;

use ferry_family::Family;

use super::walk::{Effect, Evaluation, ForwardRule, RuleCondition, evaluate};
use super::xt::{self, Extension, until_nul};
use crate::iptables::legacy::Entries;

/// Layout of a family's entries: `struct ipt_ip`, `struct ip6t_ip6`.
struct Layout {
    /// size of the conditions on the IP header
    header: usize,
    /// of an address; the source, the destination and their masks come first, in this order
    address: usize,
    /// offset of the flags
    flags: usize,
    /// `IPT_F_GOTO`, `IP6T_F_GOTO`
    goto: u8,
    /// size of the entry without matches and target
    entry: usize,
}

/// The rules of a table's chains.
struct ForwardTable<'a> {
    layout: Layout,
    bytes: &'a [u8],
}

/// One entry.
struct Entry<'a> {
    header: &'a [u8],
    matches: &'a [u8],
    target: &'a [u8],
    next: usize,
}

/// Verdicts of the standard target: `-NF_DROP - 1`, `-NF_ACCEPT - 1`, `XT_RETURN`.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;
/// Target of the entry before each chain but the built-in ones, and of the last one.
const HEAD: &[u8] = b"ERROR";
/// Offset of the data of a match or target, behind its size, name and revision.
const DATA_AT: usize = 32;

/// True if the policy of chain `FORWARD` is drop, and what its rules do.
///
/// # Errors
/// `InvalidData` if the entries can't be decoded.
pub(super) fn evaluate_forward(family: Family, entries: &Entries) -> io::Result<(bool, Evaluation)> {
    let table = ForwardTable { layout: Layout::of(family), bytes: &entries.bytes };
    let policy = table.entry(entries.forward_policy)?;
    let drops = policy.standard_verdict() == Some(DROP);
    let base = entries.forward.to_string();
    let evaluation = evaluate(&base, &mut |chain| {
        let start = chain.parse().map_err(|_| malformed())?;
        table.chain(start, entries.forward_policy)
    })?;
    Ok((drops, evaluation))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed entry of iptables-legacy")
}

/// A native number at an offset.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes).into())
}

/// Decodes a match or target at the start, and returns its size, too.
fn extension(bytes: &[u8]) -> Option<(usize, Extension<'_>)> {
    let size = number(bytes, 0)?;
    let (head, info) = bytes.get(..size)?.split_at_checked(DATA_AT)?;
    let [_, _, name @ .., revision] = head else { return None };
    Some((size, Extension { name: until_nul(name), revision: *revision, info }))
}

// === impl Layout ===

impl Layout {
    const fn of(family: Family) -> Self {
        match family {
            Family::V4 => Self { header: 84, address: 4, flags: 82, goto: 2, entry: 112 },
            Family::V6 => Self { header: 136, address: 16, flags: 131, goto: 4, entry: 168 },
        }
    }
}

// === impl ForwardTable ===

impl<'a> ForwardTable<'a> {
    fn entry(&self, at: usize) -> io::Result<Entry<'a>> {
        self.try_entry(at).ok_or_else(malformed)
    }

    fn try_entry(&self, at: usize) -> Option<Entry<'a>> {
        let bytes = self.bytes.get(at..)?;
        // behind a field for the cache
        let target_at = number(bytes, self.layout.header + 4)?;
        let size = number(bytes, self.layout.header + 6)?;
        let entry = bytes.get(..size)?;
        Some(Entry {
            header: entry.get(..self.layout.header)?,
            matches: entry.get(self.layout.entry..target_at)?,
            target: entry.get(target_at..)?,
            next: at + size,
        })
    }

    /// The rules of a chain. The built-in one ends with its policy, any other with the next chain's head.
    fn chain(&self, start: usize, policy: usize) -> io::Result<Vec<ForwardRule>> {
        let (mut at, mut rules) = (start, Vec::new());
        while at != policy {
            let entry = self.entry(at)?;
            let (_, target) = extension(entry.target).ok_or_else(malformed)?;
            if target.name == HEAD {
                break;
            }
            rules.push(ForwardRule { handle: rules.len() as u64, own: false, effect: self.effect(&entry, &target) });
            at = entry.next;
        }
        Ok(rules)
    }

    fn effect(&self, entry: &Entry<'_>, target: &Extension<'_>) -> Effect {
        let Some(condition) = self.condition(entry) else { return Effect::Unclear };
        if target.is(xt::REJECT) && condition == RuleCondition::Always {
            return Effect::Drop;
        }
        let goes = entry.header.get(self.layout.flags).is_some_and(|flags| flags & self.layout.goto != 0);
        match (entry.standard_verdict(), condition) {
            (Some(ACCEPT), condition) => Effect::Accept(condition),
            (Some(DROP), RuleCondition::Always) => Effect::Drop,
            (Some(RETURN), RuleCondition::Always) => Effect::Return,
            (Some(verdict), RuleCondition::Always) => match usize::try_from(verdict) {
                // A rule without a target goes on.
                Ok(offset) if offset == entry.next => Effect::Unclear,
                Ok(offset) if goes => Effect::Goto(offset.to_string()),
                Ok(offset) => Effect::Jump(offset.to_string()),
                Err(_) => Effect::Unclear,
            },
            _ => Effect::Unclear,
        }
    }

    /// The one condition of an entry; `None` if there are several, or an unknown one.
    fn condition(&self, entry: &Entry<'_>) -> Option<RuleCondition> {
        let (mut matches, mut found) = (entry.matches, None);
        while !matches.is_empty() {
            let (size, extension) = extension(matches)?;
            matches = matches.get(size..)?;
            match extension.states() {
                Some(states) if found.is_none() => found = Some(RuleCondition::States(states)),
                None if extension.is(xt::COMMENT) => {}
                _ => return None,
            }
        }
        match (self.addresses(entry.header)?, found) {
            (RuleCondition::Always, found) => Some(found.unwrap_or(RuleCondition::Always)),
            (network, None) => Some(network),
            _ => None,
        }
    }

    /// The condition on the IP header.
    fn addresses(&self, header: &[u8]) -> Option<RuleCondition> {
        let Layout { address, flags, goto, .. } = self.layout;
        let (addresses, rest) = header.split_at_checked(4 * address)?;
        let expected = |at: usize| if at + 4 * address == flags { goto } else { 0 };
        if rest.iter().enumerate().any(|(at, byte)| byte & !expected(at) != 0) {
            return None;
        }
        let mut fields = addresses.chunks_exact(address);
        let (source, destination) = (fields.next()?, fields.next()?);
        let (source_mask, destination_mask) = (fields.next()?, fields.next()?);
        let any = |mask: &[u8]| mask.iter().all(|byte| *byte == 0);
        Some(match (any(source_mask), any(destination_mask)) {
            (true, true) => RuleCondition::Always,
            (false, true) => RuleCondition::From([source, source_mask].concat()),
            (true, false) => RuleCondition::To([destination, destination_mask].concat()),
            (false, false) => return None,
        })
    }
}

// === impl Entry ===

impl Entry<'_> {
    /// The verdict, or the offset of a jump; `None` if the target is not the standard one, which has no name.
    fn standard_verdict(&self) -> Option<i32> {
        let (_, target) = extension(self.target)?;
        let verdict = target.info.first_chunk().filter(|_| target.name.is_empty())?;
        Some(i32::from_ne_bytes(*verdict))
    }
}
