//! Decodes the body of a list in JSON, item by item.

use serde::Deserialize;

use super::super::super::scalar::{Int, Text};
use super::super::object::{Newest, check_list, kept, list_end, malformed};
use super::super::{ListEnd, Status, StreamError, Unreadable};
use super::scan::{Members, Sink};
use super::{RawDetails, loose_text, object, reason};
use crate::object::{Kind, KubeObject};

/// Reads a list.
#[derive(Debug)]
pub(in super::super) struct JsonList {
    members: Members,
    head: ListHead,
}

/// A list's fields beside its items.
#[derive(Debug)]
struct ListHead {
    kind: Kind,
    stage: ListStage,
    api_version: Option<Box<str>>,
    stated_kind: Option<Box<str>>,
    resource_version: Box<str>,
    continue_token: Box<str>,
    newest: Newest,
    /// its fields if it is a Status
    status: StatusFields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListStage {
    Before,
    Within,
    Ended,
}

#[derive(Debug, Default)]
struct StatusFields {
    code: i64,
    reason: Box<str>,
    message: Box<str>,
    retry_after: Option<i64>,
}

struct ListSink<'l> {
    head: &'l mut ListHead,
    items: &'l mut Vec<Result<KubeObject, Unreadable>>,
}

/// metadata of a list
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawListMeta<'a> {
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
    #[serde(rename = "continue", borrow)]
    continue_token: Option<Text<'a>>,
}

// === impl JsonList ===

impl JsonList {
    pub(in super::super) fn new(kind: Kind) -> Self {
        let head = ListHead {
            kind,
            stage: ListStage::Before,
            api_version: None,
            stated_kind: None,
            resource_version: Box::default(),
            continue_token: Box::default(),
            newest: Newest::default(),
            status: StatusFields::default(),
        };
        Self { members: Members::new(Some("items")), head }
    }

    pub(in super::super) fn push(
        &mut self,
        bytes: &[u8],
        items: &mut Vec<Result<KubeObject, Unreadable>>,
    ) -> Result<(), StreamError> {
        self.members.push(bytes, &mut ListSink { head: &mut self.head, items })
    }

    pub(in super::super) fn finish(self) -> Result<ListEnd, StreamError> {
        match self.head.stage {
            ListStage::Before | ListStage::Within => Err(StreamError::Truncated),
            ListStage::Ended => list_end(&self.head.resource_version, &self.head.continue_token, self.head.newest),
        }
    }

    #[cfg(test)]
    pub(in super::super) fn capacity(&self) -> usize {
        self.members.capacity()
    }
}

// === impl ListHead ===

impl ListHead {
    /// Checks, as soon as both are there, or in the `end`, that this is a list of the kind.
    fn check(&self, end: bool) -> Result<(), StreamError> {
        match (&self.api_version, &self.stated_kind) {
            (_, Some(kind)) if **kind == *"Status" => Ok(()),
            (Some(api_version), Some(kind)) => check_list(self.kind, api_version, kind),
            (api_version, kind) if end => {
                check_list(self.kind, api_version.as_deref().unwrap_or(""), kind.as_deref().unwrap_or(""))
            }
            (_, _) => Ok(()),
        }
    }

    fn metadata(&mut self, value: &[u8]) -> Result<(), StreamError> {
        let meta: Option<RawListMeta<'_>> = serde_json::from_slice(value)
            .map_err(|error| malformed(format!("metadata of the list: {}", reason(&error))))?;
        let meta = meta.unwrap_or_default();
        self.resource_version = kept(meta.resource_version.as_deref().unwrap_or(""))?;
        self.continue_token = kept(meta.continue_token.as_deref().unwrap_or(""))?;
        Ok(())
    }
}

// === impl StatusFields ===

impl StatusFields {
    /// Takes a member, if it is one that only a Status has.
    fn member(&mut self, key: &str, value: &[u8]) {
        let text = || Status::new(0, "", &loose_text(value).unwrap_or_default(), None).message;
        match key {
            "code" => self.code = serde_json::from_slice(value).map_or(0, |Int(code)| code),
            "reason" => self.reason = text(),
            "message" => self.message = text(),
            "details" => {
                let details: Option<RawDetails> = serde_json::from_slice(value).ok();
                self.retry_after = details.and_then(|details| details.retry_after_seconds).map(|Int(seconds)| seconds);
            }
            _other => {}
        }
    }
}

// === impl ListSink ===

impl Sink for ListSink<'_> {
    fn begin(&mut self) -> Result<(), StreamError> {
        if self.head.stage != ListStage::Before {
            return Err(malformed("something behind the list"));
        }
        self.head.stage = ListStage::Within;
        Ok(())
    }

    fn member(&mut self, key: &str, value: &[u8], _parts: u32) -> Result<(), StreamError> {
        let word = || kept(&loose_text(value).unwrap_or_default()).map(Some);
        match key {
            "apiVersion" => self.head.api_version = word()?,
            "kind" => self.head.stated_kind = word()?,
            "metadata" => self.head.metadata(value)?,
            other => self.head.status.member(other, value),
        }
        self.head.check(false)
    }

    fn item(&mut self, item: &[u8], parts: u32) {
        self.items.push(self.head.newest.note(object(self.head.kind, item, parts)));
    }

    fn end(&mut self) -> Result<(), StreamError> {
        self.head.stage = ListStage::Ended;
        self.head.check(true)?;
        if self.head.stated_kind.as_deref() != Some("Status") {
            return Ok(());
        }
        let StatusFields { code, reason, message, retry_after } = &self.head.status;
        Err(StreamError::Status(Status::new(*code, reason, message, *retry_after)))
    }
}
