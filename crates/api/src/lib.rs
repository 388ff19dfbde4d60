//! Wire formats in, typed values out. Pure: no clock, file, environment or process.
//!
//! `object` holds the fields of Kubernetes objects that a service proxy reads, `wire` decodes them from YAML and JSON,
//! and `config` is upstream's KubeProxyConfiguration. `kubeconfig` holds the access to the API server, and `x509` what the client
//! needs of the certificates in it.

pub mod config;
pub mod kubeconfig;
pub mod object;
pub mod wire;
pub mod x509;

mod yaml;
