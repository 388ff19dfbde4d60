//! Answers list requests, in pages, and requests for single objects.

use std::io;
use std::sync::Arc;

use ferry_api::object::Kind;

use super::body::ChunkedBody;
use super::entry::{Damage, StoredObject};
use super::exchange::{Encoding, Exchange, failure};
use super::fault::FaultAction;
use super::selector::Selector;
use super::store::Snapshot;
use crate::wire::{self, ApiStatus};

/// Bytes that are neither a list item nor a watch frame.
pub(super) const GARBAGE: &[u8] = &[0xff; 16];
/// The same in JSON.
pub(super) const GARBAGE_JSON: &[u8] = b"]}}garbage{{[";

/// Prefix of the continue tokens of endless lists, which have no snapshot in the store.
const ENDLESS: &str = "endless-";
/// A length that no test reaches the end of.
const FOREVER: usize = 1 << 40;

/// One page of a list.
struct ListPage {
    version: u64,
    token: String,
    remaining: Option<usize>,
    entries: Vec<Arc<StoredObject>>,
}

/// An object whose name is a counter that is incremented in the encoded bytes.
pub(super) struct Template {
    entry: StoredObject,
    json_at: usize,
    protobuf_at: usize,
    next: usize,
}

// === impl Exchange ===

impl Exchange<'_> {
    pub(super) fn list(&mut self, kind: Kind) -> io::Result<()> {
        let page = match self.page(kind) {
            Ok(page) => page,
            Err(status) => return self.fail(&status),
        };
        let (encoding, action) = (self.encoding, self.action.clone());
        let Some(mut body) = self.begin(false)? else { return Ok(()) };
        match action {
            Some(FaultAction::Endless) => {
                body.content(&list_head(encoding, kind, &page, FOREVER))?;
                let mut template = Template::new(kind, page.entries.first());
                for number in 0_u64.. {
                    body.content(&item(encoding, template.next(), number == 0))?;
                }
                Ok(())
            }
            Some(FaultAction::EndlessObject) => {
                body.content(&list_head(encoding, kind, &page, FOREVER))?;
                body.content(&match encoding {
                    Encoding::Json => br#"{"metadata":{"name":"endless","annotations":{"a":""#.to_vec(),
                    Encoding::Protobuf => wire::list_item(FOREVER / 2),
                })?;
                endless(&mut body)
            }
            action => {
                let items = items(encoding, &page.entries, action.as_ref());
                let tail = match encoding {
                    Encoding::Json => &b"]}\n"[..],
                    Encoding::Protobuf => &wire::TAIL,
                };
                let bytes = items.iter().map(Vec::len).sum();
                body.content(&list_head(encoding, kind, &page, bytes))?;
                items.iter().try_for_each(|item| body.content(item))?;
                body.content(tail)?;
                body.end()
            }
        }
    }

    pub(super) fn selector(&self, kind: Kind) -> Result<Selector, ApiStatus> {
        let parameter = |name| self.seen.parameter(name).unwrap_or_default();
        let fields = match self.seen.namespace.as_str() {
            "" => parameter("fieldSelector").to_owned(),
            namespace => format!("{},metadata.namespace={namespace}", parameter("fieldSelector")),
        };
        Selector::parse(kind, parameter("labelSelector"), &fields)
            .map_err(|message| ApiStatus { message, ..failure(400, self.seen, "") })
    }

    fn page(&self, kind: Kind) -> Result<ListPage, ApiStatus> {
        let selector = self.selector(kind)?;
        let parameter = |name| self.seen.parameter(name).filter(|value| !value.is_empty());
        let bad = |what: &str| ApiStatus { message: format!("invalid {what}"), ..failure(400, self.seen, "") };
        let number = |name| parameter(name).map(|text| text.parse::<usize>().map_err(|_| bad(name))).transpose();
        let limit = number("limit")?.filter(|limit| *limit > 0);
        let mut store = self.server.store();
        if let Some(FaultAction::EndlessPages { items }) = self.action {
            return Ok(endless_page(kind, items, parameter("continue"), store.list(kind, &selector)));
        }
        let (snapshot, first, kept) = match parameter("continue") {
            Some(token) => {
                let parts = token.split_once('-').and_then(|(id, at)| Some((id.parse().ok()?, at.parse().ok()?)));
                let message = "The provided continue parameter is too old to display a consistent list result. \
                               You can start a new list without the continue parameter.";
                let expired = || ApiStatus { message: message.to_owned(), ..failure(410, self.seen, "") };
                let (id, at): (u64, usize) = parts.ok_or_else(expired)?;
                (store.kept(id).ok_or_else(expired)?, at, Some(id))
            }
            None => {
                let at_least = number("resourceVersion")?.unwrap_or(0) as u64;
                if at_least > store.version() {
                    return Err(too_large(at_least, store.version(), failure(504, self.seen, "")));
                }
                (store.list(kind, &selector), 0, None)
            }
        };
        let end = limit.map_or(usize::MAX, |limit| first.saturating_add(limit)).min(snapshot.entries.len());
        let entries = snapshot.entries.get(first..end).unwrap_or_default().to_vec();
        let remaining = snapshot.entries.len() - end;
        let version = snapshot.version;
        let token = if remaining == 0 {
            String::new()
        } else {
            let id = kept.unwrap_or_else(|| store.keep(snapshot));
            format!("{id}-{end}")
        };
        Ok(ListPage { version, token, remaining: (remaining > 0).then_some(remaining), entries })
    }

    /// A single object as a response body.
    pub(super) fn whole(&self, entry: &StoredObject) -> Vec<u8> {
        match self.encoding {
            Encoding::Json => typed_json(entry),
            Encoding::Protobuf => enveloped(entry),
        }
    }
}

