//! Decoding, defaults and validation against upstream 1.36, row by row.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
const OWN: &str = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n";
const KUBEADM: &str = include_str!("../../testdata/kubeadm.yaml");
const EVERY_FIELD: &str = include_str!("../../testdata/every-field.yaml");

fn read(body: &str) -> KubeProxyConfiguration {
    decode(&format!("{HEAD}{body}")).unwrap().config
}

/// Warnings of a file whose first two lines are apiVersion and kind.
fn strict_error(body: &str) -> Option<String> {
    decode(&format!("{HEAD}{body}")).unwrap().strict_error
}

fn warnings(body: &str) -> Vec<String> {
    decode(&format!("{HEAD}{body}")).unwrap().warnings
}

fn refusal(body: &str) -> String {
    decode(&format!("{HEAD}{body}")).unwrap_err().to_string()
}

/// The errors of validation, platform defaults applied; empty if valid.
fn findings(body: &str) -> String {
    let mut config = read(body);
    config.apply_platform_defaults();
    config.validate().err().map(|errors| errors.to_string()).unwrap_or_default()
}

#[test]
fn an_empty_configuration_is_the_default() {
    let config = read("");
    assert_eq!(config, KubeProxyConfiguration::default());
    assert_eq!(config.bind_address, "0.0.0.0");
    assert_eq!(config.healthz_bind_address, "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address, "127.0.0.1:10249");
    assert_eq!(config.client_connection.content_type, "application/vnd.kubernetes.protobuf");
    assert_eq!((config.client_connection.qps, config.client_connection.burst), (5.0, 10));
    assert_eq!((config.iptables.masquerade_bit, config.nftables.masquerade_bit), (14, 14));
    assert!(config.iptables.localhost_node_ports);
    let seconds = GoDuration::from_secs;
    assert_eq!((config.iptables.sync_period, config.iptables.min_sync_period), (seconds(30), seconds(1)));
    assert_eq!((config.ipvs.sync_period, config.ipvs.min_sync_period), (seconds(30), GoDuration::ZERO));
    assert_eq!((config.nftables.sync_period, config.nftables.min_sync_period), (seconds(30), seconds(1)));
    assert_eq!(config.config_sync_period, seconds(900));
    assert_eq!(config.oom_score_adj, -999);
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (32_768, 131_072));
    assert_eq!(config.conntrack.tcp_established_timeout, seconds(86_400));
    assert_eq!(config.conntrack.tcp_close_wait_timeout, seconds(3_600));
    assert_eq!((config.logging.format.as_str(), config.logging.flush_frequency), ("text", seconds(5)));
    assert_eq!((config.logging.verbosity, config.logging.json.info_buffer_size.as_str()), (0, "0"));
    assert_eq!((config.mode.as_str(), config.detect_local_mode.as_str()), ("", ""));
    assert_eq!(KubeProxyConfiguration::default_for_linux().validate(), Ok(()));
}

#[test]
fn what_kubeadm_prints_is_the_default_too() {
    let decoded = decode(KUBEADM).unwrap();
    let mut wanted = KubeProxyConfiguration::default();
    wanted.client_connection.kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf".to_owned();
    wanted.cluster_cidr = "10.244.0.0/16,fd00:10:244::/56".to_owned();
    assert_eq!(decoded, DecodedConfig { config: wanted, strict_error: None, warnings: vec![], other_documents: 0 });
}

/// The sections of the modes in the file with every field.
fn sections_of_modes() -> KubeProxyConfiguration {
    let seconds = GoDuration::from_secs;
    let text = str::to_owned;
    KubeProxyConfiguration {
        iptables: IpTables {
            masquerade_bit: 0,
            masquerade_all: true,
            localhost_node_ports: false,
            sync_period: seconds(60),
            min_sync_period: seconds(2),
        },
        ipvs: Ipvs {
            sync_period: seconds(120),
            min_sync_period: seconds(3),
            scheduler: text("lc"),
            exclude_cidrs: vec![text("10.9.0.0/16"), text("fd09::/64")],
            strict_arp: true,
            tcp_timeout: seconds(1),
            tcp_fin_timeout: seconds(2),
            udp_timeout: seconds(3),
        },
        nftables: NfTables {
            masquerade_bit: 31,
            masquerade_all: true,
            sync_period: seconds(180),
            min_sync_period: GoDuration::from_millis(500),
        },
        winkernel: WinKernel {
            network_name: text("net"),
            source_vip: text("10.0.0.9"),
            enable_dsr: true,
            root_hns_endpoint_name: text("cbr1"),
            forward_health_check_vip: true,
        },
        ..KubeProxyConfiguration::default()
    }
}

