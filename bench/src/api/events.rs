//! Measures an idle proxy (processor time and wakes, alone and beside another program that commits), and the time until it has
//! repaired foreign changes, with the processor time of a repair.
//!
//! `nft`, `iptables`, `ip` or `ipvsadm` makes the changes; the benchmark then polls the kernel every millisecond until the objects are back.
//! Times count from the end of the tool's process.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::object::Family;
use ferry_kernel::iptables::Backend;
use ferry_kernel::nft::NftSocket;
use ferry_lab::Mode;

use super::proxy::{MeasuredProxy, Program};
use super::servers::Servers;
use super::site::{Site, Workload};
use crate::neighbour::Neighbour;
use crate::stats;

/// Duration of each idle measurement.
const WATCHED: Duration = Duration::from_secs(30);
/// Commits a second of the neighbour.
const NOISE: u32 = 10;
/// Pause after a start until the proxy is idle.
const STEADY: Duration = Duration::from_secs(6);
/// Pause between two foreign changes: three repairs of everything within ten seconds would suspend further ones.
const PAUSE: Duration = Duration::from_millis(5500);
const ROUNDS: u32 = 5;
/// Timeout of a repair: of a virtual server's endpoints, looks come round within a minute where they take less than 1.8 ms each.
const PATIENCE: Duration = Duration::from_mins(15);
/// Polling interval of the kernel.
const POLL: Duration = Duration::from_millis(1);

/// Counts objects in the kernel.
type Count = Box<dyn Fn(&mut NftSocket) -> std::io::Result<usize>>;

/// A foreign change that damages the rules.
struct Damage {
    name: &'static str,
    /// the tool, and its arguments
    command: Vec<String>,
    /// counts the objects of the kind that the damage removes
    count: Count,
}

pub(crate) fn run(mode: Mode, services: usize) -> anyhow::Result<()> {
    let (ours, workload) = (Program::ours()?, Workload::of(mode, services)?);
    super::headline(&ours, workload);
    super::site::at(workload, |site| {
        let damages = damages(mode, site)?;
        let mut proxy = ours.start(site)?;
        if proxy.wait_for_rules(site)?.is_none() {
            bail!("the start did not finish");
        }
        std::thread::sleep(STEADY);
        watch("idle", &proxy, || Ok(()))?;
        let mut neighbour = Neighbour::open()?;
        let name = format!("idle, with {NOISE} foreign commits a second");
        watch(&name, &proxy, || neighbour.commit())?;
        if mode.backend == Some(Backend::Legacy) {
            println!("damage: not measured, legacy tables have no notifications");
            return Ok(());
        }
        let mut socket = NftSocket::open()?;
        for round in damages {
            time_repair(&round, &proxy, site, &mut socket)?;
        }
        Ok(())
    })
}

/// Measures processor time and wakes of all threads for [`WATCHED`], while `work` is called ten times a second.
fn watch(what: &str, proxy: &MeasuredProxy, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (started, cpu, wakes) = (Instant::now(), proxy.cpu()?, proxy.wakes()?);
    while started.elapsed() < WATCHED {
        work()?;
        std::thread::sleep(Duration::from_secs(1) / NOISE);
    }
    let seconds = started.elapsed().as_secs_f64();
    let share = proxy.cpu()?.saturating_sub(cpu).as_secs_f64() / seconds;
    let since = proxy.wakes()?.into_iter().map(|(thread, after)| {
        let before = wakes.iter().find(|(known, _)| *known == thread).map_or(0, |(_, before)| *before);
        (thread, after.saturating_sub(before))
    });
    let woken: Vec<(String, u64)> = since.filter(|(_, count)| *count > 0).collect();
    let total: u64 = woken.iter().map(|(_, count)| count).sum();
    let threads: Vec<String> = woken.iter().map(|(thread, count)| format!("{thread} {count}")).collect();
    #[expect(clippy::cast_precision_loss, reason = "a rate to print")]
    let rate = total as f64 / seconds;
    println!("{what:44} {:8.4} % of a core, {rate:.2} wakes a second ({})", share * 100.0, threads.join(", "));
    Ok(())
}

