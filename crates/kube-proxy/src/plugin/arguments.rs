//! Parses the plugin's command line.

use std::ffi::OsString;
use std::str::FromStr;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::cluster::{Reach, Via, checked_node};
use super::kubectl::Kubectl;
use crate::cli::join_arrow;
use crate::inspect::{Connection, Question};

/// The requested action.
#[derive(Debug)]
pub(super) enum PluginRequest {
    /// ask a proxy
    Ask(Box<Invocation>),
    /// print this on stdout
    Print(String),
}

/// A question to one proxy, or to all.
#[derive(Debug)]
pub(super) struct Invocation {
    pub(super) action: PluginAction,
    /// the node whose proxy is asked; `None` for one that fits
    pub(super) node: Option<String>,
    pub(super) kubectl: Kubectl,
    pub(super) reach: Reach,
    /// print JSON
    pub(super) json: bool,
}

/// The question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PluginAction {
    /// what happens to connections
    Explain(Question),
    /// what the first packet of a connection meets in the kernel
    Trace(Connection),
    /// the state of the proxy
    Status,
}

/// Flags that are passed on to kubectl.
const OF_KUBECTL: [(&str, &str); 11] = [
    ("kubeconfig", "The kubeconfig file, as for kubectl."),
    ("context", "The context of the kubeconfig, as for kubectl."),
    ("cluster", "The cluster of the kubeconfig, as for kubectl."),
    ("user", "The user of the kubeconfig, as for kubectl."),
    ("as", "The user to impersonate, as for kubectl."),
    ("as-group", "The group to impersonate, as for kubectl."),
    ("as-uid", "The UID to impersonate, as for kubectl."),
    ("server", "The URL of the API server, as for kubectl."),
    ("token", "The bearer token, as for kubectl."),
    ("tls-server-name", "The name in the API server's certificate, as for kubectl."),
    ("certificate-authority", "The file with the API server's certificate authority, as for kubectl."),
];
/// The id of positional arguments.
const QUESTION: &str = "QUESTION";
/// The names of both ways to a node.
const PORT_FORWARD: &str = "port-forward";
const NODE_PROXY: &str = "node-proxy";

/// Parses a command line, including the program's name.
///
/// # Errors
/// The text for stderr, if it is invalid.
pub(super) fn parse(mut args: Vec<OsString>) -> Result<PluginRequest, String> {
    join_arrow(&mut args);
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(PluginRequest::Print(error.to_string()));
        }
        Err(error) => return Err(error.to_string()),
    };
    invocation(&matches)
        .map(|invocation| PluginRequest::Ask(Box::new(invocation)))
        .map_err(|error| format!("Error: {error:#}\n"))
}

fn command() -> Command {
    let question = |help: &'static str| Arg::new(QUESTION).num_args(1..).required(true).help(help);
    Command::new("kubectl-ferry")
        .bin_name("kubectl ferry")
        .about("Asks the kube-proxy of a node, through the API server: nobody needs a shell there.")
        .version(crate::version::FERRY)
        .subcommand_required(true)
        .term_width(120)
        .subcommand(
            with_flags(Command::new("explain").about("Says what happens to connections, and why: the problems first.")).arg(
                question("svc NAMESPACE/NAME[:PORT] | pod IP | IP:PORT[/PROTOCOL] | \"CLIENT -> IP:PORT[/PROTOCOL]\""),
            ),
        )
        .subcommand(
            with_flags(Command::new("trace").about(
                "Takes a connection's first packet through what is in the node's kernel; exits with 2 if it ends elsewhere than it should.",
            ))
            .arg(question("\"CLIENT -> IP:PORT[/PROTOCOL]\"")),
        )
        .subcommand(with_flags(
            Command::new("status").about("Shows the state of the proxies of all nodes, or of one: health, counts, last changes, problems."),
        ))
}

