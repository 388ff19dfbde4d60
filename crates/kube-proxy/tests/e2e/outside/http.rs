//! Pages of the metrics server besides the metrics, and slow or hostile clients.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use ferry_kube_proxy::version::UPSTREAM;
use flate2::read::GzDecoder;
use serde_json::Value;

use crate::support::{METRICS, Machine};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Sends these bytes and reads until the server closes the connection.
fn exchange(machine: &Machine, request: &str) -> String {
    String::from_utf8_lossy(&exchange_bytes(machine, request)).into_owned()
}

fn exchange_bytes(machine: &Machine, request: &str) -> Vec<u8> {
    machine.run(|| {
        let mut stream = TcpStream::connect(METRICS).expect("connecting");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
        stream.write_all(request.as_bytes()).expect("sending");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    })
}

fn put(machine: &Machine, path: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    exchange(machine, &format!("{head}{body}"))
}

fn request(method: &str, path: &str, header: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n\r\n")
}

fn get_as(machine: &Machine, path: &str, header: &str) -> String {
    exchange(machine, &request("GET", path, header))
}

/// The head and the decompressed body of an answer that must be compressed.
fn get_compressed(machine: &Machine, path: &str) -> (String, String) {
    let answer = exchange_bytes(machine, &request("GET", path, "Accept-Encoding: gzip"));
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("the end of the head") + 4;
    let (head, body) = answer.split_at(end);
    let head = String::from_utf8_lossy(head).to_lowercase();
    assert!(head.contains("\r\ncontent-encoding: gzip\r\n"), "{head}");
    let mut text = String::new();
    GzDecoder::new(body).read_to_string(&mut text).expect("a body in gzip");
    (head, text)
}

/// The names of the metrics of a page, in their order.
fn metrics(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect()
}

#[test]
fn the_effective_configuration_is_served() {
    let machine = Machine::new();
    let running = {
        let mut running = machine.start(&["--iptables-sync-period=1m", "--masquerade-all"]);
        running.until_synced();
        running
    };
    let answer = running.get(METRICS, "/configz");
    assert_eq!(answer.header("content-type"), "application/json");
    let served = json(&answer.body);
    let config = &served["kubeproxy.config.k8s.io"];
    assert_eq!((&config["mode"], &config["hostnameOverride"]), (&"nftables".into(), &"node".into()));
    assert_eq!((&config["nftables"]["syncPeriod"], &config["iptables"]["syncPeriod"]), (&"1m0s".into(), &"0s".into()));
    assert_eq!(config["nftables"]["masqueradeAll"], true);
    assert_eq!(served["ferry.io"]["kind"], "FerryConfiguration");
    assert_eq!(running.get(METRICS, "/configz/").status(), "404");
}

