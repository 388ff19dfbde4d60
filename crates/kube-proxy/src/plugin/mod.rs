//! The plugin of kubectl: `kubectl ferry explain`, `trace` and `status` ask the status page of a node's proxy, from a machine that reaches the API
//! server alone.
//!
//! `arguments` parses the command line. `kubectl` runs kubectl, whose credentials and contexts apply; `forward` is a port-forward that ends with
//! its owner. `cluster` finds nodes and the pods of their proxies, `page` requests a page of one, `table` prints the states of nodes.

mod arguments;
mod cluster;
mod forward;
mod kubectl;
mod page;
mod table;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use ferry_kernel::text::escaped_lines;
use serde_json::{Value, json};

use self::arguments::{Invocation, PluginAction, PluginRequest};
use self::cluster::{KubectlCluster, ReachedProxy};
use self::table::NodeRow;
use crate::inspect::{Explanation, Question, wants_colours};
use crate::query::encoded;
use crate::ui::{NodeStatus, TraceAnswer, VERSION};

/// Executes a command line; returns the exit code: 0 for an answer, 1 for an error, 2 where a trace has found a difference.
pub fn execute(args: Vec<OsString>) -> ExitCode {
    let done = match arguments::parse(args) {
        Ok(PluginRequest::Print(text)) => Ok((text, 0)),
        Ok(PluginRequest::Ask(invocation)) => {
            ask(&invocation).map_err(|error| escaped_lines(&format!("Error: {error:#}")))
        }
        Err(usage) => Err(usage),
    };
    match done {
        Ok((text, code)) => {
            // A closed pipe doesn't change the exit code.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::from(code)
        }
        Err(text) => {
            print_error(&text);
            ExitCode::FAILURE
        }
    }
}

/// The output, and the exit code.
fn ask(invocation: &Invocation) -> anyhow::Result<(String, u8)> {
    let cluster = &KubectlCluster::new(&invocation.kubectl, &invocation.reach);
    let node = invocation.node.as_deref();
    match &invocation.action {
        PluginAction::Explain(question) => explain(cluster, node, question, invocation.json),
        PluginAction::Trace(connection) => {
            let proxy = chosen(cluster, node, Some(connection.client))?;
            trace(cluster, &proxy, &connection.to_string(), invocation.json)
        }
        PluginAction::Status => match node {
            Some(node) => status(cluster, &cluster.proxy(node)?, invocation.json),
            None => all(cluster, invocation.json),
        },
    }
}

/// The proxy that answers; a line on stderr names its node where it wasn't given.
fn chosen(cluster: &KubectlCluster<'_>, node: Option<&str>, client: Option<IpAddr>) -> anyhow::Result<ReachedProxy> {
    if let Some(node) = node {
        return cluster.proxy(node);
    }
    let (proxy, why) = cluster.choose(client)?;
    print_error(&format!("The kube-proxy of node {} answers ({why}); --node names another one\n", proxy.node));
    Ok(proxy)
}

fn explain(
    cluster: &KubectlCluster<'_>,
    node: Option<&str>,
    question: &Question,
    json: bool,
) -> anyhow::Result<(String, u8)> {
    let client = match question {
        Question::Connection(connection) => Some(connection.client),
        Question::Service(..) | Question::Pod(_) | Question::Address(_) => None,
    };
    let proxy = chosen(cluster, node, client)?;
    let answer =
        cluster.request(&proxy, &format!("/ui/explain?format=json&errors=200&q={}", encoded(&question.to_string())))?;
    if json {
        return Ok((format!("{answer:#}\n"), 0));
    }
    let explanation: Explanation = decoded(answer)?;
    Ok((explanation.text(wants_colours()), 0))
}

fn trace(
    cluster: &KubectlCluster<'_>,
    proxy: &ReachedProxy,
    connection: &str,
    json: bool,
) -> anyhow::Result<(String, u8)> {
    let format = if json { "json" } else { "text" };
    let route = format!("/ui/trace?format={format}&errors=200&q={}", encoded(connection));
    let answer: TraceAnswer = decoded(cluster.request(proxy, &route)?)?;
    print_error(&escaped_lines(&answer.log));
    let text = match &answer.output {
        Value::String(text) => escaped_lines(text),
        object => format!("{object:#}\n"),
    };
    Ok((text, answer.exit_code))
}

fn status(cluster: &KubectlCluster<'_>, proxy: &ReachedProxy, json: bool) -> anyhow::Result<(String, u8)> {
    let answer = cluster.request(proxy, STATUS)?;
    if json {
        return Ok((format!("{answer:#}\n"), 0));
    }
    let status: NodeStatus = decoded(answer)?;
    Ok((table::details(&status), 0))
}

/// The path of a proxy's state.
const STATUS: &str = "/ui?format=json&errors=200";
/// Nodes that are asked at the same time.
const AT_ONCE: usize = 8;

/// The states of all nodes. One that can't be asked has the reason, and makes the exit code 1.
fn all(cluster: &KubectlCluster<'_>, json: bool) -> anyhow::Result<(String, u8)> {
    let proxies = cluster.proxies()?;
    let asked = |proxy: &anyhow::Result<ReachedProxy>| match proxy {
        Ok(proxy) => cluster.request(proxy, STATUS),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    let mut answers = Vec::new();
    for nodes in proxies.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let running: Vec<_> = nodes.iter().map(|(_, proxy)| scope.spawn(move || asked(proxy))).collect();
            let ended = running.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that asked it has ended early")))
            });
            answers.extend(ended);
        });
    }
    let answers = proxies.iter().map(|(node, _)| node.as_str()).zip(answers);
    let code = |all_answer: bool| u8::from(!all_answer);
    if json {
        let entries: Vec<(Value, bool)> = answers.map(|(node, answer)| entry(node, answer)).collect();
        let all_answer = entries.iter().all(|(_, has_answered)| *has_answered);
        let nodes: Vec<Value> = entries.into_iter().map(|(entry, _)| entry).collect();
        return Ok((format!("{:#}\n", json!({"version": VERSION, "nodes": nodes})), code(all_answer)));
    }
    let rows = answers.map(|(node, answer)| NodeRow::of(node, answer.and_then(decoded)));
    let rows: Vec<NodeRow> = rows.collect();
    Ok((table::table(&rows), code(rows.iter().all(NodeRow::is_answered))))
}

/// A node in the JSON of all, and whether it has answered.
fn entry(node: &str, answer: anyhow::Result<Value>) -> (Value, bool) {
    match answer {
        Ok(status) => (json!({"node": node, "status": status}), true),
        Err(error) => (json!({"node": node, "error": format!("{error:#}")}), false),
    }
}

fn decoded<T: serde::de::DeserializeOwned>(answer: Value) -> anyhow::Result<T> {
    serde_json::from_value(answer).context("the answer isn't that of this version of kubectl-ferry")
}

/// Prints on stderr. A closed one is no reason to fail.
fn print_error(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
