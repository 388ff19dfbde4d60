//! Encodes one nf_tables transaction, and maps its errors to operations.

use std::io;
use std::ops::Range;

use super::wire::{self, msg};
use super::{Chain, ElementData, Expr, Set, TableFamily, encode, userdata};
use crate::errno::ErrorClass;
use crate::netlink::{MessageError, MessageMark, MessageWriter, NestMark, flag};

/// Size at which a message with elements is full: a list's 16-bit length limits it to 65,535 bytes.
const FULL_BYTES: usize = 60_000;
/// Upper bound for an element's bytes without its keys and its data.
const ELEMENT_BYTES: usize = 96;
/// Offset of the generation in the batch, whose first message opens it: after two headers and one attribute header.
const GENERATION_AT: usize = 16 + 4 + 4;

/// One transaction, encoded message by message. The kernel applies its operations in order, all or none.
#[derive(Clone, Debug)]
pub struct NftBatch {
    writer: MessageWriter,
    family: TableFamily,
    table: String,
    /// start offset of each message; a message's sequence number is its index here plus one
    starts: Vec<usize>,
    open: Option<OpenElements>,
    sets: u32,
}

/// A message whose list of elements can still grow.
#[derive(Clone, Debug)]
struct OpenElements {
    message: MessageMark,
    list: NestMark,
    kind: u8,
    /// offsets of the set's name in the buffer
    set: Range<usize>,
}

/// A complete batch, ready to be sent.
pub(super) struct ClosedBatch {
    pub(super) bytes: Vec<u8>,
    starts: Vec<usize>,
    /// the sequence number of the message that is acknowledged
    pub(super) last: u32,
}

/// The size of a committed batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// bytes of the whole batch
    pub bytes: usize,
    /// messages without those that open and close the batch
    pub messages: usize,
}

/// Causes of a failed commit.
#[derive(Debug, thiserror::Error)]
pub enum CommitFailure {
    /// the kernel refused these operations, in batch order; never empty
    #[error("{}", summary(.0))]
    Messages(Vec<BatchError>),
    /// the batch as a whole failed: no permission, no nf_tables, no memory
    #[error(transparent)]
    Io(io::Error),
    /// sending failed, or the answer was lost: the batch is committed as a whole, or not at all
    #[error("no answer from the kernel: {0}")]
    Lost(#[source] io::Error),
}

/// One refused operation.
#[derive(Debug)]
pub struct BatchError {
    /// offset of the refused operation: if the caller records [`NftBatch::position`] before each operation, the error belongs to
    /// the last one recorded at this position or before. 0: the batch as a whole, for example if its generation is not the
    /// kernel's (`ERESTART`) or if the commit itself fails
    pub position: usize,
    /// start offset of the operation's message
    pub message_start: usize,
    /// end offset of the operation's message. Older kernels do not report which element of a message they refuse
    /// ([`MessageError::offset`] is `None`, and [`Self::position`] is the message's start): then it is one of the operations
    /// up to here
    pub message_end: usize,
    /// the kernel's error
    pub error: MessageError,
}

// === impl NftBatch ===

impl NftBatch {
    /// Creates an empty transaction on one table.
    pub fn new(family: impl Into<TableFamily>, table: &str) -> Self {
        let mut writer = MessageWriter::new();
        let begin = wire::begin_batch(&mut writer, wire::BATCH_BEGIN, 1);
        writer.be_u32(wire::BATCH_GENERATION, 0); // 0: any generation
        writer.end_message(begin);
        Self { writer, family: family.into(), table: table.to_owned(), starts: vec![0], open: None, sets: 0 }
    }

    /// Makes the commit conditional on this generation: the kernel refuses the batch with `ERESTART` at
    /// [`BatchError::position`] 0 if another commit in this network namespace has changed the generation since it was read.
    pub fn set_generation(&mut self, generation: u32) {
        self.writer.patch(GENERATION_AT, &generation.to_be_bytes());
    }

    /// Creates the table; an existing one is left unchanged, including its comment.
    pub fn add_table(&mut self, comment: Option<&str>) {
        let table = std::mem::take(&mut self.table);
        self.message(msg::NEW_TABLE, flag::CREATE, |w| {
            w.text(wire::table::NAME, &table);
            if let Some(comment) = comment {
                w.attribute(wire::table::USERDATA, &userdata::table(comment));
            }
        });
        self.table = table;
    }

    /// Creates a table that only the committing socket may change, and that the kernel deletes with this socket. Needs Linux 5.12; another
    /// socket's table of this name is refused (`EPERM`).
    pub fn add_owned_table(&mut self) {
        let table = std::mem::take(&mut self.table);
        self.message(msg::NEW_TABLE, flag::CREATE, |w| {
            w.text(wire::table::NAME, &table);
            w.be_u32(wire::table::FLAGS, wire::table::F_OWNER);
        });
        self.table = table;
    }

