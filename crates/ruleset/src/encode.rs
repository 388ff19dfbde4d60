//! Writes chains and sets of source ranges to a transaction.

use ferry_kernel::nft::{self, NftBatch};

use crate::Rules;
use crate::fields::address_bytes;
use crate::sources::Ranges;

/// Writes the rules of a chain. A created chain may exist already, idle and with rules: they are flushed.
pub fn fill_chain(batch: &mut NftBatch, name: &str, rules: &Rules) {
    batch.flush_chain(name);
    for rule in &*rules.0 {
        batch.add_rule(name, &rule.exprs);
    }
}

/// Writes a set of source ranges. Elements that exist under its name are flushed first, so that no intervals overlap. The
/// kernel inserts intervals fastest in ascending order.
pub fn fill_set(batch: &mut NftBatch, set: &nft::Set, ranges: &Ranges) {
    batch.add_set(set);
    batch.flush_set(&set.name);
    for (first, end) in ranges.keys() {
        batch.add_element(&set.name, address_bytes(first).as_slice(), None, nft::ElementData::None);
        if let Some(end) = end {
            batch.add_element(&set.name, address_bytes(end).as_slice(), None, nft::ElementData::IntervalEnd);
        }
    }
}
