//! A configuration file: decoding, defaults, validation.
//!
//! Most of what a fuzzer writes has no kind, so that each text is also tried behind a good head.
#![no_main]

use ferry_api::config::{KubeProxyConfiguration, MODE_NFTABLES, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    try_one(text);
    try_one(&format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{text}"));
});

fn try_one(text: &str) {
    let Ok(decoded) = decode(text) else { return };
    let mut config: KubeProxyConfiguration = decoded.config;
    config.apply_platform_defaults();
    let effective = config.effective();
    assert!(effective.masquerade_bit < 32);
    if config.validate().is_ok() {
        assert!(effective.min_sync_period <= effective.sync_period && !effective.sync_period.is_zero());
        assert!(config.mode != MODE_NFTABLES || !config.node_port_addresses.is_empty());
    }
}
