//! References between a table's objects, by which tests check the order of operations: an object needs those that it names.

use ferry_kernel::nft::{Expr, Verdict};

use super::{ChainName, SetName, TableKey, TableObject, Vocabulary};

/// The keys of the objects that this one refers to.
pub fn refers_to<V: Vocabulary>(object: &TableObject<V>) -> Vec<TableKey<V>> {
    match object {
        TableObject::Table(_) => Vec::new(),
        TableObject::Set(_) | TableObject::Ranges(..) => vec![TableKey::Table],
        TableObject::Chain(_, rules) => {
            let named = rules.0.iter().flat_map(|rule| &rule.exprs).filter_map(named);
            std::iter::once(TableKey::Table).chain(named).collect()
        }
        TableObject::Element(element, value) => {
            let set = TableKey::Set(SetName::Fixed(V::set_of(element)));
            std::iter::once(set).chain(V::leads_to(value).map(TableKey::Chain)).collect()
        }
    }
}

/// The set or chain that an expression names.
fn named<V: Vocabulary>(expr: &Expr) -> Option<TableKey<V>> {
    match expr {
        Expr::Lookup { set, .. } => SetName::parse(set).map(TableKey::Set),
        Expr::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => ChainName::parse(chain).map(TableKey::Chain),
        _ => None,
    }
}
