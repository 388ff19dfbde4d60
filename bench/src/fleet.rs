//! Measures the load of many proxies on the control plane: fifty of ours, then fifty of upstream's, with one API server and
//! etcd; at a start, under churn, over a restart and an outage of the API server, and when certificates are rotated.
//!
//! Each proxy has its own network namespace; a bridge connects all to the server's, which they reach through a counting gate.
//! No packet leaves these namespaces, and they end with the process, for any reason.

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
use ferry_lab::{Host, kubernetes};
use tokio::process::Command;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use self::gate::ServerGate;
use self::marker::Marker;
use self::network::Network;
use self::options::{FleetOptions, FleetSide};
use self::server::MeasuredServer;
use self::side::SideRunner;

/// Nice levels by which the servers, the gate and the probes precede the proxies: real nodes have CPUs of their own, so a
/// fleet that exceeds this machine's CPUs must not slow down its server.
const PRIORITY: u8 = 10;

/// Runs the benchmark in a child process, and removes its files even if that fails.
pub(crate) fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let options = FleetOptions::parse(arguments)?;
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

/// Waits for the child process; `None` after an interrupt.
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
    // Its child processes end with it.
    child.kill().await?;
    Ok(None)
}

/// Measures all sides, with its files in the folder.
pub(crate) fn run_in(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let options = FleetOptions::parse(arguments)?;
    kubernetes::build();
    let executables = options.sides.iter().map(|&side| Ok((side, executable(&options, side)?)));
    let executables = executables.collect::<anyhow::Result<Vec<_>>>()?;
    let FleetOptions { nodes, services, endpoints, changes, .. } = options;
    println!(
        "{nodes} nodes, {services} services x {endpoints} endpoints; churn: {changes} changes of EndpointSlices and"
    );
    println!("{} reports of Nodes in a minute", objects::NODE_REPORTS * nodes);

    let hub = Host::new("hub");
    let network = Network::new(&hub)?;
    let server = MeasuredServer::start(&hub, folder)?;
    server.ask_all(&objects::all(nodes, services, endpoints));
    server.ask_all(&objects::node_addresses(nodes));
    let gate = ServerGate::start(&hub, server.address()?, server.folder())?;
    let marker = Marker::new(&hub)?;
    let mut stage = SideRunner { options: &options, folder: folder.to_owned(), network, gate, server, marker };
    let mut measured = Vec::new();
    for (side, executable) in &executables {
        measured.push((*side, stage.run(*side, executable.as_deref())?));
    }
    report::print(&options, &measured);
    Ok(())
}

fn executable(options: &FleetOptions, side: FleetSide) -> anyhow::Result<Option<PathBuf>> {
    let path = match side {
        FleetSide::Alone => return Ok(None),
        FleetSide::Ours => std::env::current_exe()?.with_file_name("kube-proxy"),
        FleetSide::Upstream => options.upstream.clone().unwrap_or_else(|| PathBuf::from(kubernetes::upstream())),
    };
    anyhow::ensure!(path.exists(), "{} does not exist", path.display());
    Ok(Some(path))
}
