//! Commits and queries.

use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::batch::ClosedBatch;
use super::wire::{self, msg};
use super::{Batch, BatchError, Chain, CommitFailure, CommitStats, Element, Family, Octets, Rule, Set, Table, decode};
use crate::netlink::{self, HEADER_LEN, Message, Messages, Reply, Writer, control, decode_reply, flag};

/// For the errors of a batch of many refused messages.
const RECEIVE_BYTES: usize = 4 << 20;
/// How often a dump is tried that others' commits interrupt.
const DUMP_ATTEMPTS: u32 = 16;
/// How much longer to wait at each attempt for the kernel to finish moving a set.
const MOVING_PAUSE: Duration = Duration::from_millis(2);
/// `NFPROTO_UNSPEC`
const NO_FAMILY: u8 = 0;

/// A connection to nf_tables in the network namespace of the thread that opened it. Nothing here waits for anything but
/// the kernel's own work.
#[derive(Debug)]
pub struct Socket {
    socket: netlink::Socket,
    sequence: u32,
    datagram: Vec<u8>,
    /// a dialogue was broken off: answers may still arrive
    dirty: bool,
}

/// The answer to a query.
struct Answer {
    /// the messages, one behind the other
    messages: Vec<u8>,
    /// something was committed while a dump was under way
    interrupted: bool,
}

// === impl Socket ===

