//! FerryConfiguration: decoding, validation and the modes that a start tries.

use crate::config::{SelfTest, decode};

use super::*;

const FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";
const HEAD: &str = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n";

fn own(body: &str) -> FerryConfiguration {
    decode(&format!("{FILE}{HEAD}{body}")).unwrap().config.ferry
}

fn refusal(documents: &str) -> String {
    let error = decode(&format!("{FILE}{documents}")).unwrap_err().to_string();
    error.strip_prefix("failed to decode: ").unwrap_or(&error).to_owned()
}

fn findings(body: &str) -> String {
    let mut config = decode(&format!("{FILE}{body}")).unwrap().config;
    config.apply_platform_defaults();
    config.validate().err().map(|errors| errors.to_string()).unwrap_or_default()
}

#[test]
fn every_field_arrives() {
    let default = FerryConfiguration::default();
    assert_eq!(own(""), default);
    let without_values: String = FIELDS.iter().map(|field| format!("{field}:\n")).collect();
    assert_eq!(own(&without_values), default, "null leaves the default");
    assert_eq!(default.ipvs_termination_grace_period.to_string(), "15m0s");
    let wanted = FerryConfiguration {
        proxy_mode_fallback: vec!["nftables".to_owned(), "iptables".to_owned()],
        ipvs_termination_grace_period: GoDuration::from_secs(90),
        ipvs_ping_only_with_endpoints: true,
        accept_forward: true,
        snapshot: "/var/lib/ferry/snapshot".to_owned(),
        snapshot_max_age: GoDuration::from_secs(3600),
        control_socket: "/run/other.sock".to_owned(),
        status_page: "nobody".to_owned(),
        self_test: SelfTest { period: GoDuration::from_secs(30), ranges: vec!["10.99.0.0/29".to_owned()] },
        userspace: Userspace {
            way: "bind".to_owned(),
            interface: "Ethernet 2".to_owned(),
            udp_timeout: GoDuration::from_secs(1),
            max_connections: 2,
            max_connections_per_port: 3,
            max_associations: 4,
            termination_grace_period: GoDuration::from_secs(5),
            drain_timeout: GoDuration::from_secs(6),
        },
    };
    let body = "proxyModeFallback: [nftables, iptables]\nipvsTerminationGracePeriod: 1m30s\nipvsPingOnlyWithEndpoints: true\n\
                acceptForward: true\nsnapshot: /var/lib/ferry/snapshot\nsnapshotMaxAge: 1h\ncontrolSocket: /run/other.sock\nstatusPage: nobody\n\
                selfTestPeriod: 30s\nselfTestRanges: [10.99.0.0/29]\n\
                userspaceWay: bind\nuserspaceInterface: Ethernet 2\nuserspaceUDPTimeout: 1s\nuserspaceMaxConnections: 2\nuserspaceMaxConnectionsPerPort: 3\n\
                userspaceMaxAssociations: 4\nuserspaceTerminationGracePeriod: 5s\nuserspaceDrainTimeout: 6s\n";
    assert_eq!(own(body), wanted);
}

#[test]
fn other_documents_may_stand_around_it() {
    let file = format!("{FILE}---\nkind: Foo\n{HEAD}acceptForward: true\n---\nmode: [\n");
    let decoded = decode(&file).unwrap();
    assert_eq!((decoded.config.ferry.accept_forward, decoded.other_documents), (true, 2));
    assert_eq!((decoded.strict_error, decoded.warnings), (None, vec![]));
    let first = decode(&format!("{HEAD}---\n{FILE}")).unwrap_err().to_string();
    assert!(first.contains("\": it must come after the KubeProxyConfiguration (line 3"), "{first}");
}

