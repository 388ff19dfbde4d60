//! The network of the demo: a client, a node and two pods behind it, each in its own namespace.

use super::guest::Guest;
use super::namespace::Namespace;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Description of the topology, for the output.
pub(crate) const TOPOLOGY: &str = "client (192.0.2.10, 2001:db8::10) - node (192.0.2.1, 2001:db8::1) - pod-1, pod-2";

/// A machine of the demo behind the node.
pub(crate) struct Machine {
    name: &'static str,
    pub(crate) v4: &'static str,
    pub(crate) v6: &'static str,
    /// The node's addresses on the link to it.
    gateway_v4: &'static str,
    gateway_v6: &'static str,
}

const CLIENT: Machine = Machine {
    name: "client",
    v4: "192.0.2.10",
    v6: "2001:db8::10",
    gateway_v4: "192.0.2.1",
    gateway_v6: "2001:db8::1",
};
pub(crate) const POD_1: Machine = Machine {
    name: "pod-1",
    v4: "10.244.1.2",
    v6: "fd00:244:1::2",
    gateway_v4: "10.244.1.1",
    gateway_v6: "fd00:244:1::1",
};
pub(crate) const POD_2: Machine = Machine {
    name: "pod-2",
    v4: "10.244.2.2",
    v6: "fd00:244:2::2",
    gateway_v4: "10.244.2.1",
    gateway_v6: "fd00:244:2::1",
};

/// The port in the EndpointSlices of `examples/hello`.
const POD_PORT: u16 = 8080;

/// The lab; removed when dropped.
pub(crate) struct Lab {
    pub(crate) client: Namespace,
    /// Kept until the lab is dropped, and dropped before their namespaces.
    _pods: Vec<Guest>,
    _pod_namespaces: Vec<Namespace>,
    pub(crate) node: Namespace,
    /// A copy of the example's manifests, for changes.
    pub(crate) manifests: PathBuf,
}

// === impl Machine ===

impl Machine {
    /// Connects the machine in `own` to the node, and routes all its traffic there.
    fn join(&self, own: &Namespace, node: &Namespace) -> Result<()> {
        let Self { name, v4, v6, gateway_v4, gateway_v6 } = self;
        let peer = node.process();
        own.shell(&format!(
            "ip link add eth0 type veth peer name {name} netns {peer}; ip link set eth0 up
             ip addr add {v4}/24 dev eth0; ip addr add {v6}/64 dev eth0 nodad"
        ))?;
        node.shell(&format!(
            "ip link set {name} up; ip addr add {gateway_v4}/24 dev {name}; ip addr add {gateway_v6}/64 dev {name} nodad"
        ))?;
        own.shell(&format!("ip route add default via {gateway_v4}; ip route add default via {gateway_v6}"))
    }
}

// === impl Lab ===

impl Lab {
    /// Creates the namespaces, starts the pods and copies the manifests.
    pub(crate) fn build(example: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("ferry-demo-{}", std::process::id()));
        let [client, node, pod_1, pod_2] = std::array::from_fn(|_| Namespace::new(&folder));
        let (client, node, pod_namespaces) = (client?, node?, vec![pod_1?, pod_2?]);
        node.shell("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")?;
        CLIENT.join(&client, &node)?;
        let mut pods = Vec::new();
        for (namespace, machine) in pod_namespaces.iter().zip([&POD_1, &POD_2]) {
            machine.join(namespace, &node)?;
            pods.push(Guest::pod(namespace, machine.name, POD_PORT)?);
        }
        let manifests = folder.join("manifests");
        std::fs::create_dir_all(&manifests).with_context(|| format!("creating {}", manifests.display()))?;
        for entry in std::fs::read_dir(example).with_context(|| format!("listing {}", example.display()))? {
            let file = entry?;
            std::fs::copy(file.path(), manifests.join(file.file_name())).context("copying a manifest")?;
        }
        Ok(Self { client, _pods: pods, _pod_namespaces: pod_namespaces, node, manifests })
    }

    /// Path of kube-proxy's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.manifests.with_file_name("kube-proxy.log")
    }
}
