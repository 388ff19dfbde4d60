//! The lower layer of the way on Linux: addresses of Services, made this machine's by routes of type `local`.
//!
//! Another program's route to an address serves as well, and is neither changed nor removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::errno::{self, ErrorClass};
use ferry_kernel::route::{LocalRoute, LocalRoutes, PROTOCOL, RouteMonitor};
use ferry_kernel::{connections, netlink};
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Object, Op, Refusal};
use ferry_ruleset::failure::of_io;

use super::object::{BindKey, BindObject, Indexed, addresses};

/// After a wake-up the next one waits so long: other programs may change routes without end.
const PAUSE: Duration = Duration::from_millis(100);
/// The error of a route over a device that is down (linux/errno.h).
const ENETDOWN: i32 = 100;

/// One family's addresses.
#[derive(Debug)]
pub(crate) struct RouteLayer {
    family: Family,
    routes: LocalRoutes,
    monitor: RouteMonitor,
    waker: SharedWaker,
    /// the addresses that this process has committed or read
    bound: BTreeMap<IpAddr, RouteOwner>,
}

/// The owner of the route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteOwner {
    Ours,
    Others,
}

/// Wakes the engine of a family, once it has said how.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedWaker(Arc<Mutex<Option<Waker>>>);

// === impl SharedWaker ===

impl SharedWaker {
    fn replace(&self, waker: &Waker) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        if let Some(waker) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }
}

// === impl RouteLayer ===

impl RouteLayer {
    /// Opens its sockets, in the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(family: Family) -> io::Result<Self> {
        let routes = LocalRoutes::open()?;
        let monitor = RouteMonitor::open(family, &routes)?;
        Ok(Self { family, routes, monitor, waker: SharedWaker::default(), bound: BTreeMap::new() })
    }

    /// Returns the body of a thread that waits for changes of routes and wakes the engine. It ends only if waiting fails, with that
    /// error.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listener(&self) -> io::Result<impl FnOnce() -> io::Error + Send + use<>> {
        let (arrivals, waker) = (self.monitor.as_fd().try_clone_to_owned()?, self.waker.clone());
        Ok(move || {
            loop {
                if let Err(error) = netlink::wait_readable(arrivals.as_fd()) {
                    return error;
                }
                waker.wake();
                std::thread::sleep(PAUSE);
            }
        })
    }

    /// The addresses that this way serves: those of own routes, and those of others' that it has found in its place.
    fn listed(&mut self) -> Result<BTreeSet<IpAddr>, CommitError> {
        let listed = self.routes.list(self.family).map_err(of_io)?;
        let serves = |route: &LocalRoute| {
            route.is_ours() || self.bound.get(&route.address).is_some_and(|owner| *owner == RouteOwner::Others)
        };
        let served: BTreeMap<IpAddr, RouteOwner> = listed
            .iter()
            .filter(|route| serves(route))
            .map(|route| (route.address, if route.is_ours() { RouteOwner::Ours } else { RouteOwner::Others }))
            .collect();
        self.bound = served;
        Ok(self.bound.keys().copied().collect())
    }

    fn add(&mut self, added: &Indexed) -> Result<Vec<Refusal>, CommitFailure> {
        let addresses: Vec<IpAddr> = added.iter().map(|(_, address)| *address).collect();
        let mut refused = self.routes.add(&addresses).map_err(unknown)?;
        let taken = refused.extract_if(.., |(_, error)| ErrorClass::of(error) == ErrorClass::Exists);
        let taken: BTreeSet<usize> = taken.map(|(position, _)| position).collect();
        let failed: BTreeSet<usize> = refused.iter().map(|(position, _)| *position).collect();
        for (position, address) in addresses.iter().enumerate() {
            if taken.contains(&position) {
                self.bound.insert(*address, RouteOwner::Others);
            } else if !failed.contains(&position) {
                self.bound.insert(*address, RouteOwner::Ours);
            }
        }
        Ok(refusals(Op::Create, added, refused))
    }

    fn remove(&mut self, removed: &Indexed) -> Result<Vec<Refusal>, CommitFailure> {
        let is_ours = |(_, address): &&(usize, IpAddr)| self.bound.get(address) != Some(&RouteOwner::Others);
        let ours: Indexed = removed.iter().filter(is_ours).copied().collect();
        for (_, address) in removed {
            self.bound.remove(address);
        }
        let addresses: Vec<IpAddr> = ours.iter().map(|(_, address)| *address).collect();
        let refused = self.routes.remove(&addresses).map_err(unknown)?;
        Ok(refusals(Op::Delete, &ours, refused))
    }

    /// The addresses of this way that other programs have changed, or of theirs that this way uses.
    fn changes(&mut self) -> Result<Drift<BindKey>, CommitError> {
        let (mut changed, bound) = (BTreeSet::new(), &self.bound);
        let overrun = self.monitor.read(&mut |route| {
            if route.is_ours() || bound.contains_key(&route.address) {
                changed.insert(route.address);
            }
        });
        if overrun.map_err(of_io)?.0 {
            return Ok(Drift { by_proxies: None, by_others: Some(Extent::All) });
        }
        let keys: Vec<BindKey> = changed.into_iter().map(BindKey::Address).collect();
        Ok(Drift { by_proxies: None, by_others: (!keys.is_empty()).then_some(Extent::Keys(keys)) })
    }
}