#[test]
fn every_field_arrives() {
    let decoded = decode(EVERY_FIELD).unwrap();
    let seconds = GoDuration::from_secs;
    let text = str::to_owned;
    let wanted = KubeProxyConfiguration {
        feature_gates: [(text("AllAlpha"), true), (text("WatchListClient"), false)].into(),
        client_connection: ClientConnection {
            kubeconfig: text("/etc/kube-proxy/kubeconfig"),
            accept_content_types: text("application/json"),
            content_type: text("application/json"),
            qps: 7.5,
            burst: 20,
        },
        logging: Logging {
            format: text("text"),
            flush_frequency: GoDuration::from_millis(1500),
            flush_in_nanoseconds: true,
            verbosity: 4,
            vmodule: vec![VModule { file_pattern: text("proxier*"), verbosity: 6 }],
            text: LogOptions { split_stream: true, info_buffer_size: text("1Ki") },
            json: LogOptions { split_stream: true, info_buffer_size: text("512") },
        },
        hostname_override: text(" Node-1 "),
        bind_address: text("fd00::1"),
        healthz_bind_address: text("10.0.0.1:10256"),
        metrics_bind_address: text("[fd00::1]:10249"),
        bind_address_hard_fail: true,
        enable_profiling: true,
        show_hidden_metrics_for_version: text("1.35"),
        mode: text(MODE_IPVS),
        detect_local_mode: text(LOCAL_MODE_BRIDGE_INTERFACE),
        detect_local: DetectLocal { bridge_interface: text("br0"), interface_name_prefix: text("veth") },
        cluster_cidr: text("10.244.0.0/16"),
        node_port_addresses: vec![text("192.168.0.0/16")],
        oom_score_adj: 0,
        conntrack: Conntrack {
            max_per_core: 0,
            min: 0,
            tcp_established_timeout: GoDuration::ZERO,
            tcp_close_wait_timeout: GoDuration::ZERO,
            tcp_be_liberal: true,
            udp_timeout: seconds(30),
            udp_stream_timeout: seconds(180),
        },
        config_sync_period: seconds(300),
        port_range: text("30000-32767"),
        windows_run_as_service: true,
        ..sections_of_modes()
    };
    assert_eq!(decoded, DecodedConfig { config: wanted, strict_error: None, warnings: vec![], other_documents: 0 });
    assert_eq!(decoded.config.validate(), Ok(()));
}

