//! Decodes the body of a list in protobuf as it arrives, field by field.

use super::super::object::{Newest, check_list, kept, list_end, malformed};
use super::super::pending::Pending;
use super::super::{ListEnd, StreamError, Unreadable};
use super::fields::{Damage, Tag, Varint, WireType};
use super::messages::{ListMeta, TypeMeta};
use super::{MAGIC, checked_length, message, object, status_message};
use crate::object::{Kind, KubeObject};

/// Walks through `runtime.Unknown`, and in its `raw` through the list, field by field. Only one field is ever kept.
#[derive(Debug)]
pub(in super::super) struct ProtobufList {
    kind: Kind,
    step: ListStep,
    pending: Pending,
    /// of the field's key, length or number that isn't whole
    varint: Varint,
    level: Level,
    /// apiVersion and kind of the body
    body: Option<ListBody>,
    resource_version: Box<str>,
    continue_token: Box<str>,
    newest: Newest,
}

/// The next part of the body.
#[derive(Clone, Copy, Debug)]
enum ListStep {
    Magic,
    Tag,
    /// the value of a field that is a number
    Number,
    /// the length of a field
    Length {
        field: u32,
    },
    /// the bytes of a field
    Bytes {
        field: u32,
        length: usize,
    },
}

/// The message that the fields belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// the envelope `runtime.Unknown`, before the list
    Before,
    /// the list, with the number of bytes still to come
    List { left: u64 },
    /// the envelope, after the list
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListBody {
    List,
    Status,
}

type Items = Vec<Result<KubeObject, Unreadable>>;

// === impl ProtobufList ===

impl ProtobufList {
    pub(in super::super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            step: ListStep::Magic,
            pending: Pending::default(),
            varint: Varint::default(),
            level: Level::Before,
            body: None,
            resource_version: Box::default(),
            continue_token: Box::default(),
            newest: Newest::default(),
        }
    }

    pub(in super::super) fn push(&mut self, mut bytes: &[u8], items: &mut Items) -> Result<(), StreamError> {
        while self.step(&mut bytes, items)? {}
        Ok(())
    }

    pub(in super::super) fn finish(mut self) -> Result<ListEnd, StreamError> {
        self.leave();
        match (self.step, self.level, self.varint.is_begun()) {
            (ListStep::Tag, Level::After, false) => list_end(&self.resource_version, &self.continue_token, self.newest),
            _ => Err(StreamError::Truncated),
        }
    }

    #[cfg(test)]
    pub(in super::super) fn capacity(&self) -> usize {
        self.pending.capacity()
    }

    /// Takes what comes next; `false` when it isn't there yet.
    fn step(&mut self, bytes: &mut &[u8], items: &mut Items) -> Result<bool, StreamError> {
        match self.step {
            ListStep::Magic => {
                let Some(magic) = self.pending.take(bytes, MAGIC.len())? else { return Ok(false) };
                if *magic != *MAGIC {
                    return Err(malformed("it doesn't begin as protobuf of Kubernetes does"));
                }
                self.pending.recycle(magic);
                self.step = ListStep::Tag;
            }
            ListStep::Tag => {
                self.leave();
                let Some(value) = self.varint(bytes)? else { return Ok(false) };
                let Tag { number: field, wire_type } = Tag::of(value).map_err(damaged)?;
                self.step = match wire_type {
                    WireType::Varint => ListStep::Number,
                    WireType::Bytes => ListStep::Length { field },
                    // No field that we read has these types.
                    WireType::Fixed64 => self.unread(8)?,
                    WireType::Fixed32 => self.unread(4)?,
                };
            }
            ListStep::Number => {
                if self.varint(bytes)?.is_none() {
                    return Ok(false);
                }
                self.step = ListStep::Tag;
            }
            ListStep::Length { field } => {
                let Some(length) = self.varint(bytes)? else { return Ok(false) };
                self.step = self.enter(field, length)?;
            }
            ListStep::Bytes { field, length } => {
                let Some(piece) = self.pending.take(bytes, length)? else { return Ok(false) };
                self.field(field, &piece, items)?;
                self.pending.recycle(piece);
                self.step = ListStep::Tag;
            }
        }
        Ok(true)
    }

    /// Takes the bytes of a number; `None` if it is still incomplete.
    fn varint(&mut self, bytes: &mut &[u8]) -> Result<Option<u64>, StreamError> {
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            self.spend(1)?;
            if let Some(value) = self.varint.push(byte).map_err(damaged)? {
                self.varint = Varint::default();
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Counts bytes of the list.
    fn spend(&mut self, bytes: u64) -> Result<(), StreamError> {
        if let Level::List { left } = &mut self.level {
            *left = left.checked_sub(bytes).ok_or_else(|| malformed("a field goes beyond the end of the list"))?;
        }
        Ok(())
    }

    /// Goes behind the list when it has ended.
    fn leave(&mut self) {
        if self.level == (Level::List { left: 0 }) && !self.varint.is_begun() {
            self.level = Level::After;
        }
    }

    fn unread(&mut self, length: u64) -> Result<ListStep, StreamError> {
        self.spend(length)?;
        Ok(ListStep::Bytes { field: 0, length: checked_length(length)? })
    }

    /// The step behind the length of a field.
    fn enter(&mut self, field: u32, length: u64) -> Result<ListStep, StreamError> {
        match (self.level, field, self.body) {
            (Level::After, 2, _) => Err(malformed("a second list behind the first")),
            (Level::Before, 2, None) => {
                Err(malformed(format!("expected a {}List, got something without a kind", self.kind)))
            }
            (Level::Before, 2, Some(ListBody::List)) => {
                self.level = Level::List { left: length };
                Ok(ListStep::Tag)
            }
            (Level::Before | Level::List { .. } | Level::After, ..) => {
                self.spend(length)?;
                Ok(ListStep::Bytes { field, length: checked_length(length)? })
            }
        }
    }

    /// Reads a field that is whole.
    fn field(&mut self, field: u32, bytes: &[u8], items: &mut Items) -> Result<(), StreamError> {
        match (self.level, field) {
            (Level::List { .. }, 1) => {
                let meta: ListMeta<'_> = message(bytes).map_err(damaged)?;
                self.resource_version = kept(meta.resource_version.as_deref().unwrap_or(""))?;
                self.continue_token = kept(meta.continue_token.as_deref().unwrap_or(""))?;
            }
            (Level::List { .. }, 2) => items.push(self.newest.note(object(self.kind, bytes))),
            (Level::Before | Level::After, 1) => self.body = Some(self.type_meta(bytes)?),
            (Level::Before, 2) => {
                return Err(status_message(bytes).map_or_else(damaged, StreamError::Status));
            }
            (Level::Before | Level::After, 3) if !bytes.is_empty() => {
                return Err(malformed("the list has a content encoding"));
            }
            (Level::Before | Level::List { .. } | Level::After, _unread) => {}
        }
        Ok(())
    }

    fn type_meta(&self, bytes: &[u8]) -> Result<ListBody, StreamError> {
        let meta: TypeMeta<'_> = message(bytes).map_err(damaged)?;
        let (api_version, kind) = (meta.api_version.as_deref().unwrap_or(""), meta.kind.as_deref().unwrap_or(""));
        if kind == "Status" {
            return Ok(ListBody::Status);
        }
        check_list(self.kind, api_version, kind).map(|()| ListBody::List)
    }
}

fn damaged(damage: Damage) -> StreamError {
    malformed(format!("the list: {damage}"))
}
