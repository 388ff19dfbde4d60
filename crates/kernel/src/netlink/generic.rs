//! Generic netlink: resolves the numbers of families, and frames their messages. Numbers and layouts are those of
//! `linux/genetlink.h`.

use std::io;

use super::{Attributes, Malformed, MessageWriter, Session, Transport};

#[cfg(test)]
mod tests;

/// Bytes of the header, which follows the netlink header: command, version, two reserved bytes.
const HEADER_LEN: usize = 4;

/// The controller: a family with a constant number, `GENL_ID_CTRL`, which knows all others.
mod controller {
    pub(super) const FAMILY: u16 = 16;
    pub(super) const VERSION: u8 = 2;
    /// `CTRL_CMD_GETFAMILY`
    pub(super) const GET_FAMILY: u8 = 3;
    /// `CTRL_ATTR_FAMILY_ID`
    pub(super) const ID: u16 = 1;
    /// `CTRL_ATTR_FAMILY_NAME`
    pub(super) const NAME: u16 = 2;
}

/// Writes the header of a message.
pub(crate) fn header(writer: &mut MessageWriter, command: u8, version: u8) {
    writer.raw(&[command, version, 0, 0]);
}

/// Splits the payload of a message into its command and its attributes.
///
/// # Errors
/// [`Malformed`] if the payload is shorter than the header.
pub(crate) fn body(payload: &[u8]) -> Result<(u8, Attributes<'_>), Malformed> {
    let ([command, ..], attributes) =
        payload.split_first_chunk::<HEADER_LEN>().ok_or(Malformed("short generic netlink message"))?;
    Ok((*command, Attributes::new(attributes)))
}

/// Resolves the number of a family, which is the type of its messages; `None` if the kernel has no family of this name. The
/// kernel first tries to load a module with the alias `net-pf-16-proto-16-family-NAME` if it lacks the family: by its own
/// `modprobe`, in the node's root file system, also if the request comes from a container.
///
/// # Errors
/// The kernel's error.
pub(crate) fn family<T: Transport>(session: &mut Session<T>, name: &str) -> io::Result<Option<u16>> {
    let answer = session.request(controller::FAMILY, 0, |writer| {
        header(writer, controller::GET_FAMILY, controller::VERSION);
        writer.text(controller::NAME, name);
    });
    let answer = match answer {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        answer => answer?,
    };
    let description = answer.of(controller::FAMILY).next().ok_or(Malformed("no generic netlink family"))?;
    let (_, attributes) = body(description)?;
    let number = attributes.find(controller::ID)?.ok_or(Malformed("generic netlink family without a number"))?;
    Ok(Some(number.native_u16()?))
}
