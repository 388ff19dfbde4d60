//! Changes of virtual servers and destinations, and the causes of refusals.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::wire::{self, command};
use super::{IpvsDestination, IpvsServer, Scheduler, ServerId, destination};
use crate::netlink::{MessageError, MessageWriter};

/// One change. Each takes effect, or is refused, on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// creates a server
    NewServer(IpvsServer),
    /// replaces all settings of an existing server; destinations, connections and statistics stay
    EditServer(IpvsServer),
    /// deletes a server with its destinations, each as [`Self::DeleteDestination`] does
    DeleteServer(ServerId),
    /// adds a destination to a server
    NewDestination(ServerId, IpvsDestination),
    /// replaces all settings of an existing destination; connections stay
    EditDestination(ServerId, IpvsDestination),
    /// deletes a destination from a server; clients' packets of its connections are dropped from then on. The kernel keeps the
    /// connections until they time out, or with `net.ipv4.vs.expire_nodest_conn` until their next packet
    DeleteDestination(ServerId, SocketAddr),
}

/// A refused command.
#[derive(Debug, thiserror::Error)]
#[error("{cause}{error}")]
pub struct RefusedCommand {
    /// position of the command in the commit
    pub index: usize,
    /// the meaning of the error
    pub cause: RefusalCause,
    /// the kernel's error
    #[source]
    pub error: MessageError,
}

/// Causes of refusals, by the caller's next step: the first three mean that the actual state is another one than the caller
/// believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// `EEXIST`: the server or destination exists
    Exists,
    /// `ESRCH`: no such server
    NoServer,
    /// `ENOENT` about a destination: no such destination in this server
    NoDestination,
    /// `ENOENT` about a server: the kernel has no scheduler of this name, and could not load its module, `ip_vs_NAME`
    NoScheduler(Scheduler),
    /// anything else; [`ErrorClass`](crate::errno::ErrorClass) classifies it
    Other,
}

// === impl Command ===

impl Command {
    /// The server that the command is about.
    pub const fn server(&self) -> &ServerId {
        match self {
            Self::NewServer(server) | Self::EditServer(server) => &server.id,
            Self::DeleteServer(id)
            | Self::NewDestination(id, _)
            | Self::EditDestination(id, _)
            | Self::DeleteDestination(id, _) => id,
        }
    }

    /// Writes the payload of the message.
    pub(super) fn encode(&self, writer: &mut MessageWriter) {
        wire::header(writer, self.number());
        match self {
            Self::NewServer(server) | Self::EditServer(server) => server.encode(writer),
            Self::DeleteServer(id) => id.encode(writer),
            Self::NewDestination(id, destination) | Self::EditDestination(id, destination) => {
                id.encode(writer);
                destination.encode(writer);
            }
            Self::DeleteDestination(id, address) => {
                id.encode(writer);
                destination::encode_reference(writer, *address);
            }
        }
    }

    /// The meaning of the kernel's error.
    pub(super) fn cause(&self, error: &io::Error) -> RefusalCause {
        match (error.raw_os_error(), self) {
            (Some(libc::EEXIST), _) => RefusalCause::Exists,
            (Some(libc::ESRCH), _) => RefusalCause::NoServer,
            (Some(libc::ENOENT), Self::NewServer(server) | Self::EditServer(server)) => {
                RefusalCause::NoScheduler(server.scheduler)
            }
            (Some(libc::ENOENT), Self::EditDestination(..) | Self::DeleteDestination(..)) => {
                RefusalCause::NoDestination
            }
            _ => RefusalCause::Other,
        }
    }

    const fn number(&self) -> u8 {
        match self {
            Self::NewServer(_) => command::NEW_SERVICE,
            Self::EditServer(_) => command::SET_SERVICE,
            Self::DeleteServer(_) => command::DEL_SERVICE,
            Self::NewDestination(..) => command::NEW_DEST,
            Self::EditDestination(..) => command::SET_DEST,
            Self::DeleteDestination(..) => command::DEL_DEST,
        }
    }
}

impl fmt::Display for Command {
    /// As `add destination 10.1.0.1:8080 to TCP 10.96.0.1:80`, to follow "cannot".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NewServer(server) => write!(f, "add server {}", server.id),
            Self::EditServer(server) => write!(f, "edit server {}", server.id),
            Self::DeleteServer(id) => write!(f, "delete server {id}"),
            Self::NewDestination(id, destination) => write!(f, "add destination {} to {id}", destination.address),
            Self::EditDestination(id, destination) => write!(f, "edit destination {} of {id}", destination.address),
            Self::DeleteDestination(id, address) => write!(f, "delete destination {address} of {id}"),
        }
    }
}

// === impl RefusalCause ===

impl fmt::Display for RefusalCause {
    /// The part of the message that the error number doesn't express, with a colon.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists | Self::Other => Ok(()),
            Self::NoServer => f.write_str("no such server: "),
            Self::NoDestination => f.write_str("no such destination: "),
            Self::NoScheduler(name) => write!(f, "the kernel has no scheduler {name} (module ip_vs_{name}): "),
        }
    }
}
