//! The nodes of a cluster, and the pods of their proxies, as kubectl lists them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use super::kubectl::Kubectl;
use super::page;

/// The way to the status page of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// `kubectl port-forward` to the proxy's pod
    PortForward,
    /// the API server's proxy to a port of the node
    NodeProxy,
}

/// Parameters for finding and reaching proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) via: Via,
    /// the namespace of their pods
    pub(super) namespace: String,
    /// the label selector of their pods
    pub(super) selector: String,
    /// the port of their status pages
    pub(super) port: u16,
}

/// The cluster that kubectl talks to.
#[derive(Clone, Copy, Debug)]
pub(super) struct KubectlCluster<'a> {
    kubectl: &'a Kubectl,
    reach: &'a Reach,
}

/// The proxy of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReachedProxy {
    pub(super) node: String,
    /// its pod; empty where none is needed
    pod: String,
}

const NO_NODES: &str = "the cluster has no nodes";

/// A list of objects, as far as it is read.
#[derive(Debug, Deserialize)]
struct ItemList {
    items: Vec<Item>,
}

/// A Node or a Pod.
#[derive(Debug, Deserialize)]
struct Item {
    metadata: ItemMetadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: ItemStatus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    name: String,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    /// of a Pod
    node_name: Option<String>,
    /// of a Node
    #[serde(default, rename = "podCIDRs")]
    pod_ranges: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct ItemStatus {
    phase: Option<String>,
}

/// A node's name, if it is one: lower case letters, digits, dashes and dots.
///
/// # Errors
/// If it isn't.
pub(super) fn checked_node(name: String) -> anyhow::Result<String> {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_inner = |byte: u8| is_part(byte) || matches!(byte, b'-' | b'.');
    if !name.bytes().all(is_inner) || !name.bytes().next().is_some_and(is_part) {
        bail!("{name:?} is not the name of a node");
    }
    Ok(name)
}

// === impl KubectlCluster ===

impl<'a> KubectlCluster<'a> {
    pub(super) fn new(kubectl: &'a Kubectl, reach: &'a Reach) -> Self {
        Self { kubectl, reach }
    }

    /// The proxy of this node.
    ///
    /// # Errors
    /// If its pod is needed, and there is none.
    pub(super) fn proxy(&self, node: &str) -> anyhow::Result<ReachedProxy> {
        if self.reach.via == Via::NodeProxy {
            return Ok(ReachedProxy { node: node.to_owned(), pod: String::new() });
        }
        let mut pods = self.pods(&[&format!("--field-selector=spec.nodeName={node}")])?;
        self.with_pod(node, pods.remove(node))
    }

    /// All nodes, by name, each with its proxy, or the reason why it can't be asked.
    ///
    /// # Errors
    /// If nodes or pods can't be listed, or there are none.
    pub(super) fn proxies(&self) -> anyhow::Result<Vec<(String, anyhow::Result<ReachedProxy>)>> {
        let nodes = self.nodes()?;
        if nodes.is_empty() {
            bail!(NO_NODES);
        }
        let mut pods = match self.reach.via {
            Via::PortForward => self.pods(&[])?,
            Via::NodeProxy => BTreeMap::new(),
        };
        let proxy = |node: String| {
            let proxy = match self.reach.via {
                Via::PortForward => self.with_pod(&node, pods.remove(&node)),
                Via::NodeProxy => Ok(ReachedProxy { node: node.clone(), pod: String::new() }),
            };
            (node, proxy)
        };
        Ok(nodes.into_iter().map(proxy).collect())
    }

    /// The proxy of the node of the pod with a client's address; without one, that of the node whose pod range has the address, or of the
    /// first node that has a proxy. With the reason for people.
    ///
    /// # Errors
    /// If objects can't be listed, or there is none.
    pub(super) fn choose(&self, client: Option<IpAddr>) -> anyhow::Result<(ReachedProxy, String)> {
        if let Some(client) = client
            && let Some((pod, node)) = self.pod_of(client)?
        {
            return Ok((self.proxy(&node)?, format!("it has the client's pod {pod}")));
        }
        // Without the permission to list nodes, or a proxy there, the first one answers as well: all serve the same objects.
        if let Some(client) = client
            && let Ok(Some((range, node))) = self.node_of(client)
            && let Ok(proxy) = self.proxy(&node)
        {
            return Ok((proxy, format!("{client} is in its pod range {range}")));
        }
        let first = match self.reach.via {
            Via::PortForward => self
                .pods(&[])?
                .into_iter()
                .next()
                .map(|(node, pod)| ReachedProxy { node, pod })
                .with_context(|| self.lacks_pods())?,
            Via::NodeProxy => self.proxy(self.nodes()?.first().context(NO_NODES)?)?,
        };
        let why = match client {
            Some(client) => {
                format!(
                    "the first one: no pod is known with {client} as its primary address, nor a proxy of its pod range"
                )
            }
            None => "the first one".to_owned(),
        };
        Ok((first, why))
    }

