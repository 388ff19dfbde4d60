//! The messages of the API: only the fields we read, with the numbers of the `generated.proto` files of
//! `k8s.io/api` (core/v1, discovery/v1, networking/v1) and `k8s.io/apimachinery` (meta/v1, runtime).
//!
//! What is nil in JSON isn't written here either: a server writes every plain field, also an empty text and a zero,
//! but a pointer only when it is set. So a field that is there is `Some`, whatever its value. One thing is different:
//! a time without content is the zero time, which JSON calls null.

use serde::de::IgnoredAny;

use super::super::super::raw::{
    RawAffinityConfig, RawAnnotations, RawClientIp, RawConditions, RawEndpoint, RawEndpointSlice, RawHint, RawHints,
    RawIngress, RawLabels, RawLoadBalancer, RawMeta, RawNode, RawNodeAddress, RawNodeSpec, RawNodeStatus, RawService,
    RawServiceCidr, RawServiceCidrSpec, RawServicePort, RawServiceSpec, RawServiceStatus, RawSlicePort, RawTaint,
    RawTime,
};
use super::super::super::scalar::{Int, LooseText, Text};
use super::fields::{Damage, Message, Value, text};

/// runtime.Unknown: what an object is wrapped in
#[derive(Default)]
pub(super) struct Unknown<'a> {
    pub(super) type_meta: Option<TypeMeta<'a>>,
    pub(super) raw: &'a [u8],
    pub(super) content_encoding: Option<Text<'a>>,
}

/// runtime.TypeMeta
#[derive(Default)]
pub(super) struct TypeMeta<'a> {
    pub(super) api_version: Option<Text<'a>>,
    pub(super) kind: Option<Text<'a>>,
}

/// meta/v1 WatchEvent
#[derive(Default)]
pub(super) struct Event<'a> {
    pub(super) kind: Option<Text<'a>>,
    pub(super) object: Option<RawExtension<'a>>,
}

/// runtime.RawExtension
#[derive(Default)]
pub(super) struct RawExtension<'a> {
    pub(super) raw: &'a [u8],
}

/// meta/v1 ListMeta
#[derive(Default)]
pub(super) struct ListMeta<'a> {
    pub(super) resource_version: Option<Text<'a>>,
    pub(super) continue_token: Option<Text<'a>>,
}

/// meta/v1 Status
#[derive(Default)]
pub(super) struct RawStatus<'a> {
    pub(super) message: Option<Text<'a>>,
    pub(super) reason: Option<Text<'a>>,
    pub(super) details: Option<StatusDetails>,
    pub(super) code: Option<Int>,
}

/// meta/v1 StatusDetails
#[derive(Default)]
pub(super) struct StatusDetails {
    pub(super) retry_after_seconds: Option<Int>,
}

/// Any object, of which only the metadata is wanted.
#[derive(Default)]
pub(super) struct MetaOnly<'a> {
    pub(super) metadata: Option<RawMeta<'a>>,
}

/// meta/v1 Time
#[derive(Default)]
struct Time {
    seconds: i64,
    /// it has any field
    is_set: bool,
}

/// An entry of a map of texts.
#[derive(Default)]
struct Entry<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

// === impl Message for what wraps an object ===

impl<'a> Message<'a> for Unknown<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.merge(&mut self.type_meta),
            2 => value.set_bytes(&mut self.raw),
            3 => value.set_text(&mut self.content_encoding),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for TypeMeta<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.api_version),
            2 => value.set_text(&mut self.kind),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for Event<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.kind),
            2 => value.merge(&mut self.object),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawExtension<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.set_bytes(&mut self.raw) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for ListMeta<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            2 => value.set_text(&mut self.resource_version),
            3 => value.set_text(&mut self.continue_token),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawStatus<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            3 => value.set_text(&mut self.message),
            4 => value.set_text(&mut self.reason),
            5 => value.merge(&mut self.details),
            6 => value.set_int(&mut self.code),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for StatusDetails {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 5 { value.set_int(&mut self.retry_after_seconds) } else { value.ignored() }
    }
}

// === impl Message for metadata ===

impl<'a> Message<'a> for MetaOnly<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.merge(&mut self.metadata) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawMeta<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.name),
            3 => value.set_text(&mut self.namespace),
            6 => {
                self.resource_version = Some(LooseText(Some(value.text()?.0)));
                Ok(())
            }
            8 => {
                self.creation_timestamp = value.message::<Time>()?.seconds().map(RawTime::Seconds);
                Ok(())
            }
            9 => {
                self.deletion_timestamp = value.bytes().map(|_| Some(IgnoredAny))?;
                Ok(())
            }
            11 => self.labels.get_or_insert_default().entry(value.message()?),
            12 => self.annotations.get_or_insert_default().entry(value.message()?),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for Time {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        self.is_set = true;
        // The nanoseconds don't count, for upstream neither: JSON can't say them.
        if number == 1 {
            self.seconds = value.int64()?;
        }
        Ok(())
    }
}