#[test]
fn bind_addresses_get_hosts_and_ports() {
    for (body, healthz, metrics) in [
        ("bindAddress: 10.0.0.1", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: '::'", "[::]:10256", "[::1]:10249"),
        ("bindAddress: ::ffff:10.0.0.1", "0.0.0.0:10256", "127.0.0.1:10249"),
        ("bindAddress: foo", "[::]:10256", "[::1]:10249"),
        ("{healthzBindAddress: 10.0.0.1, metricsBindAddress: '::1'}", "10.0.0.1:10256", "[::1]:10249"),
        ("{healthzBindAddress: '10.0.0.1:1', metricsBindAddress: '[::1]:2'}", "10.0.0.1:1", "[::1]:2"),
        ("{healthzBindAddress: foo, metricsBindAddress: 'a:b:c'}", "foo", "a:b:c"),
    ] {
        let body = body.trim_matches(['{', '}']).replace(", ", "\n");
        let config = read(&body);
        assert_eq!((&*config.healthz_bind_address, &*config.metrics_bind_address), (healthz, metrics), "{body}");
    }
}

#[test]
fn platform_defaults() {
    for (body, local_mode, node_ports) in [
        ("mode: ''", "ClusterCIDR", &[][..]),
        ("mode: nftables", "ClusterCIDR", &["primary"][..]),
        ("mode: nftables\ndetectLocalMode: NodeCIDR\nnodePortAddresses: [10.0.0.0/8]", "NodeCIDR", &["10.0.0.0/8"]),
        ("mode: ipvs", "ClusterCIDR", &[]),
    ] {
        let mut config = read(body);
        let mode = config.mode.clone();
        config.apply_platform_defaults();
        assert_eq!(config.mode, mode, "the mode stays");
        assert_eq!(config.detect_local_mode, local_mode, "{body}");
        assert_eq!(config.node_port_addresses, node_ports, "{body}");
    }
}

#[test]
fn the_section_of_the_mode_counts() {
    let sections = "iptables: {syncPeriod: 10s, minSyncPeriod: 2s, masqueradeAll: true, masqueradeBit: 1}\n\
                    ipvs: {syncPeriod: 20s, minSyncPeriod: 0s}\n\
                    nftables: {syncPeriod: 30s, minSyncPeriod: 4s, masqueradeBit: 3}\n";
    for (mode, sync, min_sync, masquerade_all, masquerade_bit) in
        [("''", 10, 2, true, 1), ("iptables", 10, 2, true, 1), ("ipvs", 20, 0, true, 1), ("nftables", 30, 4, false, 3)]
    {
        let wanted = Effective {
            sync_period: Duration::from_secs(sync),
            min_sync_period: Duration::from_secs(min_sync),
            masquerade_all,
            masquerade_bit,
        };
        assert_eq!(read(&format!("{sections}mode: {mode}\n")).effective(), wanted, "{mode}");
    }
    for (given, effective) in [(-1, 14), (0, 0), (31, 31), (32, 14), (300, 14)] {
        let config = read(&format!("iptables: {{masqueradeBit: {given}}}"));
        assert_eq!(config.effective().masquerade_bit, effective, "{given}");
    }
}

#[test]
fn strict_errors_become_one_warning() {
    let lenient = "strict decoding error: ";
    for (body, wanted) in [
        ("foo: 1\n", r#"unknown field "foo""#),
        ("Mode: ipvs\n", r#"unknown field "Mode""#),
        (
            "iptables: {old: {x: 1}}\nudpIdleTimeout: 250ms\nresourceContainer: /kp\n",
            r#"unknown field "iptables.old", unknown field "resourceContainer", unknown field "udpIdleTimeout""#,
        ),
        ("mode: ipvs\nmode: nftables\n", r#"yaml: unmarshal errors: line 4: key "mode" already set in map"#),
        (
            "ipvs:\n  scheduler: a\n  scheduler: b\nx: {a: 1, a: 2}\n",
            "yaml: unmarshal errors: line 5: key \"scheduler\" already set in map, line 6: key \"a\" already set in map, \
             unknown field \"x\"",
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: 1, z: 2}], options: {text: {b: 1}, xml: 1}}\n",
            "unknown field \"logging.options.text.b\", unknown field \"logging.options.xml\", \
             unknown field \"logging.vmodule[0].z\"",
        ),
    ] {
        assert_eq!(strict_error(body), Some(format!("{lenient}{wanted}")), "{body}");
    }
    assert_eq!(read("mode: ipvs\nmode: nftables\n").mode, "nftables", "the last one wins");
    assert_eq!(read("Mode: ipvs\n").mode, "", "names are case-sensitive");
    let json = r#"{"kind":"KubeProxyConfiguration","apiVersion":"kubeproxy.config.k8s.io/v1alpha1",
        "iptables":{"masqueradeAll":true,"masqueradeAll":false},"x":1}"#;
    let decoded = decode(json).unwrap();
    let wanted = format!("{lenient}duplicate field \"iptables.masqueradeAll\", unknown field \"x\"");
    assert_eq!(decoded.strict_error, Some(wanted));
}

