//! The content of Events, and their encoding for events.k8s.io/v1.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use ferry_api::object::{Kind, ObjectName, Uid};
use ferry_model::{Cause, Diagnostic};
use jiff::Timestamp;
use serde::Serialize;

/// An event about an object. Equal events are repeats of the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KubeEvent {
    /// the object
    pub regarding: Regarding,
    /// type
    pub level: Level,
    /// machine-readable reason, one word
    pub reason: &'static str,
    /// machine-readable action, one word
    pub action: &'static str,
    /// human-readable text; at most [`NOTE_BYTES`]
    note: Box<str>,
    /// every node reports the same, and one Event is enough
    common: bool,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// the Node of this name; without an uid, as upstream has it
    Node(Box<str>),
    /// a Service; `kubectl describe` finds the Event by the uid
    Service(ObjectName, Option<Uid>),
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// informational
    Normal,
    /// a problem
    Warning,
}

/// An Event with its name, time and series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventRecord {
    pub(super) event: Arc<KubeEvent>,
    /// metadata.name
    pub(super) name: Box<str>,
    /// time of the first occurrence
    pub(super) time: Timestamp,
    /// repeats
    pub(super) series: Option<EventRepeats>,
}

/// Repeats of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventRepeats {
    /// 2 or more
    pub(super) count: u32,
    /// time of the last occurrence
    pub(super) last: Timestamp,
}

/// The JSON form of an Event of events.k8s.io/v1.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: EventMetadata<'a>,
    event_time: String,
    reporting_controller: &'a str,
    reporting_instance: &'a str,
    action: &'a str,
    reason: &'a str,
    regarding: Reference<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    note: &'a str,
    #[serde(rename = "type")]
    level: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<EventSeries>,
}

#[derive(Serialize)]
struct EventMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    api_version: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventSeries {
    count: u32,
    last_observed_time: String,
}

#[derive(Serialize)]
struct Patch {
    series: Option<EventSeries>,
}

/// The longest note that an API server accepts, in bytes.
pub const NOTE_BYTES: usize = 1024;

/// reportingController.
pub(super) const CONTROLLER: &str = "kube-proxy";
/// The longest name of an object.
const NAME_BYTES: usize = 253;

// === impl KubeEvent ===

impl KubeEvent {
    /// An event with a note, which is truncated to [`NOTE_BYTES`].
    pub fn new(regarding: Regarding, level: Level, reason: &'static str, action: &'static str, note: &str) -> Self {
        let note = note.get(..note.floor_char_boundary(NOTE_BYTES)).unwrap_or(note).into();
        Self { regarding, level, reason, action, note, common: false }
    }

    /// The proxy has started.
    pub fn starting(node: &str) -> Self {
        Self::new(Regarding::Node(node.into()), Level::Normal, "Starting", "StartKubeProxy", "")
    }

    /// The configured mode can't start on this node, and a fallback mode runs. `errors`: the reason of each mode that was tried.
    pub fn mode_fallback(node: &str, configured: &str, effective: &str, errors: &str) -> Self {
        let note = format!("running in mode {effective} instead of {configured}: {errors}");
        Self::new(Regarding::Node(node.into()), Level::Warning, "ProxyModeFallback", "StartKubeProxy", &note)
    }

    /// The way in which traffic reaches this proxy in its mode; `errors`: what the preferred one lacks.
    pub fn way_chosen(node: &str, mode: &str, way: &str, errors: Option<&str>) -> Self {
        let (level, why) = match errors {
            Some(errors) => (Level::Warning, format!(": {errors}")),
            None => (Level::Normal, String::new()),
        };
        let note = format!("traffic reaches the proxy in mode {mode} by way {way}{why}");
        Self::new(Regarding::Node(node.into()), level, "ProxyWay", "StartKubeProxy", &note)
    }

    /// Services were served from a snapshot of this age while the API server didn't answer.
    pub fn served_from_snapshot(node: &str, confirmed: &str, seconds: u64) -> Self {
        let note = format!(
            "for {seconds} s after the start, until the API server answered, Services were served from a snapshot whose \
             objects it had confirmed last at {confirmed}"
        );
        Self::new(Regarding::Node(node.into()), Level::Warning, "ServedFromSnapshot", "StartKubeProxy", &note)
    }