impl Layer<BindObject> for RouteLayer {
    fn holds(&self, key: &BindKey) -> bool {
        matches!(key, BindKey::Address(_))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<BindObject> {
        self
    }
}

impl Kernel<BindObject> for RouteLayer {
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.listed().map(drop)
    }

    fn read_back(&mut self, extent: &Extent<BindKey>) -> Result<Vec<BindObject>, CommitError> {
        let listed = self.listed()?;
        Ok(match extent {
            Extent::All => listed.into_iter().map(BindObject::Address).collect(),
            Extent::Keys(keys) => {
                let asked = keys.iter().filter_map(|key| match key {
                    BindKey::Address(address) => Some(*address),
                    BindKey::Origins | BindKey::Port(_) | BindKey::Listener(_) => None,
                });
                asked.filter(|address| listed.contains(address)).map(BindObject::Address).collect()
            }
        })
    }

    fn news(&mut self) -> Result<Drift<BindKey>, CommitError> {
        self.changes()
    }

    fn commit(&mut self, batch: &Batch<BindObject>) -> Result<(), CommitFailure> {
        let mut refused = self.add(&addresses(&batch.create))?;
        refused.extend(self.remove(&addresses(&batch.delete))?);
        if refused.is_empty() { Ok(()) } else { Err(CommitFailure::unknown(CommitError::Refused(refused))) }
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<BindKey>, CommitError> {
        self.changes()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.waker.replace(waker);
    }
}

/// Removes all routes of this program; returns their number. `spares_connections`: nothing is removed, and `None` returned, as long as a
/// connection needs one, such as those that have waited for the process before.
///
/// # Errors
/// The system's error.
pub fn retire(family: Family, spares_connections: bool) -> io::Result<Option<usize>> {
    let mut routes = LocalRoutes::open()?;
    let ours: Vec<IpAddr> =
        routes.list(family)?.into_iter().filter(LocalRoute::is_ours).map(|route| route.address).collect();
    if spares_connections && !ours.is_empty() {
        let used = connections::local_addresses(family)?;
        if ours.iter().any(|address| used.contains(address)) {
            return Ok(None);
        }
    }
    match routes.remove(&ours)?.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(Some(ours.len())),
    }
}

/// The routes to service addresses as `ip -batch` adds them. Objects may come in any order; duplicates are printed once.
pub fn batch(objects: &[BindObject]) -> String {
    let addresses: BTreeSet<IpAddr> = objects.iter().filter_map(Object::shared).collect();
    addresses
        .into_iter()
        .map(|address| format!("route add local {address} dev lo table local proto {PROTOCOL}\n"))
        .collect()
}

fn refusals(op: Op, asked: &Indexed, refused: Vec<(usize, io::Error)>) -> Vec<Refusal> {
    let refusal = |(position, error): (usize, io::Error)| {
        let (index, address) = asked.get(position)?;
        Some((op, *index, explained(*address, &error)))
    };
    refused.into_iter().filter_map(refusal).collect()
}

fn explained(address: IpAddr, error: &io::Error) -> io::Error {
    let remedy = match errno::number(error) {
        Some(ENETDOWN) => ": the device lo is down, run ip link set lo up",
        _ => "",
    };
    io::Error::other(format!("a local route to {address}: {error}{remedy}"))
}

fn unknown(error: io::Error) -> CommitFailure {
    CommitFailure::unknown(of_io(error))
}
