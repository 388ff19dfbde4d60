//! Events of the executable in one mode or another: which mode runs, how traffic reaches it, and what it doesn't serve.

use ferry_lab::api::ApiServer;
use serde_json::Value;

use crate::snapshot::server;
use crate::support::{METRICS, Machine, Running};

/// The notes of Events with this reason, if all are about this object.
pub(crate) fn notes(server: &ApiServer, reason: &str, (kind, name): (&str, &str)) -> Vec<String> {
    let text = |event: &Value, at: &str| event.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    let events = server.events();
    let of_reason = events.iter().filter(|event| text(event, "/reason") == reason);
    of_reason
        .map(|event| {
            let about = (text(event, "/regarding/kind"), text(event, "/regarding/name"));
            assert_eq!(about, (kind.to_owned(), name.to_owned()), "{event}");
            text(event, "/note")
        })
        .collect()
}

pub(crate) const NODE: (&str, &str) = ("Node", "node");

/// Starts the executable, which finds only installed programs, in the cluster of this server's kubeconfig.
fn start_in_cluster<'a>(machine: &'a Machine, arguments: &[&str]) -> Running<'a> {
    let path = format!("PATH={}", machine.path("tools").display());
    let kubeconfig = format!("--kubeconfig={}", machine.path("kubeconfig").display());
    let arguments = [&["--hostname-override=node", &kubeconfig], arguments].concat();
    machine.start_through(&["env", &path], &arguments)
}

#[test]
fn an_event_of_the_node_says_that_a_fallback_runs() {
    let machine = Machine::new();
    let server = server(&machine);
    let mut running = start_in_cluster(&machine, &["--proxy-mode=iptables", "--proxy-mode-fallback=nftables"]);
    running.until("an Event", |_| !notes(&server, "ProxyModeFallback", NODE).is_empty());
    let [note] = &notes(&server, "ProxyModeFallback", NODE)[..] else { panic!("one Event") };
    assert!(note.starts_with("running in mode nftables instead of iptables: "), "{note}");
    assert!(note.contains("iptables-restore"), "{note}");
    running.until("the map", |_| machine.serves("ip", "10.96.0.1"));
}

#[test]
fn an_event_of_the_node_says_how_traffic_reaches_mode_userspace() {
    let machine = Machine::new();
    let server = server(&machine);
    let mut running = start_in_cluster(&machine, &["--proxy-mode=userspace"]);
    running.until("an Event", |_| !notes(&server, "ProxyWay", NODE).is_empty());
    assert_eq!(notes(&server, "ProxyWay", NODE), ["traffic reaches the proxy in mode userspace by way redirect"]);
    assert_eq!(notes(&server, "ProxyModeFallback", NODE), [""; 0]);
    running.until_synced();
    assert_eq!(running.get(METRICS, "/proxyMode").body, "userspace");
}

/// In mode userspace a relay would have to end the association of each side.
#[test]
fn an_event_of_a_service_says_that_sctp_is_not_served() {
    const SIGNALS: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"signals","namespace":"shop"},
        "spec":{"clusterIP":"10.96.0.9","clusterIPs":["10.96.0.9"],"ipFamilies":["IPv4"],
        "ports":[{"name":"tcp","port":80},{"name":"a","port":9000,"protocol":"SCTP"},{"name":"b","port":9001,"protocol":"SCTP"}]}}"#;
    let machine = Machine::new();
    let server = server(&machine);
    server.put(SIGNALS);
    let mut running = start_in_cluster(&machine, &["--proxy-mode=userspace"]);
    let about = ("Service", "signals");
    running.until("an Event", |_| !notes(&server, "ProtocolNotServed", about).is_empty());
    let note = "spec.ports[1].protocol: SCTP can't be relayed: not served in this mode (1 more like it)";
    assert_eq!(notes(&server, "ProtocolNotServed", about), [note]);
    let log = running.log();
    assert!(log.contains("SCTP can't be relayed: not served in this mode"), "{log}");
    running.until("the other port", |_| machine.serves("ip", "10.96.0.1"));
}