/// Makes a foreign change several times; prints the times until it was repaired, and the proxy's processor time for a repair.
fn time_repair(damage: &Damage, proxy: &MeasuredProxy, site: &Site, socket: &mut NftSocket) -> anyhow::Result<()> {
    let mut took = Vec::new();
    let before = proxy.cpu()?;
    for _ in 0..ROUNDS {
        let whole = (damage.count)(socket)?;
        let (program, arguments) = damage.command.split_first().context("a command")?;
        let mut command = Command::new(program);
        if let Some(tools) = &site.tools {
            tools.apply(&mut command);
        }
        let output = command.args(arguments).output().with_context(|| format!("running {program}"))?;
        anyhow::ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        let started = Instant::now();
        // Listing a deleted chain fails.
        while !(damage.count)(socket).is_ok_and(|count| count >= whole) {
            anyhow::ensure!(started.elapsed() < PATIENCE, "{}: not repaired", damage.name);
            std::thread::sleep(POLL);
        }
        took.push(started.elapsed());
        std::thread::sleep(PAUSE);
    }
    // The pauses are part of it; an idle proxy takes 0.3 ms in each.
    let cpu = proxy.cpu()?.saturating_sub(before).as_secs_f64() * 1e3 / f64::from(ROUNDS);
    stats::print(&format!("repaired: {}", damage.name), took, &format!("cpu {cpu:.1} ms each"));
    Ok(())
}

fn damages(mode: Mode, site: &Site) -> anyhow::Result<Vec<Damage>> {
    match mode {
        Mode::NFTABLES => Ok(of_nftables(site)),
        Mode::IPVS => of_ipvs(site),
        mode if mode.backend.is_some() => Ok(of_iptables()),
        mode => anyhow::bail!("damage is not measured in mode {mode}"),
    }
}

fn of_ipvs(site: &Site) -> anyhow::Result<Vec<Damage>> {
    const TABLE: &str = "kube-proxy";
    let last = site.last_vip();
    let count_servers = || -> anyhow::Result<Count> {
        let servers = Servers::open()?;
        Ok(Box::new(move |_| Ok(servers.list()?.len())))
    };
    let servers = Servers::open()?;
    let count_endpoints: Count = Box::new(move |_| Ok(servers.destinations(last)?.len()));
    let count_elements: Count = Box::new(|socket| {
        let mut count = 0;
        socket.elements(Family::V4, TABLE, "service-ips", &mut |_| count += 1)?;
        Ok(count)
    });
    let first = site.first_endpoint();
    let damage =
        |name, command: String, count| Damage { name, command: command.split(' ').map(str::to_owned).collect(), count };
    Ok(vec![
        damage("a virtual server deleted", format!("ipvsadm -D -t {last}:80"), count_servers()?),
        damage("an endpoint deleted", format!("ipvsadm -d -t {last}:80 -r {first}:8080"), count_endpoints),
        damage("all virtual servers deleted", "ipvsadm -C".to_owned(), count_servers()?),
        damage(
            "an element deleted",
            format!("nft delete element ip {TABLE} service-ips {{ {last} . tcp . 80 }}"),
            count_elements,
        ),
    ])
}

fn of_nftables(site: &Site) -> Vec<Damage> {
    const TABLE: &str = "kube-proxy";
    let damage = |name, script: String, count: Count| Damage { name, command: vec!["nft".to_owned(), script], count };
    let elements = |map: &'static str| -> Count {
        Box::new(move |socket| {
            let mut count = 0;
            socket.elements(Family::V4, TABLE, map, &mut |_| count += 1)?;
            Ok(count)
        })
    };
    let rules = |chain: &'static str| -> Count {
        Box::new(move |socket| Ok(socket.rules(Family::V4, TABLE, Some(chain))?.len()))
    };
    let last = site.last_vip();
    vec![
        damage(
            "an element deleted",
            format!("delete element ip {TABLE} service-ips {{ {last} . tcp . 80 }}"),
            elements("service-ips"),
        ),
        damage(
            "the rules of a chain deleted",
            format!("flush chain ip {TABLE} nat-postrouting"),
            rules("nat-postrouting"),
        ),
        damage(
            "a chain deleted",
            format!("flush chain ip {TABLE} nat-output-late; delete chain ip {TABLE} nat-output-late"),
            rules("nat-output-late"),
        ),
        damage("everything flushed", "flush ruleset".to_owned(), elements("endpoints")),
    ]
}

fn of_iptables() -> Vec<Damage> {
    let damage = |name, arguments: &str, chain: &'static str| Damage {
        name,
        command: std::iter::once("iptables").chain(arguments.split(' ')).map(str::to_owned).collect(),
        count: Box::new(move |socket| Ok(socket.rules(Family::V4, "nat", Some(chain))?.len())),
    };
    let everything = Damage {
        name: "all rules of nat flushed",
        command: ["iptables", "-t", "nat", "-F"].map(str::to_owned).into(),
        count: Box::new(|socket| Ok(socket.rules(Family::V4, "nat", None)?.len())),
    };
    vec![
        damage("a rule deleted", "-w 5 -t nat -D KUBE-SERVICES 1", "KUBE-SERVICES"),
        damage("the rules of a chain deleted", "-w 5 -t nat -F KUBE-POSTROUTING", "KUBE-POSTROUTING"),
        everything,
    ]
}
