//! Commits transactions and reads objects back.

use std::io;

use ferry_family::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;

use super::consistency::DumpAttempts;
use super::decode;
use super::wire::{self, msg};
use super::{
    BaseChain, Chain, CommitFailure, CommitStats, Element, Hook, NftBatch, Octets, Rule, Set, Table, TableFamily,
};
use crate::errno::ErrorClass;
use crate::module;
use crate::netlink::{AnswerMessage, AnswerObjects, Malformed, MessageError, MessageWriter, Session, nfnetlink};

/// Receive buffer, for the errors of a batch with many refused messages.
const RECEIVE_BYTES: usize = 4 << 20;
/// Maximum number of attempts at a dump that commits of other programs interrupt.
const DUMP_ATTEMPTS: u32 = 16;
/// `NFPROTO_UNSPEC`
const NO_FAMILY: u8 = 0;
/// The kernel's module.
const MODULE: &str = "nf_tables";

/// A netlink socket for nf_tables of the network namespace in which it was opened. No method waits for anything but the
/// kernel's own work.
#[derive(Debug)]
pub struct NftSocket {
    session: Session,
}

// === impl NftSocket ===

impl NftSocket {
    /// Opens a socket in the network namespace of the calling thread. A kernel without nf_tables has such sockets, too, if it has another
    /// part of netfilter, and answers any request with an error of which [`ErrorClass::lacks_subsystem`] is true.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let session = Session::open(NETLINK_NETFILTER)?;
        session.set_receive_buffer(RECEIVE_BYTES)?;
        Ok(Self { session })
    }

    /// Opens a socket where nothing can be done without nf_tables.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] with advice if the kernel has no nf_tables; otherwise the system's error, such as `EPERM` without
    /// `CAP_NET_ADMIN`.
    pub fn open_required() -> io::Result<Self> {
        let mut socket = Self::open().map_err(explained)?;
        socket.generation().map_err(explained)?;
        Ok(socket)
    }

    /// The socket's port id, which is [`super::NftEvent::port_id`] of its own changes.
    pub fn port_id(&self) -> u32 {
        self.session.port_id()
    }

    /// Commits a batch as one transaction. An empty batch is not sent.
    ///
    /// # Errors
    /// [`CommitFailure`]; no operation of the batch is in force then, except possibly after [`CommitFailure::Lost`].
    pub fn commit(&mut self, batch: NftBatch) -> Result<CommitStats, CommitFailure> {
        if batch.is_empty() {
            return Ok(CommitStats::default());
        }
        let messages = batch.messages();
        let batch = batch.close().map_err(|error| CommitFailure::Messages(vec![error]))?;
        let mut refusals = Vec::new();
        let answered = self.session.transact::<io::Error>(&batch.bytes, 1..=batch.last, &mut |answer| {
            if let AnswerMessage::Refused(refusal) = answer {
                refusals.push(refusal);
            }
            Ok(())
        });
        if let Some(position) = refusals.iter().position(refuses_whole_batch) {
            return Err(CommitFailure::Io(refusals.swap_remove(position).into()));
        }
        match answered {
            Ok(()) if refusals.is_empty() => Ok(CommitStats { bytes: batch.bytes.len(), messages }),
            // The datagram exceeds the send buffer: nothing was sent.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => Err(CommitFailure::Io(error)),
            // The kernel may have committed before the answer was lost.
            Err(error) if refusals.is_empty() => Err(CommitFailure::Lost(error)),
            // the batch was refused as a whole, or not read to its end
            Ok(()) | Err(_) => {
                Err(CommitFailure::Messages(refusals.into_iter().map(|refusal| batch.locate(refusal)).collect()))
            }
        }
    }

    /// Reads a table; `None` if there is none of this name.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn table(&mut self, family: impl Into<TableFamily>, name: &str) -> io::Result<Option<Table>> {
        let answer = self.query(msg::GET_TABLE, family.into().number(), &|w| w.text(wire::table::NAME, name));
        let answer = match answer {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            answer => answer?,
        };
        Ok(of(&answer, msg::NEW_TABLE).next().map(decode::decode_table).transpose()?)
    }

    /// Lists the names of all tables of a family.
    ///
    /// # Errors
    /// The kernel's error; `Interrupted` as [`Self::elements`].
    pub fn tables(&mut self, family: Family) -> io::Result<Vec<String>> {
        let answer = self.dump(msg::GET_TABLE, family.number(), &|_| {})?;
        of(&answer, msg::NEW_TABLE).map(|table| Ok(decode::decode_table(table)?.name)).collect()
    }

    /// Lists the sets and maps of a table, without their elements; anonymous ones are left out.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn sets(&mut self, family: Family, table: &str) -> io::Result<Vec<Set>> {
        let answer = self.dump(msg::GET_SET, family.number(), &|w| w.text(wire::set::TABLE, table))?;
        let mut sets = Vec::new();
        for message in of(&answer, msg::NEW_SET) {
            sets.extend(decode::decode_set(message)?.filter(|(of, _)| of == table).map(|(_, set)| set));
        }
        self.require_table_if_empty(family, table, sets)
    }

    /// Lists the chains of a table, without their rules; anonymous ones are left out.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn chains(&mut self, family: Family, table: &str) -> io::Result<Vec<Chain>> {
        // the kernel lists the chains of all tables of the family
        let answer = self.dump(msg::GET_CHAIN, family.number(), &|_| {})?;
        let mut chains = Vec::new();
        for message in of(&answer, msg::NEW_CHAIN) {
            let chain = decode::decode_chain(message)?;
            chains.extend(chain.filter(|(of, _)| of == table).map(|(_, chain)| chain));
        }
        self.require_table_if_empty(family, table, chains)
    }

    /// Lists the base chains of a hook, of all tables of the families `ip`, `ip6` and `inet`, in no order.
    ///
    /// # Errors
    /// The kernel's error; `Interrupted` as [`Self::elements`].
    pub fn base_chains(&mut self, hook: Hook) -> io::Result<Vec<BaseChain>> {
        let answer = self.dump(msg::GET_CHAIN, NO_FAMILY, &|_| {})?;
        let mut chains = Vec::new();
        for message in of(&answer, msg::NEW_CHAIN) {
            chains.extend(decode::decode_base_chain(message)?.filter(|chain| chain.hook == hook));
        }
        Ok(chains)
    }

    /// Lists the rules of a table or of one chain, each with its chain's name, in the order of evaluation within each chain.
    /// For a chain that does not exist the list is empty.
    ///
    /// # Errors
    /// `NotFound` if there is no such table; `Interrupted` as [`Self::elements`].
    pub fn rules(
        &mut self,
        family: impl Into<TableFamily>,
        table: &str,
        chain: Option<&str>,
    ) -> io::Result<Vec<(String, Rule)>> {
        let family = family.into();
        let answer = self.dump(msg::GET_RULE, family.number(), &|w| {
            w.text(wire::rule::TABLE, table);
            if let Some(chain) = chain {
                w.text(wire::rule::CHAIN, chain);
            }
        })?;
        let mut rules = Vec::new();
        for message in of(&answer, msg::NEW_RULE) {
            let (of, within, rule) = decode::decode_rule(message)?;
            if of == table && chain.is_none_or(|chain| chain == within) {
                rules.push((within, rule));
            }
        }
        self.require_table_if_empty(family, table, rules)
    }

    /// Lists the elements of a set or map, in no order. `each` is called only after all have been read.
    ///
    /// # Errors
    /// `NotFound` if there is no such set; `Interrupted` if other programs kept committing during the dump, and no two attempts
    /// in a row were identical.
    pub fn elements(
        &mut self,
        family: impl Into<TableFamily>,
        table: &str,
        set: &str,
        each: &mut dyn FnMut(Element),
    ) -> io::Result<()> {
        let answer = self.dump(msg::GET_ELEMENT, family.into().number(), &|w| {
            w.text(wire::element::TABLE, table);
            w.text(wire::element::SET, set);
        })?;
        for message in of(&answer, msg::NEW_ELEMENT) {
            decode::decode_elements(message, each)?;
        }
        Ok(())
    }

    /// Reads one element of a set or map without intervals; `None` if it does not exist.
    ///
    /// # Errors
    /// `NotFound` if there is no such set.
    pub fn element(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> io::Result<Option<Element>> {
        let answer = self.query(msg::GET_ELEMENT, family.number(), &|w| {
            w.text(wire::element::TABLE, table);
            w.text(wire::element::SET, set);
            let list = w.nest(wire::element::LIST);
            super::encode::element(w, key, None, super::ElementData::None);
            w.end_nest(list);
        });
        let answer = match answer {
            // either the element or the set is missing
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.require_set(family, table, set)?;
                return Ok(None);
            }
            answer => answer?,
        };
        let wanted = Octets::new(key).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut found = None;
        for message in of(&answer, msg::NEW_ELEMENT) {
            decode::decode_elements(message, &mut |element| {
                if element.key == wanted {
                    found = Some(element);
                }
            })?;
        }
        Ok(found)
    }

    /// Reads the current generation number, which changes with each commit in this network namespace, by any program.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn generation(&mut self) -> io::Result<u32> {
        let answer = self.query(msg::GET_GENERATION, NO_FAMILY, &|_| {})?;
        let message = of(&answer, msg::NEW_GENERATION).next().ok_or(Malformed("no generation"))?;
        Ok(decode::decode_generation(message)?)
    }

    fn require_set(&mut self, family: Family, table: &str, set: &str) -> io::Result<()> {
        self.query(msg::GET_SET, family.number(), &|w| {
            w.text(wire::set::TABLE, table);
            w.text(wire::set::NAME, set);
        })
        .map(drop)
    }

    /// `NotFound` if an empty list is due to a missing table: some kernels answer a query about it without an error.
    fn require_table_if_empty<T>(
        &mut self,
        family: impl Into<TableFamily>,
        table: &str,
        found: Vec<T>,
    ) -> io::Result<Vec<T>> {
        if found.is_empty() && self.table(family, table)?.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(found)
    }

    /// Dumps objects until the dump is consistent, see [`DumpAttempts`].
    fn dump(&mut self, message: u8, family: u8, fill: &dyn Fn(&mut MessageWriter)) -> io::Result<AnswerObjects> {
        let mut attempts = DumpAttempts::default();
        let fill = |writer: &mut MessageWriter| {
            nfnetlink::header(writer, family);
            fill(writer);
        };
        self.session.dump(wire::kind(message), DUMP_ATTEMPTS, &fill, &mut |objects| attempts.is_consistent(objects))
    }

    fn query(&mut self, message: u8, family: u8, fill: &dyn Fn(&mut MessageWriter)) -> io::Result<AnswerObjects> {
        self.session.request(wire::kind(message), 0, |writer| {
            nfnetlink::header(writer, family);
            fill(writer);
        })
    }
}

