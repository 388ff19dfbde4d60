//! Helpers of this folder's tests.

use std::sync::Arc;

use ferry_api::object::ObjectName;
use jiff::Timestamp;

use super::event::{EventRecord, KubeEvent, Level, Regarding};

/// An event about a Service of this name.
pub(super) fn event(service: &str) -> KubeEvent {
    noted(service, "")
}

/// The same with a note.
pub(super) fn noted(service: &str, note: &str) -> KubeEvent {
    KubeEvent::new(Regarding::Service(ObjectName::new("shop", service), None), Level::Warning, "Reason", "Act", note)
}

/// An event that happened once.
pub(super) fn record(event: KubeEvent, time: Timestamp) -> EventRecord {
    EventRecord {
        name: EventRecord::name(&event.regarding, time.as_nanosecond()),
        event: Arc::new(event),
        time,
        series: None,
    }
}

pub(super) fn time(seconds: i64, nanoseconds: i32) -> Timestamp {
    Timestamp::new(seconds, nanoseconds).unwrap()
}