    /// A problem of the node by which traffic of Services may be lost.
    pub fn node_warning(node: &str, reason: &'static str, note: &str) -> Self {
        Self::new(Regarding::Node(node.into()), Level::Warning, reason, "Serve", note)
    }

    /// A part of a Service or of its slices isn't served as specified, because of a conflict with other objects or for security;
    /// `None` for diagnostics that are only logged. Services of other tenants aren't named.
    pub fn not_served(service: &ObjectName, uid: Option<Uid>, diagnostic: &Diagnostic) -> Option<Self> {
        let reason = match diagnostic.cause {
            Cause::Contest => "FrontendConflict",
            Cause::Special => "AddressNotAllowed",
            Cause::SourceRange => "InvalidSourceRange",
            Cause::Balancing => "InvalidBalancing",
            Cause::MissingScheduler => "SchedulerMissing",
            Cause::Protocol => "ProtocolNotServed",
            Cause::Object | Cause::Twice | Cause::Excess => return None,
        };
        let slice = match diagnostic.kind {
            Kind::EndpointSlice => format!("EndpointSlice {}: ", diagnostic.name.name()),
            Kind::Service | Kind::Node | Kind::ServiceCidr => String::new(),
        };
        let note = format!("{slice}{}: {}", diagnostic.field, diagnostic.problem());
        let regarding = Regarding::Service(service.clone(), uid);
        // Another node may have the scheduler.
        let common = diagnostic.cause != Cause::MissingScheduler;
        Some(Self { common, ..Self::new(regarding, Level::Warning, reason, "Serve", &note) })
    }

    /// Listening on a Service's health check port has failed.
    pub fn health_check_failed(service: &ObjectName, uid: Option<Uid>, note: &str) -> Self {
        let regarding = Regarding::Service(service.clone(), uid);
        Self::new(regarding, Level::Warning, "FailedToStartServiceHealthcheck", "Listen", note)
    }

    /// The human-readable text.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The number in the name of an Event that every node reports: a hash instead of the time, so that the first node creates
    /// the Event and the others find it. A build with another hash creates a second one, which does no harm.
    pub(super) fn common_number(&self) -> Option<i128> {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        self.common.then(|| hasher.finish().into())
    }
}

// === impl Regarding ===

impl Regarding {
    fn kind(&self) -> Kind {
        match self {
            Self::Node(_) => Kind::Node,
            Self::Service(..) => Kind::Service,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Node(name) => name,
            Self::Service(name, _) => name.name(),
        }
    }

    /// The namespace of Events about the object; `default` for objects without a namespace.
    fn event_namespace(&self) -> &str {
        match self {
            Self::Node(_) => "default",
            Self::Service(name, _) => name.namespace(),
        }
    }

    fn written(&self) -> Reference<'_> {
        let (namespace, uid) = match self {
            Self::Node(_) => (None, None),
            Self::Service(name, uid) => (Some(name.namespace()), *uid),
        };
        Reference {
            kind: self.kind().to_string(),
            namespace,
            name: self.name(),
            uid: uid.map(|uid| uid.to_string()),
            api_version: "v1",
        }
    }
}

impl fmt::Display for Regarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "{} {name}", self.kind()),
            Self::Service(name, _) => write!(f, "{} {name}", self.kind()),
        }
    }
}

// === impl Level ===

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

// === impl EventRecord ===

impl EventRecord {
    /// The name of an Event: that of the object, and a number in hexadecimal digits, nanoseconds since 1970 for most.
    pub(super) fn name(regarding: &Regarding, number: i128) -> Box<str> {
        let suffix = format!(".{number:x}");
        let name = regarding.name();
        let room = name.floor_char_boundary(NAME_BYTES.saturating_sub(suffix.len()));
        // After truncation, no part of a name may end with one of these characters.
        let name = name.get(..room).unwrap_or(name).trim_end_matches(['-', '.']);
        (name.to_owned() + &suffix).into()
    }

