//! The network device of kind `dummy` that holds service addresses (`kube-ipvs0`), by route netlink: the device, its addresses
//! in batches, and notifications of changes.
//!
//! IPVS takes only packets that are addressed to the node, so each service address is an address of a device, which stays down.
//! The kernel must not choose such an address as the source of the node's own connections. For IPv4 the scope `host` ensures
//! that. For IPv6 the preferred lifetime 0 makes the address deprecated (RFC 6724, rule 3): the kernel chooses it only where no
//! other address is possible.
//!
//! Layouts and numbers are those of `linux/if_link.h`, `linux/if_addr.h` and `linux/rtnetlink.h`.

mod address;
mod device;
mod monitor;
mod rescope;
mod socket;
mod wire;

#[cfg(test)]
mod tests;

pub use address::{DeviceAddress, decode_address};
pub use device::{Device, decode_device};
pub use monitor::{DeviceChange, DeviceEvent, Monitor};
pub use socket::{ADDRESSES_PER_SEND, DeviceError, DeviceSocket, Refused, Sent};
