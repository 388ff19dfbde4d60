//! Fifty proxies of ours, and fifty of upstream's, one side after the other against one API server with its store: what each
//! side costs the control plane at a start, under churn, over a restart and an outage of the server, and when certificates are
//! rotated.
//!
//! Each proxy has a network namespace of its own; all are joined to the server's by a bridge, and reach it through a gate that
//! counts. Nothing leaves these namespaces, and they end with the process, however it ends.

mod audit;
mod figures;
mod gate;
mod marker;
mod metrics;
mod network;
mod objects;
mod options;
mod proxies;
mod report;
mod server;
mod side;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::Context as _;
use ferry_testkit::{Host, kubernetes};
use tokio::process::Command;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use self::gate::Gate;
use self::marker::Marker;
use self::network::Network;
use self::options::{Options, Side};
use self::server::Server;
use self::side::Stage;

/// How much the servers, the gate and the probes come before the proxies: nodes have processors of their own, so a fleet that
/// wants more than this machine has must not hold up its server.
const PRIORITY: u8 = 10;

/// Runs it in a process of its own, and removes its files whatever becomes of that.
pub(crate) fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let options = Options::parse(arguments)?;
    let folder = std::env::temp_dir().join(format!("ferry-bench-fleet-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(supervise(&folder, arguments));
    if options.keep {
        println!("logs: {}", folder.display());
    } else {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let status = outcome?.context("interrupted")?;
    anyhow::ensure!(status.success(), "the fleet benchmark ended: {status}");
    Ok(())
}

/// `None`: it was interrupted.
async fn supervise(folder: &Path, arguments: &[&str]) -> anyhow::Result<Option<ExitStatus>> {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "nice", "-n", &format!("-{PRIORITY}")])
        .arg(std::env::current_exe()?)
        .arg("--fleet-in")
        .arg(folder);
    let mut child = command.args(arguments).spawn().context("starting setpriv")?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        status = child.wait() => return Ok(Some(status?)),
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    // What it has started ends with it.
    child.kill().await?;
    Ok(None)
}

/// Measures all sides; its files are in the folder.
pub(crate) fn run_in(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let options = Options::parse(arguments)?;
    kubernetes::build();
    let executables = options.sides.iter().map(|&side| Ok((side, executable(&options, side)?)));
    let executables = executables.collect::<anyhow::Result<Vec<_>>>()?;
    let Options { nodes, services, endpoints, changes, .. } = options;
    println!(
        "{nodes} nodes, {services} services x {endpoints} endpoints; churn: {changes} changes of EndpointSlices and"
    );
    println!("{} reports of Nodes in a minute", objects::NODE_REPORTS * nodes);

    let hub = Host::new("hub");
    let network = Network::new(&hub)?;
    let server = Server::start(&hub, folder)?;
    server.ask_all(&objects::all(nodes, services, endpoints));
    server.ask_all(&objects::node_addresses(nodes));
    let gate = Gate::start(&hub, server.address()?, server.folder())?;
    let marker = Marker::new(&hub)?;
    let mut stage = Stage { options: &options, folder: folder.to_owned(), network, gate, server, marker };
    let mut measured = Vec::new();
    for (side, executable) in &executables {
        measured.push((*side, stage.run(*side, executable.as_deref())?));
    }
    report::print(&options, &measured);
    Ok(())
}

fn executable(options: &Options, side: Side) -> anyhow::Result<Option<PathBuf>> {
    let path = match side {
        Side::Alone => return Ok(None),
        Side::Ours => std::env::current_exe()?.with_file_name("kube-proxy"),
        Side::Upstream => options.upstream.clone().unwrap_or_else(|| PathBuf::from(kubernetes::upstream())),
    };
    anyhow::ensure!(path.exists(), "there is no {}", path.display());
    Ok(Some(path))
}
