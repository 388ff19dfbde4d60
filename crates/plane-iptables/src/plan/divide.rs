//! Divides a plan into sections, each a transaction of the kernel.

use ferry_kernel::iptables::{Backend, Table};
use ferry_plane::Batch;

use super::{Item, PIECE_CHAINS, RunPlan, RunSection, Steps, Task, object};
use crate::names;
use crate::names::is_balancing;
use crate::object::{ChainId, IptObject};

/// Most chain names, including jump targets, in one section that writes chains: iptables-nft-restore keeps them in a list that it
/// walks from its head, so its time grows with their square.
const PIECE_NAMES: usize = 1000;

/// The kernel validates all rules that packets can reach for each section that adds one, in time proportional to the
/// entries. Measured, 9 ns for each pair of names and 2.5 µs for each entry: this many names for the square root of the
/// entries are the optimum.
const PIECE_NAMES_PER_ROOT: usize = 17;

const SERVICES: ChainId = ChainId { table: Table::Nat, name: names::SERVICES };

// === impl RunPlan ===

impl RunPlan<'_> {
    /// Divides the work into sections. Translations are added after refusals and deleted before them, so that every packet meets
    /// one of the two.
    pub(super) fn divide(&mut self, backend: Backend) {
        let (ahead, behind) = if backend == Backend::Nft { self.pieces() } else { (Vec::new(), Vec::new()) };
        let [mangle, filter, nat] = &self.works;
        let part = |is: bool, table, steps| is.then_some(RunSection::Of(table, steps));
        let mut parts = Vec::new();
        parts.extend(part(mangle.adds() || mangle.removes(), Table::Mangle, Steps::Both));
        parts.extend(ahead);
        parts.extend(part(filter.adds(), Table::Filter, Steps::Add));
        if backend == Backend::Nft && nat.adds() && nat.splits() {
            parts.extend([RunSection::Of(Table::Nat, Steps::Add), RunSection::Of(Table::Nat, Steps::Remove)]);
        } else {
            parts.extend(part(nat.adds() || nat.removes(), Table::Nat, Steps::Both));
        }
        let goes = |task: &Task| {
            task.gone.is_some() || task.take.iter().any(|item| !self.went_before(task, *item, Steps::Remove))
        };
        let removes = !filter.gone.is_empty() || filter.shared_chains.values().any(goes);
        parts.extend(part(removes, Table::Filter, Steps::Remove));
        parts.extend(behind);
        self.parts = parts;
    }

    /// Moves the chains of table nat that are written or deleted in sections of their own out of the table's work.
    fn pieces(&mut self) -> (Vec<RunSection>, Vec<RunSection>) {
        let (mut ahead, mut behind) = (Vec::new(), Vec::new());
        let (batch, mirror) = (self.batch, self.mirror);
        let is_new = |item: &Item| match object(batch, *item) {
            Some(IptObject::Chain(id, _)) => mirror.chain(*id).is_none(),
            _ => false,
        };
        let entries = mirror.shared_chain(SERVICES).map_or(0, |chain| chain.owned().len());
        let room = PIECE_NAMES.max(PIECE_NAMES_PER_ROOT * entries.isqrt());
        let nat = self.work_mut(Table::Nat);
        if names_of(batch, &nat.written) > room {
            let (mut new, changed): (Vec<Item>, Vec<Item>) = nat.written.drain(..).partition(is_new);
            // Not by name: iptables-nft-save sorts chains by name, in time quadratic in their number if they are sorted already.
            new.sort_by_cached_key(|item| match object(batch, *item) {
                Some(IptObject::Chain(id, _)) => (names::rank(id.name), id.name.as_str().bytes().rev().collect()),
                _ => (0, Vec::new()),
            });
            ahead.extend(pieces_by_names(batch, new, room));
            if names_of(batch, &changed) > room {
                ahead.extend(pieces_by_names(batch, changed, room));
            } else {
                nat.written = changed;
            }
        }
        if nat.gone.len() > PIECE_CHAINS {
            behind.extend(nat.gone.chunks(PIECE_CHAINS).map(|piece| RunSection::Behind(piece.to_vec())));
            nat.gone.clear();
        }
        (ahead, behind)
    }
}

/// Number of chain names in a section that writes these chains, roughly.
fn names_of(batch: &Batch<IptObject>, items: &[Item]) -> usize {
    let names = |item: &Item| match object(batch, *item) {
        Some(IptObject::Chain(id, rules)) if is_balancing(id.name) => 1 + rules.0.len(),
        _ => 1,
    };
    items.iter().map(names).sum()
}

/// Sections with at most `room` names, except for a single chain with more.
fn pieces_by_names(batch: &Batch<IptObject>, items: Vec<Item>, room: usize) -> Vec<RunSection> {
    let (mut pieces, mut piece, mut names) = (Vec::new(), Vec::new(), 0);
    for item in items {
        let more = names_of(batch, &[item]);
        if names + more > room && !piece.is_empty() {
            pieces.push(RunSection::Ahead(std::mem::take(&mut piece)));
            names = 0;
        }
        names += more;
        piece.push(item);
    }
    pieces.extend((!piece.is_empty()).then_some(RunSection::Ahead(piece)));
    pieces
}

#[cfg(test)]
mod tests;
