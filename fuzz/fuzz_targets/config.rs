//! Fuzzes the configuration file: decoding, defaults, validation, and writing it so that it decodes to the same values.
//!
//! Most inputs have no kind, so each text is also tried after a valid head, of either kind.
#![no_main]

use ferry_api::config::{GoDuration, KubeProxyConfiguration, MODE_NFTABLES, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    try_one(text);
    try_one(&format!("{HEAD}{text}"));
    try_one(&format!("{HEAD}---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n{text}"));
});

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn try_one(text: &str) {
    let Ok(decoded) = decode(text) else { return };
    let mut config: KubeProxyConfiguration = decoded.config;
    config.apply_platform_defaults();
    let effective = config.effective();
    assert!(effective.masquerade_bit < 32);
    if config.validate().is_ok() {
        assert!(effective.min_sync_period <= effective.sync_period && !effective.sync_period.is_zero());
        assert!(config.mode != MODE_NFTABLES || !config.node_port_addresses.is_empty());
        assert!(config.ferry.ipvs_termination_grace_period > GoDuration::ZERO);
        for mode in config.modes_to_try() {
            let effective = config.in_mode(mode).effective();
            assert!(effective.min_sync_period <= effective.sync_period && !effective.sync_period.is_zero());
        }
    }
    let written = config.to_yaml();
    let again = decode(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(again.strict_error, None, "{written}");
    assert_eq!(texts(&again.config), texts(&config), "{written}");
}

/// All fields except durations: beyond 2^53 ns these lose a nanosecond in the round trip, as in Go.
fn texts(config: &KubeProxyConfiguration) -> String {
    let modes = (&config.mode, &config.detect_local_mode, &config.detect_local, &config.cluster_cidr);
    let addresses = (&config.bind_address, &config.healthz_bind_address, &config.metrics_bind_address);
    let lists = (&config.node_port_addresses, &config.ipvs.exclude_cidrs, &config.logging.vmodule);
    let numbers = (config.oom_score_adj, config.conntrack.max_per_core, config.conntrack.min, config.logging.verbosity);
    let own = (&config.ferry.proxy_mode_fallback, config.ferry.accept_forward);
    let others = (own, &config.hostname_override, &config.port_range, &config.winkernel, &config.logging.json);
    format!("{:?}", (modes, addresses, lists, numbers, others, &config.client_connection, &config.feature_gates))
}
