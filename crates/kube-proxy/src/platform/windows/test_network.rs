//! Tests of the data path need network namespaces, which Windows has in containers alone.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::bail;

use crate::platform::TestAddresses;

/// There is none.
#[derive(Debug)]
pub struct TestNetwork(Infallible);

const UNAVAILABLE: &str = "the self-test needs network namespaces, which Windows has in containers alone";

// === impl TestNetwork ===

impl TestNetwork {
    /// Checks that this system has network namespaces.
    ///
    /// # Errors
    /// Always.
    pub fn require() -> anyhow::Result<()> {
        bail!(UNAVAILABLE)
    }

    /// Makes the namespaces.
    ///
    /// # Errors
    /// Always.
    pub fn open(_families: &[TestAddresses]) -> anyhow::Result<Self> {
        bail!(UNAVAILABLE)
    }

    /// Connects from the client to the Service.
    ///
    /// # Errors
    /// There is no such value.
    pub fn connect(&self, _addresses: &TestAddresses, _limit: Duration) -> anyhow::Result<Duration> {
        match self.0 {}
    }
}
