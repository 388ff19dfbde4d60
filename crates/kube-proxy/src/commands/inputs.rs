//! The inputs of a run (settings, mode, source of objects), from the configuration.

use anyhow::Context as _;
use ferry_api::wire::address::parse_socket_address;
use ferry_model::Settings;

use super::Configured;
use crate::app::RunOptions;
use crate::control::GivenConfiguration;
use crate::origin::Origin;
use crate::planes::{Candidates, InheritedSockets};
use crate::version;
use ferry_client::{self as client, Access};

/// What a run needs of the configuration.
pub(super) fn options(configured: &Configured) -> anyhow::Result<RunOptions> {
    let config = &configured.config;
    let address =
        |text: &str| parse_socket_address(text).with_context(|| format!("not an IP address and port: {text}"));
    let healthz = &config.healthz_bind_address;
    Ok(RunOptions {
        settings: Settings::from_config(config, &configured.node_name),
        healthz: if healthz.is_empty() { None } else { Some(address(healthz)?) },
        metrics: address(&config.metrics_bind_address)?,
        candidates: Candidates::of(config)?,
        config: config.clone(),
        flags: configured.flags.clone(),
        given: GivenConfiguration { file: configured.text.clone(), flags: configured.given.of_configuration() },
        sockets: InheritedSockets::default(),
    })
}

/// The source of objects: manifests if given, else the cluster.
pub(super) fn origin(configured: &Configured) -> anyhow::Result<Origin> {
    if let Some(manifests) = &configured.manifests {
        return Ok(Origin::Manifests(manifests.into()));
    }
    let connection = &configured.config.client_connection;
    let access = Access::load(&connection.kubeconfig, configured.master.as_deref())?;
    let program = std::env::args().next().unwrap_or_default();
    let options = client::ClientOptions {
        content_type: connection.content_type.clone(),
        accept_content_types: connection.accept_content_types.clone(),
        qps: connection.qps,
        burst: connection.burst,
        user_agent: client::user_agent(&program, version::UPSTREAM, &version::platform()),
        timing: client::TimeLimits::default(),
    };
    let streaming_lists = configured.config.has_feature("WatchListClient");
    Ok(Origin::Cluster { access: Box::new(access), options: Box::new(options), streaming_lists })
}