#[test]
fn the_state_of_the_process_is_served_behind_its_gates() {
    let machine = Machine::new();
    let mut running = machine.start(&["--master=https://user:secret@192.0.2.1", "--conntrack-min=0"]);
    running.until_synced();
    let answer = running.get(METRICS, "/statusz").body;
    assert!(
        answer.starts_with("\nkube-proxy statusz\nWarning: ")
            && answer.contains(&format!("\nBinary version: {}", UPSTREAM.trim_start_matches('v'))),
        "{answer}"
    );
    let flags = running.get(METRICS, "/flagz").body;
    for line in ["proxy-mode=nftables", "conntrack-min=0", "conntrack-tcp-timeout-established=24h0m0s", "help=false"] {
        assert!(flags.lines().any(|found| found == line), "{line}: {flags}");
    }
    assert!(!flags.contains("secret"), "{flags}");
    let object = get_as(&machine, "/flagz", "Accept: application/json;v=v1beta1;g=config.k8s.io;as=Flagz");
    let (head, body) = object.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Type: application/json;g=config.k8s.io;v=v1beta1;as=Flagz"), "{head}");
    assert_eq!(json(body)["flags"]["hostname-override"], "node");
    assert!(get_as(&machine, "/statusz", "Accept: application/json").starts_with("HTTP/1.1 406 "));
    drop(running);

    let mut running = machine.start(&["--feature-gates=AllBeta=false,ComponentFlagz=true"]);
    running.until_synced();
    assert_eq!(running.get(METRICS, "/statusz").status(), "404");
    assert_eq!(running.get(METRICS, "/flagz").status(), "200");
    let page = running.get(METRICS, "/metrics").body;
    for (name, value) in [("ComponentFlagz", 1), ("ComponentStatusz", 0)] {
        let line = format!("kubernetes_feature_enabled{{name=\"{name}\",stage=\"BETA\"}} {value}");
        assert!(page.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn profiling_changes_the_verbosity_of_the_running_log() {
    let machine = Machine::new();
    let mut running = machine.start(&["--profiling"]);
    running.until_synced();
    assert!(!running.log().contains("\"Synced\""), "{}", running.log());
    let answer = put(&machine, "/debug/flags/v", "2");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nsuccessfully set klog.logging.verbosity to 2\n"), "{answer}");
    machine.write(
        "manifests/web.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n",
    );
    running.until("a message of that level", |running| running.log().contains("\"Synced\""));
    let answer = put(&machine, "/debug/flags/v", "many");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("parsing \"many\": invalid syntax\n"), "{answer}");
    assert_eq!(running.get(METRICS, "/debug/flags/v").status(), "406");
    let command = running.get(METRICS, "/debug/pprof/cmdline").body;
    assert!(command.split('\0').any(|argument| argument == "--profiling"), "{command}");
    assert_eq!(running.get(METRICS, "/debug/pprof/heap").status(), "501");
    drop(running);

    let mut running = machine.start(&[]);
    running.until_synced();
    assert!(put(&machine, "/debug/flags/v", "2").starts_with("HTTP/1.1 404 "));
    assert_eq!(running.get(METRICS, "/debug/pprof/").status(), "404");
}

#[test]
fn metrics_are_compressed_for_clients_that_ask_for_it() {
    let machine = Machine::new();
    let mut running = machine.start(&[]);
    running.until_synced();
    assert_eq!(running.get(METRICS, "/healthz").body, "ok");
    for (path, sample) in [
        ("/metrics", "kubeproxy_sync_proxy_rules_last_timestamp_seconds{"),
        ("/metrics/slis", "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1"),
    ] {
        let plain = running.get(METRICS, path);
        assert!(!plain.head.contains("content-encoding"), "{}", plain.head);
        let (head, page) = get_compressed(&machine, path);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        assert!(length.parse::<usize>().expect("a number") < page.len(), "{head}");
        // A metric may get its first sample between two scrapes.
        running.until("the same metrics in both forms", |running| {
            let plain = running.get(METRICS, path).body;
            metrics(&get_compressed(&machine, path).1) == metrics(&plain)
        });
        assert!(page.lines().any(|line| line.starts_with(sample)), "{path}: {page}");
    }
}

#[test]
fn the_indicators_of_the_component_count_its_health_check() {
    let machine = Machine::new();
    let mut running = machine.start(&[]);
    running.until_synced();
    let page = || running.get(METRICS, "/metrics/slis").body;
    assert_eq!(metrics(&page()), ["process_start_time_seconds"], "the check has not run yet");
    for runs in 1..=3 {
        assert_eq!(running.get(METRICS, "/healthz").body, "ok");
        let page = page();
        let counted =
            format!("kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {runs}");
        for line in ["kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1", &counted] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
    let answer = exchange(&machine, &request("DELETE", "/metrics/slis", "Accept: */*"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nmetrics reset\n"), "{answer}");
    assert_eq!(metrics(&page()), ["process_start_time_seconds"]);
}

/// Idle connections, unfinished requests, and answers that nobody reads, from one address; a probe and a scraper of others.
#[test]
fn a_client_that_holds_connections_holds_nothing_else() {
    let machine = Machine::new();
    let mut running = machine.start(&[]);
    running.until_synced();
    machine.run(|| {
        let mut scraper = TcpStream::connect(METRICS).expect("connecting");
        scraper.set_read_timeout(Some(Duration::from_secs(5))).expect("a time limit");
        let mut alive = || {
            let mut buffer = [0; 256];
            scraper.write_all(b"GET /proxyMode HTTP/1.1\r\nHost: a\r\n\r\n").expect("sending");
            let length = scraper.read(&mut buffer).expect("an answer");
            String::from_utf8_lossy(&buffer[..length]).ends_with("\r\n\r\nnftables")
        };
        assert!(alive());
        let mut held = Vec::new();
        for round in 0..300 {
            let mut stream = connect_from("127.0.0.9");
            let request: &[u8] = match round % 3 {
                0 => b"",
                1 => b"GET /metrics HTTP/1.1\r\nHost:",
                _ => b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            };
            // The server may have closed it already.
            let _ = stream.write_all(request);
            held.push(stream);
        }
        assert!(alive(), "an idle connection of another client");
    });
    assert_eq!(running.get(METRICS, "/healthz").body, "ok");
    // The server holds no more than its limit.
    let sockets = machine.tool("ss", &["-tnH", "state", "established", "sport", "=", ":10249"]);
    let count = String::from_utf8_lossy(&sockets.stdout).lines().count();
    assert!(count <= 64, "{count}");
}

fn connect_from(address: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let at = |text: &str| text.parse::<std::net::SocketAddr>().expect("an address");
    bind(&socket, &at(&format!("{address}:0"))).expect("binding");
    connect(&socket, &at(METRICS)).expect("connecting");
    socket.into()
}
