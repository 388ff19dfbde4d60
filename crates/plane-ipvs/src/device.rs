//! Implements `Kernel` for the addresses of the device: the kernel accepts packets to a service address, and so passes them to
//! IPVS, only if an interface of the node has it.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::task::Waker;
use std::time::Instant;

use ferry_api::object::{Family, IpNet};
use ferry_kernel::dummy::{self, DeviceAddress, DeviceError, DeviceSocket};
use ferry_kernel::errno::{self, ErrorClass};
use ferry_kernel::sysctl;
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel, Object as _, Op};
use ferry_ruleset::failure::of_io;

use crate::failures::Failures;
use crate::names::DEVICE;
use crate::object::{IpvsKey, IpvsObject};
use crate::setup;
use crate::watch::{DeviceWatch, lifetime};

/// One family's addresses of the device.
#[derive(Debug)]
pub(crate) struct DeviceKernel {
    family: Family,
    socket: DeviceSocket,
    watch: DeviceWatch,
    /// the addresses that this process has committed or read, to tell foreign changes from its own
    bound: BTreeSet<IpAddr>,
}

/// The addresses of one kind of operation, with their indices in the batch.
type Indexed = Vec<(usize, IpAddr)>;

// === impl DeviceKernel ===

impl DeviceKernel {
    /// Opens the socket, in the network namespace of this thread.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(family: Family, watch: DeviceWatch) -> io::Result<Self> {
        Ok(Self { family, socket: DeviceSocket::open()?, watch, bound: BTreeSet::new() })
    }

    /// The index of the device, which takes addresses of this family; creates it if it is missing.
    fn device(&mut self) -> Result<u32, CommitError> {
        let index = self.find_or_create()?;
        if self.family == Family::V6 {
            enable_ipv6()?;
        }
        Ok(index)
    }

    fn find_or_create(&mut self) -> Result<u32, CommitError> {
        if let Some(found) = self.socket.find(DEVICE).map_err(of_device)? {
            return Ok(found.index);
        }
        match self.socket.create(DEVICE) {
            Ok(created) => Ok(created.index),
            // The other family's engine was faster.
            Err(DeviceError::Io(error)) if ErrorClass::of(&error) == ErrorClass::Exists => {
                let found = self.socket.find(DEVICE).map_err(of_device)?;
                found.map(|found| found.index).ok_or(CommitError::Busy(error))
            }
            Err(error) => Err(of_device(error)),
        }
    }

    /// The service addresses on the device.
    fn addresses(&mut self) -> Result<Vec<DeviceAddress>, CommitError> {
        let Some(device) = self.socket.find(DEVICE).map_err(of_device)? else { return Ok(Vec::new()) };
        let listed = match self.socket.addresses(device.index, self.family) {
            Err(error) if errno::number(&error) == Some(ENODEV) => Vec::new(),
            listed => listed.map_err(of_io)?,
        };
        Ok(listed.into_iter().filter(is_service_address).collect())
    }

    /// Adds addresses. One that the device has already is as wanted: the engine corrects its lifetime.
    fn add(&mut self, device: u32, op: Op, added: &Indexed, failures: &mut Failures) -> Result<(), CommitFailure> {
        let addresses: Vec<IpAddr> = added.iter().map(|(_, address)| *address).collect();
        let refused = self.socket.add(device, &addresses).map_err(|error| CommitFailure::unknown(of_io(error)))?;
        self.note(op, added, refused, ErrorClass::Exists, failures);
        Ok(())
    }

    fn note(
        &mut self,
        op: Op,
        asked: &Indexed,
        refused: Vec<dummy::Refused>,
        harmless: ErrorClass,
        failures: &mut Failures,
    ) {
        for dummy::Refused { position, error } in refused {
            let Some((index, address)) = asked.get(position) else { continue };
            if ErrorClass::of(&error) != harmless {
                failures.add((op, *index), &error, || format!("address {address} on device {DEVICE}"));
            }
        }
    }

    fn remove(&mut self, device: u32, removed: &Indexed, failures: &mut Failures) -> Result<(), CommitFailure> {
        let networks: Vec<IpNet> = removed.iter().map(|(_, address)| IpNet::from(*address)).collect();
        let refused = self.socket.remove(device, &networks).map_err(|error| CommitFailure::unknown(of_io(error)))?;
        let refused = refused.into_iter().filter(|refused| errno::number(&refused.error) != Some(EADDRNOTAVAIL));
        self.note(Op::Delete, removed, refused.collect(), ErrorClass::Missing, failures);
        Ok(())
    }

    /// Foreign changes: of these addresses, or of anything.
    fn drift(&self, changed: BTreeSet<IpAddr>, everything: bool) -> Drift<IpvsKey> {
        if everything {
            return Drift { by_proxies: None, by_others: Some(Extent::All) };
        }
        let keys: Vec<IpvsKey> = changed.into_iter().map(IpvsKey::Address).collect();
        if keys.is_empty() { Drift::default() } else { Drift { by_proxies: None, by_others: Some(Extent::Keys(keys)) } }
    }
}

