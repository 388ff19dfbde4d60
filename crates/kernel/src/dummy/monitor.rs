//! Receives the notifications of changes of one device and its addresses.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::wire::{self, msg};
use super::{Device, DeviceAddress, DeviceSocket, decode_address, decode_device};
use crate::netlink::{Malformed, Messages, Notifications, Overrun};

/// Receive buffer in bytes: a device that is deleted causes a notification for each address, about 1 KiB with overhead.
const RECEIVE_BYTES: usize = 4 << 20;

/// A listener to the changes of one device in the network namespace of the thread that opened it. It wakes for changes of other
/// devices, too, but reports only those of its own.
///
/// The kernel reports who changed an IPv4 address, but not who changed an IPv6 address, and reports the addition of one twice,
/// the second time a moment later. Those of the own changes are recognised by their effect: notifications are in the order of
/// the changes, so the last one read about an address is its state. Only if that differs from the state that the own changes
/// were to cause has another program changed the address since.
#[derive(Debug)]
pub struct Monitor {
    notifications: Notifications,
    socket: DeviceSocket,
    followed: Followed,
}

/// A change of the device or of an address on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEvent {
    /// port id of the socket that caused it; 0: unknown, always so for IPv6 addresses, or the kernel itself
    pub port_id: u32,
    /// the change
    pub change: DeviceChange,
}

/// See [`DeviceEvent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// the device was created or changed, for example brought up or down. It may be of any kind.
    Device(Device),
    /// the device was deleted, renamed, or moved to another network namespace
    DeviceGone,
    /// an address was added to the device, or changed
    Added(DeviceAddress),
    /// an address was removed from the device
    Removed(DeviceAddress),
}

/// The device that a monitor follows by its name.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) name: String,
    /// index of the present device of this name
    pub(super) index: Option<u32>,
}

// === impl Monitor ===

impl Monitor {
    /// Starts to listen to changes of the device of this name, present or future, and of its addresses of these families.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(name: &str, families: &[Family]) -> io::Result<Self> {
        let notifications = Notifications::open(NETLINK_ROUTE)?;
        notifications.set_receive_buffer(RECEIVE_BYTES)?;
        notifications.join(wire::group::LINK)?;
        for family in families {
            notifications.join(match family {
                Family::V4 => wire::group::IPV4_ADDRESS,
                Family::V6 => wire::group::IPV6_ADDRESS,
            })?;
        }
        let followed = Followed { name: name.to_owned(), index: None };
        let mut monitor = Self { notifications, socket: DeviceSocket::open()?, followed };
        monitor.look_up()?;
        Ok(monitor)
    }

    /// Sets how many bytes of unread notifications the kernel keeps, overhead included, before it reports an overrun.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.notifications.set_receive_buffer(bytes)
    }

    /// Leaves out the notifications that name one of these sockets as the cause: they don't wake the thread that waits for this
    /// monitor to be readable. IPv6 addresses are notified all the same.
    ///
    /// # Errors
    /// The system's error.
    pub fn ignore(&self, port_ids: &BTreeSet<u32>) -> io::Result<()> {
        self.notifications.ignore(port_ids)
    }

    /// Reads all that is there, without waiting, and passes on what concerns the device. A notification that cannot be decoded
    /// counts as lost.
    ///
    /// # Errors
    /// The system's error, except for an overrun.
    pub fn read(&mut self, each: &mut dyn FnMut(DeviceEvent)) -> io::Result<Overrun> {
        let followed = &mut self.followed;
        let overrun = self.notifications.read(&mut |datagram| followed.decode(datagram, each))?;
        if overrun.0 {
            self.look_up()?;
        }
        Ok(overrun)
    }

    fn look_up(&mut self) -> io::Result<()> {
        self.followed.index = self.socket.device(&self.followed.name)?.map(|device| device.index);
        Ok(())
    }
}

impl AsFd for Monitor {
    /// To wait for it to be readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }
}

// === impl Followed ===

impl Followed {
    /// Decodes a datagram and passes on what concerns the device.
    pub(super) fn decode(&mut self, datagram: &[u8], each: &mut dyn FnMut(DeviceEvent)) -> Result<(), Malformed> {
        for message in Messages::new(datagram) {
            let message = message?;
            let change = match message.kind {
                msg::NEW_LINK => decode_device(message.payload)?.and_then(|device| self.changed(device)),
                msg::DELETE_LINK => decode_device(message.payload)?.and_then(|device| self.gone(device.index)),
                msg::NEW_ADDRESS => self.address(message.payload)?.map(DeviceChange::Added),
                msg::DELETE_ADDRESS => self.address(message.payload)?.map(DeviceChange::Removed),
                _ => None,
            };
            if let Some(change) = change {
                each(DeviceEvent { port_id: message.port_id, change });
            }
        }
        Ok(())
    }

    fn changed(&mut self, device: Device) -> Option<DeviceChange> {
        if device.name != self.name {
            return self.gone(device.index); // renamed, if it was the followed one
        }
        self.index = Some(device.index);
        Some(DeviceChange::Device(device))
    }

    fn gone(&mut self, index: u32) -> Option<DeviceChange> {
        self.index.take_if(|followed| *followed == index).map(|_| DeviceChange::DeviceGone)
    }

    fn address(&self, payload: &[u8]) -> Result<Option<DeviceAddress>, Malformed> {
        Ok(decode_address(payload)?.filter(|address| Some(address.device) == self.index))
    }
}
