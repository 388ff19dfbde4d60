//! Wire formats in, typed values out. Pure: no clock, file, environment or process.
//!
//! `object` holds the fields of Kubernetes objects that a service proxy reads, `wire` decodes them from YAML and JSON,
//! and `config` is upstream's KubeProxyConfiguration.

pub mod config;
pub mod kubeconfig;
pub mod object;
pub mod wire;

mod yaml;