    /// Requests a page of a proxy.
    ///
    /// # Errors
    /// If it can't be reached, or refuses.
    pub(super) fn request(&self, proxy: &ReachedProxy, route: &str) -> anyhow::Result<Value> {
        let Reach { via, namespace, port, .. } = self.reach;
        match via {
            Via::PortForward => page::by_port_forward(self.kubectl, (namespace, &proxy.pod), *port, route),
            Via::NodeProxy => page::by_node_proxy(self.kubectl, &proxy.node, *port, route),
        }
    }

    fn with_pod(&self, node: &str, pod: Option<String>) -> anyhow::Result<ReachedProxy> {
        let pod = pod.with_context(|| format!("node {node} has no kube-proxy: {}", self.lacks_pods()))?;
        Ok(ReachedProxy { node: node.to_owned(), pod })
    }

    fn lacks_pods(&self) -> String {
        let Reach { namespace, selector, .. } = self.reach;
        format!(
            "no pod in namespace {namespace} runs there with label {selector}; --namespace and --selector name others, \
             --via=node-proxy needs none"
        )
    }

    /// The names of all nodes, sorted.
    fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let mut names: Vec<String> = self.list(&["nodes"])?.into_iter().map(|node| node.metadata.name).collect();
        names.sort();
        Ok(names)
    }

    /// The pods of proxies, by node.
    fn pods(&self, further: &[&str]) -> anyhow::Result<BTreeMap<String, String>> {
        let Reach { namespace, selector, .. } = self.reach;
        let (namespace, selector) = (format!("--namespace={namespace}"), format!("--selector={selector}"));
        Ok(by_node(self.list(&[&["pods", &namespace, &selector], further].concat())?))
    }

    /// The pod with this address: its name, and its node.
    fn pod_of(&self, address: IpAddr) -> anyhow::Result<Option<(String, String)>> {
        let selector = format!("--field-selector=status.podIP={address}");
        let mut pods = self.list(&["pods", "--all-namespaces", &selector])?;
        pods.sort_by_key(Item::rank);
        let found = pods.into_iter().find(|pod| !pod.has_ended());
        Ok(found.and_then(|pod| Some((pod.metadata.name, pod.spec.node_name?))))
    }

    /// The node with this address in a pod range, and that range: a pod is found by its primary address alone.
    fn node_of(&self, address: IpAddr) -> anyhow::Result<Option<(IpNet, String)>> {
        let nodes = self.list(&["nodes"])?.into_iter();
        let mut found = nodes.filter_map(|node| {
            let mut ranges = node.spec.pod_ranges.iter().filter_map(|range| range.parse::<IpNet>().ok());
            Some((ranges.find(|range| range.contains(&address))?, node.metadata.name))
        });
        Ok(found.next())
    }

    fn list(&self, arguments: &[&str]) -> anyhow::Result<Vec<Item>> {
        let text = self.kubectl.output(&[&["get"], arguments, &["--output=json"]].concat())?;
        let list: ItemList = serde_json::from_str(&text)
            .with_context(|| format!("kubectl get {}: decoding its output", arguments.join(" ")))?;
        Ok(list.items)
    }
}

/// The pod of each node. During an update a node may have two: the newer one answers.
fn by_node(mut pods: Vec<Item>) -> BTreeMap<String, String> {
    pods.retain(|pod| !pod.has_ended());
    pods.sort_by_key(Item::rank);
    let mut by_node = BTreeMap::new();
    for Item { metadata, spec, .. } in pods {
        if let Some(node) = spec.node_name {
            by_node.entry(node).or_insert(metadata.name);
        }
    }
    by_node
}

// === impl Item ===

impl Item {
    /// True for a pod whose processes have ended, which may still have an address that another one has now.
    fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// Running ones first, those that are being deleted last.
    fn rank(&self) -> (bool, bool, String) {
        let is_running = self.status.phase.as_deref() == Some("Running");
        (self.metadata.deletion_timestamp.is_some(), !is_running, self.metadata.name.clone())
    }
}

#[cfg(test)]
mod tests;
