//! Request and answer over netlink, for all protocols: sequence numbers, acknowledgements, dumps and their retries, and recovery
//! after an exchange that was aborted.

use std::io;
use std::ops::RangeInclusive;

use super::{Message, MessageError, MessageWriter, Messages, NetlinkSocket, Reply, Transport, decode_reply, flag};

#[cfg(test)]
mod tests;

/// A netlink socket that sends requests and reads their answers, one exchange at a time. The kernel answers within the `send`
/// call, so no method waits.
///
/// | Method | Sends | Used for |
/// |---|---|---|
/// | [`request`](Self::request) | one acknowledged message | reading one object, changing one |
/// | [`list`](Self::list) | one dump, its objects passed on as they are read | lists too long to keep |
/// | [`dump`](Self::dump) | one dump, repeated until it is consistent | lists that have to be complete |
/// | [`exchange`](Self::exchange) | many messages in one datagram | bulk reads and writes, each message refused on its own |
/// | [`transact`](Self::transact) | one datagram with the caller's sequence numbers | an nf_tables transaction |
///
/// **Generic netlink** (IPVS, for example) uses the same methods, over `NETLINK_GENERIC`: `netlink/generic.rs` resolves a family's
/// number, which is the type of its messages, and writes their header. [`ErrorClass`](crate::errno::ErrorClass) classifies
/// refusals.
#[derive(Debug)]
pub struct Session<T = NetlinkSocket> {
    transport: T,
    /// sequence number of the last message that was sent
    sequence: u32,
    datagram: Vec<u8>,
    /// the last exchange was aborted: some of its answers may still be unread
    aborted: bool,
}

/// The messages of one datagram, with the session's next sequence numbers.
#[derive(Debug)]
pub struct Requests {
    writer: MessageWriter,
    first: u32,
    count: u32,
}

/// The message that ends the answers to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// the acknowledgement or the error of the last message, or the end of its dump
    Reply,
    /// any message with the sequence number of the last one: it reads one object and isn't acknowledged, which would cost
    /// another datagram
    Any,
}

/// A message of an answer. Acknowledgements and ends of dumps are not passed on.
#[derive(Debug)]
pub enum AnswerMessage<'a> {
    /// an object
    Object(Message<'a>),
    /// a refused request
    Refused(MessageError),
}

/// The objects of an answer, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct AnswerObjects {
    /// concatenated payloads
    bytes: Vec<u8>,
    /// message type and end of each payload
    ends: Vec<(u16, usize)>,
    /// True if the list changed while the kernel wrote it: objects may be missing or duplicated.
    pub interrupted: bool,
}

/// True if a list changed while the kernel wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Interrupted(
    /// true if the list changed
    pub bool,
);

/// The kernel sent no answer, or an incomplete one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel did not answer")]
pub struct Unanswered;

/// The sequence numbers of the messages of one datagram.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    first: u32,
    last: u32,
}

// === impl Session ===

impl Session {
    /// Opens a session of a netlink protocol (`netlink_sys::protocols`) in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's error, for example for an unknown protocol.
    pub fn open(protocol: isize) -> io::Result<Self> {
        NetlinkSocket::open(protocol).map(Self::new)
    }

    /// The socket's port id, which the kernel reports as the originator of its changes.
    pub fn port_id(&self) -> u32 {
        self.transport.port_id()
    }

    /// Sets the size of the receive buffer, in bytes of unread answers.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.transport.set_receive_buffer(bytes)
    }

    /// Lets the kernel check the headers and attributes of requests to read, and filter lists by them, in the protocols that
    /// can (`NETLINK_GET_STRICT_CHK`).
    ///
    /// # Errors
    /// `ENOPROTOOPT` before Linux 4.20.
    pub fn set_strict(&self) -> io::Result<()> {
        self.transport.set_strict()
    }
}

impl<T: Transport> Session<T> {
    /// Creates a session over this transport.
    pub fn new(transport: T) -> Self {
        Self { transport, sequence: 0, datagram: Vec::new(), aborted: false }
    }

    #[cfg(test)]
    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    /// Creates an empty datagram for [`Self::exchange`].
    pub fn requests(&self) -> Requests {
        Requests { writer: MessageWriter::new(), first: self.sequence.wrapping_add(1), count: 0 }
    }

