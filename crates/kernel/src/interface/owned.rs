//! Keeps the service addresses of an interface as they are wanted.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use super::record::Owned;
use super::{AddressEffect, AddressRecord, InterfaceAddresses};

/// The addresses that this program has added to interfaces. An address is recorded before it is added and until after it was
/// removed, so none exists without a record, whenever the program ends.
#[derive(Debug)]
pub struct OwnedAddresses<I> {
    interfaces: I,
    interface: String,
    record: AddressRecord,
    /// as recorded
    owned: BTreeSet<Owned>,
}

/// The result of replacing the addresses.
#[derive(Debug, Default)]
pub struct Replaced {
    /// number of addresses that were added
    pub added: usize,
    /// number of addresses that were removed
    pub removed: usize,
    /// addresses that could not be added or removed, with the error
    pub failed: Vec<(IpAddr, io::Error)>,
}

// === impl OwnedAddresses ===

impl<I: InterfaceAddresses> OwnedAddresses<I> {
    /// The addresses that this program wants on the interface of this name; those of an earlier run that has crashed are its own,
    /// too, also on another interface, and stay until [`Self::replace`] decides about them.
    ///
    /// # Errors
    /// If there is no such interface, or the record can't be read. The text names the interface, or the file.
    pub fn open(mut interfaces: I, interface: &str, record: AddressRecord) -> io::Result<Self> {
        interfaces.list(interface).map_err(|error| about(&format!("the interface {interface:?}"), &error))?;
        let owned = record.read().map_err(|error| about(&record.path().display().to_string(), &error))?;
        Ok(Self { interfaces, interface: interface.to_owned(), record, owned })
    }

    /// The addresses that are this program's own, with their interfaces.
    pub fn owned(&self) -> impl Iterator<Item = (IpAddr, &str)> {
        self.owned.iter().map(|(address, interface)| (*address, interface.as_str()))
    }

    /// The addresses that the interface has now, whoever has added them.
    ///
    /// # Errors
    /// If they can't be listed.
    pub fn present(&mut self) -> io::Result<BTreeSet<IpAddr>> {
        Ok(self.interfaces.list(&self.interface)?.into_iter().map(|local| local.address).collect())
    }

    /// Adds the wanted addresses that the interface lacks, and removes the others of this program. An address that another program
    /// has added serves as well, and is neither changed nor removed. What fails is left for the next call.
    ///
    /// # Errors
    /// If the addresses can't be listed, or the record can't be written; nothing was changed then that is not recorded.
    pub fn replace(&mut self, wanted: &BTreeSet<IpAddr>) -> io::Result<Replaced> {
        let present = self.present()?;
        let missing: Vec<IpAddr> = wanted.difference(&present).copied().collect();
        let recorded = missing.iter().map(|&address| (address, self.interface.clone())).chain(self.owned.clone());
        let recorded = recorded.collect();
        self.record_as(recorded)?;
        let mut replaced = Replaced::default();
        for address in missing {
            match self.interfaces.add(&self.interface, address) {
                Ok(AddressEffect::Made) => replaced.added += 1,
                // Another program was quicker: it is not ours.
                Ok(AddressEffect::None) => drop(self.owned.remove(&(address, self.interface.clone()))),
                Err(error) => {
                    self.owned.remove(&(address, self.interface.clone()));
                    replaced.failed.push((address, error));
                }
            }
        }
        for (address, interface) in self.owned.clone() {
            if wanted.contains(&address) && interface == self.interface {
                continue;
            }
            match self.remove(&interface, address) {
                Ok(change) => {
                    replaced.removed += usize::from(change == AddressEffect::Made);
                    self.owned.remove(&(address, interface));
                }
                Err(error) => replaced.failed.push((address, error)),
            }
        }
        self.record_as(self.owned.clone())?;
        Ok(replaced)
    }

    /// Removes all addresses of this program.
    ///
    /// # Errors
    /// As those of [`Self::replace`].
    pub fn clear(&mut self) -> io::Result<Replaced> {
        self.replace(&BTreeSet::new())
    }

    /// Removes an address that has the mark of those that were added by this program. The record may be older than the last start of
    /// the machine, after which another program may have added the address.
    fn remove(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect> {
        let listed = match self.interfaces.list(interface) {
            // The interface has gone, and its addresses with it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(AddressEffect::None),
            listed => listed?,
        };
        if listed.iter().any(|local| local.address == address && local.never_source) {
            self.interfaces.remove(interface, address)
        } else {
            Ok(AddressEffect::None)
        }
    }

    fn record_as(&mut self, owned: BTreeSet<Owned>) -> io::Result<()> {
        if owned != self.owned || owned.is_empty() {
            self.record.write(&owned).map_err(|error| about(&self.record.path().display().to_string(), &error))?;
        }
        self.owned = owned;
        Ok(())
    }
}

/// The same error, with its subject.
fn about(subject: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{subject}: {error}"))
}
