//! The pages for programs, and `kubectl ferry`, with a script in the role of kubectl: the pod has the network of this machine, so that the
//! port at its end is the forwarded one.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::control::Socket;
use crate::support::{METRICS, Machine, Running, SERVICE, SLICE};

/// The plugin under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-ferry");
const CONNECTION: &str = "10.244.0.9 -> 10.96.0.1:80";
const ENCODED: &str = "10.244.0.9%20-%3E%2010.96.0.1:80";
/// Output of kubectl about pods and nodes: `node-b` has no proxy.
const PODS: &str =
    r#"{"items":[{"metadata":{"name":"kube-proxy-x"},"spec":{"nodeName":"node"},"status":{"phase":"Running"}}]}"#;
const NODES: &str = r#"{"items":[{"metadata":{"name":"node-b"}},{"metadata":{"name":"node"}}]}"#;

/// A machine with one Service, and a kubectl.
struct Stage {
    machine: Machine,
    socket: Socket,
}

// === impl Stage ===

impl Stage {
    fn new() -> Self {
        let machine = Machine::new();
        machine.write("manifests/service.json", SERVICE);
        machine.write("manifests/slice.json", SLICE);
        let stage = Self { machine, socket: Socket::new() };
        stage.kubectl("echo 'Forwarding from 127.0.0.1:10249 -> 10249'; exec sleep 600");
        stage
    }

    /// Replaces the kubectl by one that does this for a port-forward, and for a path of the API server.
    fn kubectl(&self, forward: &str) {
        let folder = self.machine.path("").display().to_string();
        let script = format!(
            "#!/bin/sh\necho \"$*\" >>{folder}/asked\n\
             case \"$*\" in\n\
             *port-forward*|*--raw*) echo $$ >{folder}/forwarding; {forward};;\n\
             *'get pods'*) echo '{PODS}';;\n\
             *'get nodes'*) echo '{NODES}';;\n\
             esac\n"
        );
        let text = self.machine.write("kubectl.sh", &script);
        // A child of another thread may inherit an open file, which then can't be executed.
        let installed = self.machine.tool("install", &[&text, &self.machine.path("kubectl").display().to_string()]);
        assert!(installed.status.success(), "{installed:?}");
    }

