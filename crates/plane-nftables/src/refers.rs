//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_kernel::nft::{Expr, Verdict};
use ferry_plane::memory::Refers;

use crate::names::{ChainName, SetName};
use crate::object::{NftKey, NftObject, Value};

impl Refers for NftObject {
    fn refers_to(&self) -> Vec<NftKey> {
        match self {
            Self::Table(_) => Vec::new(),
            Self::Set(_) | Self::Ranges(..) => vec![NftKey::Table],
            Self::Chain(_, rules) => {
                let named = rules.0.iter().flat_map(|rule| &rule.exprs).filter_map(named);
                std::iter::once(NftKey::Table).chain(named).collect()
            }
            Self::Element(key, value) => {
                let chain = match value {
                    Value::Goto(chain) => Some(NftKey::Chain(*chain)),
                    Value::None | Value::Endpoint(_) | Value::Drop | Value::Foreign => None,
                };
                std::iter::once(NftKey::Set(key.set())).chain(chain).collect()
            }
        }
    }
}

/// The set or chain that an expression names.
fn named(expr: &Expr) -> Option<NftKey> {
    match expr {
        Expr::Lookup { set, .. } | Expr::Dynset { set, .. } => SetName::parse(set).map(NftKey::Set),
        Expr::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => ChainName::parse(chain).map(NftKey::Chain),
        _ => None,
    }
}
