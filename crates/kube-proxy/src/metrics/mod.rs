//! Prometheus metrics: upstream's, and Ferry's own, which begin with `kubeproxy_config_`, `kubeproxy_engine_`,
//! `kubeproxy_snapshot_` and `kubeproxy_source_`.
//!
//! A metric is one [`MetricRow`] of a table. [`Metrics`] registers all tables and encodes the page: `registry` has the metrics of
//! every mode, [`mode`] those of a single mode, [`client`] the API client's, [`source`] the age of objects, [`self_test`] the self-test's, [`snapshot`] the snapshot's, [`config`] the running
//! configuration, [`process`] CPU, memory and files. `text` encodes the page.

pub mod client;
pub mod config;
pub mod mode;
pub mod process;
mod registry;
pub(crate) mod row;
pub mod self_test;
pub mod snapshot;
pub mod source;
mod text;

pub use registry::{Metrics, TABLE};
pub use row::{Buckets, MetricKind, MetricRow};
pub use text::number;
