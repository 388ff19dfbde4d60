//! Names of the constant sets and chains of a table.

/// Declares an enum of constant names: `names! { Chain { Reject = "reject-chain", } }` makes the variants with `ALL`, `name`,
/// `parse` (private to the module) and `Display`.
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

            fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == name)
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
