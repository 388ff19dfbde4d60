//! Protobuf messages of the API: only the fields that a service proxy reads, with the numbers of the `generated.proto` files of
//! `k8s.io/api` (core/v1, discovery/v1, networking/v1) and `k8s.io/apimachinery` (meta/v1, runtime).
//!
//! A field that is nil in JSON is absent here too: a server writes every plain field, also an empty text and a zero, but a
//! pointer only when it is set. So a present field is `Some`, whatever its value. One thing is different: a time without
//! content is the zero time, which JSON calls null.

use serde::de::IgnoredAny;

use super::super::super::raw::{
    RawAffinityConfig, RawAnnotations, RawClientIp, RawConditions, RawEndpoint, RawEndpointSlice, RawHint, RawHints,
    RawIngress, RawLabels, RawLoadBalancer, RawMeta, RawNode, RawNodeAddress, RawNodeSpec, RawNodeStatus, RawService,
    RawServiceCidr, RawServiceCidrSpec, RawServicePort, RawServiceSpec, RawServiceStatus, RawSlicePort, RawTaint,
    RawTime,
};
use super::super::super::scalar::{Int, LooseText, Text};
use super::fields::{Damage, FieldValue, Message, text};
use crate::object::{SCHEDULER_ANNOTATION, WEIGHT_LOCAL_ANNOTATION, WEIGHT_ZONES_ANNOTATION};

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
pub(super) struct EventMessage<'a> {
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
struct MapEntry<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

/// Reads a message by the numbers of its fields: how each value is taken, and where it goes. Others are passed over.
macro_rules! fields {
    ($message:ty { $($number:literal => $take:ident $field:ident),+ $(,)? }) => {
        impl<'a> Message<'a> for $message {
            fn field(&mut self, number: u32, value: FieldValue<'a, '_>) -> Result<(), Damage> {
                match number {
                    $($number => value.$take(&mut self.$field),)+
                    _ => value.ignored(),
                }
            }
        }
    };
}

// === impl Message for what wraps an object ===

fields!(Unknown<'a> {
    1 => merge type_meta,
    2 => set_bytes raw,
    3 => set_text content_encoding,
});

fields!(TypeMeta<'a> {
    1 => set_text api_version,
    2 => set_text kind,
});

fields!(EventMessage<'a> {
    1 => set_text kind,
    2 => merge object,
});

fields!(RawExtension<'a> { 1 => set_bytes raw });

fields!(ListMeta<'a> {
    2 => set_text resource_version,
    3 => set_text continue_token,
});

fields!(RawStatus<'a> {
    3 => set_text message,
    4 => set_text reason,
    5 => merge details,
    6 => set_int code,
});

fields!(StatusDetails { 5 => set_int retry_after_seconds });

// === impl Message for metadata ===

fields!(MetaOnly<'a> { 1 => merge metadata });

impl<'a> Message<'a> for RawMeta<'a> {
    fn field(&mut self, number: u32, value: FieldValue<'a, '_>) -> Result<(), Damage> {
        match number {
            1 => value.set_text(&mut self.name),
            3 => value.set_text(&mut self.namespace),
            5 => {
                self.uid = Some(LooseText(Some(value.text()?.0)));
                Ok(())
            }
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
    fn field(&mut self, number: u32, value: FieldValue<'a, '_>) -> Result<(), Damage> {
        self.is_set = true;
        // The nanoseconds don't count, as in upstream: JSON times have none.
        if number == 1 {
            self.seconds = value.int64()?;
        }
        Ok(())
    }
}

fields!(MapEntry<'a> {
    1 => set_bytes key,
    2 => set_bytes value,
});

// === impl Time ===

impl Time {
    /// Seconds since 1970; `None` for the zero time.
    fn seconds(&self) -> Option<i64> {
        self.is_set.then_some(self.seconds)
    }
}

// === impl MapEntry ===

impl<'a> MapEntry<'a> {
    fn text(&self) -> Result<Text<'a>, Damage> {
        text(self.value)
    }
}

// === impl RawLabels ===

impl<'a> RawLabels<'a> {
    fn entry(&mut self, entry: MapEntry<'a>) -> Result<(), Damage> {
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
    fn entry(&mut self, entry: MapEntry<'a>) -> Result<(), Damage> {
        let to = match entry.key {
            b"endpoints.kubernetes.io/last-change-trigger-time" => {
                self.trigger_time = Some(entry.text()?);
                return Ok(());
            }
            b"k8s.io/initial-events-end" => &mut self.initial_events_end,
            key if key == SCHEDULER_ANNOTATION.as_bytes() => &mut self.scheduler,
            key if key == WEIGHT_ZONES_ANNOTATION.as_bytes() => &mut self.weight_zones,
            key if key == WEIGHT_LOCAL_ANNOTATION.as_bytes() => &mut self.weight_local,
            _other => return Ok(()),
        };
        *to = Some(LooseText(Some(entry.text()?.0)));
        Ok(())
    }
}

// === impl Message for Service ===

fields!(RawService<'a> {
    1 => merge metadata,
    2 => merge spec,
    3 => merge status,
});

fields!(RawServiceSpec<'a> {
    1 => push ports,
    3 => set_text cluster_ip,
    4 => set_text kind,
    5 => push_text external_ips,
    7 => set_text session_affinity,
    9 => push_text load_balancer_source_ranges,
    11 => set_text external_traffic_policy,
    12 => set_int health_check_node_port,
    14 => merge session_affinity_config,
    18 => push_text cluster_ips,
    19 => push_text ip_families,
    22 => set_text internal_traffic_policy,
});

fields!(RawServicePort<'a> {
    1 => set_text name,
    2 => set_text protocol,
    3 => set_int port,
    5 => set_int node_port,
});

fields!(RawAffinityConfig { 1 => merge client_ip });

fields!(RawClientIp { 1 => set_int timeout_seconds });

fields!(RawServiceStatus<'a> { 1 => merge load_balancer });

fields!(RawLoadBalancer<'a> { 1 => push ingress });

fields!(RawIngress<'a> {
    1 => set_text ip,
    3 => set_text ip_mode,
});

// === impl Message for EndpointSlice ===

fields!(RawEndpointSlice<'a> {
    1 => merge metadata,
    2 => push endpoints,
    3 => push ports,
    4 => set_text address_type,
});

fields!(RawEndpoint<'a> {
    1 => push_text addresses,
    2 => merge conditions,
    6 => set_text node_name,
    7 => set_text zone,
    8 => merge hints,
});

fields!(RawConditions {
    1 => set_flag ready,
    2 => set_flag serving,
    3 => set_flag terminating,
});

fields!(RawHints<'a> {
    1 => push for_zones,
    2 => push for_nodes,
});

fields!(RawHint<'a> { 1 => set_text name });

fields!(RawSlicePort<'a> {
    1 => set_text name,
    2 => set_text protocol,
    3 => set_int port,
});

// === impl Message for Node and ServiceCIDR ===

fields!(RawNode<'a> {
    1 => merge metadata,
    2 => merge spec,
    3 => merge status,
});

fields!(RawNodeSpec<'a> {
    1 => set_text pod_cidr,
    5 => push taints,
    7 => push_text pod_cidrs,
});

fields!(RawTaint<'a> { 1 => set_text key });

fields!(RawNodeStatus<'a> { 5 => push addresses });

fields!(RawNodeAddress<'a> {
    1 => set_text kind,
    2 => set_text address,
});

fields!(RawServiceCidr<'a> {
    1 => merge metadata,
    2 => merge spec,
});

fields!(RawServiceCidrSpec<'a> { 1 => push_text cidrs });