/// A file, and why it can't be decoded.
const WRONG_TYPES: &[(&str, &str)] = &[
    (
        "iptables:\n  masqueradeBit: \"12\"\n",
        "json: cannot unmarshal string into Go struct field KubeProxyIPTablesConfiguration.iptables.masqueradeBit \
             of type int32 (line 4, column 18)",
    ),
    (
        "oomScoreAdj: 3000000000",
        "json: cannot unmarshal number 3000000000 into Go struct field KubeProxyConfiguration.oomScoreAdj of type \
             int32 (line 3, column 14)",
    ),
    (
        "oomScoreAdj: 1.5",
        "json: cannot unmarshal number 1.5 into Go struct field KubeProxyConfiguration.oomScoreAdj of type int32 \
             (line 3, column 14)",
    ),
    (
        "mode: [a]",
        "json: cannot unmarshal array into Go struct field KubeProxyConfiguration.mode of type string (line 3, \
             column 7)",
    ),
    (
        "enableProfiling: 'true'",
        "json: cannot unmarshal string into Go struct field KubeProxyConfiguration.enableProfiling of type bool \
             (line 3, column 18)",
    ),
    (
        "featureGates:\n  A: maybe",
        "json: cannot unmarshal string into Go struct field KubeProxyConfiguration.featureGates of type bool (line \
             4, column 6)",
    ),
    (
        "nodePortAddresses: primary",
        "json: cannot unmarshal string into Go struct field KubeProxyConfiguration.nodePortAddresses of type \
             []string (line 3, column 20)",
    ),
    (
        "conntrack: 5",
        "json: cannot unmarshal number into Go struct field KubeProxyConfiguration.conntrack of type \
             KubeProxyConntrackConfiguration (line 3, column 12)",
    ),
    ("configSyncPeriod: 30", "json: cannot unmarshal number into Go value of type string (line 3, column 19)"),
    ("configSyncPeriod: '30'", "time: missing unit in duration \"30\" (line 3, column 19)"),
    ("configSyncPeriod: 30x", "time: unknown unit \"x\" in duration \"30x\" (line 3, column 19)"),
    (
        "clientConnection: {qps: .inf}",
        "json: cannot unmarshal string into Go struct field ClientConnectionConfiguration.clientConnection.qps of \
             type float32 (line 3, column 25)",
    ),
    (
        "logging: {options: {json: {infoBufferSize: 1KB}}}",
        "quantities must be a number with a unit such as Ki or M, not \"1KB\" (line 3, column 44)",
    ),
    ("a: [\n", "error converting YAML to JSON: yaml: unclosed bracket '[' (line 3, column 4)"),
    (
        "iptables:\n\tx: 1\n",
        "error converting YAML to JSON: yaml: tabs disallowed within this context (block indentation) (line 4, \
             column 2)",
    ),
];

#[test]
fn wrong_types_are_fatal() {
    for (body, wanted) in WRONG_TYPES {
        assert_eq!(refusal(body), format!("failed to decode: {wanted}"), "{body}");
    }
}

#[test]
fn the_kind_must_be_right() {
    for (text, wanted) in [
        ("", "Object 'Kind' is missing in ''"),
        ("# nothing\n", "Object 'Kind' is missing in ''"),
        ("mode: ipvs\n", "Object 'Kind' is missing in 'mode: ipvs\n'"),
        ("kind: KubeProxyConfiguration\n", "Object 'apiVersion' is missing in 'kind: KubeProxyConfiguration\n'"),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration",
            "no kind \"KubeProxyConfiguration\" is registered for version \"kubeproxy.config.k8s.io/v1alpha2\" in \
             scheme \"kubeproxy.config.k8s.io/v1alpha1\" (line 2, column 7)",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap",
            "no kind \"ConfigMap\" is registered for version \"v1\" in scheme \"kubeproxy.config.k8s.io/v1alpha1\" \
             (line 2, column 7)",
        ),
        (
            "kind: [a]",
            "couldn't get version/kind; json parse error: json: cannot unmarshal array into Go struct field .kind of \
             type string (line 1, column 7)",
        ),
        (
            "just text",
            "couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value of type struct { \
             APIVersion string; Kind string } (line 1, column 1)",
        ),
    ] {
        assert_eq!(decode(text).unwrap_err().to_string(), format!("failed to decode: {wanted}"), "{text:?}");
    }
    let long = decode(&format!("a: {}", "x".repeat(500))).unwrap_err().to_string();
    assert!(long.len() < 300 && long.ends_with("x…'"), "{long}");
}

