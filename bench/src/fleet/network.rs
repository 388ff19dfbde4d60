//! The network of the fleet: a hub with the API server, and a namespace for each node, all on one bridge.

use std::net::Ipv4Addr;

use anyhow::{Context as _, anyhow};
use ferry_lab::Host;

use super::metrics;

/// The hub's address, with the API server and the marker's endpoint.
pub(super) const HUB: Ipv4Addr = Ipv4Addr::new(172, 31, 0, 1);
/// Port of the gate in front of the API server.
pub(super) const PORT: u16 = 6443;
/// The range of cluster IPs; for untranslated packets to it, the hub immediately answers that the destination is unreachable.
const CLUSTER_IPS: &str = "10.96.0.0/16";
/// Nodes per /24.
const PER_SUBNET: u32 = 250;

/// The hub and its links to nodes.
pub(super) struct Network<'a> {
    hub: &'a Host,
    /// number of links created; names are not reused, since the kernel removes links with a delay
    links: usize,
}

// === impl Network ===

impl<'a> Network<'a> {
    /// Creates the bridge in the hub.
    pub(super) fn new(hub: &'a Host) -> anyhow::Result<Self> {
        hub.sysctl("net/ipv4/ip_forward", "1");
        // Otherwise the kernel limits unreachable messages to a few a second.
        hub.sysctl("net/ipv4/icmp_ratemask", "0");
        let links = format!(
            "link add br0 type bridge\naddr add {HUB}/16 dev br0\nlink set br0 up\nroute add unreachable {CLUSTER_IPS}\n"
        );
        run(hub, "ip", &["-batch", "-"], &links)?;
        let counters = format!(
            "table inet fleet {{\n counter attempts {{}}\n chain input {{ type filter hook input priority 0;\n  \
             tcp dport {PORT} tcp flags & (syn | ack) == syn counter name attempts\n }}\n}}\n"
        );
        run(hub, "nft", &["-f", "-"], &counters)?;
        Ok(Self { hub, links: 0 })
    }

    /// Creates further nodes.
    pub(super) fn nodes(&mut self, count: usize) -> anyhow::Result<Vec<Host>> {
        let nodes: Vec<Host> = (0..count).map(|_| Host::new("node")).collect();
        let mut links = String::new();
        for node in &nodes {
            let (link, peer) = (self.links, node.thread_id());
            links.push_str(&format!(
                "link add n{link} type veth peer name eth0 netns {peer}\nlink set n{link} master br0 up\n"
            ));
            self.links += 1;
        }
        run(self.hub, "ip", &["-batch", "-"], &links)?;
        for (index, node) in nodes.iter().enumerate() {
            let address = address(index);
            let text = format!("addr add {address}/16 dev eth0\nlink set eth0 up\nroute add default via {HUB}\n");
            run(node, "ip", &["-batch", "-"], &text)?;
        }
        Ok(nodes)
    }

    /// SYN packets to the gate so far, answered or not.
    pub(super) fn attempts(&self) -> anyhow::Result<u64> {
        let text = run(self.hub, "nft", &["list", "counter", "inet", "fleet", "attempts"], "")?;
        metrics::after(&text, "packets").with_context(|| format!("no counter in {text}"))
    }
}

/// The address of a node.
pub(super) fn address(node: usize) -> Ipv4Addr {
    let node = u32::try_from(node).unwrap_or(0);
    let [.., high, low] = (256 + 256 * (node / PER_SUBNET) + 1 + node % PER_SUBNET).to_be_bytes();
    Ipv4Addr::new(172, 31, high, low)
}

fn run(host: &Host, program: &str, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    host.feed(program, arguments, input).map_err(|complaint| anyhow!("{program} {}: {complaint}", arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        assert_eq!(address(0), Ipv4Addr::new(172, 31, 1, 1));
        assert_eq!(address(249), Ipv4Addr::new(172, 31, 1, 250));
        assert_eq!(address(250), Ipv4Addr::new(172, 31, 2, 1));
        assert_eq!(address(999), Ipv4Addr::new(172, 31, 4, 250));
    }
}
