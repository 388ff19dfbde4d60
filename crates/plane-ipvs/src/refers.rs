//! References between objects, by which tests check the order of operations: an object needs those that it names.

use ferry_kernel::nft::{Expr, Verdict};
use ferry_plane::memory::Refers;

use crate::names::{ChainName, SetName};
use crate::object::{IpvsKey, IpvsObject, Value};

impl Refers for IpvsObject {
    fn refers_to(&self) -> Vec<IpvsKey> {
        match self {
            Self::Table(_) | Self::Server(..) | Self::Address(..) => Vec::new(),
            Self::Set(_) | Self::Ranges(..) => vec![IpvsKey::Table],
            Self::Chain(_, rules) => {
                let named = rules.0.iter().flat_map(|rule| &rule.exprs).filter_map(named);
                std::iter::once(IpvsKey::Table).chain(named).collect()
            }
            Self::Element(key, value) => {
                let chain = match value {
                    Value::Goto(chain) => Some(IpvsKey::Chain(*chain)),
                    Value::None | Value::Accept | Value::Drop | Value::Foreign => None,
                };
                std::iter::once(IpvsKey::Set(SetName::Fixed(key.set()))).chain(chain).collect()
            }
        }
    }
}

/// The set or chain that an expression names.
fn named(expr: &Expr) -> Option<IpvsKey> {
    match expr {
        Expr::Lookup { set, .. } => SetName::parse(set).map(IpvsKey::Set),
        Expr::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => ChainName::parse(chain).map(IpvsKey::Chain),
        _ => None,
    }
}