#[test]
fn only_the_first_document_counts() {
    let decoded = decode(&format!("# a comment\n---\n{HEAD}mode: ipvs\n---\nmode: [\n---\nkind: Foo\n")).unwrap();
    assert_eq!((decoded.config.mode.as_str(), decoded.other_documents), ("ipvs", 2));
    assert_eq!(decoded.warnings, [""; 0]);
}

#[test]
fn yaml_as_go_reads_it() {
    let config = read(
        "enableProfiling: yes\nbindAddressHardFail: on\nportRange: 12\nshowHiddenMetricsForVersion: 1.35\n\
         clusterCIDR: null\noomScoreAdj: -5.0\nlogging: {verbosity: 010}\nnodePortAddresses: [~, 7]\n\
         ipvs: &i {syncPeriod: 9s}\nnftables: *i\niptables: {<<: *i, masqueradeAll: true}\n",
    );
    assert!(config.enable_profiling && config.bind_address_hard_fail && config.iptables.masquerade_all);
    assert_eq!((&*config.port_range, &*config.show_hidden_metrics_for_version), ("12", "1.35"));
    assert_eq!((config.oom_score_adj, config.logging.verbosity), (-5, 8));
    assert_eq!(config.node_port_addresses, ["", "7"]);
    let nine = GoDuration::from_secs(9);
    assert_eq!((config.iptables.sync_period, config.nftables.sync_period), (nine, nine));
    let config =
        read("featureGates: {AllAlpha: true, WatchListClient: }\nlogging: {options: {json: {infoBufferSize: 1.5}}}\n");
    let gates = [("AllAlpha".to_owned(), true), ("WatchListClient".to_owned(), false)];
    assert_eq!(config.feature_gates, gates.into(), "no value is false");
    assert_eq!(config.logging.json.info_buffer_size, "1500m");
    let json = r#"{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","mode":"nftables"}"#;
    assert_eq!(decode(json).unwrap().config, read("mode: nftables"));
    let windows = format!("\u{feff}{HEAD}mode: ipvs\n").replace('\n', "\r\n");
    assert_eq!(decode(&windows).unwrap().config.mode, "ipvs");
}

#[test]
fn feature_gates() {
    let ga = |gate: &str| format!("Setting GA feature gate {gate}. It will be removed in a future release.");
    for (gates, wanted) in [
        ("{WatchListClient: false, AllBeta: true}", vec![]),
        (
            "{SupportIPVSProxyMode: true, ServiceTopology: true}",
            vec![
                "unrecognized feature gate: ServiceTopology (ignored)".to_owned(),
                "unrecognized feature gate: SupportIPVSProxyMode (ignored: removed upstream, its feature is always on)"
                    .to_owned(),
            ],
        ),
        ("{NFTablesProxyMode: true}", vec![ga("NFTablesProxyMode=true")]),
        ("{AllowServiceExternalIPs: false}", vec![ga("AllowServiceExternalIPs=false")]),
    ] {
        assert_eq!(warnings(&format!("featureGates: {gates}")), wanted, "{gates}");
    }
    let locked = "cannot set feature gate NFTablesProxyMode to false, feature is locked to true";
    assert_eq!(refusal("featureGates: {NFTablesProxyMode: false}"), locked);
    let mut config = KubeProxyConfiguration::default_for_linux();
    config.feature_gates.insert("NFTablesProxyMode".to_owned(), false);
    let wanted =
        format!("KubeProxyConfiguration.featureGates: Invalid value: {{\"NFTablesProxyMode\":false}}: {locked}");
    assert_eq!(config.validate().unwrap_err().to_string(), wanted);
}

