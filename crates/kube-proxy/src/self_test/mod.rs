//! Self-test of the data path: a connection through a Service of its own, from a network namespace of its own to another one, over this node's
//! rules, those of other programs included.
//!
//! `objects` makes the Service, which the core treats as any other, so that all of it is tested: core, engine, kernel, packets. The platform has
//! the namespaces. [`SelfTest::run`] tests on demand; [`SelfTest::start`] tests periodically, as part of health
//! ([decision 68](../../../../docs/decisions/0068-self-test.md)).

mod objects;
mod report;

use std::net::IpAddr;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_api::config;
use ferry_api::object::Family;
use ferry_api::wire::address::parse_cidr;

pub use self::report::{Tested, fails, json, text};
use crate::core::Desk;
use crate::health::DataPath;
use crate::input::{Input, NodeProblem, NodeWarning};
use crate::metrics::Metrics;
use crate::platform::{TestAddresses, TestNetwork};
use crate::threads::{STACK_BYTES, Threads};

/// Tests the data path of this process.
#[derive(Clone, Debug)]
pub struct SelfTest(Arc<Setup>);

#[derive(Debug)]
struct Setup {
    desk: Desk,
    inputs: SyncSender<Input>,
    /// addresses of the served families for which a range is configured; by default of all served families
    addresses: Vec<TestAddresses>,
    /// true for the default ranges
    is_default: bool,
    /// longest time until a new Service is in force
    in_force: Duration,
    metrics: Arc<Metrics>,
    /// the interval of periodic tests; zero for none
    period: Duration,
    /// results of the periodic tests
    data_path: Arc<DataPath>,
    /// locked while a test runs
    kept: Mutex<PeriodicState>,
}

/// State that stays between periodic tests.
#[derive(Debug, Default)]
struct PeriodicState {
    /// the namespaces, if the last test has succeeded
    network: Option<TestNetwork>,
    /// the addresses of the Service that the core has; empty while it has none
    served: Vec<TestAddresses>,
}

/// Longest time of a connection: one lost packet is sent again after a second.
const LIMIT: Duration = Duration::from_secs(2);
/// Longest time until a new Service is in force, beside the least distance of sync passes.
const IN_FORCE: Duration = Duration::from_secs(10);
/// Interval of the attempts until it is.
const STEP: Duration = Duration::from_millis(20);
/// The error of a configuration whose ranges belong to no served family.
const NO_RANGE: &str =
    "no range of FerryConfiguration.selfTestRanges is of a served family: add one, or remove all for the default ones";

// === impl SelfTest ===

impl SelfTest {
    /// A test of these families by these settings, which are valid.
    pub fn new(
        settings: &config::SelfTest,
        families: &[Family],
        (desk, inputs, min_sync_period): (&Desk, &SyncSender<Input>, Duration),
        metrics: &Arc<Metrics>,
    ) -> Self {
        let ranges: Vec<&str> = match &settings.ranges[..] {
            [] => config::SELF_TEST_RANGES.into(),
            given => given.iter().map(String::as_str).collect(),
        };
        let ranges = ranges.into_iter().filter_map(parse_cidr);
        let addresses = ranges.filter_map(TestAddresses::of).filter(|addresses| families.contains(&addresses.family()));
        Self(Arc::new(Setup {
            desk: desk.clone(),
            inputs: inputs.clone(),
            addresses: addresses.collect(),
            is_default: settings.ranges.is_empty(),
            in_force: IN_FORCE + min_sync_period,
            metrics: Arc::clone(metrics),
            period: settings.period.to_std(),
            data_path: Arc::new(DataPath::default()),
            kept: Mutex::default(),
        }))
    }

    /// Results of the periodic tests; `None` if none are configured.
    pub fn data_path(&self) -> Option<Arc<DataPath>> {
        (!self.0.period.is_zero()).then(|| Arc::clone(&self.0.data_path))
    }

    /// Starts periodic tests, if they are configured.
    ///
    /// # Errors
    /// If the system has no thread left, or no network namespaces at all, or no range is of a served family.
    pub fn start(&self, threads: &Threads) -> anyhow::Result<()> {
        if self.0.period.is_zero() {
            return Ok(());
        }
        TestNetwork::require().context("FerryConfiguration.selfTestPeriod")?;
        if self.0.addresses.is_empty() {
            bail!("FerryConfiguration.selfTestPeriod: {NO_RANGE}");
        }
        let setup = Arc::clone(&self.0);
        threads.spawn("self-test", STACK_BYTES, move || {
            loop {
                sleep(setup.period);
                // Before the first lists are complete no Service is in force.
                if setup.desk.hand_overs() > 0 {
                    setup.test_and_note();
                }
            }
        })
    }