#[test]
fn faults_name_the_field_and_the_remedy() {
    for (documents, wanted) in [
        (
            "foo: 1",
            "foo: unknown field: remove or correct it, the fields are proxyModeFallback, \
                    ipvsTerminationGracePeriod, ipvsPingOnlyWithEndpoints, acceptForward, snapshot, snapshotMaxAge, controlSocket, statusPage, selfTestPeriod, selfTestRanges, userspaceWay, userspaceInterface, userspaceUDPTimeout, \
                    userspaceMaxConnections, userspaceMaxConnectionsPerPort, userspaceMaxAssociations, \
                    userspaceTerminationGracePeriod, userspaceDrainTimeout (line 7, column 1)",
        ),
        (
            "acceptForward: true\nacceptForward: true",
            "acceptForward: repeated field: keep one of them (line 8, column 1)",
        ),
        (
            "ipvsPingOnlyWithEndpoints: x",
            "ipvsPingOnlyWithEndpoints: must be true or false, and is of type string (line 7, column 28)",
        ),
        ("acceptForward: 1", "acceptForward: must be true or false, and is of type number (line 7, column 16)"),
        (
            "proxyModeFallback: nftables",
            "proxyModeFallback: must be a list of modes such as [nftables, iptables], \
                                         and is of type string (line 7, column 20)",
        ),
        (
            "proxyModeFallback: [1]",
            "proxyModeFallback: must be a list of modes such as [nftables, iptables], \
                                    and is of type number (line 7, column 21)",
        ),
        (
            "ipvsTerminationGracePeriod: 15",
            "ipvsTerminationGracePeriod: must be a duration such as 15m, and is of \
                                            type number (line 7, column 29)",
        ),
        (
            "ipvsTerminationGracePeriod: '15'",
            "ipvsTerminationGracePeriod: time: missing unit in duration \"15\": write \
                                              it like 15m or 1h30m (line 7, column 29)",
        ),
        ("snapshot: [/a]", "snapshot: must be a text, and is of type array (line 7, column 11)"),
        (
            "userspaceMaxConnections: many",
            "userspaceMaxConnections: must be a whole number, and is of type string (line 7, column 26)",
        ),
        (
            "userspaceMaxConnections: 3000000000",
            "userspaceMaxConnections: 3000000000 is too large: it must fit into 32 bits (line 7, column 26)",
        ),
        (
            "snapshotMaxAge: 5",
            "snapshotMaxAge: must be a duration such as 24h, and is of type number (line 7, column 17)",
        ),
    ] {
        assert_eq!(refusal(&format!("{HEAD}{documents}")), format!("FerryConfiguration.{wanted}"), "{documents}");
    }
}

#[test]
fn faults_of_documents_name_the_remedy() {
    for (documents, wanted) in [
        (
            "---\nkind: FerryConfiguration\n",
            "FerryConfiguration.apiVersion: must be ferry.io/v1alpha1 (line 5, column 1)",
        ),
        (
            "---\napiVersion: ferry.io/v2\nkind: FerryConfiguration\n",
            "FerryConfiguration.apiVersion: must be ferry.io/v1alpha1 (line 5, column 13)",
        ),
        (
            "---\napiVersion: ferry.io/v1alpha1\nkind: Ferry\n",
            "FerryConfiguration.kind: must be FerryConfiguration (line 6, column 7)",
        ),
    ] {
        assert_eq!(refusal(documents), wanted);
    }
    let second = refusal(&format!("{HEAD}{HEAD}"));
    assert_eq!(second, "second document of kind FerryConfiguration: merge it with the first (line 8, column 1)");
    for (head, line) in [(HEAD, 7), ("---\nkind: FerryConfiguration\n", 6), ("---\napiVersion: ferry.io/v1alpha1\n", 6)]
    {
        let wanted = format!(
            "FerryConfiguration: error converting YAML to JSON: yaml: unclosed bracket '[' (line {line}, column 16)"
        );
        assert_eq!(refusal(&format!("{head}acceptForward: [\n")), wanted);
    }
}

#[test]
fn values_are_checked() {
    for (body, wanted) in [
        ("proxyModeFallback: [nftables, ipvs, iptables]", ""),
        ("ipvsTerminationGracePeriod: 1ns", ""),
        ("snapshot: /var/lib/ferry/snapshot\nsnapshotMaxAge: 0s", ""),
        (
            "snapshot: snapshot",
            "snapshot: Invalid value: \"snapshot\": must be the absolute path of a file that survives a restart of the \
             machine, such as /var/lib/ferry/snapshot",
        ),
        ("controlSocket: \"\"", ""),
        (&*format!("controlSocket: /{}", "a".repeat(89)), ""),
        (
            &*format!("controlSocket: /{}", "a".repeat(90)),
            &*format!(
                "controlSocket: Invalid value: \"/{}\": must be the absolute path of a socket of at most 90 bytes, such as \
                 /run/kube-proxy/control.sock, or empty for none",
                "a".repeat(90)
            ),
        ),
        ("statusPage: everyone", ""),
        (
            "controlSocket: control.sock",
            "controlSocket: Invalid value: \"control.sock\": must be the absolute path of a socket of at most 90 bytes, such as \
             /run/kube-proxy/control.sock, or empty for none",
        ),
        ("userspaceWay: redirect\nuserspaceTerminationGracePeriod: 0s\nuserspaceDrainTimeout: 0s", ""),
        (
            "userspaceWay: magic",
            "userspaceWay: Invalid value: \"magic\": must be redirect, bind or empty (empty: redirect, or bind where that can't be used)",
        ),
        (
            "userspaceUDPTimeout: 0s",
            "userspaceUDPTimeout: Invalid value: \"0s\": must be greater than 0: remove it for the default, 250ms",
        ),
        (
            "userspaceDrainTimeout: -1s",
            "userspaceDrainTimeout: Invalid value: \"-1s\": must not be negative: remove it for the default, 2s",
        ),
        ("userspaceMaxAssociations: 0", "userspaceMaxAssociations: Invalid value: 0: must be at least 1"),
        (
            "snapshotMaxAge: -1s",
            "snapshotMaxAge: Invalid value: \"-1s\": must not be negative: remove it for the default, 24h, or write 0s for \
             no limit",
        ),
        (
            "proxyModeFallback: [foo]",
            "proxyModeFallback[0]: Invalid value: \"foo\": must be iptables, ipvs, nftables or userspace: correct or remove it",
        ),
        (
            "proxyModeFallback: [iptables, nftables, iptables]",
            "proxyModeFallback[2]: Invalid value: \"iptables\": stands in the list already: remove it",
        ),
        (
            "ipvsTerminationGracePeriod: 0s",
            "ipvsTerminationGracePeriod: Invalid value: \"0s\": must be greater than 0: remove it for the default, 15m",
        ),
    ] {
        let found = findings(&format!("{HEAD}{body}"));
        assert_eq!(found.strip_prefix("FerryConfiguration.").unwrap_or(&found), wanted);
    }
}