/// A file, and the errors of its validation; every path begins with `KubeProxyConfiguration.`, which the table leaves out.
const VALIDATION: &[(&str, &str)] = &[
    (
        "iptables: {masqueradeBit: 40}",
        "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 40: must be within the range [0, 31]",
    ),
    (
        "mode: nftables\nnftables: {masqueradeBit: -1}",
        "KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: -1: must be within the range [0, 31]",
    ),
    ("nftables: {masqueradeBit: -1}", ""),
    (
        "iptables: {masqueradeBit: 32}",
        "KubeProxyIPTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    ),
    (
        "mode: nftables\nnftables: {masqueradeBit: 32}",
        "KubeProxyNFTablesConfiguration.MasqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    ),
    ("mode: nftables\nnftables: {masqueradeBit: 31}\niptables: {masqueradeBit: 0}", ""),
    ("mode: nftables\nnftables: {masqueradeBit: 0}\niptables: {masqueradeBit: 31}", ""),
    (
        "iptables: {syncPeriod: -1s, minSyncPeriod: -2s}",
        "[SyncPeriod: Invalid value: \"-1s\": must be greater than 0, MinSyncPeriod: Invalid value: \"-2s\": must be greater than or equal to 0]",
    ),
    (
        "iptables: {syncPeriod: 30s, minSyncPeriod: 1m}",
        "SyncPeriod: Invalid value: \"1m0s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    ),
    ("iptables: {syncPeriod: 30s, minSyncPeriod: 30s}", ""),
    (
        "iptables: {syncPeriod: 30s, minSyncPeriod: 30.000000001s}",
        "SyncPeriod: Invalid value: \"30.000000001s\": must be greater than or equal to KubeProxyConfiguration.MinSyncPeriod",
    ),
    ("mode: ipvs\niptables: {syncPeriod: 30s, minSyncPeriod: 1m}", ""),
    ("configSyncPeriod: -1s", "ConfigSyncPeriod: Invalid value: \"-1s\": must be greater than 0"),
    (
        "oomScoreAdj: -1001",
        "KubeProxyLinuxConfiguration.OOMScoreAdj: Invalid value: -1001: must be within the range [-1000, 1000]",
    ),
    (
        "conntrack: {maxPerCore: -1}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.MaxPerCore: Invalid value: -1: must be greater \
             than or equal to 0",
    ),
    (
        "conntrack: {min: -1}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.Min: Invalid value: -1: must be greater than or \
             equal to 0",
    ),
    (
        "conntrack: {tcpEstablishedTimeout: -1s}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPEstablishedTimeout: Invalid value: \"-1s\": \
             must be greater than or equal to 0",
    ),
    (
        "conntrack: {tcpCloseWaitTimeout: -1s}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.TCPCloseWaitTimeout: Invalid value: \"-1s\": \
             must be greater than or equal to 0",
    ),
    (
        "conntrack: {udpTimeout: -1s}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPTimeout: Invalid value: \"-1s\": must be \
             greater than or equal to 0",
    ),
    (
        "conntrack: {udpStreamTimeout: -1s}",
        "KubeProxyLinuxConfiguration.KubeProxyConntrackConfiguration.UDPStreamTimeout: Invalid value: \"-1s\": must \
             be greater than or equal to 0",
    ),
    ("ipvs: {tcpTimeout: -1s, excludeCIDRs: [x]}", ""),
    (
        "mode: ipvs\nipvs: {tcpTimeout: -1s}",
        "KubeProxyIPVSConfiguration.TCPTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {tcpFinTimeout: -1s}",
        "KubeProxyIPVSConfiguration.TCPFinTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {udpTimeout: -1s}",
        "KubeProxyIPVSConfiguration.UDPTimeout: Invalid value: \"-1s\": must be greater than or equal to 0",
    ),
    (
        "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, foo]}",
        "KubeProxyIPVSConfiguration.ExcludeCidrs[1]: Invalid value: \"foo\": must be a valid CIDR",
    ),
    (
        "mode: kernelspace",
        "Mode.ProxyMode: Invalid value: \"kernelspace\": must be iptables, ipvs, nftables, userspace or blank (blank means the \
             best-available proxy [currently iptables])",
    ),
    ("mode: userspace\nportRange: 7000-7010", ""),
    (
        "mode: userspace\nportRange: foo",
        "PortRange: Invalid value: \"foo\": must be a range of ports such as 61000-61999, or empty for \
         61000-65535",
    ),
    ("clientConnection: {burst: -1}", "ClientConnection.Burst: Invalid value: -1: must be greater than or equal to 0"),
    (
        "bindAddress: 10.0.0.256",
        "BindAddress: Invalid value: \"10.0.0.256\": not a valid textual representation of an IP address",
    ),
    ("bindAddress: 010.0.0.1", ""),
    ("healthzBindAddress: foo", "HealthzBindAddress: Invalid value: \"foo\": must be IP:port"),
    ("healthzBindAddress: foo:80", "HealthzBindAddress: Invalid value: \"foo\": must be a valid IP"),
    ("healthzBindAddress: 10.0.0.1:0", "HealthzBindAddress: Invalid value: \"0\": must be a valid port"),
    (
        "metricsBindAddress: foo:65536",
        "[MetricsBindAddress: Invalid value: \"foo\": must be a valid IP, MetricsBindAddress: Invalid value: \
             \"65536\": must be a valid port]",
    ),
    ("nodePortAddresses: [primary]", ""),
    ("nodePortAddresses: [10.0.0.0/8, foo]", "NodePortAddresses[1]: Invalid value: \"foo\": must be a valid CIDR"),
    (
        "nodePortAddresses: [10.0.0.0/8, primary]",
        "NodePortAddresses[1]: Invalid value: \"primary\": can't use both 'primary' and CIDRs",
    ),
    (
        "nodePortAddresses: [primary, primary]",
        "NodePortAddresses[0]: Invalid value: \"primary\": can't use both 'primary' and CIDRs",
    ),
    (
        "showHiddenMetricsForVersion: '1.34'",
        "ShowHiddenMetricsForVersion: Invalid value: \"1.34\": invalid showHiddenMetricsForVersion: showHiddenMetricsForVersion: \
         Invalid value: \"1.34\": must be omitted or have the value '1.35'; only the \
             previous minor version is allowed",
    ),
    (
        "detectLocalMode: foo",
        "DetectLocalMode: Unsupported value: \"foo\": supported values: \"ClusterCIDR\", \"NodeCIDR\", \
             \"BridgeInterface\", \"InterfaceNamePrefix\", \"\"",
    ),
    (
        "detectLocalMode: BridgeInterface",
        "DetectLocalConfiguration.InterfaceName: Invalid value: \"\": must not be empty",
    ),
    (
        "detectLocalMode: InterfaceNamePrefix",
        "DetectLocalConfiguration.InterfacePrefix: Invalid value: \"\": must not be empty",
    ),
    ("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}", ""),
    (
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: sixteen-bytes-is}",
        "DetectLocalConfiguration.InterfaceName: Invalid value: \"sixteen-bytes-is\": must be at most 15 bytes, without \
             blanks, quotes, '*', '/', ':' or '\\', as interface names are",
    ),
    (
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: 'veth*'}",
        "DetectLocalConfiguration.InterfacePrefix: Invalid value: \"veth*\": must be at most 15 bytes, without \
             blanks, quotes, '*', '/', ':' or '\\', as interface names are",
    ),
    ("clusterCIDR: 10.0.0.0/8", ""),
    ("clusterCIDR: '10.0.0.0/8,fd00::/64'", ""),
    (
        "clusterCIDR: '10.0.0.0/8,fd00::/64,11.0.0.0/8'",
        "DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\", \"fd00::/64\", \"11.0.0.0/8\"]: must be a \
             either a single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]",
    ),
    (
        "clusterCIDR: '10.0.0.0/8, fd00::/64'",
        "DetectLocalConfiguration.ClusterCIDRs[1]: Invalid value: \" fd00::/64\": must be a valid CIDR block (e.g. \
             10.100.0.0/16 or fde4:8dba:82e1::/48)",
    ),
    (
        "clusterCIDR: '10.0.0.0/8,11.0.0.0/8'",
        "DetectLocalConfiguration.ClusterCIDRs: Invalid value: [\"10.0.0.0/8\", \"11.0.0.0/8\"]: must be a either a \
             single CIDR or dual-stack pair of CIDRs (e.g. [10.100.0.0/16, fde4:8dba:82e1::/48]",
    ),
    ("detectLocalMode: NodeCIDR\nclusterCIDR: foo", ""),
    ("portRange: foo", ""),
    ("logging: {format: xml}", "logging.format: Invalid value: \"xml\": Unsupported log format"),
    ("logging: {verbosity: 3000000000}", "logging.verbosity: Invalid value: 3000000000: Must be <= 2147483647"),
    ("logging: {verbosity: 2147483647, vmodule: [{filePattern: a, verbosity: 2147483647}]}", ""),
    (
        "logging: {verbosity: 2147483648, vmodule: [{filePattern: a, verbosity: 3000000000}]}",
        "[logging.verbosity: Invalid value: 2147483648: Must be <= 2147483647, logging.vmodule[0]: Invalid value: \
             3000000000: Must be <= 2147483647]",
    ),
    ("logging: {flushFrequency: -1s}", "logging.flushFrequency: Invalid value: \"-1s\": Must be greater than zero"),
    (
        "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
        "logging.vmodule: Forbidden: Only supported for text log format",
    ),
    (
        "logging: {vmodule: [{filePattern: ''}, {filePattern: 'a=b'}]}",
        "[logging.vmodule[0]: Required value: File pattern must not be empty, logging.vmodule[1]: Invalid value: \
             \"a=b\": File pattern must not contain equal sign or comma]",
    ),
    (
        "logging: {options: {text: {splitStream: true}, json: {infoBufferSize: 1}}}",
        "[logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled, \
         logging.options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled]",
    ),
    (
        "logging: {options: {json: {infoBufferSize: 1Ki}}}",
        "logging.options.json.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled",
    ),
    ("featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {infoBufferSize: 1Ki}}}", ""),
    (
        "featureGates: {LoggingBetaOptions: false}\nlogging: {format: json}",
        "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature",
    ),
];

#[test]
fn validation_in_upstreams_words() {
    for (body, wanted) in VALIDATION {
        let found = findings(body);
        let prefix = "KubeProxyConfiguration.";
        let bare = found.replacen(&format!("[{prefix}"), "[", 1).replace(&format!(", {prefix}"), ", ");
        assert_eq!(bare.strip_prefix(prefix).unwrap_or(&bare), *wanted, "{body}");
    }
}

#[test]
fn a_log_is_set_up_before_the_rest_is_checked() {
    let config = read("logging: {format: xml}\nmode: foo");
    let errors = config.validate_logging().unwrap_err();
    assert_eq!(errors.to_string(), "logging.format: Invalid value: \"xml\": Unsupported log format");
    assert_eq!(config.validate().unwrap_err().messages().len(), 2);
}

#[test]
fn hostile_files_end_in_errors() {
    let bomb = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| {
        format!("{text}a{i}: &a{i} [*a{0}, *a{0}, *a{0}, *a{0}]\n", i - 1)
    });
    let deep_block: String = (0..3000).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    for body in
        [bomb, "[".repeat(200_000), deep_block, format!("a: {}", "{a: ".repeat(100_000)), "a: &a [*a]".to_owned()]
    {
        let message = refusal(&body);
        assert!(message.starts_with("failed to decode: error converting YAML to JSON: yaml: "), "{message}");
    }
    let nested = format!("x: {}1{}", "[".repeat(18), "]".repeat(18));
    assert!(strict_error(&nested).is_some(), "what is deep but bounded is read");
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC*", body in "[a-z:{}\\[\\]&*<!|> \\-\\n\"'0-9.,#%~]{0,200}") {
        for text in [text, format!("{HEAD}{body}"), format!("{HEAD}{OWN}{body}")] {
            if let Ok(mut decoded) = decode(&text) {
                decoded.config.apply_platform_defaults();
                let _ = (decoded.config.validate(), decoded.config.effective());
            }
        }
    }

    #[test]
    fn durations_survive_printing(nanoseconds: i64) {
        let duration = GoDuration::from_nanos(nanoseconds);
        // Beyond 2^53 ns the fraction goes through floating point, as in Go.
        let printed: GoDuration = duration.to_string().parse().unwrap();
        prop_assert!(printed.as_nanos().abs_diff(nanoseconds) <= 1);
    }

    #[test]
    fn no_duration_panics(text in "[-+0-9.a-zµ]{0,30}") {
        let _ = text.parse::<GoDuration>();
    }
}
