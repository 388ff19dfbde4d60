//! Detects foreign changes of the device and its addresses. One monitor serves the engines of both families.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use ferry_api::object::Family;
use ferry_kernel::dummy::{DeviceAddress, DeviceChange, DeviceSocket, Monitor};
use ferry_kernel::netlink;
use ferry_model::PerFamily;

use crate::names::DEVICE;
use crate::object::Lifetime;

/// The monitor, shared by the engines of a process.
#[derive(Clone, Debug, Default)]
pub struct DeviceWatch(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// open from the first engine on
    monitor: Option<Monitor>,
    wakers: PerFamily<Option<Waker>>,
    /// port ids of this process's sockets: most of their changes cause no wake-up
    own: BTreeSet<u32>,
    unread: PerFamily<UntakenChanges>,
}

/// Changes that an engine has not taken yet.
#[derive(Debug, Default)]
struct UntakenChanges {
    /// addresses, and the last lifetime of each; `None`: it was removed
    addresses: BTreeMap<IpAddr, Option<Lifetime>>,
    /// or anything else
    everything: bool,
}

/// After a reading the next one waits so long, so that a neighbour that changes addresses without end costs ten readings a second.
const PAUSE: Duration = Duration::from_millis(100);

// === impl DeviceWatch ===

impl DeviceWatch {
    /// Starts to listen, in the network namespace of this thread; ignores the changes of this socket where the kernel names it.
    pub(crate) fn join(&self, family: Family, socket: &DeviceSocket) -> io::Result<()> {
        let mut watched = self.lock();
        watched.own.insert(socket.port_id());
        if watched.monitor.is_none() {
            watched.monitor = Some(Monitor::open(DEVICE, &Family::ALL)?);
        }
        if let Some(monitor) = &watched.monitor {
            monitor.ignore(&watched.own)?;
        }
        *watched.unread.of_mut(family) = UntakenChanges::default();
        Ok(())
    }

    pub(crate) fn wake_by(&self, family: Family, waker: &Waker) {
        *self.lock().wakers.of_mut(family) = Some(waker.clone());
    }

    /// The addresses that were changed since the last call so that the device differs from `bound`, none of which is preferred
    /// as a source; true if anything may have changed.
    pub(crate) fn take(&self, family: Family, bound: &BTreeSet<IpAddr>) -> io::Result<(BTreeSet<IpAddr>, bool)> {
        let mut watched = self.lock();
        watched.read()?;
        let UntakenChanges { addresses, everything } = std::mem::take(watched.unread.of_mut(family));
        let changed = addresses.into_iter().filter(|(address, last)| differs(*last, bound.contains(address)));
        Ok((changed.map(|(address, _)| address).collect(), everything))
    }

    /// Returns the body of a thread that waits for changes and wakes the engines that they concern. It ends only if waiting fails,
    /// with that error.
    ///
    /// # Errors
    /// The system's error.
    pub fn listener(&self) -> io::Result<impl FnOnce() -> io::Error + Send + 'static> {
        let arrivals: OwnedFd = {
            let watched = self.lock();
            let monitor = watched.monitor.as_ref().ok_or(io::ErrorKind::NotConnected)?;
            monitor.as_fd().try_clone_to_owned()?
        };
        let watch = self.clone();
        Ok(move || {
            loop {
                if let Err(error) = netlink::wait_readable(arrivals.as_fd()) {
                    return error;
                }
                watch.read_and_wake();
                std::thread::sleep(PAUSE);
            }
        })
    }

    fn read_and_wake(&self) {
        let mut watched = self.lock();
        let failed = watched.read().is_err();
        for family in Family::ALL {
            let unread = watched.unread.of(family);
            if failed || unread.everything || !unread.addresses.is_empty() {
                watched.wakers.of(family).iter().for_each(Waker::wake_by_ref);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Watched ===

impl Watched {
    fn read(&mut self) -> io::Result<()> {
        let Self { monitor: Some(monitor), unread, .. } = self else { return Ok(()) };
        let overrun = monitor.read(&mut |event| match event.change {
            DeviceChange::Added(address) => note(unread, &address, Some(lifetime(&address))),
            DeviceChange::Removed(address) => note(unread, &address, None),
            DeviceChange::DeviceGone => everything_changed(unread),
            DeviceChange::Device(ref device) if !device.is_dummy() => everything_changed(unread),
            // Up or down: addresses stay.
            DeviceChange::Device(_) => {}
        })?;
        if overrun.0 {
            everything_changed(unread);
        }
        Ok(())
    }
}

fn note(unread: &mut PerFamily<UntakenChanges>, address: &DeviceAddress, last: Option<Lifetime>) {
    let ip = address.network.addr();
    unread.of_mut(Family::of(ip)).addresses.insert(ip, last);
}

/// True if the last state of an address is another than this mode's: there without a preference as a source, if it is bound.
fn differs(last: Option<Lifetime>, is_bound: bool) -> bool {
    match last {
        None => is_bound,
        Some(Lifetime::Deprecated) => !is_bound,
        Some(Lifetime::Preferred) => true,
    }
}

/// The lifetime of an address; one of IPv4 has a scope instead.
pub(crate) fn lifetime(address: &DeviceAddress) -> Lifetime {
    if address.is_source() { Lifetime::Preferred } else { Lifetime::Deprecated }
}

fn everything_changed(unread: &mut PerFamily<UntakenChanges>) {
    unread.v4.everything = true;
    unread.v6.everything = true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_twice_missing_or_preferred_is_drift() {
        let own = [(None, false), (Some(Lifetime::Deprecated), true)];
        for last in [None, Some(Lifetime::Deprecated), Some(Lifetime::Preferred)] {
            for is_bound in [false, true] {
                assert_eq!(differs(last, is_bound), !own.contains(&(last, is_bound)), "{last:?} {is_bound}");
            }
        }
    }
}
