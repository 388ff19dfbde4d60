//! Builds the parts of a release from the executable and the flag table: for `cargo xt package` and the tests.
//!
//! - [`values`] lists the values that a flag takes, beyond its syntax; [`completions`] and [`man`] are generated from it and from
//!   the flag table of [`ferry_kube_proxy::cli`].
//! - [`debian`] builds the package from the files in `deploy/debian`.
//! - [`components`] lists the libraries in the executable, as CycloneDX.
//! - [`release`] writes all of this to a folder, with checksums.
//!
//! Every output depends on its inputs only: times are those of `SOURCE_DATE_EPOCH` ([`epoch`]).

pub mod completions;
pub mod components;
pub mod debian;
pub mod elf;
pub mod epoch;
pub mod man;
pub mod release;
pub mod tool;
pub mod values;