impl<'a> Message<'a> for Entry<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_bytes(&mut self.key),
            2 => value.set_bytes(&mut self.value),
            _ => value.ignored(),
        }
    }
}

// === impl Time ===

impl Time {
    /// Seconds since 1970; `None` for the zero time.
    fn seconds(&self) -> Option<i64> {
        self.is_set.then_some(self.seconds)
    }
}

// === impl Entry ===

impl<'a> Entry<'a> {
    fn text(&self) -> Result<Text<'a>, Damage> {
        text(self.value)
    }
}

// === impl RawLabels ===

impl<'a> RawLabels<'a> {
    fn entry(&mut self, entry: Entry<'a>) -> Result<(), Damage> {
        match entry.key {
            b"service.kubernetes.io/service-proxy-name" => self.service_proxy_name = true,
            b"service.kubernetes.io/headless" => self.headless = true,
            b"kubernetes.io/service-name" => self.service_name = Some(entry.text()?),
            b"topology.kubernetes.io/zone" => self.zone = Some(entry.text()?),
            _other => {}
        }
        Ok(())
    }
}

// === impl RawAnnotations ===

impl<'a> RawAnnotations<'a> {
    fn entry(&mut self, entry: Entry<'a>) -> Result<(), Damage> {
        match entry.key {
            b"endpoints.kubernetes.io/last-change-trigger-time" => self.trigger_time = Some(entry.text()?),
            b"k8s.io/initial-events-end" => self.initial_events_end = Some(LooseText(Some(entry.text()?.0))),
            _other => {}
        }
        Ok(())
    }
}

// === impl Message for Service ===

impl<'a> Message<'a> for RawService<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.merge(&mut self.metadata),
            2 => value.merge(&mut self.spec),
            3 => value.merge(&mut self.status),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawServiceSpec<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.push(&mut self.ports),
            3 => value.set_text(&mut self.cluster_ip),
            4 => value.set_text(&mut self.kind),
            5 => value.push_text(&mut self.external_ips),
            7 => value.set_text(&mut self.session_affinity),
            9 => value.push_text(&mut self.load_balancer_source_ranges),
            11 => value.set_text(&mut self.external_traffic_policy),
            12 => value.set_int(&mut self.health_check_node_port),
            14 => value.merge(&mut self.session_affinity_config),
            18 => value.push_text(&mut self.cluster_ips),
            19 => value.push_text(&mut self.ip_families),
            22 => value.set_text(&mut self.internal_traffic_policy),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawServicePort<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.name),
            2 => value.set_text(&mut self.protocol),
            3 => value.set_int(&mut self.port),
            5 => value.set_int(&mut self.node_port),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawAffinityConfig {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.merge(&mut self.client_ip) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawClientIp {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.set_int(&mut self.timeout_seconds) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawServiceStatus<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.merge(&mut self.load_balancer) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawLoadBalancer<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.push(&mut self.ingress) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawIngress<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.ip),
            3 => value.set_text(&mut self.ip_mode),
            _ => value.ignored(),
        }
    }
}

// === impl Message for EndpointSlice ===

impl<'a> Message<'a> for RawEndpointSlice<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.merge(&mut self.metadata),
            2 => value.push(&mut self.endpoints),
            3 => value.push(&mut self.ports),
            4 => value.set_text(&mut self.address_type),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawEndpoint<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.push_text(&mut self.addresses),
            2 => value.merge(&mut self.conditions),
            6 => value.set_text(&mut self.node_name),
            8 => value.merge(&mut self.hints),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawConditions {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_flag(&mut self.ready),
            2 => value.set_flag(&mut self.serving),
            3 => value.set_flag(&mut self.terminating),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawHints<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.push(&mut self.for_zones),
            2 => value.push(&mut self.for_nodes),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawHint<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.set_text(&mut self.name) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawSlicePort<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.name),
            2 => value.set_text(&mut self.protocol),
            3 => value.set_int(&mut self.port),
            _ => value.ignored(),
        }
    }
}

// === impl Message for Node and ServiceCIDR ===

impl<'a> Message<'a> for RawNode<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.merge(&mut self.metadata),
            2 => value.merge(&mut self.spec),
            3 => value.merge(&mut self.status),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawNodeSpec<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.pod_cidr),
            5 => value.push(&mut self.taints),
            7 => value.push_text(&mut self.pod_cidrs),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawTaint<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.set_text(&mut self.key) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawNodeStatus<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 5 { value.push(&mut self.addresses) } else { value.ignored() }
    }
}

impl<'a> Message<'a> for RawNodeAddress<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.kind),
            2 => value.set_text(&mut self.address),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawServiceCidr<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.merge(&mut self.metadata),
            2 => value.merge(&mut self.spec),
            _ => value.ignored(),
        }
    }
}

impl<'a> Message<'a> for RawServiceCidrSpec<'a> {
    fn field(&mut self, number: u32, value: Value<'a, '_>) -> Result<(), Damage> {
        if number == 1 { value.push_text(&mut self.cidrs) } else { value.ignored() }
    }
}
