//! Endpoints, policies, affinity and source ranges change while clients connect, as fast as on a busy node.
//!
//! Invariants: no connection to a service that has a healthy endpoint fails; no connection whose first packet was sent after the
//! removal of an endpoint was acknowledged reaches that endpoint; and established connections never break, not even those to
//! removed endpoints whose process lives. The same holds while the proxy is killed and restarted; and no UDP conversation stays
//! with an endpoint that was removed meanwhile.
//!
//! `FERRY_CHURN_SECONDS`, `FERRY_CHURN_CONNECTIONS` (a second), `FERRY_CHURN_CHANGES` (a minute) and
//! `FERRY_CHURN_ESTABLISHED` scale it, and `FERRY_CHURN_RESTARTS` how often the proxy is killed. In mode userspace it is
//! `FERRY_CHURN_RELAYED` connections a second: each costs the machine two connections and the work of a process.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "the helpers of a test fail as tests do, and print what they measured"
)]

mod account;
mod conversations;
mod driver;
mod established;
mod load;
mod races;
mod services;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferry_lab::proxy::{IPVS, USERSPACE};
use ferry_lab::{Lab, LabMachine, Mode, iptables};

use account::Account;
use conversations::Conversations;
use driver::{Driver, Pace};
use established::Established;
use load::Load;
use services::Way;

/// The program under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// Default duration of each test, in seconds: enough for six hundred changes.
const SECONDS: u64 = 20;
/// New connections a second, over all services and clients.
const CONNECTIONS: u64 = 1000;
/// Changes of endpoints a minute.
const CHANGES: u64 = 2000;
/// Connections that exchange data all the time.
const ESTABLISHED: u64 = 200;

/// Number of restarts of the proxy.
const RESTARTS: u64 = 20;
/// UDP conversations per frontend of a service and family.
const CONVERSATIONS: u16 = 25;

/// Tests take turns, since they measure time.
static TURN: Mutex<()> = Mutex::new(());

/// A number of the environment, or its default.
fn scale(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Err(_) => usual,
    }
}

/// New connections a second in this mode.
fn connections(mode: Mode) -> u64 {
    let name = if mode.name == USERSPACE { "FERRY_CHURN_RELAYED" } else { "FERRY_CHURN_CONNECTIONS" };
    scale(name, CONNECTIONS)
}

/// A driver in this mode, with a folder of this name.
fn driver<'a>(lab: &'a Lab, name: &str, mode: Mode) -> Driver<'a> {
    if let Some(backend) = mode.backend {
        iptables::hint(lab.host(LabMachine::Node), backend);
    }
    Driver::start(lab, EXECUTABLE, &PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("churn").join(name), mode)
}

/// The node's kind of access to external addresses: mode ipvs has no short circuit for it.
fn way_of_host(mode: Mode) -> Way {
    if mode.name == IPVS { Way::External } else { Way::Short }
}

/// Makes changes in this mode at this pace, and judges the result.
fn churn(name: &str, mode: Mode, pace: Pace) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let duration = Duration::from_secs(scale("FERRY_CHURN_SECONDS", SECONDS));
    let lab = Lab::new();
    let mut driver = driver(&lab, name, mode);
    let stop = Arc::new(AtomicBool::new(false));
    let number = usize::try_from(scale("FERRY_CHURN_ESTABLISHED", ESTABLISHED)).expect("a few hundred");
    let established = Established::open(&lab, number, &stop);
    let loads = [(LabMachine::PodB, 4), (LabMachine::Client, 5), (LabMachine::Node, 1)]
        .map(|(place, tenths)| Load::start(&lab, place, way_of_host(mode), connections(mode) * tenths / 10, &stop));
    let start = Instant::now();
    driver.run(start + duration, &pace);
    let took = start.elapsed();
    stop.store(true, Ordering::Relaxed);
    let mut account = Account::new(driver.history());
    for load in loads {
        account.take(load.finish());
    }
    let established = established.finish();
    println!("{name}: {} in {:.1} s; {account}; {established}", driver.tally(), took.as_secs_f64());
    driver.judge(took);
    account.judge();
    established.judge();
}

/// As many changes of endpoints as on a busy node.
fn endpoints(name: &str, mode: Mode) {
    let pace = Pace::Endpoints { a_minute: scale("FERRY_CHURN_CHANGES", CHANGES) };
    churn(name, mode, pace);
}

/// Changes of policies, as fast as possible.
fn policies(name: &str, mode: Mode) {
    churn(name, mode, Pace::Policies);
}

/// The proxy is killed repeatedly, at any moment, and endpoints change while it is away.
fn restarts(name: &str, mode: Mode) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let mut driver = driver(&lab, name, mode);
    let stop = Arc::new(AtomicBool::new(false));
    let each = connections(mode) / 10;
    let loads =
        [LabMachine::PodB, LabMachine::Client].map(|place| Load::start(&lab, place, way_of_host(mode), each, &stop));
    let mut conversations = Conversations::start(&lab, CONVERSATIONS);
    for _ in 0..scale("FERRY_CHURN_RESTARTS", RESTARTS) {
        driver.some(5);
        driver.outage();
        conversations.settle(driver.serving());
    }
    stop.store(true, Ordering::Relaxed);
    let mut account = Account::new(driver.history());
    for load in loads {
        account.take(load.finish());
    }
    println!("{name}: {}; {account}", driver.tally());
    conversations.judge();
    account.judge();
}

#[test]
fn restarts_leave_no_stale_conversation() {
    restarts("restarts", Mode::NFTABLES);
}

#[test]
fn restarts_leave_no_stale_conversation_by_iptables() {
    restarts("iptables-restarts", Mode::IPTABLES);
}

#[test]
fn restarts_leave_no_stale_conversation_by_legacy_iptables() {
    restarts("legacy-restarts", Mode::IPTABLES_LEGACY);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn restarts_leave_no_stale_conversation_by_ipvs() {
    restarts("ipvs-restarts", Mode::IPVS);
}

#[test]
fn endpoints_that_come_and_go_harm_nobody() {
    endpoints("endpoints", Mode::NFTABLES);
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody() {
    policies("policies", Mode::NFTABLES);
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_by_iptables() {
    endpoints("iptables-endpoints", Mode::IPTABLES);
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_iptables() {
    policies("iptables-policies", Mode::IPTABLES);
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_by_legacy_iptables() {
    endpoints("legacy-endpoints", Mode::IPTABLES_LEGACY);
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_legacy_iptables() {
    policies("legacy-policies", Mode::IPTABLES_LEGACY);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn endpoints_that_come_and_go_harm_nobody_by_ipvs() {
    endpoints("ipvs-endpoints", Mode::IPVS);
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_ipvs() {
    policies("ipvs-policies", Mode::IPVS);
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_in_mode_userspace() {
    endpoints("userspace-endpoints", Mode::USERSPACE);
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_in_mode_userspace() {
    policies("userspace-policies", Mode::USERSPACE);
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_by_way_bind() {
    endpoints("bind-endpoints", Mode::USERSPACE_BIND);
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_way_bind() {
    policies("bind-policies", Mode::USERSPACE_BIND);
}
