//! The log: its formats, its streams, and its levels.

use std::process::Output;
use std::time::Duration;

use ferry_lab::api::{ApiServer, ApiServerOptions};
use serde_json::Value;

use crate::support::Machine;

const ALPHA: &str = "--feature-gates=LoggingAlphaOptions=true";
/// Ends the program after it has logged informational lines, a warning and an error.
const END: [&str; 3] = ["--proxy-mode=nftables", "--logtostderr", "--kubeconfig=/no/such/file"];
const ERROR: &str = "stat /no/such/file: no such file or directory";

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Lines of JSON, of which nothing else may be among them.
fn lines(bytes: &[u8]) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    text(bytes).lines().map(parse).collect()
}

/// Runs the executable to its end.
fn run(arguments: &[&str]) -> Output {
    let output = Machine::new().output(&[&END[..], arguments].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    output
}

fn is_warning(line: &Value) -> bool {
    line["msg"] == "Flag was removed upstream and has no effect" && line["flag"] == "logtostderr"
}

#[test]
fn json_replaces_text_once_the_log_is_set_up() {
    let output = run(&["--logging-format=json", "-v=1"]);
    assert!(output.stdout.is_empty(), "{output:?}");
    let lines = lines(&output.stderr);
    let (last, others) = lines.split_last().expect("a line");
    assert_eq!((&last["msg"], &last["err"]), (&"command failed".into(), &ERROR.into()));
    assert_eq!((&last["caller"], &last["v"]), (&"cli/run.go:72".into(), &Value::Null));
    assert!(
        others.iter().all(|line| line["ts"].is_f64() && line["v"].is_u64() && line["msg"].is_string()),
        "{lines:?}"
    );
    let flag = others.iter().find(|line| line["msg"] == "FLAG: --logging-format=\"json\"").expect("all flags");
    assert_eq!((&flag["caller"], &flag["v"]), (&"flag/flags.go:64".into(), &1.into()));
    let warning = others.iter().find(|line| is_warning(line)).expect("a warning");
    assert!(warning["caller"].as_str().is_some_and(|caller| caller.starts_with("commands/config.rs:")), "{warning}");
    // What fails before is text.
    let output = run(&["--logging-format=json", "--config=/no/such/file"]);
    assert!(text(&output.stderr).starts_with('E'), "{output:?}");
    // Without the gate of its maturity JSON is refused.
    let output = run(&["--logging-format=json", "--feature-gates=LoggingBetaOptions=false"]);
    assert!(
        text(&output.stderr).contains("initialize logging: logging.format: Forbidden: Log format json is disabled")
    );
}

#[test]
fn streams_are_split_behind_their_gate() {
    for flag in ["--log-json-split-stream", "--log-text-split-stream", "--log-json-info-buffer-size=1Ki"] {
        let stderr = run(&[flag]).stderr;
        let error = "err=\"initialize logging: logging.options.";
        assert!(text(&stderr).contains(error), "{}", text(&stderr));
        assert!(text(&stderr).contains("Forbidden: Feature LoggingAlphaOptions is disabled"), "{}", text(&stderr));
    }
    let output = run(&[ALPHA, "--log-text-split-stream", "--log-text-info-buffer-size=1Ki", "-v=1"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.lines().all(|line| line.starts_with('I')), "{stdout}");
    assert!(stdout.contains("FLAG: --log-text-info-buffer-size=\"1Ki\"\n"), "{stdout}");
    assert!(stderr.lines().all(|line| line.starts_with(['W', 'E'])), "{stderr}");
    assert!(stderr.contains("\"Flag was removed upstream and has no effect\" flag=\"logtostderr\""), "{stderr}");
    assert!(stderr.contains("\"command failed\""), "{stderr}");

    let output = run(&[ALPHA, "--logging-format=json", "--log-json-split-stream"]);
    let (stdout, stderr) = (lines(&output.stdout), lines(&output.stderr));
    assert!(stdout.iter().any(is_warning) && stdout.iter().all(|line| line["v"] == 0), "{stdout:?}");
    let [error] = &stderr[..] else { panic!("{stderr:?}") };
    assert_eq!((&error["msg"], &error["err"]), (&"command failed".into(), &ERROR.into()));
}

#[test]
fn feature_gates_that_are_set_are_named_from_level_1() {
    let gates =
        "--feature-gates=WatchListClient=false,LoggingAlphaOptions=true,NFTablesProxyMode=true,NodeSwap=true,Odd=true";
    for (level, number) in [("-v=0", 0), ("-v=1", 4)] {
        let stderr = run(&[gates, level]).stderr;
        let log = text(&stderr);
        assert_eq!(log.matches("\"Feature gate is set\"").count(), number, "{log}");
        let named = "\"Feature gate is set\" name=\"WatchListClient\" stage=\"BETA\" value=false\n";
        assert_eq!(log.contains(named), number > 0, "{log}");
        let warned = |what: &str| log.lines().any(|line| line.starts_with('W') && line.contains(what));
        assert!(!warned("NodeSwap"), "it is another component's: {log}");
        assert!(warned("what=\"unrecognized feature gate: Odd (ignored)\""), "{log}");
        assert!(
            warned("Setting GA feature gate NFTablesProxyMode=true. It will be removed in a future release."),
            "{log}"
        );
    }
    let stderr = run(&["--feature-gates=NFTablesProxyMode=false"]).stderr;
    let error =
        "err=\"failed complete: cannot set feature gate NFTablesProxyMode to false, feature is locked to true\"";
    assert!(text(&stderr).contains(error), "{}", text(&stderr));
}

/// A cluster with one Service, and the arguments of a proxy of its node.
fn cluster(machine: &Machine) -> (ApiServer, Vec<String>) {
    let server = machine.run(|| ApiServer::start(ApiServerOptions::secure()));
    server.put(
        "apiVersion: v1\nkind: Node\nmetadata: {name: node}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n",
    );
    server.put(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec:\n  clusterIP: 10.96.0.1\n  \
         clusterIPs: [10.96.0.1]\n  ipFamilies: [IPv4]\n  ports: [{port: 80, protocol: TCP}]\n",
    );
    server.put(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: shop, labels: \
         {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: '', port: 8080, protocol: TCP}]\n\
         endpoints: [{addresses: [10.244.0.7], conditions: {ready: true}}]\n",
    );
    let kubeconfig = machine.write("kubeconfig", &server.kubeconfig_text());
    let arguments = ["--proxy-mode=nftables", "--hostname-override=node", &format!("--kubeconfig={kubeconfig}")];
    (server, arguments.map(str::to_owned).into())
}

#[test]
fn objects_are_traced_from_level_4_and_decisions_from_level_6() {
    const SYNCS: [&str; 1] = ["\"Synced\" family=\"IPv4\""];
    const OBJECTS: [&str; 3] = [
        "\"Received object\" kind=\"Service\" object=\"shop/web\"\n",
        "\"Writing rules\" family=\"IPv4\" service=\"shop/web\" ports=1 frontends=1\n",
        "\"Rules are in force\" family=\"IPv4\" unit=\"service shop/web\" change=\"added\"\n",
    ];
    const DECISIONS: [&str; 2] = [
        "\"Chose endpoints\" family=\"IPv4\" service=\"shop/web\" port=\"\" protocol=\"TCP\" cluster=\"[10.244.0.7:8080]\" \
         local=\"[]\" lingering=\"[]\"\n",
        "\"Decided treatment\" family=\"IPv4\" service=\"shop/web\" port=\"\" protocol=\"TCP\" treatment=\"clusterIP 10.96.0.1:80: \
         pod=cluster host=cluster other=cluster\"\n",
    ];
    for (level, lines) in [
        ("-v=1", &[][..]),
        ("-v=3", &SYNCS),
        ("-v=4", &[&SYNCS[..], &OBJECTS].concat()),
        ("-v=5", &[&SYNCS[..], &OBJECTS].concat()),
        ("-v=6", &[&SYNCS[..], &OBJECTS, &DECISIONS].concat()),
    ] {
        let machine = Machine::new();
        let (_server, arguments) = cluster(&machine);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([level]).collect();
        let mut running = machine.start_bare(&arguments);
        running.until_synced();
        running.until("the map", |_| machine.serves("ip", "10.96.0.1"));
        // Reports follow within a second.
        running.until(level, |running| lines.iter().all(|line| running.log().contains(line)));
        std::thread::sleep(Duration::from_secs(1));
        let log = running.log();
        for line in [&SYNCS[..], &OBJECTS, &DECISIONS].concat() {
            assert_eq!(log.contains(line), lines.contains(&line), "{level} {line}\n{log}");
        }
    }
}

#[test]
fn a_quiet_cluster_logs_nothing_at_any_level() {
    let machine = Machine::new();
    let (_server, arguments) = cluster(&machine);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["-v=10"]).collect();
    let mut running = machine.start_bare(&arguments);
    running.until_synced();
    for traced in
        ["\"Received object\" kind=\"Service\" object=\"shop/web\"", "\"Chose endpoints\"", "\"Rules are in force\""]
    {
        running.until(traced, |running| running.log().contains(traced));
    }
    std::thread::sleep(Duration::from_secs(2));
    let before = running.log();
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(running.log().strip_prefix(&*before), Some(""));
}

