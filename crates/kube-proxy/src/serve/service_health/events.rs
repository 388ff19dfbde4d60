//! Passes failures of health check servers to the core, which records Events.

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use ferry_api::object::ObjectName;

use crate::input::Input;

/// Receives failures of health check servers.
pub trait HealthEvents {
    /// Records an Event about the Service, each time that the failure changes: type Warning, reason
    /// `FailedToStartServiceHealthcheck`, action `Listen`.
    fn failed_to_start(&self, service: &ObjectName, note: String);
}

/// Sends failures to the core, which has the Services' uids. To be used on a `LocalSet`.
#[derive(Debug)]
pub struct HealthCheckReports(SyncSender<Input>);

/// Retry interval while the core is busy.
const RETRY: Duration = Duration::from_millis(200);

// === impl HealthCheckReports ===

impl HealthCheckReports {
    /// A sender to the core at the other end of the channel.
    pub fn new(core: SyncSender<Input>) -> Self {
        Self(core)
    }
}

impl HealthEvents for HealthCheckReports {
    fn failed_to_start(&self, service: &ObjectName, note: String) {
        let core = self.0.clone();
        let mut input = Input::HealthCheckFailed { service: service.clone(), note };
        // The main thread must not block.
        tokio::task::spawn_local(async move {
            while let Err(TrySendError::Full(full)) = core.try_send(input) {
                input = full;
                tokio::time::sleep(RETRY).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test]
    async fn a_busy_core_is_told_later() {
        let failed =
            |note: &str| Input::HealthCheckFailed { service: ObjectName::new("shop", "web"), note: note.to_owned() };
        let (sender, core) = sync_channel(1);
        LocalSet::new()
            .run_until(async {
                let reports = HealthCheckReports::new(sender);
                for note in ["first", "second"] {
                    reports.failed_to_start(&ObjectName::new("shop", "web"), note.to_owned());
                }
                tokio::time::sleep(RETRY / 4).await;
                assert_eq!(core.try_recv(), Ok(failed("first")));
                assert!(core.try_recv().is_err(), "there was room for one");
                tokio::time::sleep(2 * RETRY).await;
                assert_eq!(core.try_recv(), Ok(failed("second")));
            })
            .await;
    }
}
