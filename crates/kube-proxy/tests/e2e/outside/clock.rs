//! Jumps of the machine's clock, as a clock that was wrong at boot makes them: time limits and ages of changes follow another clock,
//! which never jumps, and what has the time of day, metrics and the snapshot, stays usable.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use ferry_lab::api::ApiServer;

use crate::snapshot::{NEXT_WRITE, config, metric, server};
use crate::support::{HEALTHZ, Machine, Running, SERVICE, SLICE};

/// Set where the clock may be set: it is that of the whole machine.
const PERMISSION: &str = "FERRY_MAY_SET_CLOCK";
/// Jumps, in seconds. Their sum stays within the validity of the server's certificate, which begins an hour ago.
const JUMPS: [i64; 4] = [3600, -3600, -1800, 1800];

fn jump(machine: &Machine, seconds: i64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    let then = now.checked_add_signed(seconds).expect("a time");
    assert!(machine.tool("date", &["--utc", "--set", &format!("@{then}")]).status.success(), "setting the clock");
}

/// Adds a Service with endpoints; returns its address.
fn add(api: &ApiServer, number: usize) -> String {
    let (address, name) = (format!("10.96.1.{number}"), format!("\"more-{number}"));
    api.put(&SERVICE.replace("10.96.0.1", &address).replace("\"web", &name));
    api.put(&SLICE.replace("\"web", &name));
    address
}

/// The values of a metric, one for each family.
fn values(running: &Running<'_>, name: &str) -> Vec<f64> {
    let value = |line: String| line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number");
    metric(running, &format!("{name}{{")).into_iter().map(value).collect()
}

/// True if no family has a change that was queued after its last sync, as an alert would find.
fn none_waits(running: &Running<'_>) -> bool {
    let queued = values(running, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds");
    let synced = values(running, "kubeproxy_sync_proxy_rules_last_timestamp_seconds");
    queued.len() == 2 && synced.len() == 2 && queued.iter().zip(&synced).all(|(queued, synced)| queued <= synced)
}

#[track_caller]
fn assert_healthy(running: &Running<'_>) {
    for path in ["/healthz", "/livez"] {
        assert_eq!(running.get(HEALTHZ, path).status(), "200", "{path}\n{}", running.log());
    }
}

#[test]
#[ignore = "sets the clock of the whole machine: runs in virtual machines"]
fn jumps_of_the_clock_cost_no_change_and_no_snapshot() {
    assert!(std::env::var_os(PERMISSION).is_some(), "this sets the machine's clock, which needs {PERMISSION}=1");
    let machine = Machine::new();
    let path = machine.path("snapshot");
    let config = config(&machine, "node", &path.display().to_string(), "snapshotMaxAge: 24h");
    let api = server(&machine);
    let mut running = machine.start_bare(&["--config", &config, "-v=2"]);
    running.until("a snapshot", |_| path.exists());
    let mut addresses = vec!["10.96.0.1".to_owned()];
    for (at, seconds) in JUMPS.into_iter().enumerate() {
        // Around changes: one is on its way at the jump, the other follows it.
        for number in [2 * at, 2 * at + 1] {
            let address = add(&api, number);
            if number % 2 == 0 {
                jump(&machine, seconds);
                assert_healthy(&running);
            }
            running.until("the Service", |_| machine.serves("ip", &address));
            running.until("no change that waits", none_waits);
            assert_healthy(&running);
            addresses.push(address);
        }
        let is_written = |address: &String| fs::read_to_string(&path).is_ok_and(|text| text.contains(&**address));
        running.until_within(NEXT_WRITE, "the snapshot of it", |_| addresses.iter().all(is_written));
        assert_healthy(&running);
    }
    let log = running.log();
    assert!(!log.contains("Writing the snapshot failed"), "{log}");
    let errors: Vec<&str> =
        log.lines().filter(|line| line.starts_with('E') && !line.contains("nodePortAddresses")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    drop(running);
    drop(api);
    starts_from_the_snapshot(&machine, &config, &addresses);
}

/// Starts without the server as on a machine that was restarted, whose clock is ahead or behind.
fn starts_from_the_snapshot(machine: &Machine, config: &str, addresses: &[String]) {
    for seconds in JUMPS {
        jump(machine, seconds);
        assert!(machine.tool("nft", &["flush", "ruleset"]).status.success());
        let mut running = machine.start_bare(&["--config", config, "-v=2"]);
        running
            .until("the Services of the snapshot", |_| addresses.iter().all(|address| machine.serves("ip", address)));
        running.until("health", |running| running.get(HEALTHZ, "/healthz").status() == "200");
        let log = running.log();
        assert!(!log.contains("Not using the snapshot"), "{log}");
        assert_eq!(metric(&running, "kubeproxy_snapshot_in_use"), ["kubeproxy_snapshot_in_use 1"]);
    }
}
