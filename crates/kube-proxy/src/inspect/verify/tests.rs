use ferry_api::object::Protocol;

use super::*;

/// A family in which one packet to one Service differs, and a run would change this of what all Services share.
fn differing(shared: Batch<String>) -> Compared {
    let packet = Packet {
        source: [203, 0, 113, 250].into(),
        source_local: false,
        interface: None,
        destination: [10, 96, 0, 1].into(),
        destination_local: false,
        protocol: Protocol::Tcp,
        port: 80,
    };
    let mut compared = Compared { services: 1, shared, ..Compared::default() };
    let difference = Difference { packet, actual: Verdict::Pass, expected: Verdict::Reject };
    compared.note(&ObjectName::new("demo", "web"), difference);
    compared
}

#[test]
fn what_all_services_share_is_named_before_them() {
    let objects = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let service = "  service demo/web: 1 packets";
    let missing_container = Some("table kube-proxy".to_owned());
    let missing = Batch {
        create: objects(&["table kube-proxy { comment \"rules of all\" }", "set cluster-ips"]),
        ..Batch::default()
    };
    let without_table = Compared { missing_container, ..differing(missing) };
    let text = report::lines(&without_table).text(false);
    let named = "  table kube-proxy is missing: another program has removed it, or no run in this mode has made it";
    assert_eq!(text.lines().skip(1).take(2).collect::<Vec<_>>(), [named, service]);
    let value = report::json("IPv4", &without_table);
    assert_eq!(value.pointer("/shared/missing"), Some(&"table kube-proxy".into()));
    assert_eq!(value.pointer("/shared/create/1"), Some(&"set cluster-ips".into()));
    assert_eq!(value.pointer("/differing/0/service"), Some(&"demo/web".into()));

    let replace = objects(&["chain nat-prerouting { jump services; }"]);
    let emptied = differing(Batch { replace, ..Batch::default() });
    let text = report::lines(&emptied).text(false);
    let named = [
        "  what all Services share: 0 to create, 1 to replace, 0 to delete",
        "    a run would replace chain nat-prerouting { jump services; }",
        service,
    ];
    assert_eq!(text.lines().skip(1).take(3).collect::<Vec<_>>(), named);
    assert_eq!(report::json("IPv4", &emptied).pointer("/shared/missing"), Some(&serde_json::Value::Null));

    let text = report::lines(&differing(Batch::default())).text(false);
    assert_eq!(text.lines().nth(1), Some(service));
}

#[test]
fn a_sample_is_spread_over_all() {
    let state =
        |name: &str| ServiceState { name: ObjectName::new("demo", name), ports: Vec::new(), health_check: None };
    let all: Vec<ServiceState> = (0..10).map(|number| state(&number.to_string())).collect();
    let all: Vec<&ServiceState> = all.iter().collect();
    let names = |number| -> Vec<String> { sampled(&all, number).iter().map(|state| state.name.to_string()).collect() };
    assert_eq!(names(Some(3)), ["demo/0", "demo/3", "demo/6"]);
    assert_eq!(names(Some(100)).len(), 10);
    assert_eq!(names(None).len(), 10);
    assert_eq!(names(Some(0)), [""; 0]);
}
