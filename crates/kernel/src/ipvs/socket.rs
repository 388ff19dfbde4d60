//! Dumps and commits.

use std::io;

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::wire::{self, command};
use super::{
    Command, Connections, IpvsDestination, IpvsServer, RefusedCommand, ServerId, Statistics, Timeouts,
    decode_destination, decode_server, decode_statistics, decode_timeouts,
};
use crate::netlink::{
    self, AnswerEnd, AnswerMessage, Interrupted, Malformed, MessageWriter, Session, Transport, flag, generic,
};

/// Maximum number of commands that [`IpvsSocket::commit`] sends with one `send`. Each error is an answer of its own; these many fit
/// into a receive buffer of a size that needs no privilege.
pub const COMMANDS_PER_SEND: usize = 256;

/// Receive buffer: a quarter of it would do for the errors of one `send`.
const RECEIVE_BYTES: usize = 1 << 20;

/// A netlink socket for IPVS of the network namespace in which it was opened. No method waits for anything but the kernel's own
/// work, to which the load of a module belongs.
#[derive(Debug)]
pub struct IpvsSocket<T = netlink::NetlinkSocket> {
    session: Session<T>,
    /// number of the generic netlink family, which changes when the module is loaded again
    family: u16,
    sent: Sent,
}

/// Causes of failed reads, by the caller's next step.
#[derive(Debug, thiserror::Error)]
pub enum IpvsError {
    /// the module `ip_vs` is missing: neither loaded nor built in, and the kernel could not load it by itself.
    /// [`Module`](crate::module::Module) has the reason.
    #[error("the kernel has no IPVS (module ip_vs)")]
    Absent,
    /// anything else; retry if [`ErrorClass`](crate::errno::ErrorClass) is temporary
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A commit whose answers were not read to the end.
#[derive(Debug, thiserror::Error)]
#[error("commit to IPVS was not acknowledged: {error}")]
pub struct Lost {
    /// the commands before this position were answered; whether that one and those after it are in force is not known
    pub from: usize,
    /// the refused commands, as far as answers were read
    pub failures: Vec<RefusedCommand>,
    /// the cause
    #[source]
    pub error: IpvsError,
}

/// The messages and datagrams that [`IpvsSocket::commit`] has sent since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// number of system calls
    pub sends: u64,
    /// number of commands
    pub messages: u64,
    /// size of all messages
    pub bytes: u64,
}

// === impl IpvsError ===

impl From<Malformed> for IpvsError {
    fn from(malformed: Malformed) -> Self {
        Self::Io(malformed.into())
    }
}

// === impl IpvsSocket ===

impl IpvsSocket {
    /// Opens a socket in the network namespace of the calling thread. If the kernel lacks IPVS, it first tries to load the module
    /// with the alias `net-pf-16-proto-16-family-IPVS`, which is `ip_vs`, also if the caller runs in a container.
    ///
    /// # Errors
    /// [`IpvsError`].
    pub fn open() -> Result<Self, IpvsError> {
        let session = Session::open(NETLINK_GENERIC)?;
        session.set_receive_buffer(RECEIVE_BYTES)?;
        Self::over(session)
    }
}

impl<T: Transport> IpvsSocket<T> {
    /// A socket over this session, with the number of IPVS's family.
    pub(super) fn over(mut session: Session<T>) -> Result<Self, IpvsError> {
        let family = generic::family(&mut session, wire::FAMILY_NAME)?.ok_or(IpvsError::Absent)?;
        Ok(Self { session, family, sent: Sent::default() })
    }

    #[cfg(test)]
    pub(super) fn session(&self) -> &Session<T> {
        &self.session
    }

    /// Dumps the virtual servers, of one family or of both, in no order. Returns the number of those that are left out, which
    /// belong to other programs: of firewall marks, and of other protocols.
    ///
    /// # Errors
    /// [`IpvsError`]; servers passed on until then are valid, but incomplete.
    pub fn dump_servers(
        &mut self,
        family: Option<Family>,
        each: &mut dyn FnMut(IpvsServer),
    ) -> Result<usize, IpvsError> {
        let mut others = 0;
        self.dump(&|writer| wire::header(writer, command::GET_SERVICE), &mut |payload| {
            match decode_server(payload)? {
                None => others += 1,
                Some(server) if family.is_some_and(|family| family != Family::of(server.id.address)) => {}
                Some(server) => each(server),
            }
            Ok(())
        })?;
        Ok(others)
    }

    /// Dumps the destinations of a virtual server, the last added one first; none if there is no such server.
    ///
    /// # Errors
    /// [`IpvsError`]; destinations passed on until then are valid, but incomplete.
    pub fn dump_destinations(
        &mut self,
        server: &ServerId,
        each: &mut dyn FnMut(IpvsDestination, Connections),
    ) -> Result<(), IpvsError> {
        let fill = |writer: &mut MessageWriter| {
            wire::header(writer, command::GET_DEST);
            server.encode(writer);
        };
        self.dump(&fill, &mut |payload| {
            let (destination, connections) = decode_destination(payload)?;
            each(destination, connections);
            Ok(())
        })
    }

    /// Reads one virtual server; `None` if there is no such one.
    ///
    /// # Errors
    /// [`IpvsError`].
    pub fn server(&mut self, id: &ServerId) -> Result<Option<(IpvsServer, Statistics)>, IpvsError> {
        let decode = |payload: &[u8]| match decode_server(payload)? {
            Some(server) => Ok(Some((server, decode_statistics(payload)?))),
            None => Ok(None),
        };
        match self.request(command::GET_SERVICE, |writer| id.encode(writer), decode) {
            Err(IpvsError::Io(error)) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            answer => Ok(Some(answer?.ok_or(Malformed("another IPVS server than the requested one"))?)),
        }
    }