/// Error numbers of linux/errno.h.
const ENODEV: i32 = 19;
const EADDRNOTAVAIL: i32 = 99;

impl Layer<IpvsObject> for DeviceKernel {
    fn holds(&self, key: &IpvsKey) -> bool {
        matches!(key, IpvsKey::Address(_))
    }

    fn kernel(&mut self) -> &mut dyn Kernel<IpvsObject> {
        self
    }
}

impl Kernel<IpvsObject> for DeviceKernel {
    /// Creates the device, with IPv6 if that is the family.
    fn prepare(&mut self) -> Result<(), CommitError> {
        self.watch.join(self.family, &self.socket).map_err(of_io)?;
        self.device().map(drop)
    }

    fn read_back(&mut self, extent: &Extent<IpvsKey>) -> Result<Vec<IpvsObject>, CommitError> {
        let listed = self.addresses()?;
        self.bound = listed.iter().map(|address| address.network.addr()).collect();
        let objects = listed.into_iter().map(|address| object(&address));
        Ok(match extent {
            Extent::All => objects.collect(),
            Extent::Keys(keys) => objects.filter(|object| keys.contains(&object.key())).collect(),
        })
    }

    fn news(&mut self) -> Result<Drift<IpvsKey>, CommitError> {
        let (changed, everything) = self.watch.take(self.family, &self.bound).map_err(of_io)?;
        Ok(self.drift(changed, everything))
    }

    fn commit(&mut self, batch: &Batch<IpvsObject>) -> Result<(), CommitFailure> {
        let device = self.device()?;
        let mut failures = Failures::default();
        let added = addresses_of(&batch.create);
        self.bound.extend(added.iter().map(|(_, address)| *address));
        self.add(device, Op::Create, &added, &mut failures)?;
        let changed = addresses_of(&batch.replace);
        let (v4, v6) = of_families(&changed);
        let refused = self.socket.deprecate(device, &v6).map_err(|error| CommitFailure::unknown(of_io(error)))?;
        self.note(Op::Replace, &changed, refused, ErrorClass::Exists, &mut failures);
        let refused = self.socket.rescope(device, &v4).map_err(|error| CommitFailure::unknown(of_io(error)))?;
        self.note(Op::Replace, &changed, refused, ErrorClass::Exists, &mut failures);
        let removed = addresses_of(&batch.delete);
        for (_, address) in &removed {
            self.bound.remove(address);
        }
        self.remove(device, &removed, &mut failures)?;
        failures.result()
    }

    fn tend(&mut self, _: Instant) -> Result<Drift<IpvsKey>, CommitError> {
        self.news()
    }

    fn wake_by(&mut self, waker: &Waker) {
        self.watch.wake_by(self.family, waker);
    }
}

/// Enables IPv6 on the device. Where `net.ipv6.conf.default.disable_ipv6` is 1, a new one has none and refuses each address with
/// `EACCES`.
fn enable_ipv6() -> Result<(), CommitError> {
    let parameter = format!("net.ipv6.conf.{DEVICE}.disable_ipv6");
    // It is missing if another program has deleted the device again, which the next request reports.
    if sysctl::read(&parameter).is_ok_and(|value| value == "1") {
        setup::set_parameter(&parameter, "0")
    } else {
        Ok(())
    }
}

/// Maps an error about the device.
pub(crate) fn of_device(error: DeviceError) -> CommitError {
    match error {
        DeviceError::Io(error) => of_io(error),
        DeviceError::AnotherKind { .. } => {
            let text = format!("{error}: rename or delete it, or run kube-proxy in another network namespace");
            CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text))
        }
    }
}

/// True for an address as proxies add it. The kernel adds a link-local one itself to a device that is up.
fn is_service_address(address: &DeviceAddress) -> bool {
    let is_link_local = matches!(address.network.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local());
    address.network.prefix_len() == address.network.max_prefix_len() && !is_link_local
}

fn object(address: &DeviceAddress) -> IpvsObject {
    IpvsObject::Address(address.network.addr(), lifetime(address))
}

fn addresses_of(objects: &[IpvsObject]) -> Indexed {
    let address = |(index, object): (usize, &IpvsObject)| match object {
        IpvsObject::Address(address, _) => Some((index, *address)),
        IpvsObject::Table(_) | IpvsObject::Server(..) => None,
    };
    objects.iter().enumerate().filter_map(address).collect()
}

/// The addresses by family: of one engine all are of the same.
fn of_families(addresses: &Indexed) -> (Vec<Ipv4Addr>, Vec<Ipv6Addr>) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for (_, address) in addresses {
        match address {
            IpAddr::V4(address) => v4.push(*address),
            IpAddr::V6(address) => v6.push(*address),
        }
    }
    (v4, v6)
}
