//! The text that takes back the first sections of a run that failed.

use std::collections::BTreeSet;

use ferry_kernel::iptables::{ChainName, Restore, Table};
use ferry_plane::Op;

use crate::encode::Whole;
use crate::mirror::{Kind, at};
use crate::names;
use crate::object::{ChainId, IptObject};
use crate::plan::{Item, PIECE_CHAINS, Plan, is_last};

/// The text that takes back the first sections of a script; `None` if the rules before aren't kept.
pub(crate) fn undo(plan: &Plan<'_>, script: &Whole, sections: usize) -> Option<Undone> {
    let mut undo = Undo { plan, tables: Default::default() };
    let ahead: BTreeSet<Item> = plan.ahead().collect();
    let (left, rest): (BTreeSet<Item>, BTreeSet<Item>) =
        script.operations_in(sections).into_iter().partition(|item| ahead.contains(item));
    for item in rest {
        undo.note(item)?;
    }
    Some(Undone { text: undo.write(), left })
}

/// A text that takes something back.
pub(crate) struct Undone {
    pub(crate) text: Restore,
    /// stays in force: chains that were written ahead, which will be wanted again
    pub(crate) left: BTreeSet<Item>,
}

/// The operations to take back.
struct Undo<'a> {
    plan: &'a Plan<'a>,
    tables: [UndoTable; Table::ALL.len()],
}

#[derive(Default)]
struct UndoTable {
    dropped: Vec<ChainName>,
    restored: Vec<ChainId>,
    entries: Vec<Item>,
}

// === impl Undo ===

impl Undo<'_> {
    fn note(&mut self, item: Item) -> Option<()> {
        let object = self.plan.object(item)?;
        if names::is_shared(object) {
            return Some(());
        }
        let mirror = self.plan.mirror;
        match (item.op, object) {
            (Op::Delete | Op::Create | Op::Replace, IptObject::Chain(id, _)) => {
                let table = self.tables.get_mut(at(id.table))?;
                if mirror.chain(*id).is_none() {
                    table.dropped.push(id.name);
                } else {
                    mirror.text(*id)?;
                    table.restored.push(*id);
                }
            }
            (Op::Create | Op::Replace, IptObject::Place(id)) => {
                self.tables.get_mut(at(id.table))?.dropped.push(id.name)
            }
            (Op::Create | Op::Replace, IptObject::Entry(key, _)) => {
                self.tables.get_mut(at(key.place.table))?.entries.push(item);
            }
            _ => return None,
        }
        Some(())
    }

    fn write(&self) -> Restore {
        let mut restore = Restore::new(self.plan.family);
        for (table, undo) in Table::ALL.iter().zip(&self.tables) {
            if !undo.restored.is_empty() || !undo.entries.is_empty() {
                restore.table(*table);
                self.write_table(undo, &mut restore);
                restore.commit();
            }
            // Later chains jump to earlier ones.
            let dropped: Vec<ChainName> = undo.dropped.iter().rev().copied().collect();
            for piece in dropped.chunks(PIECE_CHAINS) {
                restore.table(*table);
                for name in piece.iter() {
                    restore.declare(*name);
                }
                for name in piece.iter() {
                    restore.remove(*name);
                }
                restore.commit();
            }
        }
        restore
    }

    fn write_table(&self, undo: &UndoTable, restore: &mut Restore) {
        for id in &undo.restored {
            restore.declare(id.name);
        }
        let entries: Vec<_> = undo.entries.iter().filter_map(|item| self.plan.entry(*item)).collect();
        let stays = |id: ChainId| Kind::of(id) == Some(Kind::BuiltIn) || !undo.dropped.contains(&id.name);
        for (key, lines) in entries.iter().filter(|(key, _)| stays(key.place)) {
            for line in lines.iter() {
                restore.delete_text(key.place.name, line);
            }
        }
        for id in &undo.restored {
            let lines = self.plan.mirror.text(*id).map(|lines| lines.iter()).into_iter().flatten();
            for line in lines {
                restore.append_text(id.name, line);
            }
        }
        for (key, _) in &entries {
            let before = self.plan.mirror.entry(key).map(|lines| lines.iter()).into_iter().flatten();
            for line in before.rev() {
                if is_last(key.owner) {
                    restore.append_text(key.place.name, line);
                } else {
                    restore.insert_text(key.place.name, line);
                }
            }
        }
    }
}
