//! Stores the Events that clients create and patch.

use std::io;

use serde_json::Value;

use super::exchange::{Exchange, JSON, failure};
use super::fault::FaultAction;
use super::locked;
use crate::wire::ApiStatus;

impl Exchange<'_> {
    /// Creates an Event, or patches an existing one. Those in other encodings are echoed and not stored.
    pub(super) fn event(&mut self, namespace: &str, name: Option<&str>, body: &[u8]) -> io::Result<()> {
        if self.seen.method == "POST" && self.seen.header("content-type") != Some(JSON) {
            let content_type = self.seen.header("content-type").unwrap_or_default().to_owned();
            return self.short(201, &content_type, body, None);
        }
        let kept = self.keep(namespace, name, body);
        if let Some(FaultAction::CutHead { .. }) = self.action {
            return self.begin(false).map(|_| ());
        }
        match kept {
            Ok((code, event)) => self.short(code, JSON, event.to_string().as_bytes(), None),
            Err(status) => self.fail(&status),
        }
    }

    /// Stores the Event; returns the HTTP status of the response, and the Event as stored.
    fn keep(&self, namespace: &str, name: Option<&str>, body: &[u8]) -> Result<(u16, Value), ApiStatus> {
        let said = |reason: &str, message: String, code| {
            Err(ApiStatus { code, reason: reason.to_owned(), message, retry_after_seconds: None })
        };
        let content_type = self.seen.header("content-type").unwrap_or_default();
        let bad = || failure(400, self.seen, "");
        let object: Value = serde_json::from_slice(body).map_err(|_| bad())?;
        let mut events = locked(&self.server.events);
        let of = |event: &Value, path: &str| event.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let named = |event: &Value, name: &str| {
            of(event, "/metadata/namespace").as_deref() == Some(namespace)
                && of(event, "/metadata/name").as_deref() == Some(name)
        };
        match (self.seen.method.as_str(), name, content_type) {
            ("POST", None, JSON) => {
                let name = of(&object, "/metadata/name").ok_or_else(bad)?;
                if events.iter().any(|event| named(event, &name)) {
                    let message = format!("events.events.k8s.io \"{name}\" already exists");
                    return said("AlreadyExists", message, 409);
                }
                events.push(object.clone());
                Ok((201, object))
            }
            ("PATCH", Some(name), "application/strategic-merge-patch+json" | "application/merge-patch+json") => {
                let Some(event) = events.iter_mut().find(|event| named(event, name)) else {
                    return said("NotFound", format!("events.events.k8s.io \"{name}\" not found"), 404);
                };
                let (Some(event), Some(fields)) = (event.as_object_mut(), object.as_object()) else {
                    return Err(bad());
                };
                event.extend(fields.clone());
                Ok((200, Value::Object(event.clone())))
            }
            _ => said("UnsupportedMediaType", "the body of the request was in an unknown format".to_owned(), 415),
        }
    }
}
