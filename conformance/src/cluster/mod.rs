//! Generates plausible clusters from a seed: Services of all types, overlapping slices, policies, hints, changing endpoints,
//! contested addresses, in both families. They are texts in the format and conventions of the case folders, so that every
//! reader of a case can read them.

mod changes;
mod random;
mod service;
mod slice;

use std::collections::BTreeMap;

use ferry_api::object::{Kind, ObjectName};
use ferry_model::Event;

use crate::case::objects;

pub use changes::happens;
pub use random::Random;
pub use service::SERVICES;

/// A cluster, from the view of node-a's proxy.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// config.yaml
    pub config: String,
    /// all objects as documents of a manifest, node-a's Node among them
    pub objects: BTreeMap<(Kind, ObjectName), String>,
    /// kind of topology hints in each service's slices
    hints: Vec<Hints>,
    /// the pod ranges that the Node has at different times. The last range of a family stays in force for ever, so all have the
    /// same families: the end state of a history has to follow from its last objects alone
    pod_ranges: &'static [&'static str],
}

const POD_RANGES: [&[&str]; 3] = [
    &[
        "[10.244.1.0/24, 'fd00:10:244:1::/64']",
        "[10.244.2.0/24, 'fd00:10:244:1::/64']",
        "['fd00:10:244:2::/64', 10.244.1.0/24]",
    ],
    &["[10.244.1.0/24]", "[10.244.2.0/24]"],
    &["[]"],
];

/// Kind of topology hints in a service's slices.
#[derive(Clone, Copy, Debug)]
enum Hints {
    /// no hints
    None,
    /// each endpoint's own zone, as for PreferSameZone
    Zones,
    /// each endpoint's own node and zone, as for PreferSameNode
    Nodes,
    /// different kinds in one slice
    Mixed,
}

// === impl Cluster ===

impl Cluster {
    /// Generates the cluster of a seed.
    pub fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let hints = SERVICES.iter().map(|_| Hints::random(&mut random)).collect();
        let pod_ranges = random.pick(&POD_RANGES);
        let mut cluster = Self { config: config(&mut random), objects: BTreeMap::new(), hints, pod_ranges };
        cluster.put_node(&mut random);
        for slot in 0..SERVICES.len() {
            if random.chance(70) {
                cluster.put_service(slot, &mut random);
            }
            // Slices of a missing service occur in practice.
            for part in 0..random.pick(&[1, 1, 2, 3]) {
                cluster.put_slice(slot, part, true, &mut random);
                cluster.put_slice(slot, part, false, &mut random);
            }
        }
        for name in random.some(&["kubernetes", "more"], 2) {
            cluster.put_service_cidr(name, &mut random);
        }
        cluster
    }

    /// All objects in one manifest.
    pub fn manifest(&self) -> String {
        self.objects.values().map(|text| format!("---\n{text}")).collect()
    }

    /// The event of an object's last change: an upsert, or its deletion if the cluster no longer has it.
    pub fn event(&self, key: &(Kind, ObjectName)) -> Event {
        let Some(text) = self.objects.get(key) else { return Event::Delete(key.0, key.1.clone()) };
        let object = objects("cluster", text).pop().unwrap();
        assert_eq!((object.kind(), object.name()), (key.0, &key.1));
        Event::Upsert(object)
    }

    /// Regenerates one of the services.
    pub fn put_service(&mut self, slot: usize, random: &mut Random) -> (Kind, ObjectName) {
        let (name, text) = service::random(slot, random);
        self.put((Kind::Service, name), text)
    }

    /// Regenerates one of a service's slices.
    pub fn put_slice(&mut self, slot: usize, part: usize, v4: bool, random: &mut Random) -> (Kind, ObjectName) {
        let hints = self.hints.get(slot).copied().unwrap_or(Hints::None);
        let (name, text) = slice::random(slot, part, v4, hints, random);
        self.put((Kind::EndpointSlice, name), text)
    }

    /// Regenerates the Node: its addresses stay, the pod ranges may change, the zone may be removed.
    pub fn put_node(&mut self, random: &mut Random) -> (Kind, ObjectName) {
        let zone = random.pick(&["zone-a", "zone-a", "zone-a", "zone-b", ""]);
        let ranges = random.pick(self.pod_ranges);
        let text = format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-a, labels: {{topology.kubernetes.io/zone: '{zone}'}}}}\n\
             spec: {{podCIDRs: {ranges}}}\nstatus:\n  addresses:\n  - {{type: InternalIP, address: 192.0.2.10}}\n  \
             - {{type: InternalIP, address: '2001:db8::10'}}\n  - {{type: ExternalIP, address: 192.0.2.110}}\n  \
             - {{type: ExternalIP, address: '2001:db8::110'}}\n"
        );
        self.put((Kind::Node, ObjectName::cluster_wide("node-a")), text)
    }

    /// Regenerates a ServiceCIDR.
    pub fn put_service_cidr(&mut self, name: &str, random: &mut Random) -> (Kind, ObjectName) {
        let ranges = ["10.96.0.0/16", "'fd00:10:96::/112'", "10.96.0.0/24", "10.97.0.0/16"];
        let ranges = random.some(&ranges, 3).join(", ");
        let text = format!(
            "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: {name}}}\nspec: {{cidrs: [{ranges}]}}\n"
        );
        self.put((Kind::ServiceCidr, ObjectName::cluster_wide(name)), text)
    }

    fn put(&mut self, key: (Kind, ObjectName), text: String) -> (Kind, ObjectName) {
        self.objects.insert(key.clone(), text);
        key
    }
}

// === impl Hints ===

impl Hints {
    fn random(random: &mut Random) -> Self {
        random.pick(&[Self::None, Self::None, Self::Zones, Self::Nodes, Self::Mixed])
    }
}

fn config(random: &mut Random) -> String {
    let range = "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56\n";
    let pods = random.pick(&[
        range,
        range,
        range,
        "",
        "clusterCIDR: 10.244.0.0/16\n",
        "detectLocalMode: NodeCIDR\n",
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}\n",
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n",
    ]);
    let node_ports = random.pick(&[
        "",
        "",
        "nodePortAddresses: [primary]\n",
        "nodePortAddresses: [192.0.2.0/24]\n",
        "nodePortAddresses: ['::/0', 192.0.2.10/32]\n",
        "nodePortAddresses: [198.51.100.0/24, '2001:db8::/64']\n",
    ]);
    let masquerade_all = random.chance(15);
    let bit = random.pick(&[14, 14, 14, 7]);
    let gate = if random.chance(5) { "featureGates: {AllowServiceExternalIPs: false}\n" } else { "" };
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n{pods}{node_ports}{gate}\
         nftables: {{masqueradeAll: {masquerade_all}, masqueradeBit: {bit}}}\n"
    )
}
