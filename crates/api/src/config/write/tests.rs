//! Written configurations load back to the same values, in upstream's format.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::config::{DetectLocal, MODE_IPTABLES, SelfTest, Userspace, decode};

/// Output of upstream 1.36 without a file or flag.
const DEFAULT: &str = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: \"\"
  qps: 5
clusterCIDR: \"\"
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: \"\"
  interfaceNamePrefix: \"\"
detectLocalMode: ClusterCIDR
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: \"\"
iptables:
  localhostNodePorts: true
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 1s
  syncPeriod: 30s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: \"\"
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 5s
  format: text
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
metricsBindAddress: 127.0.0.1:10249
mode: iptables
nftables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: -999
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: \"\"
  rootHnsEndpointName: \"\"
  sourceVip: \"\"
";

#[test]
fn the_default_as_upstream_writes_it() {
    let mut config = KubeProxyConfiguration::default_for_linux();
    config.mode = MODE_IPTABLES.to_owned();
    assert_eq!(config.to_yaml(), DEFAULT);
}

#[test]
fn lists_gates_and_modes() {
    let mut config = KubeProxyConfiguration {
        mode: MODE_NFTABLES.to_owned(),
        feature_gates: [("B".to_owned(), false), ("AllAlpha".to_owned(), true)].into(),
        windows_run_as_service: true,
        ..KubeProxyConfiguration::default()
    };
    config.apply_platform_defaults();
    config.iptables.masquerade_all = true;
    config.nftables.masquerade_all = true;
    config.ipvs.exclude_cidrs = vec!["10.0.0.0/8".to_owned(), "::".to_owned()];
    config.logging.vmodule = vec![VModule { file_pattern: "a*".to_owned(), verbosity: 6 }];
    config.logging.json.split_stream = true;
    let text = config.to_yaml();
    for part in [
        "featureGates:\n  AllAlpha: true\n  B: false\nhealthz",
        "iptables:\n  localhostNodePorts: true\n  masqueradeAll: false\n  masqueradeBit: 14\n  minSyncPeriod: 0s\n  \
         syncPeriod: 0s\n",
        "  excludeCIDRs:\n  - 10.0.0.0/8\n  - '::'\n  minSyncPeriod: 0s\n",
        "    json:\n      infoBufferSize: \"0\"\n      splitStream: true\n    text:\n",
        "  verbosity: 0\n  vmodule:\n  - filePattern: a*\n    verbosity: 6\nmetrics",
        "nftables:\n  masqueradeAll: true\n  masqueradeBit: 14\n  minSyncPeriod: 1s\n  syncPeriod: 30s\n",
        "nodePortAddresses:\n- primary\noom",
        "windowsRunAsService: true\nwinkernel:\n",
    ] {
        assert!(text.contains(part), "{part}\n--- in\n{text}");
    }
}

#[test]
fn further_lines_are_indented_below_their_key() {
    let module = VModule { file_pattern: "a\nb".to_owned(), verbosity: 6 };
    let mut page = YamlPage::default();
    let below = vec![("c", ConfigValue::Text("a\nb"))];
    map(
        &mut page,
        vec![
            ("text", ConfigValue::Text("a\nb")),
            ("list", ConfigValue::Maps(vec![vmodule(&module)])),
            ("map", ConfigValue::Map(below)),
        ],
        0,
    );
    let wanted =
        "text: |-\n  a\n  b\nlist:\n- filePattern: |-\n    a\n    b\n  verbosity: 6\nmap:\n  c: |-\n    a\n    b\n";
    assert_eq!(page.finish(), wanted);
}

#[test]
fn numbers_as_go_prints_them() {
    for (value, text) in [
        (5.0, "5"),
        (-1.0, "-1"),
        (-0.0, "0"),
        (7.5, "7.5"),
        (0.1, "0.1"),
        (1e-4, "0.0001"),
        (1.5e-5, "1.5e-05"),
        (1e-30, "1e-30"),
        (1e6, "1000000"),
        (999_999.5, "999999.5"),
        (1_234_567.5, "1.2345675e+06"),
        (1e19, "10000000000000000000"),
        (1e20, "1e+20"),
        (f32::MAX, "3.4028235e+38"),
    ] {
        assert_eq!(float(value), text);
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9./:*-]{0,12}",
        "[-+~0-9a-fxoTZ._:]{0,8}",
        "[ -~\\n]{0,20}",
        "([a-z'\":#]{1,30} {1,3}){1,8}",
        "\\PC{0,10}",
        any::<String>(),
        proptest::sample::select(vec![
            "yes",
            "Null",
            "~",
            "1e3",
            "0x1",
            "1:30",
            "2001-01-01",
            "<<",
            "=",
            "- a",
            "a: b"
        ])
        .prop_map(str::to_owned),
    ]
}