fn with_flags(mut command: Command) -> Command {
    let text = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("TEXT").value_parser(NonEmptyStringValueParser::new()).help(help)
    };
    for (name, help) in OF_KUBECTL {
        command = command.arg(text(name, help));
    }
    command
        .arg(
            text("node", "The node whose kube-proxy answers; by default the client's, or the first one.")
                .value_name("NAME"),
        )
        .arg(
            text("via", "The way to the node: a port-forward to the proxy's pod, or the API server's node proxy.")
                .value_name("WAY")
                .value_parser([PORT_FORWARD, NODE_PROXY])
                .default_value(PORT_FORWARD),
        )
        .arg(text("namespace", "The namespace of the proxies' pods.").short('n').default_value("kube-system"))
        .arg(
            text("selector", "The label selector of the proxies' pods.").short('l').default_value("k8s-app=kube-proxy"),
        )
        .arg(
            text("port", "The port of metricsBindAddress.")
                .value_name("PORT")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("10249"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON."))
}

fn invocation(matches: &ArgMatches) -> anyhow::Result<Invocation> {
    let (name, matches) = matches.subcommand().context("no subcommand")?;
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let required = |name: &str| text(name).with_context(|| format!("no --{name}"));
    let action = match name {
        "explain" => PluginAction::Explain(asked(matches)?),
        "trace" => PluginAction::Trace(asked(matches)?),
        _ => PluginAction::Status,
    };
    let passed = OF_KUBECTL.iter().filter_map(|(name, _)| Some(format!("--{name}={}", text(name)?)));
    let via = match required("via")?.as_str() {
        NODE_PROXY => Via::NodeProxy,
        _ => Via::PortForward,
    };
    let port = *matches.get_one::<u16>("port").context("no --port")?;
    Ok(Invocation {
        action,
        node: text("node").map(checked_node).transpose()?,
        kubectl: Kubectl::with_flags(passed.collect()),
        reach: Reach { via, namespace: required("namespace")?, selector: required("selector")?, port },
        json: matches.get_flag("json"),
    })
}

/// The question, from all positional arguments.
fn asked<Q: FromStr<Err = anyhow::Error>>(matches: &ArgMatches) -> anyhow::Result<Q> {
    let words: Vec<&str> = matches.get_many::<String>(QUESTION).into_iter().flatten().map(String::as_str).collect();
    words.join(" ").parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<PluginRequest, String> {
        parse([&["kubectl-ferry"], line].concat().into_iter().map(OsString::from).collect())
    }

    fn asking(line: &[&str]) -> Invocation {
        match parsed(line) {
            Ok(PluginRequest::Ask(invocation)) => *invocation,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn questions_are_parsed_before_anything_runs() {
        let invocation = asking(&["explain", "svc", "shop/web"]);
        assert_eq!(invocation.action, PluginAction::Explain("svc shop/web".parse().unwrap()));
        assert!(invocation.node.is_none() && !invocation.json);
        let Reach { via, namespace, selector, port } = invocation.reach;
        assert_eq!((via, port), (Via::PortForward, 10249));
        assert_eq!((namespace.as_str(), selector.as_str()), ("kube-system", "k8s-app=kube-proxy"));
        let connection: Connection = "10.0.0.1 -> 10.96.0.1:80".parse().unwrap();
        for line in [
            &["trace", "--node=node-a", "10.0.0.1 -> 10.96.0.1:80/TCP"][..],
            &["trace", "10.0.0.1", "->", "10.96.0.1:80", "--node", "node-a"],
        ] {
            let invocation = asking(line);
            assert_eq!(invocation.action, PluginAction::Trace(connection.clone()), "{line:?}");
            assert_eq!(invocation.node.as_deref(), Some("node-a"));
        }
        let error = parsed(&["trace", "svc", "shop/web"]).unwrap_err();
        assert!(error.starts_with("Error: ") && error.contains("is not CLIENT -> IP:PORT"), "{error}");
        assert!(parsed(&["explain", "nonsense"]).unwrap_err().contains("ask about svc NAMESPACE/NAME"));
    }

    #[test]
    fn flags_of_kubectl_are_passed_on() {
        let flags = ["status", "--context", "-odd", "--kubeconfig=/k", "--user=u", "--cluster=c", "--json"];
        assert!(parsed(&flags).is_err(), "a value that begins with a dash needs an equals sign");
        let line = ["status", "--context=-odd", "--kubeconfig=/k", "--user=u", "--cluster=c", "--json"];
        let invocation = asking(&line);
        assert_eq!(invocation.kubectl.flags(), ["--kubeconfig=/k", "--context=-odd", "--cluster=c", "--user=u"]);
        assert!(invocation.json && invocation.action == PluginAction::Status);
        let line = ["status", "--via=node-proxy", "-n", "proxies", "-l", "app=ferry", "--port=1"];
        let Reach { via, namespace, selector, port } = asking(&line).reach;
        assert_eq!((via, namespace.as_str(), selector.as_str(), port), (Via::NodeProxy, "proxies", "app=ferry", 1));
    }

    #[test]
    fn the_documentation_has_each_flag() {
        let text = include_str!("../../../../docs/cli.md");
        let (_, rest) = text.split_once("## kubectl ferry\n").unwrap();
        let (section, _) = rest.split_once("\n## ").unwrap();
        let rows: String = section.lines().filter(|line| line.starts_with("| `-")).collect();
        for subcommand in command().get_subcommands() {
            for name in subcommand.get_arguments().filter_map(Arg::get_long) {
                assert!(rows.contains(&format!("`--{name}")), "{name}");
            }
        }
    }

    #[test]
    fn invalid_lines_are_errors_and_help_is_not() {
        for line in [
            &[][..],
            &["explain"],
            &["other"],
            &["status", "more"],
            &["status", "--via=ssh"],
            &["status", "--port=0"],
            &["status", "--node=a/b"],
            &["status", "--node=--all"],
            &["status", "--node="],
        ] {
            assert!(parsed(line).is_err(), "{line:?}");
        }
        for line in [&["--help"][..], &["trace", "-h"], &["--version"]] {
            assert!(matches!(parsed(line), Ok(PluginRequest::Print(_))), "{line:?}");
        }
    }
}
