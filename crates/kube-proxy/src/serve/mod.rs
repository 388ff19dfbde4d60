//! HTTP servers: probes, metrics, and the health checks of Services.

pub mod healthz;
pub mod http;
pub mod service_health;
pub mod status;