impl Socket {
    /// Opens a connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn open() -> io::Result<Self> {
        let socket = netlink::Socket::open(NETLINK_NETFILTER)?;
        socket.set_receive_buffer(RECEIVE_BYTES)?;
        Ok(Self { socket, sequence: 0, datagram: Vec::new(), dirty: false })
    }

    /// Its address: what [`super::Event::port_id`] says of changes made here.
    pub fn port_id(&self) -> u32 {
        self.socket.port_id()
    }

    /// Commits a batch as one transaction. An empty one costs nothing.
    ///
    /// # Errors
    /// [`CommitFailure`]; nothing of the batch was done then, except where it says that the answer was lost.
    pub fn commit(&mut self, batch: Batch) -> Result<CommitStats, CommitFailure> {
        if batch.is_empty() {
            return Ok(CommitStats::default());
        }
        let messages = batch.messages();
        let batch = batch.close().map_err(|error| CommitFailure::Messages(vec![error]))?;
        self.settle();
        self.dirty = true;
        self.socket.send(&batch.bytes).map_err(CommitFailure::Io)?;
        let errors = self.batch_answers(&batch)?;
        if errors.is_empty() {
            return Ok(CommitStats { bytes: batch.bytes.len(), messages });
        }
        Err(CommitFailure::Messages(errors))
    }

    /// Reads what the kernel says to a batch until the answer to its last message; errors of messages before come first.
    fn batch_answers(&mut self, batch: &ClosedBatch) -> Result<Vec<BatchError>, CommitFailure> {
        let mut errors = Vec::new();
        loop {
            match self.socket.receive(&mut self.datagram) {
                Ok(true) => {}
                // refused as a whole, or before its end
                Ok(false) | Err(_) if !errors.is_empty() => return Ok(errors),
                Ok(false) => return Err(CommitFailure::Io(io::Error::other("the kernel did not acknowledge"))),
                Err(error) => return Err(CommitFailure::Io(error)),
            }
            for message in Messages::new(&self.datagram) {
                let message = message.map_err(|malformed| CommitFailure::Io(malformed.into()))?;
                let reply = decode_reply(&message).map_err(|malformed| CommitFailure::Io(malformed.into()))?;
                let sequence = match reply {
                    None => continue,
                    Some(Reply::Done(sequence)) => sequence,
                    Some(Reply::Refused(refusal)) => {
                        let sequence = refusal.sequence;
                        if is_of_the_whole(&refusal) {
                            return Err(CommitFailure::Io(refusal.into()));
                        }
                        errors.push(batch.place(refusal));
                        sequence
                    }
                };
                if sequence == batch.last {
                    self.dirty = false;
                    return Ok(errors);
                }
            }
        }
    }

    /// A table; `None` if there is none of this name.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn table(&mut self, family: Family, name: &str) -> io::Result<Option<Table>> {
        let answer = self.query(msg::GET_TABLE, 0, family.number(), &|w| w.text(wire::table::NAME, name));
        let answer = match answer {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            answer => answer?,
        };
        let table = answer.each(msg::NEW_TABLE).next().transpose()?;
        Ok(table.map(|table| decode::decode_table(table.payload)).transpose()?)
    }

    /// The names of all tables of a family.
    ///
    /// # Errors
    /// What the kernel says; `Interrupted` as [`Self::elements`].
    pub fn tables(&mut self, family: Family) -> io::Result<Vec<String>> {
        let answer = self.dump(msg::GET_TABLE, family.number(), &|_| {})?;
        answer.each(msg::NEW_TABLE).map(|table| Ok(decode::decode_table(table?.payload)?.name)).collect()
    }

    /// The sets and maps of a table, without their elements; not the nameless ones of rules.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn sets(&mut self, family: Family, table: &str) -> io::Result<Vec<Set>> {
        let answer = self.dump(msg::GET_SET, family.number(), &|w| w.text(wire::set::TABLE, table))?;
        let mut sets = Vec::new();
        for message in answer.each(msg::NEW_SET) {
            sets.extend(decode::decode_set(message?.payload)?.filter(|(of, _)| of == table).map(|(_, set)| set));
        }
        self.unless_missing(family, table, sets)
    }

    /// The chains of a table, without their rules; not the nameless ones of rules.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn chains(&mut self, family: Family, table: &str) -> io::Result<Vec<Chain>> {
        // the kernel lists the chains of all tables of the family
        let answer = self.dump(msg::GET_CHAIN, family.number(), &|_| {})?;
        let mut chains = Vec::new();
        for message in answer.each(msg::NEW_CHAIN) {
            let chain = decode::decode_chain(message?.payload)?;
            chains.extend(chain.filter(|(of, _)| of == table).map(|(_, chain)| chain));
        }
        self.unless_missing(family, table, chains)
    }

    /// The rules of a table or of one chain, each with its chain's name, in the order of evaluation within each chain.
    /// A chain that does not exist has no rules.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn rules(&mut self, family: Family, table: &str, chain: Option<&str>) -> io::Result<Vec<(String, Rule)>> {
        let answer = self.dump(msg::GET_RULE, family.number(), &|w| {
            w.text(wire::rule::TABLE, table);
            if let Some(chain) = chain {
                w.text(wire::rule::CHAIN, chain);
            }
        })?;
        let mut rules = Vec::new();
        for message in answer.each(msg::NEW_RULE) {
            let (of, within, rule) = decode::decode_rule(message?.payload)?;
            if of == table && chain.is_none_or(|chain| chain == within) {
                rules.push((within, rule));
            }
        }
        self.unless_missing(family, table, rules)
    }

    /// The elements of a set or map, in no order.
    ///
    /// # Errors
    /// `NotFound` if there is no such set; `Interrupted` if others kept committing while the kernel listed, and no two
    /// attempts in a row came out the same. `each` is called only when all has been read.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(Element),
    ) -> io::Result<()> {
        let answer = self.dump(msg::GET_ELEMENT, family.number(), &|w| {
            w.text(wire::element::TABLE, table);
            w.text(wire::element::SET, set);
        })?;
        for message in answer.each(msg::NEW_ELEMENT) {
            decode::decode_elements(message?.payload, each)?;
        }
        Ok(())
    }

    /// One element of a set or map without intervals; `None` if it is not there.
    ///
    /// # Errors
    /// `NotFound` if there is no such set.
    pub fn element(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> io::Result<Option<Element>> {
        let answer = self.query(msg::GET_ELEMENT, 0, family.number(), &|w| {
            w.text(wire::element::TABLE, table);
            w.text(wire::element::SET, set);
            let list = w.nest(wire::element::LIST);
            super::encode::element(w, key, None, super::ElementData::None);
            w.end_nest(list);
        });
        let answer = match answer {
            // the element, or the set?
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.require_set(family, table, set)?;
                return Ok(None);
            }
            answer => answer?,
        };
        let wanted = Octets::new(key).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut found = None;
        for message in answer.each(msg::NEW_ELEMENT) {
            decode::decode_elements(message?.payload, &mut |element| {
                if element.key == wanted {
                    found = Some(element);
                }
            })?;
        }
        Ok(found)
    }

    /// The number of the present generation: it changes with each commit of anybody in this network namespace.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn generation(&mut self) -> io::Result<u32> {
        let answer = self.query(msg::GET_GENERATION, 0, NO_FAMILY, &|_| {})?;
        let message = answer.each(msg::NEW_GENERATION).next().ok_or(netlink::Malformed("no generation"))??;
        Ok(decode::decode_generation(message.payload)?)
    }

    fn require_set(&mut self, family: Family, table: &str, set: &str) -> io::Result<()> {
        self.query(msg::GET_SET, 0, family.number(), &|w| {
            w.text(wire::set::TABLE, table);
            w.text(wire::set::NAME, set);
        })
        .map(drop)
    }

    /// Some kernels answer a query about a missing table with nothing.
    fn unless_missing<T>(&mut self, family: Family, table: &str, found: Vec<T>) -> io::Result<Vec<T>> {
        if found.is_empty() && self.table(family, table)?.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(found)
    }

    /// Lists what one request names, again and again until the list is whole.
    ///
    /// If others commit meanwhile, one attempt must be left alone or two in a row come out the same: a busy neighbour
    /// changes the generation, but not what we list. And no element may come twice: the kernel continues a list by
    /// skipping as many as it gave before, so that elements are missed, and as many come twice, while a hash set that
    /// has just grown is moved to a larger table.
    fn dump(&mut self, message: u8, family: u8, fill: &dyn Fn(&mut Writer)) -> io::Result<Answer> {
        let mut before = None;
        for attempt in 0..DUMP_ATTEMPTS {
            let answer = match self.query(message, flag::DUMP, family, fill) {
                Ok(answer) => answer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    before = None;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if message == msg::GET_ELEMENT && answer.has_duplicates()? {
                std::thread::sleep(MOVING_PAUSE.saturating_mul(attempt));
                continue;
            }
            if !answer.interrupted {
                return Ok(answer);
            }
            let digest = answer.digest()?;
            if before.replace(digest) == Some(digest) {
                return Ok(answer);
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn query(&mut self, message: u8, flags: u16, family: u8, fill: &dyn Fn(&mut Writer)) -> io::Result<Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut writer = Writer::new();
        // a dump ends by itself; the answer to anything else ends with the acknowledgement
        let flags = flag::REQUEST | if flags & flag::DUMP == 0 { flags | flag::ACK } else { flags };
        let mark = wire::begin(&mut writer, message, family, flags, self.sequence);
        fill(&mut writer);
        writer.end_message(mark);
        if writer.overflow().is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "names or keys of more than 65,535 bytes"));
        }
        self.settle();
        self.dirty = true;
        self.socket.send(writer.bytes())?;
        let mut answer = Answer { messages: Vec::new(), interrupted: false };
        while self.socket.receive(&mut self.datagram)? {
            if let Some(reply) = answer.take(&self.datagram, self.sequence)? {
                self.dirty = false;
                return match reply {
                    Reply::Done(_) => Ok(answer),
                    Reply::Refused(refusal) => Err(refusal.into()),
                };
            }
        }
        Err(io::Error::other("the kernel did not answer"))
    }

    /// Forgets what is left of a dialogue that was broken off.
    fn settle(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.socket.drain(&mut self.datagram);
        }
    }
}

