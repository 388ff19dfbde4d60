//! The lower layer of the way where a system has no local routes: addresses of Services on an interface that others use, too. They are
//! recorded in a file, so that those of a run that has crashed are known.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::interface::{InterfaceAddresses, OwnedAddresses};
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Op, Refusal};

use super::object::{BindKey, BindObject, addresses};

/// Interval of the looks for addresses that other programs have removed: the system's notifications call a function on a thread of
/// its own, which has no safe interface, and the list is short.
const LOOK: Duration = Duration::from_secs(2);

/// The addresses of one family that this program has added, shared with the end of the program, which removes them.
#[derive(Debug)]
pub struct ServiceAddresses<I>(Arc<Mutex<OwnedAddresses<I>>>);

/// One family's addresses.
#[derive(Debug)]
pub(crate) struct InterfaceLayer<I> {
    family: Family,
    addresses: ServiceAddresses<I>,
    /// the addresses that this process has committed or read
    bound: BTreeSet<IpAddr>,
    next_look: Option<Instant>,
}

// === impl ServiceAddresses ===

impl<I> Clone for ServiceAddresses<I> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I: InterfaceAddresses> ServiceAddresses<I> {
    /// These addresses.
    pub fn new(addresses: OwnedAddresses<I>) -> Self {
        Self(Arc::new(Mutex::new(addresses)))
    }

