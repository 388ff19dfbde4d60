//! The objects of the self-test's Service, as an API server would send them.

use ferry_api::object::{Family, KubeObject};
use ferry_api::wire::decode_object;
use serde_json::{Value, json};

use crate::core::OWN_NAMESPACE;
use crate::platform::{TEST_PORT, TestAddresses};

/// The name of the Service. No other proxy sees it.
const NAME: &str = "data-path";

/// A Service with these cluster IPs, and an EndpointSlice for each family.
///
/// # Errors
/// If they can't be decoded, as a defect of this program.
pub(super) fn of(addresses: &[TestAddresses]) -> anyhow::Result<Vec<KubeObject>> {
    let slices = addresses.iter().map(slice);
    let decoded = std::iter::once(service(addresses)).chain(slices).map(|object| decode_object(&object.to_string()));
    decoded.collect::<Result<_, _>>().map_err(anyhow::Error::msg)
}

fn service(addresses: &[TestAddresses]) -> Value {
    let ips: Vec<String> = addresses.iter().map(|addresses| addresses.service.to_string()).collect();
    let families: Vec<String> = addresses.iter().map(|addresses| addresses.family().to_string()).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": OWN_NAMESPACE, "name": NAME},
        "spec": {
            "clusterIP": ips.first(), "clusterIPs": ips, "ipFamilies": families,
            "ports": [{"protocol": "TCP", "port": TEST_PORT}],
        },
    })
}

fn slice(addresses: &TestAddresses) -> Value {
    let family = addresses.family();
    let suffix = match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": OWN_NAMESPACE, "name": format!("{NAME}-{suffix}"),
            "labels": {"kubernetes.io/service-name": NAME},
        },
        "addressType": family.to_string(),
        "ports": [{"name": "", "protocol": "TCP", "port": TEST_PORT}],
        "endpoints": [{"addresses": [addresses.endpoint.to_string()], "conditions": {"ready": true}}],
    })
}

#[cfg(test)]
mod tests {
    use ferry_api::config::SELF_TEST_RANGES;
    use ferry_api::object::Kind;
    use ferry_api::wire::address::parse_cidr;

    use super::*;

    #[test]
    fn objects_decode_to_a_service_with_an_endpoint_of_each_family() {
        let addresses = SELF_TEST_RANGES.map(|range| TestAddresses::of(parse_cidr(range).unwrap()).unwrap());
        let objects = of(&addresses).unwrap();
        assert_eq!(
            objects.iter().map(KubeObject::kind).collect::<Vec<_>>(),
            [Kind::Service, Kind::EndpointSlice, Kind::EndpointSlice]
        );
        let KubeObject::Service(service) = &objects[0] else { panic!("{objects:?}") };
        assert_eq!(service.cluster_ips.len(), 2);
        assert!(objects[1..].iter().all(|object| {
            matches!(object, KubeObject::EndpointSlice(slice) if slice.endpoints.len() == 1 && slice.service.as_ref() == Some(&service.name))
        }));
    }
}