    /// Deletes the table with its content. The table must exist.
    pub fn delete_table(&mut self) {
        let table = std::mem::take(&mut self.table);
        self.message(msg::DEL_TABLE, 0, |w| w.text(wire::table::NAME, &table));
        self.table = table;
    }

    /// Creates a set or map. An existing one of the name must have the same definition.
    pub fn add_set(&mut self, set: &Set) {
        self.sets = self.sets.wrapping_add(1);
        let id = self.sets;
        self.object(msg::NEW_SET, flag::CREATE, |w| encode::set(w, set, id));
    }

    /// Deletes a set or map with its elements. No rule may use it.
    pub fn delete_set(&mut self, name: &str) {
        self.object(msg::DEL_SET, 0, |w| w.text(wire::set::NAME, name));
    }

    /// Creates a chain without rules. An existing one of the name must have the same definition.
    pub fn add_chain(&mut self, chain: &Chain) {
        self.object(msg::NEW_CHAIN, flag::CREATE, |w| encode::chain(w, chain));
    }

    /// Deletes a chain. It must be empty and not be the target of any jump or goto.
    pub fn delete_chain(&mut self, name: &str) {
        self.object(msg::DEL_CHAIN, 0, |w| w.text(wire::chain::NAME, name));
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        self.object(msg::DEL_RULE, 0, |w| w.text(wire::rule::CHAIN, name));
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, exprs: &[Expr]) {
        self.object(msg::NEW_RULE, flag::CREATE | flag::APPEND, |w| {
            w.text(wire::rule::CHAIN, chain);
            let list = w.nest(wire::rule::EXPRESSIONS);
            exprs.iter().for_each(|expr| encode::expression(w, expr));
            w.end_nest(list);
        });
    }

    /// Adds a rule with a comment to a chain: before the rule of this handle, or at the end.
    pub fn add_commented_rule(&mut self, chain: &str, exprs: &[Expr], comment: &str, before: Option<u64>) {
        let append = if before.is_none() { flag::APPEND } else { 0 };
        self.object(msg::NEW_RULE, flag::CREATE | append, |w| {
            w.text(wire::rule::CHAIN, chain);
            let list = w.nest(wire::rule::EXPRESSIONS);
            exprs.iter().for_each(|expr| encode::expression(w, expr));
            w.end_nest(list);
            if let Some(handle) = before {
                w.be_u64(wire::rule::POSITION, handle);
            }
            w.attribute(wire::rule::USERDATA, &userdata::rule(comment));
        });
    }

    /// Deletes the rule of this handle from a chain. A missing one is refused (`ENOENT`).
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.object(msg::DEL_RULE, 0, |w| {
            w.text(wire::rule::CHAIN, chain);
            w.be_u64(wire::rule::HANDLE, handle);
        });
    }

    /// Adds an element. An identical element is accepted; an existing key with different data is refused (`EEXIST`).
    /// An empty key is the catch-all element.
    pub fn add_element(&mut self, set: &str, key: &[u8], key_end: Option<&[u8]>, data: ElementData<'_>) {
        self.element(msg::NEW_ELEMENT, set, key, key_end, data);
    }

    /// Deletes an element, regardless of its data. A missing one is refused (`ENOENT`). An empty key is the catch-all
    /// element.
    pub fn delete_element(&mut self, set: &str, key: &[u8], key_end: Option<&[u8]>) {
        self.element(msg::DEL_ELEMENT, set, key, key_end, ElementData::None);
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, name: &str) {
        self.object(msg::DEL_ELEMENT, 0, |w| w.text(wire::element::SET, name));
    }

    /// Offset of the next operation, in bytes from the start; see [`BatchError::position`].
    pub fn position(&self) -> usize {
        self.writer.len()
    }