    /// Removes all of them; returns their number.
    ///
    /// # Errors
    /// If one can't be removed, or the record can't be written.
    pub fn clear(&self) -> io::Result<usize> {
        let replaced = self.lock().clear()?;
        match replaced.failed.into_iter().next() {
            Some((address, error)) => Err(io::Error::other(format!("removing the address {address}: {error}"))),
            None => Ok(replaced.removed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, OwnedAddresses<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InterfaceLayer ===

impl<I: InterfaceAddresses> InterfaceLayer<I> {
    pub(crate) fn new(family: Family, addresses: ServiceAddresses<I>) -> Self {
        Self { family, addresses, bound: BTreeSet::new(), next_look: None }
    }

    /// The addresses of this way that the interface has now: recorded ones, and others' that are wanted.
    fn present(&self) -> Result<BTreeSet<IpAddr>, CommitError> {
        let mut addresses = self.addresses.lock();
        let present = addresses.present().map_err(CommitError::Busy)?;
        let owned: BTreeSet<IpAddr> = addresses.owned().map(|(address, _)| address).collect();
        let is_of_way = |address: &IpAddr| {
            Family::of(*address) == self.family && (owned.contains(address) || self.bound.contains(address))
        };
        Ok(present.into_iter().filter(is_of_way).collect())
    }

    /// The refusals of operations whose addresses have failed.
    fn refusals(failed: &BTreeMap<IpAddr, io::Error>, op: Op, asked: &[(usize, IpAddr)]) -> Vec<Refusal> {
        let refusal = |(index, address): &(usize, IpAddr)| {
            let error = failed.get(address)?;
            Some((op, *index, io::Error::other(format!("the address {address}: {error}"))))
        };
        asked.iter().filter_map(refusal).collect()
    }
}

impl<I: InterfaceAddresses + Send> Layer<BindObject> for InterfaceLayer<I> {
    fn holds(&self, key: &BindKey) -> bool {
        matches!(key, BindKey::Address(_))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<BindObject> {
        self
    }
}

impl<I: InterfaceAddresses + Send> Kernel<BindObject> for InterfaceLayer<I> {
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.present().map(drop)
    }

    fn read_back(&mut self, extent: &Extent<BindKey>) -> Result<Vec<BindObject>, CommitError> {
        let present = self.present()?;
        match extent {
            Extent::All => self.bound.clone_from(&present),
            Extent::Keys(keys) => {
                self.bound.retain(|address| present.contains(address) || !keys.contains(&BindKey::Address(*address)))
            }
        }
        let is_asked = |address: &IpAddr| match extent {
            Extent::All => true,
            Extent::Keys(keys) => keys.contains(&BindKey::Address(*address)),
        };
        Ok(present.into_iter().filter(is_asked).map(BindObject::Address).collect())
    }

    fn commit(&mut self, batch: &Batch<BindObject>) -> Result<(), CommitFailure> {
        let (added, removed) = (addresses(&batch.create), addresses(&batch.delete));
        self.bound.extend(added.iter().map(|(_, address)| *address));
        for (_, address) in &removed {
            self.bound.remove(address);
        }
        let replaced = self.addresses.lock().replace(&self.bound);
        let replaced = replaced.map_err(|error| CommitFailure::unknown(CommitError::Busy(error)))?;
        let failed: BTreeMap<IpAddr, io::Error> = replaced.failed.into_iter().collect();
        self.bound.retain(|address| !failed.contains_key(address));
        let mut refused = Self::refusals(&failed, Op::Create, &added);
        refused.extend(Self::refusals(&failed, Op::Delete, &removed));
        if refused.is_empty() { Ok(()) } else { Err(CommitFailure::unknown(CommitError::Refused(refused))) }
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<BindKey>, CommitError> {
        if self.next_look.is_some_and(|next| now < next) {
            return Ok(Drift::default());
        }
        self.next_look = Some(now + LOOK);
        let present = self.present()?;
        let missing: Vec<BindKey> = self.bound.difference(&present).copied().map(BindKey::Address).collect();
        Ok(Drift { by_proxies: None, by_others: (!missing.is_empty()).then_some(Extent::Keys(missing)) })
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        Some(*self.next_look.get_or_insert(now + LOOK))
    }
}

#[cfg(test)]
mod tests {
    use ferry_kernel::interface::{AddressRecord, MemoryInterfaces};

    use super::*;

    const LOOPBACK: &str = "Loopback Pseudo-Interface 1";

    fn address(last: u8) -> IpAddr {
        [10, 96, 0, last].into()
    }

    /// A layer over the interfaces of a machine, with the record of an earlier run, if there is one.
    fn layer(machine: &MemoryInterfaces, record: &str) -> InterfaceLayer<MemoryInterfaces> {
        let record = AddressRecord::new(std::env::temp_dir().join(format!("ferry-{}-{record}", std::process::id())));
        let owned = OwnedAddresses::open(machine.clone(), LOOPBACK, record).unwrap();
        InterfaceLayer::new(Family::V4, ServiceAddresses::new(owned))
    }

    fn batch(create: &[u8], delete: &[u8]) -> Batch<BindObject> {
        let objects = |of: &[u8]| of.iter().map(|last| BindObject::Address(address(*last))).collect();
        Batch { create: objects(create), delete: objects(delete), ..Batch::default() }
    }

    fn all(layer: &mut InterfaceLayer<MemoryInterfaces>) -> Vec<BindObject> {
        layer.read_back(&Extent::All).unwrap()
    }

    #[test]
    fn what_a_crashed_run_has_left_is_read_back_and_removed() {
        let machine = MemoryInterfaces::default().with(LOOPBACK, &[[127, 0, 0, 1].into(), address(9)]);
        let mut before = layer(&machine, "crash");
        assert_eq!(all(&mut before), []);
        before.commit(&batch(&[1, 2, 9], &[])).unwrap();
        drop(before);
        let mut next = layer(&machine, "crash");
        // The one of another program is not known as used before it is wanted.
        assert_eq!(all(&mut next), [1, 2].map(|last| BindObject::Address(address(last))));
        next.commit(&batch(&[9], &[2])).unwrap();
        assert_eq!(all(&mut next), [1, 9].map(|last| BindObject::Address(address(last))));
        assert_eq!(next.addresses.clear().unwrap(), 1);
        assert!(!std::env::temp_dir().join(format!("ferry-{}-crash", std::process::id())).exists());
        let mut interfaces = machine.clone();
        let left: Vec<IpAddr> = interfaces.list(LOOPBACK).unwrap().into_iter().map(|local| local.address).collect();
        assert_eq!(left, [address(9), [127, 0, 0, 1].into()], "others' addresses stay");
    }

    #[test]
    fn a_refused_address_names_its_operation_and_a_removed_one_is_drift() {
        let mut machine = MemoryInterfaces::default().with(LOOPBACK, &[]);
        let mut layer = layer(&machine, "drift");
        machine.refuse([address(2)]);
        let failure = layer.commit(&batch(&[1, 2, 3], &[])).unwrap_err();
        let CommitError::Refused(refused) = failure.error else { panic!("{failure:?}") };
        assert_eq!(refused.iter().map(|(op, index, _)| (*op, *index)).collect::<Vec<_>>(), [(Op::Create, 1)]);
        assert!(refused[0].2.to_string().starts_with("the address 10.96.0.2: "), "{}", refused[0].2);
        let now = Instant::now();
        assert_eq!(layer.tend(now).unwrap(), Drift::default());
        machine.remove(LOOPBACK, address(3)).unwrap();
        assert_eq!(layer.tend(now).unwrap(), Drift::default(), "not before the next look");
        let due = layer.wake(now).unwrap();
        let missing = Extent::Keys(vec![BindKey::Address(address(3))]);
        assert_eq!(layer.tend(due).unwrap(), Drift { by_proxies: None, by_others: Some(missing.clone()) });
        assert_eq!(layer.read_back(&missing).unwrap(), []);
        layer.commit(&batch(&[3], &[])).unwrap();
        assert_eq!(layer.tend(due + LOOK).unwrap(), Drift::default());
        layer.addresses.clear().unwrap();
    }
}
