//! The main job.

use anyhow::{Context as _, bail};
use ferry_api::wire::address::parse_socket_address;
use ferry_model::Settings;

use super::Configured;
use crate::app::{self, Plan};
use crate::planes::Plane;

pub(super) fn run(configured: &Configured) -> anyhow::Result<()> {
    let config = &configured.config;
    let plane = Plane::of(config)?;
    let Some(manifests) = &configured.manifests else {
        bail!("this build reads manifests only: pass --manifests DIR");
    };
    let address = |text: &str| parse_socket_address(text).with_context(|| format!("no address: {text}"));
    let effective = config.effective();
    app::run(Plan {
        settings: Settings::from_config(config, &configured.node_name),
        manifests: manifests.into(),
        healthz: address(&config.healthz_bind_address)?,
        metrics: address(&config.metrics_bind_address)?,
        hard_fail: config.bind_address_hard_fail,
        sync_period: effective.sync_period,
        min_sync_period: effective.min_sync_period,
        oom_score: config.oom_score_adj,
        plane,
    })
}