    /// True if the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.messages() == 0
    }

    /// Number of messages, without those that open and close the batch. Elements share messages.
    pub fn messages(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Requests an acknowledgement of the last message and closes the batch.
    ///
    /// # Errors
    /// If an operation has a name or data longer than 65,535 bytes: that operation.
    pub(super) fn close(mut self) -> Result<ClosedBatch, BatchError> {
        self.close_elements();
        if let Some(last) = self.starts.last() {
            self.writer.add_flags(*last, flag::ACK);
        }
        let next = self.next_sequence();
        let end = wire::begin_batch(&mut self.writer, wire::BATCH_END, next);
        self.writer.end_message(end);
        let overflow = self.writer.overflow();
        let batch = ClosedBatch { bytes: self.writer.into_bytes(), starts: self.starts, last: next.wrapping_sub(1) };
        match overflow {
            None => Ok(batch),
            Some(at) => Err(batch.too_long(at)),
        }
    }

    fn next_sequence(&self) -> u32 {
        u32::try_from(self.starts.len()).unwrap_or(u32::MAX).wrapping_add(1)
    }

    fn begin(&mut self, kind: u8, flags: u16) -> MessageMark {
        self.close_elements();
        let sequence = self.next_sequence();
        self.starts.push(self.writer.len());
        wire::begin(&mut self.writer, kind, self.family.number(), flag::REQUEST | flags, sequence)
    }

    fn message(&mut self, kind: u8, flags: u16, fill: impl FnOnce(&mut MessageWriter)) {
        let mark = self.begin(kind, flags);
        fill(&mut self.writer);
        self.writer.end_message(mark);
    }

    /// Appends a message about an object within the table.
    fn object(&mut self, kind: u8, flags: u16, fill: impl FnOnce(&mut MessageWriter)) {
        /// the table name's attribute, the same for chains, rules, sets and elements
        const TABLE: u16 = 1;
        const { assert!(wire::chain::TABLE == TABLE && wire::rule::TABLE == TABLE && wire::set::TABLE == TABLE) };
        let mark = self.begin(kind, flags);
        self.writer.text(TABLE, &self.table);
        fill(&mut self.writer);
        self.writer.end_message(mark);
    }

    fn element(&mut self, kind: u8, set: &str, key: &[u8], key_end: Option<&[u8]>, data: ElementData<'_>) {
        let data_len = match data {
            ElementData::None | ElementData::IntervalEnd => 0,
            ElementData::Value(bytes) => bytes.len(),
            ElementData::Verdict(verdict) => verdict.chain().map_or(0, str::len),
        };
        let need = ELEMENT_BYTES + key.len() + key_end.map_or(0, <[u8]>::len) + data_len;
        if !self.takes(kind, set, need) {
            self.open_elements(kind, set);
        }
        encode::element(&mut self.writer, key, key_end, data);
    }

    fn takes(&self, kind: u8, set: &str, need: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.kind == kind
                && self.writer.bytes().get(open.set.clone()) == Some(set.as_bytes())
                && self.writer.nest_len(open.list).saturating_add(need) <= FULL_BYTES
        })
    }

    fn open_elements(&mut self, kind: u8, set: &str) {
        const ATTRIBUTE_HEADER: usize = 4;
        let message = self.begin(kind, if kind == msg::NEW_ELEMENT { flag::CREATE } else { 0 });
        self.writer.text(wire::element::TABLE, &self.table);
        let name = self.writer.len() + ATTRIBUTE_HEADER;
        self.writer.text(wire::element::SET, set);
        let list = self.writer.nest(wire::element::LIST);
        self.open = Some(OpenElements { message, list, kind, set: name..name + set.len() });
    }

    fn close_elements(&mut self) {
        if let Some(open) = self.open.take() {
            self.writer.end_nest(open.list);
            self.writer.end_message(open.message);
        }
    }
}

// === impl CommitFailure ===

impl CommitFailure {
    /// The class of the error; of several refusals, that of the first.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Io(error) | Self::Lost(error) => ErrorClass::of(error),
            Self::Messages(errors) => errors.first().map_or(ErrorClass::Other, BatchError::class),
        }
    }
}

// === impl BatchError ===

impl BatchError {
    /// The class of the kernel's error.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::of(&self.error.error)
    }
}

// === impl ClosedBatch ===

impl ClosedBatch {
    /// Maps a kernel error to the operation that it refuses.
    pub(super) fn locate(&self, error: MessageError) -> BatchError {
        let index = usize::try_from(error.sequence).ok().and_then(|sequence| sequence.checked_sub(1));
        let start_of = |index: usize| self.starts.get(index).copied();
        let message_start = index.and_then(start_of).unwrap_or(0);
        let message_end = index.and_then(|index| start_of(index + 1)).unwrap_or(self.bytes.len());
        let offset = error.offset.and_then(|offset| usize::try_from(offset).ok()).unwrap_or(0);
        BatchError { position: message_start.saturating_add(offset), message_start, message_end, error }
    }

    fn too_long(&self, at: usize) -> BatchError {
        let message = self.starts.partition_point(|start| *start <= at);
        let start = self.starts.get(message.saturating_sub(1)).copied().unwrap_or(0);
        self.locate(MessageError {
            sequence: u32::try_from(message).unwrap_or(u32::MAX),
            offset: u32::try_from(at.saturating_sub(start)).ok(),
            error: io::Error::from_raw_os_error(libc::EMSGSIZE),
            text: Some("name or data longer than 65,535 bytes".to_owned()),
        })
    }
}

fn summary(errors: &[BatchError]) -> String {
    match errors {
        [] => "refused".to_owned(),
        [one] => one.error.to_string(),
        [first, rest @ ..] => format!("{}, and {} more", first.error, rest.len()),
    }
}
