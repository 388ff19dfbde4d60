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

use ferry_lab::iptables::{self, Backend};
use ferry_lab::proxy::{IPTABLES, IPVS, NFTABLES, USERSPACE};
use ferry_lab::{Lab, Place};

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

/// The mode, and the variant of iptables that the node's kubelet uses.
type By = (&'static str, Option<Backend>);

/// New connections a second in this mode.
fn connections((mode, _): By) -> u64 {
    let name = if mode == USERSPACE { "FERRY_CHURN_RELAYED" } else { "FERRY_CHURN_CONNECTIONS" };
    scale(name, CONNECTIONS)
}

/// A driver in this mode, with a folder of this name.
fn driver<'a>(lab: &'a Lab, name: &str, (mode, kubelet): By) -> Driver<'a> {
    if let Some(backend) = kubelet {
        iptables::hint(lab.host(Place::Node), backend);
    }
    Driver::start(lab, EXECUTABLE, &PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("churn").join(name), mode)
}

/// The node's kind of access to external addresses: mode ipvs has no short circuit for it.
fn way_of_host((mode, _): By) -> Way {
    if mode == IPVS { Way::External } else { Way::Short }
}

/// Makes changes in this mode at this pace, and judges the result.
fn churn(name: &str, by: By, pace: Pace) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let duration = Duration::from_secs(scale("FERRY_CHURN_SECONDS", SECONDS));
    let lab = Lab::new();
    let mut driver = driver(&lab, name, by);
    let stop = Arc::new(AtomicBool::new(false));
    let number = usize::try_from(scale("FERRY_CHURN_ESTABLISHED", ESTABLISHED)).expect("a few hundred");
    let established = Established::open(&lab, number, &stop);
    let loads = [(Place::PodB, 4), (Place::Client, 5), (Place::Node, 1)]
        .map(|(place, tenths)| Load::start(&lab, place, way_of_host(by), connections(by) * tenths / 10, &stop));
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
fn endpoints(name: &str, by: By) {
    let pace = Pace::Endpoints { a_minute: scale("FERRY_CHURN_CHANGES", CHANGES) };
    churn(name, by, pace);
}

/// Changes of policies, as fast as possible.
fn policies(name: &str, by: By) {
    churn(name, by, Pace::Policies);
}

/// The proxy is killed repeatedly, at any moment, and endpoints change while it is away.
fn restarts(name: &str, by: By) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::new();
    let mut driver = driver(&lab, name, by);
    let stop = Arc::new(AtomicBool::new(false));
    let each = connections(by) / 10;
    let loads = [Place::PodB, Place::Client].map(|place| Load::start(&lab, place, way_of_host(by), each, &stop));
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
    restarts("restarts", (NFTABLES, None));
}

#[test]
fn restarts_leave_no_stale_conversation_by_iptables() {
    restarts("iptables-restarts", (IPTABLES, Some(Backend::Nft)));
}

#[test]
fn restarts_leave_no_stale_conversation_by_legacy_iptables() {
    restarts("legacy-restarts", (IPTABLES, Some(Backend::Legacy)));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn restarts_leave_no_stale_conversation_by_ipvs() {
    restarts("ipvs-restarts", (IPVS, None));
}

#[test]
fn endpoints_that_come_and_go_harm_nobody() {
    endpoints("endpoints", (NFTABLES, None));
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody() {
    policies("policies", (NFTABLES, None));
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_by_iptables() {
    endpoints("iptables-endpoints", (IPTABLES, Some(Backend::Nft)));
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_iptables() {
    policies("iptables-policies", (IPTABLES, Some(Backend::Nft)));
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_by_legacy_iptables() {
    endpoints("legacy-endpoints", (IPTABLES, Some(Backend::Legacy)));
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_legacy_iptables() {
    policies("legacy-policies", (IPTABLES, Some(Backend::Legacy)));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn endpoints_that_come_and_go_harm_nobody_by_ipvs() {
    endpoints("ipvs-endpoints", (IPVS, None));
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn policies_that_change_as_fast_as_they_can_harm_nobody_by_ipvs() {
    policies("ipvs-policies", (IPVS, None));
}

#[test]
fn endpoints_that_come_and_go_harm_nobody_in_mode_userspace() {
    endpoints("userspace-endpoints", (USERSPACE, None));
}

#[test]
fn policies_that_change_as_fast_as_they_can_harm_nobody_in_mode_userspace() {
    policies("userspace-policies", (USERSPACE, None));
}
