//! Self-test of the data path: a connection through a Service of its own, from a network namespace of its own to another one, over this node's
//! rules, those of other programs included.
//!
//! `objects` makes the Service, which the core treats as any other, so that all of it is tested: core, engine, kernel, packets. The platform has
//! the namespaces. [`SelfTest::run`] tests on demand; [`SelfTest::start`] tests periodically, as part of health
//! ([decision 68](../../../../docs/decisions/0068-self-test.md)).

mod objects;
mod report;

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
    addresses: Vec<TestAddresses>,
    metrics: Arc<Metrics>,
    /// the interval of periodic tests; zero for none
    period: Duration,
    /// what they have found
    data_path: Arc<DataPath>,
    /// the namespaces, between periodic tests; locked while one runs
    network: Mutex<Option<TestNetwork>>,
}

/// Longest time of a connection: one lost packet is sent again after a second.
const LIMIT: Duration = Duration::from_secs(2);
/// Longest time until a new Service is in force.
const IN_FORCE: Duration = Duration::from_secs(10);
/// Interval of the attempts until it is.
const STEP: Duration = Duration::from_millis(20);

// === impl SelfTest ===

impl SelfTest {
    /// A test of these families by these settings, which are valid.
    pub fn new(
        settings: &config::SelfTest,
        families: &[Family],
        (desk, inputs): (&Desk, &SyncSender<Input>),
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
            metrics: Arc::clone(metrics),
            period: settings.period.to_std(),
            data_path: Arc::new(DataPath::default()),
            network: Mutex::new(None),
        }))
    }

    /// What the periodic tests have found; `None` if there are none.
    pub fn data_path(&self) -> Option<Arc<DataPath>> {
        (!self.0.period.is_zero()).then(|| Arc::clone(&self.0.data_path))
    }

    /// Starts periodic tests, if they are configured.
    ///
    /// # Errors
    /// If the system has no thread left, or no network namespaces at all.
    pub fn start(&self, threads: &Threads) -> anyhow::Result<()> {
        if self.0.period.is_zero() {
            return Ok(());
        }
        TestNetwork::require().context("FerryConfiguration.selfTestPeriod")?;
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
            bail!("no family that is served has a range of addresses: set FerryConfiguration.selfTestRanges");
        }
        let mut kept = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        let (network, patience) = match kept.take() {
            Some(network) => (network, Duration::ZERO),
            None => (self.open()?, IN_FORCE),
        };
        let tested = self.addresses.iter().map(|addresses| {
            let result = until(patience, || network.connect(addresses, LIMIT));
            Tested { addresses: *addresses, result: result.map_err(|error| format!("{error:#}")) }
        });
        let tested = tested.collect();
        if self.period.is_zero() {
            self.serve(false)?;
        } else {
            *kept = Some(network);
        }
        Ok(tested)
    }

    fn open(&self) -> anyhow::Result<TestNetwork> {
        let network = TestNetwork::open(&self.addresses).context("making network namespaces for the test")?;
        self.serve(true)?;
        Ok(network)
    }

    /// Adds or removes the Service.
    fn serve(&self, there: bool) -> anyhow::Result<()> {
        let objects = if there { objects::of(&self.addresses)? } else { Vec::new() };
        self.inputs.send(Input::OwnObjects(objects)).context("the core has ended")
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
