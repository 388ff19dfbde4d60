//! Notifies systemd, if it has started the program with `Type=notify` (`sd_notify(3)`): ready once the rules of all families are in
//! force, stopping, and alive as long as the liveness probe would say so (`WatchdogSec=`).
//!
//! An API server that is away delays the first rules, and so readiness, for as long as it takes: the unit needs
//! `TimeoutStartSec=infinity`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::os::fd::{AsFd as _, OwnedFd};

use ferry_api::object::Family;
use sd_notify::NotifyState;

/// Text of `systemctl status` before the first rules.
const WAITING: &str = "Waiting for Services, EndpointSlices and the Node";
/// And once they are in force.
const SERVING: &str = "The rules are in force";

/// Readiness, from the start until all families are in force.
#[derive(Debug)]
pub struct Readiness {
    /// families whose first rules are not in force
    awaited: BTreeSet<Family>,
}

/// True if a service manager waits for notifications.
pub fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

/// Notifies that a new run takes the program's place; its readiness ends that. The watchdog's time begins anew, too.
pub fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    let states = [Ok(NotifyState::Reloading), now, Ok(NotifyState::Watchdog)].into_iter().filter_map(Result::ok);
    notify(&states.collect::<Vec<_>>());
}

/// Leaves sockets to the service manager, each under its name, for the next start of this service. Takes effect where the unit has
/// `FileDescriptorStoreMax=`.
pub fn keep(sockets: &[(String, OwnedFd)]) {
    for (name, socket) in sockets {
        let states = [NotifyState::FdStore, NotifyState::FdName(name)];
        if let Err(error) = sd_notify::notify_with_fds(&states, &[socket.as_fd()]) {
            tracing::warn!(err = %error, "Leaving sockets to systemd failed");
            return;
        }
    }
}

/// Has the service manager forget the sockets of these names, which this run has: what it closes must not stay open there.
pub fn forget<'a>(names: impl IntoIterator<Item = &'a str>) {
    for name in names {
        notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
}

/// Notifies that the program ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies that the program is alive, in half the interval that systemd expects, as long as it is.
pub async fn watch(is_alive: impl Fn() -> bool) -> Infallible {
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(interval / 2);
    loop {
        ticks.tick().await;
        if is_alive() {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

/// Without a service manager this does nothing.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(err = %error, "Notifying systemd failed");
    }
}

// === impl Readiness ===

impl Readiness {
    /// Of a program that serves these families, and has no rules in force yet.
    pub fn new(families: impl IntoIterator<Item = Family>) -> Self {
        notify(&[NotifyState::Status(WAITING)]);
        Self { awaited: families.into_iter().collect() }
    }

    /// Everything that was handed over to this family's engine is in force. Notifies readiness with the last family's first time.
    pub fn settled(&mut self, family: Family) {
        if self.awaited.remove(&family) && self.awaited.is_empty() {
            notify(&[NotifyState::Ready, NotifyState::Status(SERVING)]);
        }
    }
}