fn duration() -> impl Strategy<Value = GoDuration> {
    // Beyond 2^53 ns a fraction goes through floating point, as in Go. Zero would be read as "not set".
    prop_oneof![1..1_000_000_000i64, (1..100_000i64).prop_map(|seconds| seconds * 1_000_000_000), -5_000..-1i64]
        .prop_map(GoDuration::from_nanos)
}

prop_compose! {
    fn sections()(
        bits in (any::<i32>(), any::<i32>()), flags in any::<[bool; 8]>(),
        d in vec(duration(), 14), texts in vec(text(), 7),
        lists in (vec(text(), 0..3), vec(text(), 0..3)), gates in btree_map(text(), any::<bool>(), 0..3),
    ) -> KubeProxyConfiguration {
        KubeProxyConfiguration {
            iptables: IpTables { masquerade_bit: bits.0, masquerade_all: flags[0], localhost_node_ports: flags[1],
                sync_period: d[0], min_sync_period: d[1] },
            ipvs: Ipvs { sync_period: d[2], min_sync_period: d[3], scheduler: texts[0].clone(),
                exclude_cidrs: lists.0, strict_arp: flags[2], tcp_timeout: d[4], tcp_fin_timeout: d[5],
                udp_timeout: d[6] },
            nftables: NfTables { masquerade_bit: bits.1, masquerade_all: flags[3], sync_period: d[7],
                min_sync_period: d[8] },
            winkernel: WinKernel { network_name: texts[1].clone(), source_vip: texts[2].clone(), enable_dsr: flags[4],
                root_hns_endpoint_name: texts[3].clone(), forward_health_check_vip: flags[5] },
            detect_local: DetectLocal { bridge_interface: texts[4].clone(), interface_name_prefix: texts[5].clone() },
            conntrack: Conntrack { max_per_core: bits.1, min: bits.0, tcp_established_timeout: d[9],
                tcp_close_wait_timeout: d[10], tcp_be_liberal: flags[6], udp_timeout: d[11], udp_stream_timeout: d[12] },
            config_sync_period: d[13],
            windows_run_as_service: flags[7],
            cluster_cidr: texts[6].clone(),
            node_port_addresses: lists.1,
            feature_gates: gates,
            ..KubeProxyConfiguration::default()
        }
    }
}

prop_compose! {
    fn log()(
        format in "[a-z]{1,5}", flush_frequency in duration(), flush_in_nanoseconds: bool, numbers in any::<[u32; 2]>(),
        patterns in vec(text(), 0..3), split in any::<[bool; 2]>(),
        sizes in vec(proptest::sample::select(vec!["0", "512", "1Ki", "1500m", "1e3"]), 2),
    ) -> Logging {
        let mut options = split.into_iter().zip(sizes).map(|(split_stream, size)| {
            LogOptions { split_stream, info_buffer_size: size.to_owned() }
        });
        Logging {
            format, flush_frequency, flush_in_nanoseconds, verbosity: numbers[0],
            vmodule: patterns.into_iter().map(|file_pattern| VModule { file_pattern, verbosity: numbers[1] }).collect(),
            text: options.next().unwrap(),
            json: options.next().unwrap(),
        }
    }
}

prop_compose! {
    fn userspace_settings()(way in text(), interface in text(), durations in vec(duration(), 3), numbers: [i32; 3]) -> Userspace {
        Userspace {
            way, interface, udp_timeout: durations[0], termination_grace_period: durations[1], drain_timeout: durations[2],
            max_connections: numbers[0], max_connections_per_port: numbers[1], max_associations: numbers[2],
        }
    }
}

prop_compose! {
    fn own_settings()(
        proxy_mode_fallback in vec(text(), 0..3), ipvs_termination_grace_period in duration(),
        ipvs_ping_only_with_endpoints: bool, accept_forward: bool, snapshot in text(), snapshot_max_age in duration(),
        control_socket in text(), status_page in text(), test_period in duration(), ranges in vec(text(), 0..3), userspace in userspace_settings(),
    ) -> FerryConfiguration {
        FerryConfiguration {
            proxy_mode_fallback, ipvs_termination_grace_period, ipvs_ping_only_with_endpoints, accept_forward,
            snapshot, snapshot_max_age, control_socket, status_page, self_test: SelfTest { period: test_period, ranges },
            userspace,
        }
    }
}