/// The objects of an answer that have this message type.
fn of(objects: &AnswerObjects, message: u8) -> impl Iterator<Item = &[u8]> {
    objects.of(wire::kind(message))
}

/// True if a refusal concerns nf_tables as a whole rather than an operation of the batch.
fn refuses_whole_batch(refusal: &MessageError) -> bool {
    const FIRST: u32 = 1;
    refusal.sequence == FIRST && ErrorClass::of(&refusal.error).is_unusable()
}

/// The error of opening a socket, or of a query that any kernel with nf_tables answers: if the kernel has none, with advice.
fn explained(error: io::Error) -> io::Error {
    if !ErrorClass::of(&error).lacks_subsystem() {
        return error;
    }
    let module = module::find(MODULE);
    // Where the module is there, something else withholds its socket, such as a profile of seccomp.
    let advice = if module.is_present() { String::new() } else { format!("; {module}") };
    io::Error::new(io::ErrorKind::Unsupported, format!("the kernel offers no nf_tables: {error}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_nf_tables_can_not_be_used() {
        // Without netfilter, and without a module of it: `nfnetlink_rcv_msg` in net/netfilter/nfnetlink.c.
        for number in [libc::EPROTONOSUPPORT, libc::EINVAL] {
            let error = explained(io::Error::from_raw_os_error(number));
            assert!(ErrorClass::of(&error).is_unusable(), "{error}");
            assert!(error.to_string().starts_with("the kernel offers no nf_tables: "), "{error}");
        }
        let busy = explained(io::Error::from_raw_os_error(libc::ENOBUFS));
        assert_eq!(busy.raw_os_error(), Some(libc::ENOBUFS));
    }
}