    /// The path of the Events of its namespace.
    pub(super) fn collection(&self) -> String {
        format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.event.regarding.event_namespace())
    }

    /// The path of the Event.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }

    /// The whole object; `instance` is the reportingInstance.
    pub(super) fn to_json(&self, instance: &str) -> String {
        let KubeEvent { regarding, level, reason, action, note, common: _ } = &*self.event;
        to_text(&Object {
            api_version: "events.k8s.io/v1",
            kind: "Event",
            metadata: EventMetadata { name: &self.name, namespace: regarding.event_namespace() },
            event_time: micros(self.time),
            reporting_controller: CONTROLLER,
            reporting_instance: instance,
            action,
            reason,
            regarding: regarding.written(),
            note,
            level: level.as_str(),
            series: self.series.map(EventRepeats::written),
        })
    }

    /// The patch: only the series of an Event may change.
    pub(super) fn patch_json(&self) -> String {
        to_text(&Patch { series: self.series.map(EventRepeats::written) })
    }
}

// === impl EventRepeats ===

impl EventRepeats {
    fn written(self) -> EventSeries {
        EventSeries { count: self.count, last_observed_time: micros(self.last) }
    }
}

fn to_text(value: &impl Serialize) -> String {
    // Encoding texts and numbers can't fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// RFC 3339 with microseconds, the only precision that the API accepts.
fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{event, record, time};
    use super::*;

    fn uid() -> Option<Uid> {
        Uid::parse("01234567-89ab-4def-8123-456789abcdef")
    }

    #[test]
    fn an_event_of_the_node() {
        let record = record(KubeEvent::starting("node-1"), time(1_700_000_000, 123_456_789));
        assert_eq!(record.path(), "/apis/events.k8s.io/v1/namespaces/default/events/node-1.17979cfe3d85cd15");
        let wanted = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "node-1.17979cfe3d85cd15", "namespace": "default"},
            "eventTime": "2023-11-14T22:13:20.123456Z",
            "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-host",
            "action": "StartKubeProxy", "reason": "Starting", "type": "Normal",
            "regarding": {"kind": "Node", "name": "node-1", "apiVersion": "v1"},
        });
        assert_eq!(serde_json::from_str::<Value>(&record.to_json("kube-proxy-host")).unwrap(), wanted);
    }

    #[test]
    fn warnings_about_the_node() {
        let fallback = KubeEvent::mode_fallback("node-1", "ipvs", "nftables", "ipvs: no module");
        assert_eq!(fallback.note(), "running in mode nftables instead of ipvs: ipvs: no module");
        assert_eq!((fallback.reason, fallback.action), ("ProxyModeFallback", "StartKubeProxy"));
        let dropped = KubeEvent::node_warning("node-1", "ForwardPolicyDrop", "IPv4: dropped");
        assert_eq!((dropped.reason, dropped.action, dropped.note()), ("ForwardPolicyDrop", "Serve", "IPv4: dropped"));
        for event in [fallback, dropped] {
            assert_eq!((&event.regarding, event.level), (&Regarding::Node("node-1".into()), Level::Warning));
            assert_eq!(event.common_number(), None);
        }
    }

    #[test]
    fn an_event_of_a_service() {
        let service = ObjectName::new("shop", "web");
        let failed = KubeEvent::health_check_failed(&service, uid(), "node node-1 failed to start");
        let mut record = record(failed, time(1_700_000_000, 0));
        assert_eq!(record.collection(), "/apis/events.k8s.io/v1/namespaces/shop/events");
        record.series = Some(EventRepeats { count: 7, last: time(1_700_000_001, 5_000) });
        let wanted = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "web.17979cfe362a0000", "namespace": "shop"},
            "eventTime": "2023-11-14T22:13:20.000000Z",
            "reportingController": "kube-proxy", "reportingInstance": "i",
            "action": "Listen", "reason": "FailedToStartServiceHealthcheck", "type": "Warning",
            "note": "node node-1 failed to start",
            "regarding": {"kind": "Service", "namespace": "shop", "name": "web", "apiVersion": "v1",
                "uid": "01234567-89ab-4def-8123-456789abcdef"},
            "series": {"count": 7, "lastObservedTime": "2023-11-14T22:13:21.000005Z"},
        });
        assert_eq!(serde_json::from_str::<Value>(&record.to_json("i")).unwrap(), wanted);
        assert_eq!(
            serde_json::from_str::<Value>(&record.patch_json()).unwrap(),
            json!({"series": wanted.get("series")})
        );
    }

    fn diagnostic(cause: Cause) -> Diagnostic {
        Diagnostic {
            kind: Kind::Service,
            name: ObjectName::new("shop", "web"),
            field: "spec.externalIPs[0]".to_owned(),
            message: "taken".to_owned(),
            cause,
            count: 3,
            winner: Some(ObjectName::new("secret", "rival")),
        }
    }

    #[test]
    fn an_event_of_what_is_not_served_names_no_other_service() {
        let service = ObjectName::new("shop", "web");
        for (cause, reason) in [
            (Cause::Contest, Some("FrontendConflict")),
            (Cause::Special, Some("AddressNotAllowed")),
            (Cause::SourceRange, Some("InvalidSourceRange")),
            (Cause::Balancing, Some("InvalidBalancing")),
            (Cause::MissingScheduler, Some("SchedulerMissing")),
            (Cause::Protocol, Some("ProtocolNotServed")),
            (Cause::Object, None),
            (Cause::Twice, None),
            (Cause::Excess, None),
        ] {
            let event = KubeEvent::not_served(&service, uid(), &diagnostic(cause));
            assert_eq!(event.as_ref().map(|event| event.reason), reason);
            let Some(event) = event else { continue };
            assert_eq!(event.note(), "spec.externalIPs[0]: taken (2 more like it)");
            let written = record(event, time(0, 0)).to_json("i");
            assert!(!written.contains("secret") && !written.contains("rival"), "{written}");
        }
        let of_slice = Diagnostic { kind: Kind::EndpointSlice, ..diagnostic(Cause::Special) };
        let event = KubeEvent::not_served(&service, uid(), &of_slice).unwrap();
        assert_eq!(event.regarding, Regarding::Service(service, uid()));
        assert_eq!(event.note(), "EndpointSlice web: spec.externalIPs[0]: taken (2 more like it)");
    }

    #[test]
    fn what_every_node_says_has_one_name() {
        let conflict = |message: &str, uid| {
            let diagnostic = Diagnostic { message: message.to_owned(), ..diagnostic(Cause::Contest) };
            KubeEvent::not_served(&diagnostic.name, uid, &diagnostic).unwrap().common_number()
        };
        assert!(conflict("taken", uid()).is_some());
        assert_eq!(conflict("taken", uid()), conflict("taken", uid()));
        assert_ne!(conflict("taken", uid()), conflict("taken", None), "another Service of this name");
        assert_ne!(conflict("taken", uid()), conflict("given", uid()));
        assert_eq!(KubeEvent::starting("node-1").common_number(), None);
        let missing = diagnostic(Cause::MissingScheduler);
        let event = KubeEvent::not_served(&missing.name, uid(), &missing).unwrap();
        assert_eq!(event.common_number(), None, "a fact of the node");
    }

    #[test]
    fn long_notes_are_cut_between_characters() {
        let long = |note: &str| KubeEvent::new(event("web").regarding, Level::Normal, "R", "A", note).note().len();
        assert_eq!(long(&"x".repeat(5000)), NOTE_BYTES);
        assert_eq!(long(&format!("x{}", "ä".repeat(5000))), NOTE_BYTES - 1);
        assert_eq!(long("short"), 5);
    }

    #[test]
    fn names_stay_names() {
        let name = |length: usize, with: &str| {
            let node = format!("{}{}", "a".repeat(length), with);
            EventRecord::name(&Regarding::Node(node.into()), 0x1797_9cfe_362a_0000)
        };
        assert_eq!(&*name(3, ""), "aaa.17979cfe362a0000");
        assert_eq!(name(253, "").len(), NAME_BYTES);
        let cut = name(235, "-.bbbbbbbbbbbbbbbbb");
        assert_eq!(*cut, format!("{}.17979cfe362a0000", "a".repeat(235)));
    }
}
