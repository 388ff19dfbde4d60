//! Manifests of many services, each with one TCP port.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

/// Endpoints of each service.
pub(crate) const ENDPOINTS: u32 = 10;
/// Services per file.
const PER_FILE: usize = 1000;

/// The files of a manifest directory: name and content.
pub(crate) fn files(services: usize) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for first in (0..services).step_by(PER_FILE) {
        let mut text = String::new();
        for index in first..services.min(first + PER_FILE) {
            text.push_str(&service(index));
            text.push_str(&slice(index, &first_endpoints(index)));
        }
        files.push((format!("services-{first:06}.yaml"), text));
    }
    files
}

/// The cluster IP of a service.
pub(crate) fn vip(index: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_0001 + u32::try_from(index).unwrap_or(0))
}

/// Address of one of a service's 16 possible endpoints.
pub(crate) fn endpoint(index: usize, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0af4_0001 + 16 * u32::try_from(index).unwrap_or(0) + number)
}

/// The initial endpoints of a service.
pub(crate) fn first_endpoints(index: usize) -> Vec<Ipv4Addr> {
    (0..ENDPOINTS).map(|number| endpoint(index, number)).collect()
}

/// The YAML document of a service.
pub(crate) fn service(index: usize) -> String {
    let vip = vip(index);
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: service-{index}, namespace: bench}}\nspec:\n  \
         type: ClusterIP\n  clusterIP: {vip}\n  clusterIPs: [{vip}]\n  ipFamilies: [IPv4]\n  ports:\n  \
         - {{name: http, protocol: TCP, port: 80, targetPort: 8080}}\n"
    )
}

/// The YAML document of a service's slice.
pub(crate) fn slice(index: usize, endpoints: &[Ipv4Addr]) -> String {
    let mut text = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: service-{index}-a\n  \
         namespace: bench\n  labels: {{kubernetes.io/service-name: service-{index}}}\naddressType: IPv4\n\
         ports:\n- {{name: http, protocol: TCP, port: 8080}}\nendpoints:\n"
    );
    for (number, endpoint) in endpoints.iter().enumerate() {
        let node = number % 5;
        // Writing to a String can't fail.
        let _ = writeln!(
            text,
            "- {{addresses: [{endpoint}], nodeName: node-{node}, conditions: {{ready: true, serving: true, terminating: false}}}}"
        );
    }
    text
}