    fn start(&self, page: &str) -> Running<'_> {
        let config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: 10.244.0.0/24\n---\n\
             apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n{page}"
        );
        let config = self.machine.write("config.yaml", &config);
        let manifests = self.machine.manifests();
        let mut running =
            self.machine.start_bare(&["--config", &config, "--manifests", &manifests, "--hostname-override=node"]);
        running.until_synced();
        running
    }

    fn start_with_socket(&self) -> Running<'_> {
        self.start(&format!("controlSocket: {}\n", self.socket))
    }

    /// Runs the plugin; its port-forward has ended with it.
    fn ask(&self, arguments: &[&str]) -> Output {
        let kubectl = format!("KUBECTL={}", self.machine.path("kubectl").display());
        let output = self.machine.tool("env", &[&[&kubectl, PLUGIN], arguments].concat());
        if let Ok(process) = fs::read_to_string(self.machine.path("forwarding")) {
            assert!(!Path::new("/proc").join(process.trim()).exists(), "{arguments:?}: the port-forward runs on");
        }
        output
    }

    /// The subcommand's output about the running proxy.
    fn subcommand(&self, arguments: &[&str]) -> String {
        let output = self.machine.output(&[arguments, &["--control-socket", &self.socket]].concat());
        text(&output.stdout).to_owned()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

fn decoded(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_overview_is_there_for_programs() {
    let stage = Stage::new();
    let mut running = stage.start_with_socket();
    running
        .until("the Service's change", |running| running.get(METRICS, "/ui?format=json").body.contains("\"shop/web\""));
    let answer = running.get(METRICS, "/ui?format=json");
    assert_eq!((answer.status(), answer.header("content-type")), ("200", "application/json"));
    let status = decoded(&answer.body);
    let field =
        |pointer: &str| status.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}: {}", answer.body)).clone();
    for (pointer, value) in [
        ("/version", json!(1)),
        ("/node", json!("node")),
        ("/mode", json!("nftables")),
        ("/eligible", json!(true)),
        ("/families/0", json!({"family": "IPv4", "healthy": true, "waitingSeconds": null, "reason": null})),
        ("/kinds", json!([])),
        ("/counts", json!({"services": 1, "endpoints": 1, "frontends": 1})),
        ("/quarantined", json!([])),
        ("/moreProblems", json!(0)),
    ] {
        assert_eq!(field(pointer), value, "{pointer}");
    }
    // The machine has no addresses but loopback's.
    assert_eq!(field("/problems/0/kind"), json!("Node"));
    assert!(field("/passes").as_array().is_some_and(|passes| !passes.is_empty()));
    assert!(field("/passes/0/seconds").as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn a_trace_of_the_page_is_that_of_the_subcommand() {
    let stage = Stage::new();
    let running = stage.start_with_socket();
    let page = |query: &str| {
        let answer = running.get(METRICS, &format!("/ui/trace?{query}"));
        assert_eq!(answer.header("content-type"), "application/json");
        (answer.status().to_owned(), decoded(&answer.body))
    };
    let (status, traced) = page(&format!("q={ENCODED}"));
    assert_eq!((status.as_str(), &traced["exitCode"]), ("200", &json!(0)), "{traced}");
    assert_eq!(traced["output"], decoded(&stage.subcommand(&["trace", "--json", CONNECTION])));
    let (_, traced) = page(&format!("format=text&q={ENCODED}"));
    assert_eq!(traced["output"], json!(stage.subcommand(&["trace", CONNECTION])));
    // No text of a client reaches the command line of the child.
    for question in ["", "svc%20shop/web", "--help", "--config=/etc/passwd", "10.0.0.1%20-%3E%20--live", "%00", "a%0Ab"]
    {
        let (status, refused) = page(&format!("q={question}"));
        assert!(status == "400" && refused["error"].is_string(), "{question}: {refused}");
        let (status, refused) = page(&format!("errors=200&q={question}"));
        assert!(status == "200" && refused["error"].is_string(), "{question}: {refused}");
    }
    let (status, refused) = page(&format!("q={}", "1".repeat(301)));
    assert!(status == "400" && refused["error"] == "the question is longer than 300 bytes", "{refused}");
    // Something else has the path: the child's error is the answer.
    fs::remove_file(&*stage.socket).expect("removing the socket");
    let (status, failed) = page(&format!("q={ENCODED}"));
    assert_eq!(status, "503");
    assert!(failed["error"].as_str().is_some_and(|why| why.contains("no running kube-proxy at ")), "{failed}");
}

#[test]
fn a_trace_needs_a_control_socket() {
    let stage = Stage::new();
    let running = stage.start("controlSocket: \"\"\n");
    let answer = running.get(METRICS, &format!("/ui/trace?q={ENCODED}"));
    assert!(answer.status() == "503" && answer.body.contains("controlSocket is empty"), "{}", answer.body);
    assert_eq!(stage.machine.ask("POST", METRICS, "/ui/trace").expect("an answer").status(), "405");
    let output = stage.ask(&["trace", "--node=node", CONNECTION]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    assert!(text(&output.stderr).contains("controlSocket is empty"), "{output:?}");
    drop(running);
    let running = stage.start("statusPage: nobody\n");
    assert_eq!(running.get(METRICS, &format!("/ui/trace?q={ENCODED}")).status(), "404");
    let output = stage.ask(&["explain", "--node=node", "svc", "shop/web"]);
    assert!(text(&output.stderr).contains("FerryConfiguration.statusPage is nobody"), "{output:?}");
}

#[test]
fn the_plugin_prints_what_the_subcommands_print() {
    let stage = Stage::new();
    let _running = stage.start_with_socket();
    for arguments in [
        &["explain", "svc", "shop/web"][..],
        &["explain", CONNECTION, "--json"],
        &["trace", CONNECTION],
        &["trace", CONNECTION, "--json"],
    ] {
        let output = stage.ask(&[arguments, &["--node=node"]].concat());
        let expected = stage.subcommand(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        // Also the warnings of a trace come from there: the machine has no address for node ports.
        let is_warning = |line: &str| arguments.contains(&"trace") && line.starts_with('W');
        assert!(text(&output.stderr).lines().all(is_warning), "{arguments:?}: {output:?}");
        assert_eq!(text(&output.stdout), expected, "{arguments:?}");
    }
    let asked = fs::read_to_string(stage.machine.path("asked")).expect("it has been asked");
    assert!(
        asked.contains("port-forward --address=127.0.0.1 --namespace=kube-system pod/kube-proxy-x :10249"),
        "{asked}"
    );
    let output = stage.ask(&["explain", "svc", "shop/web"]);
    let named = "The kube-proxy of node node answers (the first one); --node names another one\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), named));
    let output = stage.ask(&["explain", "--node=node", "svc", "shop/other"]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
    assert!(
        text(&output.stderr).starts_with("Error: asking pod kube-proxy-x at port 10249: no Service shop/other "),
        "{output:?}"
    );
}

#[test]
fn the_states_of_all_nodes_are_a_table() {
    let stage = Stage::new();
    let running = stage.start_with_socket();
    let output = stage.ask(&["status"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "node-b has no proxy: {output:?}");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.first().is_some_and(|line| line.starts_with("NODE   MODE       HEALTH ")), "{printed}");
    assert!(lines.get(1).is_some_and(|line| line.starts_with("node   nftables   healthy   yes ")), "{printed}");
    let reason = "node-b: node node-b has no kube-proxy: no pod in namespace kube-system runs there with label k8s-app=kube-proxy";
    assert!(lines.get(2).is_some_and(|line| line.starts_with(reason)), "{printed}");
    let output = stage.ask(&["status", "--json"]);
    let all = decoded(text(&output.stdout));
    assert_eq!(all["nodes"][0]["status"]["mode"], json!("nftables"), "{all}");
    assert!(all["nodes"][1]["error"].is_string(), "{all}");
    let output = stage.ask(&["status", "--node=node"]);
    assert!(output.status.success() && text(&output.stdout).contains("1 Services, 1 endpoints"), "{output:?}");
    drop(running);
    let output = stage.ask(&["status", "--node=node"]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("asking pod "), "{output:?}");
    stage.kubectl("echo 'error: unable to forward port because pod is not running' >&2; exit 1");
    let output = stage.ask(&["status", "--node=node"]);
    let reason =
        "Error: kubectl port-forward pod/kube-proxy-x: error: unable to forward port because pod is not running\n";
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), reason));
}

#[test]
fn a_difference_is_an_answer_with_an_exit_code_of_its_own() {
    let stage = Stage::new();
    let answer =
        r#"{"version":1,"exitCode":2,"output":"it differs \u001b[2J\n  here\n","log":"a warning\n","later":0}"#;
    stage.kubectl(&format!("printf %s '{answer}'"));
    let output = stage.ask(&["trace", "--via=node-proxy", "--node=node", "--context=home", CONNECTION]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // Nothing of a node controls the terminal.
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("it differs \\x1b[2J\n  here\n", "a warning\n"));
    let asked = fs::read_to_string(stage.machine.path("asked")).expect("it has been asked");
    let path =
        "/api/v1/nodes/node:10249/proxy/ui/trace?format=text&errors=200&q=10.244.0.9%20-%3E%2010.96.0.1%3A80%2FTCP";
    assert!(asked.starts_with(&format!("--context=home get --raw {path} ")), "{asked}");
    stage.kubectl("echo '<html>'");
    let output = stage.ask(&["status", "--via=node-proxy", "--node=node"]);
    assert!(
        output.status.code() == Some(1) && text(&output.stderr).contains("it answers something else"),
        "{output:?}"
    );
}