// === impl Template ===

impl Template {
    /// A template of this object, or of an object of the kind with a name only.
    pub(super) fn new(kind: Kind, like: Option<&Arc<StoredObject>>) -> Self {
        let name = format!("{ENDLESS}00000000");
        let entry = like.map_or_else(|| StoredObject::nameless(kind), |entry| entry.at(entry.version)).named(&name);
        let find = |bytes: &[u8]| {
            let at = bytes.windows(name.len()).position(|window| window == name.as_bytes());
            at.expect("an object has its name in it") + ENDLESS.len()
        };
        Self { json_at: find(&entry.json), protobuf_at: find(&entry.protobuf), entry, next: 0 }
    }

    pub(super) fn next(&mut self) -> &StoredObject {
        let digits = format!("{:08}", self.next % 100_000_000);
        self.next += 1;
        let StoredObject { json, protobuf, .. } = &mut self.entry;
        for (bytes, at) in [(json, self.json_at), (protobuf, self.protobuf_at)] {
            let number = bytes.get_mut(at..at + digits.len());
            number.expect("where the name was found").copy_from_slice(digits.as_bytes());
        }
        &self.entry
    }
}

/// Writes endless content, until the client closes the connection.
pub(super) fn endless(body: &mut ChunkedBody<'_>) -> io::Result<()> {
    let bytes = vec![b'a'; 16 * 1024];
    loop {
        body.content(&bytes)?;
    }
}

/// The failure of a request for a resourceVersion that is newer than the server's.
pub(super) fn too_large(asked: u64, version: u64, status: ApiStatus) -> ApiStatus {
    ApiStatus {
        message: format!("Too large resource version: {asked}, current: {version}"),
        retry_after_seconds: Some(1),
        ..status
    }
}

/// The JSON of an object with apiVersion and kind.
pub(super) fn typed_json(entry: &StoredObject) -> Vec<u8> {
    let mut out =
        format!(r#"{{"kind":"{}","apiVersion":"{}","#, entry.kind, wire::api_version(entry.kind)).into_bytes();
    out.extend_from_slice(entry.json.get(1..).unwrap_or_default());
    out
}

/// The message of an object in its envelope.
pub(super) fn enveloped(entry: &StoredObject) -> Vec<u8> {
    wire::envelope(wire::api_version(entry.kind), &entry.kind.to_string(), &entry.protobuf)
}

fn list_head(encoding: Encoding, kind: Kind, page: &ListPage, bytes: usize) -> Vec<u8> {
    let version = wire::api_version(kind);
    match encoding {
        Encoding::Json => {
            let mut meta = format!(r#""resourceVersion":"{}""#, page.version);
            if !page.token.is_empty() {
                meta += &format!(r#","continue":"{}""#, page.token);
            }
            if let Some(remaining) = page.remaining {
                meta += &format!(r#","remainingItemCount":{remaining}"#);
            }
            format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{{{meta}}},"items":["#).into_bytes()
        }
        Encoding::Protobuf => {
            let meta = wire::list_meta(page.version, &page.token, page.remaining);
            let mut out = wire::list_envelope(version, &format!("{kind}List"), meta.len() + bytes);
            out.extend_from_slice(&meta);
            out
        }
    }
}

/// The encoded items of a page, with the fault applied to them.
fn items(encoding: Encoding, entries: &[Arc<StoredObject>], action: Option<&FaultAction>) -> Vec<Vec<u8>> {
    let encoded = entries.iter().enumerate().map(|(number, entry)| match action {
        Some(FaultAction::BrokenObject) if number == 0 => item(encoding, &entry.damaged(Damage::Content), true),
        Some(FaultAction::BrokenName) if number == 0 => item(encoding, &entry.damaged(Damage::Everything), true),
        _ => item(encoding, entry, number == 0),
    });
    let Some(FaultAction::BrokenFrame { after }) = action else { return encoded.collect() };
    let garbage = match encoding {
        Encoding::Json => GARBAGE_JSON,
        Encoding::Protobuf => GARBAGE,
    };
    encoded.take(*after).chain([garbage.to_vec()]).collect()
}

fn item(encoding: Encoding, entry: &StoredObject, first: bool) -> Vec<u8> {
    let (mut out, bytes) = match encoding {
        Encoding::Json => (if first { Vec::new() } else { vec![b','] }, &entry.json),
        Encoding::Protobuf => (wire::list_item(entry.protobuf.len()), &entry.protobuf),
    };
    out.extend_from_slice(bytes);
    out
}

fn endless_page(kind: Kind, items: usize, token: Option<&str>, like: Snapshot) -> ListPage {
    let page: usize = token.and_then(|token| token.strip_prefix(ENDLESS)?.parse().ok()).unwrap_or(0);
    let mut template = Template::new(kind, like.entries.first());
    template.next = page * items;
    let entries = (0..items).map(|_| Arc::new(template.next().at(like.version))).collect();
    ListPage { version: like.version, token: format!("{ENDLESS}{}", page + 1), remaining: None, entries }
}
