//! Prometheus metrics: upstream's, and Ferry's own, which begin with `kubeproxy_engine_` and `kubeproxy_source_`.
//!
//! A metric is one [`Row`] of a table. [`Metrics`] registers all tables and encodes the page: `registry` has the metrics of every
//! mode, [`mode`] those of a single mode, [`client`] the API client's, [`source`] the age of objects, [`process`] CPU, memory and
//! files.

pub mod client;
pub mod mode;
pub mod process;
mod registry;
mod row;
pub mod source;

pub use registry::{Metrics, TABLE};
pub use row::{Buckets, MetricKind, Row};
