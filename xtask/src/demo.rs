//! `cargo xt demo`: shows kube-proxy at work without a cluster. A client, a node and two pods have a network namespace each;
//! kube-proxy runs in the node's and reads the manifests of `examples/hello`.

pub(crate) mod guest;
mod lab;
mod namespace;

use crate::package::EXECUTABLE;
use crate::setup::{self, Use};
use crate::shell::{CargoMetadata, cargo, run as run_command};
use anyhow::{Context, Result, bail};
use guest::{Guest, PATIENCE};
use lab::Lab;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One IP family of the Service in `examples/hello`.
struct DemoFamily {
    name: &'static str,
    vip: &'static str,
    /// The manifest with the endpoint, its address `old`, and the address `new` that replaces it.
    slice: &'static str,
    old: &'static str,
    new: &'static str,
}

const FAMILIES: [DemoFamily; 2] = [
    DemoFamily {
        name: "IPv4",
        vip: "10.96.0.10:80",
        slice: "endpoints-ipv4.yaml",
        old: lab::POD_1.v4,
        new: lab::POD_2.v4,
    },
    DemoFamily {
        name: "IPv6",
        vip: "[fd00:96::10]:80",
        slice: "endpoints-ipv6.yaml",
        old: lab::POD_1.v6,
        new: lab::POD_2.v6,
    },
];

/// Runs the demo.
///
/// # Errors
/// If a tool or a privilege is missing, or clients don't get the expected answers.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (mut release, mut rules, mut install) = (false, false, false);
    for argument in arguments {
        match argument.as_str() {
            "--release" => release = true,
            "--rules" => rules = true,
            setup::OPTION => install = true,
            other => bail!("unexpected argument {other}"),
        }
    }
    let uses: &[Use] = if rules { &[Use::Demo, Use::Rules] } else { &[Use::Demo] };
    setup::prepare(uses, install)?;
    let metadata = CargoMetadata::load()?;
    let profile = if release { "release" } else { "dev" };
    println!("building kube-proxy (profile {profile})");
    let features = if release { String::new() } else { metadata.features_of_workspace(EXECUTABLE) };
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", EXECUTABLE, "--profile", profile, "--features", &features]);
    run_command(&mut build)?;
    let program = metadata.target_directory.join(if release { "release" } else { "debug" }).join("kube-proxy");

    let lab = Lab::build(&metadata.workspace_root.join("examples/hello"))?;
    println!("created network namespaces: {}", lab::TOPOLOGY);
    let clients: Vec<_> =
        FAMILIES.iter().map(|family| Guest::client(&lab.client, family.vip)).collect::<Result<_>>()?;

    let started = SystemTime::now();
    let mut proxy = start(&program, &metadata.workspace_root, &lab)?;
    println!("started kube-proxy --manifests examples/hello --config examples/config.yaml");
    let story = tell(&lab, clients, &mut proxy, started);
    if story.is_err() {
        println!("log of kube-proxy:\n{}", std::fs::read_to_string(lab.log()).unwrap_or_default());
    }
    story?;
    if rules {
        run_command(lab.node.command("nft").args(["list", "ruleset"]))?;
    }
    println!("removed the network namespaces and all files");
    Ok(())
}

/// Prints the clients' answers, first with the original manifests, then after the replacement of one endpoint.
fn tell(lab: &Lab, mut clients: Vec<Guest>, proxy: &mut Guest, started: SystemTime) -> Result<()> {
    for (family, client) in FAMILIES.iter().zip(&mut clients) {
        let answer = client.until("pod-1", proxy).context(family.vip)?;
        println!(
            "  client -> {:<17} \"{}\"  {:>7.2?} after the start",
            family.vip,
            answer.text,
            answer.at.duration_since(started).unwrap_or_default()
        );
    }
    println!("replacing the endpoint in the manifests, pod-1 by pod-2:");
    for (family, client) in FAMILIES.iter().zip(&mut clients) {
        let replaced = replace(&lab.manifests.join(family.slice), family.old, family.new)?;
        let answer = client.until("pod-2", proxy).context(family.vip)?;
        let acknowledged = acknowledged(lab, family.name, replaced)?;
        println!(
            "  client -> {:<17} \"{}\"  {:>7.2?} after the change; the kernel had acknowledged it after {:.2?}",
            family.vip,
            answer.text,
            answer.at.duration_since(replaced).unwrap_or_default(),
            acknowledged,
        );
    }
    Ok(())
}

/// Starts kube-proxy in the node's namespace.
fn start(program: &Path, root: &Path, lab: &Lab) -> Result<Guest> {
    let log = std::fs::File::create(lab.log()).context("creating the log of kube-proxy")?;
    let mut command: Command = lab.node.command(program);
    command.arg("--manifests").arg(&lab.manifests);
    command.arg("--config").arg(root.join("examples/config.yaml")).args(["--hostname-override", "node"]);
    Guest::spawn(command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log))
}

/// Replaces an address in a manifest like an editor or a sync tool: a new file, then a rename. Returns the time of the rename.
fn replace(manifest: &Path, old: &str, new: &str) -> Result<SystemTime> {
    let text = std::fs::read_to_string(manifest).with_context(|| format!("reading {}", manifest.display()))?;
    let next = PathBuf::from(format!("{}.next", manifest.display()));
    std::fs::write(&next, text.replace(old, new)).with_context(|| format!("writing {}", next.display()))?;
    let now = SystemTime::now();
    std::fs::rename(&next, manifest).with_context(|| format!("renaming {}", next.display()))?;
    Ok(now)
}

/// Time from `since` to the kernel's acknowledgement of this family's last change, by kube-proxy's metric.
fn acknowledged(lab: &Lab, family: &str, since: SystemTime) -> Result<Duration> {
    let name = format!("kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output =
            lab.node.guest("demo-get").args(["127.0.0.1:10249", "/metrics"]).output().context("reading metrics")?;
        let metrics = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<f64>().ok());
        let at = value.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
        if let Ok(after) = (UNIX_EPOCH + at).duration_since(since) {
            return Ok(after);
        }
        if Instant::now() > deadline {
            bail!("the metric {name} reports no sync since the change");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
