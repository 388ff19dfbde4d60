//! Network devices: name, index, kind.

use super::wire::{self, link};
use crate::netlink::{Attributes, Malformed, MessageWriter};

/// Bytes of `struct ifinfomsg`.
const HEADER_LEN: usize = 16;
const DUMMY: &str = "dummy";

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// interface index, which a later device of the same name doesn't have
    pub index: u32,
    /// name
    pub name: String,
    /// kind (`IFLA_INFO_KIND`): `dummy`, `bridge` and so on; `None` for devices of hardware and for loopback
    pub kind: Option<String>,
    /// it is up (`IFF_UP`)
    pub is_up: bool,
}

// === impl Device ===

impl Device {
    /// True if it is of kind `dummy`.
    pub fn is_dummy(&self) -> bool {
        self.kind.as_deref() == Some(DUMMY)
    }
}

/// Reads the payload of a message about a device (`RTM_NEWLINK`, `RTM_DELLINK`); `None` if it is about its port of a bridge.
///
/// # Errors
/// [`Malformed`] if the message is too short, or has no name.
pub fn decode_device(payload: &[u8]) -> Result<Option<Device>, Malformed> {
    let (header, attributes) = payload.split_first_chunk::<HEADER_LEN>().ok_or(Malformed("short device message"))?;
    let [family, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    if family != wire::NO_FAMILY {
        return Ok(None);
    }
    let (mut name, mut kind) = (None, None);
    let mut attributes = Attributes::new(attributes);
    while let Some(attribute) = attributes.next_attribute()? {
        match attribute.kind {
            link::NAME => name = Some(attribute.text().into_owned()),
            link::INFO => kind = attribute.nested().find(link::KIND)?.map(|kind| kind.text().into_owned()),
            _ => {} // addresses, statistics and many more
        }
    }
    Ok(Some(Device {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        name: name.ok_or(Malformed("device without a name"))?,
        kind,
        is_up: u32::from_ne_bytes([f0, f1, f2, f3]) & wire::FLAG_UP != 0,
    }))
}

/// Writes the reference to a device by its name.
pub(super) fn encode_name(writer: &mut MessageWriter, name: &str) {
    writer.raw(&[0; HEADER_LEN]);
    writer.text(link::NAME, name);
}

/// Writes a new dummy of this name, which is down.
pub(super) fn encode_dummy(writer: &mut MessageWriter, name: &str) {
    encode_name(writer, name);
    writer.nested_attribute(link::INFO, link::KIND, DUMMY.as_bytes());
}

/// Writes the reference to a device by its index.
pub(super) fn encode_index(writer: &mut MessageWriter, index: u32) {
    let [i0, i1, i2, i3] = index.to_ne_bytes();
    writer.raw(&[wire::NO_FAMILY, 0, 0, 0, i0, i1, i2, i3, 0, 0, 0, 0, 0, 0, 0, 0]);
}
