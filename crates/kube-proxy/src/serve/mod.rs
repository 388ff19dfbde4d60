//! What the process tells over HTTP.

pub mod healthz;
pub mod http;
pub mod metrics;
pub mod mode_metrics;
pub mod process;
pub mod rest_metrics;
pub mod service_health;
pub mod source_metrics;
pub mod status;
