//! Wire formats in, typed values out. Pure: no clock, file, environment or process.
//!
//! `object` holds the fields of Kubernetes objects that a service proxy reads, `wire` decodes them,
//! `config` is upstream's KubeProxyConfiguration and `flags` its command line.

pub mod object;
