//! Wire formats in, typed values out. Pure: no clock, file, environment or process.
//!
//! `object` holds the fields of Kubernetes objects that a service proxy reads, `wire` decodes them from YAML and JSON,
//! and `config` is upstream's KubeProxyConfiguration. `yaml` is what all readers of YAML share.

pub mod config;
pub mod object;
pub mod wire;
pub mod yaml;