// === impl Answer ===

impl Answer {
    /// Takes over the messages of a datagram that answer the request of this number, up to the reply that ends it.
    fn take(&mut self, datagram: &[u8], sequence: u32) -> io::Result<Option<Reply>> {
        let mut rest = datagram;
        for message in Messages::new(datagram) {
            let message = message?;
            let length = netlink::align(HEADER_LEN + message.payload.len());
            let (bytes, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = behind;
            if message.sequence != sequence {
                continue;
            }
            self.interrupted |= message.flags & flag::DUMP_INTR != 0;
            match message.kind {
                control::DONE | control::ERROR => return Ok(decode_reply(&message)?),
                _ => self.messages.extend_from_slice(bytes),
            }
        }
        Ok(None)
    }

    /// The messages of this type.
    fn each(&self, message: u8) -> impl Iterator<Item = io::Result<Message<'_>>> {
        Messages::new(&self.messages)
            .map(|message| message.map_err(io::Error::from))
            .filter(move |found| found.as_ref().map_or(true, |found| wire::message_of(found.kind) == Some(message)))
    }

    /// Whether an element of a set comes twice.
    fn has_duplicates(&self) -> io::Result<bool> {
        let mut keys = Vec::new();
        for message in self.each(msg::NEW_ELEMENT) {
            decode::element_identities(message?.payload, &mut |identity| {
                let mut hasher = DefaultHasher::new();
                hasher.write(identity);
                keys.push(hasher.finish());
            })?;
        }
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys.len() < count)
    }

    /// Of the content: without the headers, which carry sequence and generation numbers.
    fn digest(&self) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        for message in Messages::new(&self.messages) {
            hasher.write(message?.payload.get(wire::HEADER_LEN..).unwrap_or_default());
        }
        Ok(hasher.finish())
    }
}

/// Whether it says that there is no getting through to nf_tables, rather than what is wrong with the batch.
fn is_of_the_whole(refusal: &netlink::MessageError) -> bool {
    const FIRST: u32 = 1;
    refusal.sequence == FIRST && matches!(refusal.error.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP))
}
