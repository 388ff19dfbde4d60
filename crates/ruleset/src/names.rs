//! Names of the constant sets and chains of a table.

use std::fmt::{Debug, Display};
use std::hash::Hash;

/// The constant names of one kind, as [`names!`](crate::names!) declares them.
pub trait Name: Copy + Debug + Display + Ord + Hash + Send + Sync + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// Its name in the kernel.
    fn name(self) -> &'static str;

    /// Parses a name; `None` for any other text.
    fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }
}

/// Declares an enum of constant names: `names! { Chain { Reject = "reject-chain", } }` makes the variants with `ALL`, `name`,
/// `Display` and the trait [`Name`].
#[macro_export]
macro_rules! names {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $enum { $($(#[$doc])* $variant,)* }

        impl $enum {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in the kernel.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

        }

        impl $crate::names::Name for $enum {
            const ALL: &'static [Self] = Self::ALL;

            fn name(self) -> &'static str {
                Self::name(self)
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro is for items of other crates")]
mod tests {
    use super::Name as _;

    names! {
        /// Two chains.
        Chain {
            /// one
            Reject = "reject-chain",
            /// the other
            Services = "services",
        }
    }

    #[test]
    fn a_name_reads_back() {
        for chain in Chain::ALL {
            assert_eq!(Chain::parse(&chain.to_string()), Some(*chain));
        }
        assert_eq!(Chain::parse("Reject"), None);
    }
}