    /// Reads the timeouts of connections.
    ///
    /// # Errors
    /// [`IpvsError`].
    pub fn timeouts(&mut self) -> Result<Timeouts, IpvsError> {
        self.request(command::GET_CONFIG, |_| {}, decode_timeouts)
    }

    /// Sets the timeouts of connections, also of existing ones from their next packet on. Zeros leave the present values.
    ///
    /// # Errors
    /// [`IpvsError`]; `EINVAL` if a value is too large: `i32::MAX` divided by the kernel's HZ, 24 days at least.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), IpvsError> {
        let set = self.session.request(self.family, 0, |writer| {
            wire::header(writer, command::SET_CONFIG);
            timeouts.encode(writer);
        });
        set.map(drop).map_err(|error| self.explain(error))
    }

    /// Commits changes, [`COMMANDS_PER_SEND`] with one `send`. A refused command doesn't stop the others. Returns the refused
    /// ones, in order.
    ///
    /// # Errors
    /// [`Lost`]: the caller has to read back what it wanted to change.
    pub fn commit(&mut self, commands: &[Command]) -> Result<Vec<RefusedCommand>, Lost> {
        let mut failures = Vec::new();
        for (n, some) in commands.chunks(COMMANDS_PER_SEND).enumerate() {
            let from = n * COMMANDS_PER_SEND;
            if let Err(error) = self.commit_some(from, some, &mut failures) {
                return Err(Lost { from, failures, error });
            }
        }
        Ok(failures)
    }

    /// The messages and datagrams sent so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Commits with one `send`. Only its last message requests an acknowledgement; the others are answered if they fail.
    fn commit_some(
        &mut self,
        from: usize,
        commands: &[Command],
        failures: &mut Vec<RefusedCommand>,
    ) -> Result<(), IpvsError> {
        let mut requests = self.session.requests();
        for (n, command) in commands.iter().enumerate() {
            let acknowledge = if n + 1 == commands.len() { flag::ACK } else { 0 };
            requests.add(self.family, acknowledge, |writer| command.encode(writer));
        }
        self.sent.count(commands.len(), requests.len_bytes());
        let mut is_ambiguous = false;
        self.session.exchange::<io::Error>(&requests, AnswerEnd::Reply, &mut |answer| {
            if let AnswerMessage::Refused(error) = answer
                && let Some((n, command)) = requests.position(error.sequence).and_then(|n| Some((n, commands.get(n)?)))
            {
                is_ambiguous |= error.error.raw_os_error() == Some(libc::ENOENT);
                failures.push(RefusedCommand { index: from + n, cause: command.cause(&error.error), error });
            }
            Ok(())
        })?;
        if is_ambiguous { self.confirm_family() } else { Ok(()) }
    }

    /// Sends a request and decodes the object in its answer.
    fn request<R>(
        &mut self,
        command: u8,
        fill: impl FnOnce(&mut MessageWriter),
        decode: impl FnOnce(&[u8]) -> Result<R, Malformed>,
    ) -> Result<R, IpvsError> {
        let answer = self.session.request(self.family, 0, |writer| {
            wire::header(writer, command);
            fill(writer);
        });
        let answer = answer.map_err(|error| self.explain(error))?;
        let payload = answer.of(self.family).next().ok_or(Malformed("no object in IPVS's answer"))?;
        Ok(decode(payload)?)
    }

    fn dump(
        &mut self,
        fill: &dyn Fn(&mut MessageWriter),
        each: &mut dyn FnMut(&[u8]) -> Result<(), IpvsError>,
    ) -> Result<(), IpvsError> {
        let family = self.family;
        let listed = self.session.list(family, fill, &mut |message| {
            if message.kind == family { each(message.payload) } else { Ok(()) }
        });
        match listed {
            Ok(Interrupted(false)) => Ok(()),
            Ok(Interrupted(true)) => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
            Err(IpvsError::Io(error)) => Err(self.explain(error)),
            Err(IpvsError::Absent) => Err(IpvsError::Absent),
        }
    }

    /// The cause of the kernel's error to a read, which never is `ENOENT` if the family has still the same number.
    fn explain(&mut self, error: io::Error) -> IpvsError {
        if error.raw_os_error() != Some(libc::ENOENT) {
            return error.into();
        }
        self.confirm_family().err().unwrap_or(IpvsError::Io(error))
    }

    /// Resolves the family again after an `ENOENT`, which is also the kernel's answer to messages of an unknown family. That
    /// happens when the module was removed.
    ///
    /// # Errors
    /// [`IpvsError::Absent`]; `Interrupted` if the module was loaded again since: the next request uses the new number.
    fn confirm_family(&mut self) -> Result<(), IpvsError> {
        let family = generic::family(&mut self.session, wire::FAMILY_NAME)?.ok_or(IpvsError::Absent)?;
        if std::mem::replace(&mut self.family, family) == family {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::Interrupted, "the module ip_vs was loaded again").into())
    }
}

// === impl Sent ===

impl Sent {
    fn count(&mut self, messages: usize, bytes: usize) {
        let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
        self.sends += 1;
        self.messages = self.messages.saturating_add(number(messages));
        self.bytes = self.bytes.saturating_add(number(bytes));
    }
}