#[test]
fn values_of_the_self_test_are_checked() {
    for (body, wanted) in [
        ("selfTestPeriod: 1s\nselfTestRanges: [10.99.0.0/30, \"fd00:99::/126\"]", ""),
        ("selfTestRanges: []", ""),
        ("selfTestPeriod: 999ms", "selfTestPeriod: Invalid value: \"999ms\": must be at least 1s, or 0s for no tests"),
        (
            "selfTestRanges: [10.99.0.0]",
            "selfTestRanges[0]: Invalid value: \"10.99.0.0\": must be an IP range in CIDR notation, such as 10.99.0.0/29",
        ),
        (
            "selfTestRanges: [127.9.0.0/29]",
            "selfTestRanges[0]: Invalid value: \"127.9.0.0/29\": must not be loopback, link-local, multicast or unspecified",
        ),
        (
            "selfTestRanges: [\"fd00:99::/127\"]",
            "selfTestRanges[0]: Invalid value: \"fd00:99::/127\": must have at least four addresses",
        ),
        (
            "selfTestRanges: [10.99.0.0/29, 10.98.0.0/29]",
            "selfTestRanges[1]: Invalid value: \"10.98.0.0/29\": must not be of the same family as another one: remove one of them",
        ),
        ("statusPage: all", "statusPage: Invalid value: \"all\": must be loopback, everyone or nobody"),
    ] {
        let found = findings(&format!("{HEAD}{body}"));
        assert_eq!(found.strip_prefix("FerryConfiguration.").unwrap_or(&found), wanted);
    }
}

#[test]
fn the_sections_of_fallbacks_are_checked() {
    let sections = "nftables: {masqueradeBit: -1, minSyncPeriod: 1h}\n";
    assert_eq!(findings(sections), "");
    let body = format!("{sections}{HEAD}proxyModeFallback: [iptables, nftables]\n");
    let begin = "FerryConfiguration.proxyModeFallback[1]: Invalid value: \"nftables\": KubeProxyConfiguration.";
    let found = findings(&body);
    assert!(found.contains(&format!("{begin}KubeProxyNFTablesConfiguration.MasqueradeBit: ")), "{found}");
    assert!(found.contains(&format!("{begin}SyncPeriod: ")) && !found.contains("[0]"), "{found}");
    // What is wrong for the configured mode, too, is reported once.
    let found = findings(&format!("configSyncPeriod: -1s\n{HEAD}proxyModeFallback: [nftables]\n"));
    assert!(found.starts_with("KubeProxyConfiguration.ConfigSyncPeriod: "), "{found}");
}

#[test]
fn the_configured_mode_comes_first_and_once() {
    let modes = |mode: &str, list: &str| {
        let file = FILE.replace("ipvs", mode);
        let config = decode(&format!("{file}{HEAD}proxyModeFallback: {list}\n")).unwrap().config;
        config.modes_to_try().join(" ")
    };
    assert_eq!(modes("ipvs", "[nftables, iptables]"), "ipvs nftables iptables");
    assert_eq!(modes("nftables", "[nftables, iptables]"), "nftables iptables");
    assert_eq!(modes("''", "[iptables, nftables]"), "iptables nftables");
    assert_eq!(modes("ipvs", "[]"), "ipvs");
}

#[test]
fn a_fallback_keeps_all_but_the_section_of_the_mode() {
    let body = "nftables: {masqueradeBit: 3, syncPeriod: 7s}\niptables: {masqueradeAll: true}\n";
    let mut config = decode(&format!("{FILE}{body}")).unwrap().config;
    config.apply_platform_defaults();
    let fallback = config.in_mode("nftables");
    let effective = fallback.effective();
    assert_eq!((effective.masquerade_bit, effective.masquerade_all), (3, false));
    assert_eq!(effective.sync_period.as_secs(), 7);
    assert!(fallback.node_port_addresses.is_empty(), "all addresses, as in the configured mode");
    assert_eq!(crate::config::KubeProxyConfiguration { mode: "ipvs".to_owned(), ..fallback }, config);
}