    /// Tests each family once. The Service and the namespaces are removed afterwards, unless periodic tests use them.
    ///
    /// # Errors
    /// If nothing can be tested: no Service is in force yet, no range is configured, or the namespaces can't be made.
    pub fn run(&self) -> anyhow::Result<Vec<Tested>> {
        self.0.test()
    }
}

// === impl Setup ===

impl Setup {
    fn test(&self) -> anyhow::Result<Vec<Tested>> {
        if self.desk.hand_overs() == 0 {
            bail!("no Services are in force yet: the lists are not complete");
        }
        if self.addresses.is_empty() {
            bail!(NO_RANGE);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = self.tested_now();
        if addresses.is_empty() {
            bail!("the node has no address of a served family: name the families in FerryConfiguration.selfTestRanges");
        }
        let is_new = kept.served != addresses;
        let network = match kept.network.take().filter(|_| !is_new) {
            Some(network) => network,
            None => TestNetwork::open(&addresses).context("making network namespaces for the test")?,
        };
        if is_new {
            self.serve(&mut kept, addresses.clone())?;
        }
        let patience = if is_new { self.in_force } else { Duration::ZERO };
        let tested = addresses.iter().map(|addresses| {
            let result = until(patience, || network.connect(addresses, LIMIT));
            Tested { addresses: *addresses, result: result.map_err(|error| format!("{error:#}")) }
        });
        let tested: Vec<Tested> = tested.collect();
        if self.period.is_zero() {
            self.serve(&mut kept, Vec::new())?;
        } else if tested.iter().all(|one| one.result.is_ok()) {
            // After a failure the next test has new namespaces: another program may have changed the devices of these.
            kept.network = Some(network);
        }
        Ok(tested)
    }

    /// The families to test: those that are configured; by default those in which the node has an address, since a cluster may have one family
    /// on machines whose kernel has both.
    fn tested_now(&self) -> Vec<TestAddresses> {
        let has_address = |addresses: &&TestAddresses| {
            let family = addresses.family();
            // An unknown address is loopback.
            let is_known = |address: IpAddr| !address.is_loopback();
            self.desk.with_view(|view| {
                view.family(family).is_some_and(|family| family.context.node_ip.is_some_and(is_known))
            })
        };
        match self.is_default {
            true => self.addresses.iter().filter(has_address).copied().collect(),
            false => self.addresses.clone(),
        }
    }

    /// Replaces the Service by one with these families; by none if there are none.
    fn serve(&self, kept: &mut PeriodicState, addresses: Vec<TestAddresses>) -> anyhow::Result<()> {
        let objects = if addresses.is_empty() { Vec::new() } else { objects::of(&addresses)? };
        self.inputs.send(Input::OwnObjects(objects)).context("the core has ended")?;
        kept.served = addresses;
        Ok(())
    }

    /// A periodic test: its results are for health, metrics and the log.
    fn test_and_note(&self) {
        let results: Vec<(Family, Result<Duration, String>)> = match self.test() {
            Ok(tested) => tested.into_iter().map(|one| (one.addresses.family(), one.result)).collect(),
            Err(error) => {
                let error = format!("{error:#}");
                self.addresses.iter().map(|addresses| (addresses.family(), Err(error.clone()))).collect()
            }
        };
        for (family, result) in results {
            self.metrics.self_test.tested(family, result.as_ref().ok().copied());
            let note = self.data_path.note(family, result, Instant::now());
            let warning = NodeWarning { problem: NodeProblem::SelfTestFailed, family, note };
            // The core's end is the program's.
            let _ = self.inputs.send(Input::NodeWarning(warning));
        }
    }
}

/// The first success, or the last failure after this time.
fn until<T>(patience: Duration, attempt: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(_) if start.elapsed() < patience => sleep(STEP),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn attempts_end_with_a_success_or_the_time() {
        let count = Cell::new(0);
        let third = || {
            count.set(count.get() + 1);
            if count.get() < 3 { bail!("attempt {}", count.get()) } else { Ok(count.get()) }
        };
        assert_eq!(until(Duration::ZERO, third).unwrap_err().to_string(), "attempt 1");
        assert_eq!(until(IN_FORCE, third).unwrap(), 3);
    }
}