prop_compose! {
    fn any_config()(
        config in sections(), logging in log(), flags in any::<[bool; 2]>(), texts in vec(text(), 6),
        // An empty field is filled by defaults.
        filled in vec(text().prop_filter("not empty", |text| !text.is_empty()), 4),
        qps in any::<f32>().prop_filter("finite, not zero", |qps| qps.is_finite() && *qps != 0.0),
        burst in 1..i32::MAX, score: i32,
        mode in prop_oneof![text(), proptest::sample::select(vec!["", "iptables", "ipvs", "nftables"])
            .prop_map(str::to_owned)],
        ferry in own_settings(),
    ) -> KubeProxyConfiguration {
        KubeProxyConfiguration {
            client_connection: ClientConnection { kubeconfig: texts[0].clone(), accept_content_types: texts[1].clone(),
                content_type: filled[0].clone(), qps, burst },
            logging,
            hostname_override: texts[2].clone(),
            bind_address: filled[1].clone(),
            // An address without a port would get one.
            healthz_bind_address: format!("{}:80", filled[2].replace([':', '[', ']'], "x")),
            metrics_bind_address: format!("[{}]:80", filled[3].replace([':', '[', ']'], "x")),
            bind_address_hard_fail: flags[0],
            enable_profiling: flags[1],
            show_hidden_metrics_for_version: texts[3].clone(),
            detect_local_mode: texts[4].clone(),
            port_range: texts[5].clone(),
            oom_score_adj: score,
            mode,
            ferry,
            ..config
        }
    }
}

/// The configuration without the sections of other modes.
fn kept(mut config: KubeProxyConfiguration) -> KubeProxyConfiguration {
    let default = KubeProxyConfiguration::default();
    let (iptables, ipvs, nftables) = (&default.iptables, &default.ipvs, &default.nftables);
    let mode = config.mode.clone();
    if mode != MODE_NFTABLES {
        config.nftables.masquerade_all = false;
        config.nftables.sync_period = nftables.sync_period;
        config.nftables.min_sync_period = nftables.min_sync_period;
    } else {
        config.iptables.masquerade_all = false;
    }
    if mode != MODE_IPVS {
        config.ipvs.sync_period = ipvs.sync_period;
        config.ipvs.min_sync_period = ipvs.min_sync_period;
    }
    if mode == MODE_NFTABLES || mode == MODE_IPVS {
        config.iptables.sync_period = iptables.sync_period;
        config.iptables.min_sync_period = iptables.min_sync_period;
    }
    config
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_field_survives(mut config in any_config()) {
        // Gates that are locked to another value end the reading.
        config.feature_gates.retain(|name, _| !name.starts_with("NFTables"));
        let text = config.to_yaml();
        let decoded = decode(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(decoded.strict_error, None);
        prop_assert_eq!(&decoded.config, &kept(config), "{}", text);
        prop_assert_eq!(decoded.config.to_yaml(), text);
    }
}

#[test]
fn configz_has_the_same_values_as_the_written_file() {
    let mut config = KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default() };
    config.apply_platform_defaults();
    config.client_connection.qps = 7.5;
    config.feature_gates.insert("AllAlpha".to_owned(), true);
    config.hostname_override = "a \"b\"".to_owned();
    let served: serde_json::Value = serde_json::from_str(&config.to_configz()).unwrap();
    let document = &served["kubeproxy.config.k8s.io"];
    assert_eq!(document["kind"], "KubeProxyConfiguration");
    assert_eq!(document["clientConnection"]["qps"], 7.5);
    assert_eq!(document["featureGates"]["AllAlpha"], true);
    assert_eq!(document["hostnameOverride"], "a \"b\"");
    assert_eq!(document["ipvs"]["excludeCIDRs"], serde_json::Value::Null);
    assert_eq!(document["iptables"]["syncPeriod"], "0s", "only the periods of the configured mode count");
    assert_eq!(document["nftables"]["syncPeriod"], "30s");
    assert_eq!(served["ferry.io"]["acceptForward"], false);
    // JSON is YAML: what is served loads as the file does.
    assert_eq!(decode(&document.to_string()).unwrap().config, decode(&config.to_yaml()).unwrap().config);
}
