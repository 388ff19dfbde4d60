//! Serde types of the objects in a document: only the fields that a service proxy reads, borrowed from the text, all optional.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::scalar::{Flag, Int, LooseText, Text, present};
use super::time::{parse_timestamp, timestamp_of};
use crate::object::Timestamp;

/// metadata of any object
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawMeta<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) namespace: Option<Text<'a>>,
    /// a manifest may have anything there
    #[serde(borrow)]
    pub(super) uid: Option<LooseText<'a>>,
    #[serde(borrow)]
    pub(super) creation_timestamp: Option<RawTime<'a>>,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
    /// only of use for what an API server sends; a manifest may have anything there
    #[serde(borrow)]
    pub(super) resource_version: Option<LooseText<'a>>,
    #[serde(borrow)]
    pub(super) labels: Option<RawLabels<'a>>,
    #[serde(borrow)]
    pub(super) annotations: Option<RawAnnotations<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawLabels<'a> {
    #[serde(rename = "service.kubernetes.io/service-proxy-name", default, deserialize_with = "present")]
    pub(super) service_proxy_name: bool,
    #[serde(rename = "service.kubernetes.io/headless", default, deserialize_with = "present")]
    pub(super) headless: bool,
    #[serde(rename = "kubernetes.io/service-name", borrow)]
    pub(super) service_name: Option<Text<'a>>,
    #[serde(rename = "topology.kubernetes.io/zone", borrow)]
    pub(super) zone: Option<Text<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawAnnotations<'a> {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time", borrow)]
    pub(super) trigger_time: Option<Text<'a>>,
    /// of a bookmark that ends the objects a streaming list began with
    #[serde(rename = "k8s.io/initial-events-end", borrow)]
    pub(super) initial_events_end: Option<LooseText<'a>>,
    /// an API server would reject a value that is no text, but a manifest may have one: it is reported, and the Service served
    #[serde(rename = "ferry.io/ipvs-scheduler", borrow)]
    pub(super) scheduler: Option<LooseText<'a>>,
    #[serde(rename = "ferry.io/ipvs-weight-zones", borrow)]
    pub(super) weight_zones: Option<LooseText<'a>>,
    #[serde(rename = "ferry.io/ipvs-weight-local", borrow)]
    pub(super) weight_local: Option<LooseText<'a>>,
}

/// A point in time, as text in JSON and YAML, as a number in protobuf.
pub(super) enum RawTime<'a> {
    Text(Text<'a>),
    /// seconds since 1970
    Seconds(i64),
}

/// core/v1 Service
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawService<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) metadata: Option<RawMeta<'a>>,
    #[serde(borrow)]
    pub(super) spec: Option<RawServiceSpec<'a>>,
    #[serde(borrow)]
    pub(super) status: Option<RawServiceStatus<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceSpec<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(rename = "clusterIP", borrow)]
    pub(super) cluster_ip: Option<Text<'a>>,
    #[serde(rename = "clusterIPs", borrow)]
    pub(super) cluster_ips: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) ip_families: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) ports: Option<Vec<RawServicePort<'a>>>,
    #[serde(rename = "externalIPs", borrow)]
    pub(super) external_ips: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) load_balancer_source_ranges: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) session_affinity: Option<Text<'a>>,
    pub(super) session_affinity_config: Option<RawAffinityConfig>,
    #[serde(borrow)]
    pub(super) internal_traffic_policy: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) external_traffic_policy: Option<Text<'a>>,
    pub(super) health_check_node_port: Option<Int>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServicePort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) protocol: Option<Text<'a>>,
    pub(super) port: Option<Int>,
    pub(super) node_port: Option<Int>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    pub(super) client_ip: Option<RawClientIp>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawClientIp {
    pub(super) timeout_seconds: Option<Int>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceStatus<'a> {
    #[serde(borrow)]
    pub(super) load_balancer: Option<RawLoadBalancer<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawLoadBalancer<'a> {
    #[serde(borrow)]
    pub(super) ingress: Option<Vec<RawIngress<'a>>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawIngress<'a> {
    #[serde(borrow)]
    pub(super) ip: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ip_mode: Option<Text<'a>>,
}

/// discovery.k8s.io/v1 EndpointSlice
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawEndpointSlice<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) metadata: Option<RawMeta<'a>>,
    #[serde(borrow)]
    pub(super) address_type: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) ports: Option<Vec<RawSlicePort<'a>>>,
    #[serde(borrow)]
    pub(super) endpoints: Option<Vec<RawEndpoint<'a>>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawSlicePort<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) protocol: Option<Text<'a>>,
    pub(super) port: Option<Int>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawEndpoint<'a> {
    #[serde(borrow)]
    pub(super) addresses: Option<Vec<Text<'a>>>,
    pub(super) conditions: Option<RawConditions>,
    #[serde(borrow)]
    pub(super) node_name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) zone: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) hints: Option<RawHints<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawConditions {
    pub(super) ready: Option<Flag>,
    pub(super) serving: Option<Flag>,
    pub(super) terminating: Option<Flag>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawHints<'a> {
    #[serde(borrow)]
    pub(super) for_zones: Option<Vec<RawHint<'a>>>,
    #[serde(borrow)]
    pub(super) for_nodes: Option<Vec<RawHint<'a>>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawHint<'a> {
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
}

/// core/v1 Node
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawNode<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) metadata: Option<RawMeta<'a>>,
    #[serde(borrow)]
    pub(super) spec: Option<RawNodeSpec<'a>>,
    #[serde(borrow)]
    pub(super) status: Option<RawNodeStatus<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawNodeSpec<'a> {
    #[serde(rename = "podCIDR", borrow)]
    pub(super) pod_cidr: Option<Text<'a>>,
    #[serde(rename = "podCIDRs", borrow)]
    pub(super) pod_cidrs: Option<Vec<Text<'a>>>,
    #[serde(borrow)]
    pub(super) taints: Option<Vec<RawTaint<'a>>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawTaint<'a> {
    #[serde(borrow)]
    pub(super) key: Option<Text<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawNodeStatus<'a> {
    #[serde(borrow)]
    pub(super) addresses: Option<Vec<RawNodeAddress<'a>>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawNodeAddress<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) address: Option<Text<'a>>,
}

/// networking.k8s.io/v1 ServiceCIDR
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawServiceCidr<'a> {
    #[serde(borrow)]
    pub(super) api_version: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) kind: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) metadata: Option<RawMeta<'a>>,
    #[serde(borrow)]
    pub(super) spec: Option<RawServiceCidrSpec<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct RawServiceCidrSpec<'a> {
    #[serde(borrow)]
    pub(super) cidrs: Option<Vec<Text<'a>>>,
}

// === impl RawTime ===

impl RawTime<'_> {
    /// The point in time; `None` if it is none.
    pub(super) fn timestamp(&self) -> Option<Timestamp> {
        match self {
            Self::Text(text) => parse_timestamp(text),
            Self::Seconds(seconds) => timestamp_of(*seconds),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawTime<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(Self::Text)
    }
}