    /// Sends one message of this type, with an acknowledgement, and returns the objects of its answer. `fill` writes the
    /// protocol's header and the attributes.
    ///
    /// # Errors
    /// The kernel's error; `InvalidInput` if an attribute is too long for the format; [`Unanswered`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut MessageWriter),
    ) -> io::Result<AnswerObjects> {
        self.collect(kind, flags | flag::ACK, fill)
    }

    /// Lists objects once and passes each to `each`.
    ///
    /// # Errors
    /// As [`Self::request`], and those of `each`. Objects passed on until then are valid, but incomplete.
    pub fn list<E: From<io::Error>>(
        &mut self,
        kind: u16,
        fill: impl FnOnce(&mut MessageWriter),
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), E>,
    ) -> Result<Interrupted, E> {
        self.send_one(kind, flag::DUMP, fill, each)
    }

    /// Lists objects until `is_complete` accepts a list, at most `attempts` times.
    ///
    /// # Errors
    /// As [`Self::request`]; `Interrupted` if no list was accepted.
    pub fn dump(
        &mut self,
        kind: u16,
        attempts: u32,
        fill: &dyn Fn(&mut MessageWriter),
        is_complete: &mut dyn FnMut(&AnswerObjects) -> io::Result<bool>,
    ) -> io::Result<AnswerObjects> {
        for _ in 0..attempts {
            match self.collect(kind, flag::DUMP, fill) {
                Ok(objects) if is_complete(&objects)? => return Ok(objects),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    /// Sends several messages in one datagram and passes on their answers until the last one is answered. Each message is refused
    /// on its own; the others take effect.
    ///
    /// # Errors
    /// As [`Self::request`], except refusals, which are passed to `each`; and those of `each`, which abort the exchange.
    pub fn exchange<E: From<io::Error>>(
        &mut self,
        requests: &Requests,
        end: AnswerEnd,
        each: &mut dyn FnMut(AnswerMessage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(numbers) = requests.numbers() else { return Ok(()) };
        self.sequence = numbers.last;
        self.run_exchange(requests.bytes()?, numbers, end, each).map(drop)
    }

    /// Sends a datagram with the caller's sequence numbers and passes on the answers until the last number is acknowledged or
    /// refused.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    pub fn transact<E: From<io::Error>>(
        &mut self,
        datagram: &[u8],
        numbers: RangeInclusive<u32>,
        each: &mut dyn FnMut(AnswerMessage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let numbers = Numbers { first: *numbers.start(), last: *numbers.end() };
        self.run_exchange(datagram, numbers, AnswerEnd::Reply, each).map(drop)
    }

    fn collect(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut MessageWriter)) -> io::Result<AnswerObjects> {
        let mut objects = AnswerObjects::default();
        let interrupted = self.send_one::<io::Error>(kind, flags, fill, &mut |object| {
            objects.push(object.kind, object.payload);
            Ok(())
        })?;
        objects.interrupted = interrupted.0;
        Ok(objects)
    }

    fn send_one<E: From<io::Error>>(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut MessageWriter),
        each: &mut dyn FnMut(&Message<'_>) -> Result<(), E>,
    ) -> Result<Interrupted, E> {
        let mut requests = self.requests();
        requests.add(kind, flags, fill);
        let numbers = Numbers { first: requests.first, last: requests.first };
        self.sequence = numbers.last;
        self.run_exchange(requests.bytes()?, numbers, AnswerEnd::Reply, &mut |answer| match answer {
            AnswerMessage::Object(object) => each(&object),
            AnswerMessage::Refused(refusal) => Err(io::Error::from(refusal).into()),
        })
    }

    fn run_exchange<E: From<io::Error>>(
        &mut self,
        datagram: &[u8],
        numbers: Numbers,
        end: AnswerEnd,
        each: &mut dyn FnMut(AnswerMessage<'_>) -> Result<(), E>,
    ) -> Result<Interrupted, E> {
        if std::mem::replace(&mut self.aborted, true) {
            self.drain();
        }
        self.transport.send(datagram)?;
        let mut interrupted = Interrupted(false);
        while self.transport.receive(&mut self.datagram)? {
            for message in Messages::new(&self.datagram) {
                let message = message.map_err(io::Error::from)?;
                if !numbers.contain(message.sequence) {
                    continue;
                }
                interrupted.0 |= message.flags & flag::DUMP_INTR != 0;
                let reply = decode_reply(&message).map_err(io::Error::from)?;
                let ends = message.sequence == numbers.last && (reply.is_some() || end == AnswerEnd::Any);
                self.aborted = !ends;
                match reply {
                    None => each(AnswerMessage::Object(message))?,
                    Some(Reply::Refused(refusal)) => each(AnswerMessage::Refused(refusal))?,
                    Some(Reply::Done(_)) => {}
                }
                if ends {
                    return Ok(interrupted);
                }
            }
        }
        Err(io::Error::from(Unanswered).into())
    }

    /// Reads and drops all unread datagrams.
    fn drain(&mut self) {
        const MOST: usize = 1 << 16; // an overrun is reported once, then reading continues; other errors may persist
        for _ in 0..MOST {
            if matches!(self.transport.receive(&mut self.datagram), Ok(false)) {
                break;
            }
        }
    }
}

// === impl Requests ===

impl Requests {
    /// Appends a message of this type. `fill` writes the protocol's header and the attributes.
    pub fn add(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut MessageWriter)) {
        let mark = self.writer.message(kind, flag::REQUEST | flags, self.first.wrapping_add(self.count));
        fill(&mut self.writer);
        self.writer.end_message(mark);
        self.count = self.count.wrapping_add(1);
    }

    /// Position among these messages of the one with this sequence number, such as that of a refusal.
    pub fn position(&self, sequence: u32) -> Option<usize> {
        let position = sequence.wrapping_sub(self.first);
        usize::try_from(position).ok().filter(|_| position < self.count)
    }

    /// Bytes of all messages.
    pub(crate) fn len_bytes(&self) -> usize {
        self.writer.len()
    }

    /// `None` if there is no message.
    fn numbers(&self) -> Option<Numbers> {
        let last = self.first.wrapping_add(self.count.checked_sub(1)?);
        Some(Numbers { first: self.first, last })
    }

    fn bytes(&self) -> io::Result<&[u8]> {
        match self.writer.overflow() {
            None => Ok(self.writer.bytes()),
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "attribute longer than 65,535 bytes")),
        }
    }
}

// === impl AnswerObjects ===

impl AnswerObjects {
    /// The payloads of the objects of this message type.
    pub fn of(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(of, _)| *of == kind).map(|(_, payload)| payload)
    }

    /// The message type and the payload of each object.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        starts.zip(&self.ends).map(|(start, (kind, end))| (*kind, self.bytes.get(start..*end).unwrap_or_default()))
    }

    pub(crate) fn push(&mut self, kind: u16, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.ends.push((kind, self.bytes.len()));
    }
}

// === impl Unanswered ===

impl From<Unanswered> for io::Error {
    fn from(unanswered: Unanswered) -> Self {
        Self::other(unanswered)
    }
}

// === impl Numbers ===

impl Numbers {
    fn contain(self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }
}
