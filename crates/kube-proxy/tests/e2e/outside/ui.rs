//! The status page: what it shows, to whom, and that nothing makes it unsafe.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Answer, METRICS, Machine, Running, SERVICE, SLICE};

/// A machine with one Service.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.write("manifests/service.json", SERVICE);
    machine.write("manifests/slice.json", SLICE);
    machine
}

fn start<'a>(machine: &'a Machine, page: &str) -> Running<'a> {
    let config = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.244.0.0/24\n\
         metricsBindAddress: 0.0.0.0:10249\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\ncontrolSocket: \"\"\n{page}"
    );
    let config = machine.write("config.yaml", &config);
    let manifests = machine.manifests();
    let mut running =
        machine.start_bare(&["--config", &config, "--manifests", &manifests, "--hostname-override=<node>"]);
    running.until_synced();
    running
}

/// The answer to a request with these lines.
fn send(machine: &Machine, address: &str, request: &str) -> Answer {
    let text = machine.run(|| {
        let mut stream = TcpStream::connect(address).expect("connecting");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        stream.write_all(format!("{request}\r\nConnection: close\r\n\r\n").as_bytes()).expect("asking");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    });
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    Answer { head: head.to_lowercase(), body: body.to_owned() }
}

fn asked_as(machine: &Machine, host: &str) -> String {
    send(machine, METRICS, &format!("GET /ui HTTP/1.1\r\nHost: {host}")).status().to_owned()
}

#[test]
fn pages_show_services_and_answer_questions() {
    let machine = machine();
    let mut running = start(&machine, "");
    // Either family may be in force first.
    running.until("the change of the Service", |running| running.get(METRICS, "/ui").body.contains("svc%20shop%2Fweb"));
    let page = |path: &str| {
        let page = running.get(METRICS, path);
        assert_eq!(page.status(), "200", "{path}: {}", page.head);
        assert!(page.header("content-security-policy").starts_with("default-src 'none'; style-src 'self';"));
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert!(!page.body.contains("<script") && !page.body.contains("<node>"), "{path}: {}", page.body);
        page.body
    };
    let overview = page("/ui");
    for part in [
        "1 Service<",
        "1 endpoint in",
        "IPv4",
        "healthy",
        "from manifests",
        "&lt;node&gt;",
        "svc%20shop%2Fweb",
        "<rect",
    ] {
        assert!(overview.contains(part), "no {part:?}: {overview}");
    }
    let services = page("/ui/services");
    assert!(services.contains("shop/web</a>") && services.contains("http TCP: 10.96.0.1:80"), "{services}");
    assert!(page("/ui/services?find=other").contains("No Service."));
    assert!(page("/ui/services?after=shop/web").contains("First page"));
    for question in ["svc%20shop%2Fweb", "10.96.0.1:80", "pod+10.244.0.7", "10.0.0.1%20-%3E%2010.96.0.1:80"] {
        let answer = page(&format!("/ui/explain?q={question}"));
        assert!(answer.contains("10.244.0.7:8080"), "{question}: {answer}");
    }
    let error = page("/ui/explain?q=%3Cscript%3Ealert(1)%3C/script%3E");
    assert!(error.contains("class=\"problem\"") && error.contains("&lt;script&gt;"), "{error}");
    assert!(page("/ui/explain").contains("Questions:"));
    assert!(running.get(METRICS, "/ui/style.css").header("content-type").starts_with("text/css"));
}

#[test]
fn the_overview_names_what_is_not_served_as_specified() {
    let machine = machine();
    let older = SERVICE.replace("\"web\"", "\"older\",\"creationTimestamp\":\"2020-01-01T00:00:00Z\"");
    assert_ne!(older, SERVICE);
    let mut running = start(&machine, "");
    let overview = running.get(METRICS, "/ui").body;
    // The machine has no addresses but loopback's.
    assert!(
        overview.contains("<p class=\"problem\">Node &lt;node&gt;, nodePortAddresses: no IPv4 address"),
        "{overview}"
    );
    assert!(overview.contains("The node is eligible for the traffic of load balancers"), "{overview}");
    machine.write("manifests/older.json", &older);
    running.until("the conflict", |running| running.get(METRICS, "/ui").body.contains("<p class=\"problem\">Service "));
    let overview = running.get(METRICS, "/ui").body;
    assert!(
        overview.contains("shop/web</a>, spec.clusterIP: 10.96.0.1:80 TCP belongs to another Service"),
        "{overview}"
    );
    let winner = "(it is that of <a href=\"/ui/explain?q=svc%20shop%2Folder\">shop/older</a>)";
    assert!(overview.contains(winner), "{overview}");
    // Each further Service of the same address is one more problem, and twenty are listed.
    for number in 0..25 {
        let service = SERVICE.replace("\"web\"", &format!("\"other-{number:02}\""));
        machine.write(&format!("manifests/other-{number:02}.json"), &service);
    }
    running.until("the number of the other problems", |running| {
        running.get(METRICS, "/ui").body.contains("and 8 more problems: the log has a line for each")
    });
}

#[test]
fn an_answer_for_programs_is_that_of_the_subcommand() {
    let machine = machine();
    let running = start(&machine, "");
    let json = running.get(METRICS, "/ui/explain?format=json&q=svc%20shop/web");
    assert_eq!(json.header("content-type"), "application/json");
    let config = machine.path("config.yaml").display().to_string();
    let offline = machine.output(&[
        "explain",
        "--config",
        &config,
        "--manifests",
        &machine.manifests(),
        "--hostname-override=<node>",
        "--local-addresses=machine",
        "--json",
        "svc",
        "shop/web",
    ]);
    assert_eq!(json.body, String::from_utf8(offline.stdout).expect("text"));
    let refused = running.get(METRICS, "/ui/explain?format=json&q=nonsense");
    assert!(refused.status() == "400" && refused.body.contains("\"error\""), "{}", refused.body);
}

#[test]
fn nothing_can_be_changed_and_nobody_else_looks() {
    let machine = machine();
    let running = start(&machine, "");
    assert_eq!(machine.ask("POST", METRICS, "/ui").expect("an answer").status(), "405");
    assert_eq!(running.get(METRICS, "/ui/other").status(), "404");
    assert_eq!(running.get(METRICS, "/uix").status(), "404");
    for host in ["localhost:10249", "127.0.0.1", "[::1]:10249"] {
        assert_eq!(asked_as(&machine, host), "200", "{host}");
    }
    for host in ["example.com", "localhost.example.com"] {
        assert_eq!(asked_as(&machine, host), "403", "{host}");
    }
    // By another address of the machine the client isn't loopback.
    let added = machine.tool("ip", &["addr", "add", "198.51.100.1/32", "dev", "lo"]);
    assert!(added.status.success(), "{added:?}");
    let request = "GET /ui HTTP/1.1\r\nHost: localhost";
    let answer = send(&machine, "198.51.100.1:10249", request);
    assert!(answer.status() == "403" && answer.body.contains("statusPage: everyone"), "{}", answer.body);
    drop(running);
    let running = start(&machine, "statusPage: everyone\n");
    assert_eq!(send(&machine, "198.51.100.1:10249", "GET /ui HTTP/1.1\r\nHost: example.com").status(), "200");
    drop(running);
    let running = start(&machine, "statusPage: nobody\n");
    assert_eq!(running.get(METRICS, "/ui").status(), "404");
}
