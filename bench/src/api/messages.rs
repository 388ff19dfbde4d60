//! Counts the netlink messages of mode ipvs: for a start, a change, a minute without changes, a repair and a restart. A separate
//! start, since counting costs time.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::bail;
use ferry_kernel::netlink::tap::{MessageTally, RequestKind, Tap};

use super::give_up;
use super::proxy::{PATIENCE, Program};
use super::servers::{Servers, settle, wait_for};
use super::site::{Workload, at};

/// Duration of the count without changes.
const IDLE: Duration = Duration::from_mins(1);

pub(super) fn run(program: &Program, workload: Workload) -> anyhow::Result<()> {
    println!(
        "\n-- netlink messages of {} in mode {}, and the datagrams that carried them",
        program.name, workload.mode
    );
    at(workload, |site| {
        let (servers, mut tap) = (Servers::open()?, Tap::open()?);
        let mut proxy = program.start(site)?;
        // The benchmark's own requests are not to be counted: it waits blindly, and looks once.
        settle(&mut proxy)?;
        print("start", &mut tap)?;
        if !wait_for(&mut proxy, || servers.are_complete(workload))? {
            return give_up("start", &proxy);
        }
        tap.read()?;
        std::thread::sleep(IDLE);
        print("a minute without changes", &mut tap)?;
        site.replace();
        settle(&mut proxy)?;
        print("endpoint replaced", &mut tap)?;
        let server = format!("{}:80", site.last_vip());
        let status = Command::new("ipvsadm").args(["-D", "-t", &server]).status()?;
        anyhow::ensure!(status.success(), "ipvsadm: {status}");
        // The tool's own.
        tap.read()?;
        repair(&mut tap)?;
        drop(proxy);
        tap.read()?;
        let mut proxy = program.start(site)?;
        settle(&mut proxy)?;
        print("restart", &mut tap)
    })
}

/// Prints the requests of the second in which the proxy repairs.
fn repair(tap: &mut Tap) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_secs(1));
        let seen = tap.read()?;
        if seen.contains_key(&RequestKind::IpvsChange) {
            print_counts("a deleted virtual server", &seen);
            return Ok(());
        }
    }
    bail!("the deleted virtual server is not repaired")
}

fn print(what: &str, tap: &mut Tap) -> anyhow::Result<()> {
    print_counts(what, &tap.read()?);
    Ok(())
}

fn print_counts(what: &str, seen: &BTreeMap<RequestKind, MessageTally>) {
    let counts = seen.iter().filter(|(request, _)| **request != RequestKind::Other);
    let counts: Vec<String> =
        counts.map(|(request, tally)| format!("{request:?} {} in {}", tally.messages, tally.sends)).collect();
    println!("{what:44} {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") });
}