#[test]
fn vmodule_raises_the_level_of_files() {
    let machine = Machine::new();
    let (server, arguments) = cluster(&machine);
    let vmodule = "--vmodule=servicechangetracker=4,nothing=9";
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain([vmodule]).collect();
    let mut running = machine.start_bare(&arguments);
    running
        .until("a trace", |running| running.log().contains("\"Writing rules\" family=\"IPv4\" service=\"shop/web\""));
    let log = running.log();
    assert!(!log.contains("Chose endpoints") && !log.contains("\"Synced\"") && !log.contains("List complete"), "{log}");
    // Without the streaming lists that a gate switches off, pages are read.
    drop(running);
    server.forget_requests();
    let gate = "--feature-gates=WatchListClient=false";
    let arguments: Vec<&str> = arguments.iter().copied().chain([gate]).collect();
    let mut running = machine.start_bare(&arguments);
    running.until_synced();
    let asked = server.requests();
    let has = |part: &str| asked.iter().any(|request| request.path_and_query.contains(part));
    assert!(!has("sendInitialEvents") && has("limit="), "{asked:?}");
    // JSON has no such option, as upstream's.
    let stderr = run(&[vmodule, "--logging-format=json"]).stderr;
    let error = "initialize logging: logging.vmodule: Forbidden: Only supported for text log format";
    assert!(text(&stderr).contains(error), "{}", text(&stderr));
}
