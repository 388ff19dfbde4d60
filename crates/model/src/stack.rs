//! The node's primary IP family and its addresses, and diagnostics of configured fields of a family that the node doesn't have.

use std::fmt;
use std::net::IpAddr;

use ferry_api::config::{
    KubeProxyConfiguration, LOCAL_MODE_CLUSTER_CIDR, LOCAL_MODE_NODE_CIDR, MODE_IPVS, NODE_PORT_ADDRESSES_PRIMARY,
};
use ferry_api::object::{AddressKind, Family, Node};
use ferry_api::wire::address::{parse_cidr, parse_socket_address};

use crate::facts::{self, Settings};

/// The IP families of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// the family of the bind address, else of the Node's first address, else IPv4
    pub primary: Family,
    /// the node's address in each served family, the primary one first
    pub addresses: Vec<IpAddr>,
    /// texts about settings that don't fit these families; the proxy runs with them
    pub warnings: Vec<String>,
}

/// A configuration with which the proxy would serve nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackError {
    /// the primary family can't be served on this machine
    Primary(Family),
    /// pods of this node can't be recognised
    Incorrect(String),
}

/// What a check needs to know of the families.
struct Check {
    primary: Family,
    is_dual: bool,
    warnings: Vec<String>,
}

// === impl Stack ===

impl Stack {
    /// Checks a valid configuration against the Node and the served families: upstream's checks, texts and their consequences
    /// (contract: configuration and families).
    ///
    /// # Errors
    /// If the proxy can't serve this node with this configuration.
    pub fn check(
        config: &KubeProxyConfiguration,
        settings: &Settings,
        node: Option<&Node>,
        served: &[Family],
    ) -> Result<Self, StackError> {
        let primary = primary(settings, node);
        if !served.contains(&primary) {
            return Err(StackError::Primary(primary));
        }
        let mut check = Check { primary, is_dual: served.len() > 1, warnings: Vec::new() };
        check.pod_ranges(config, node)?;
        check.node_port_addresses(config);
        check.single_stack(config);
        let mut families = served.to_vec();
        families.sort_unstable_by_key(|family| *family != primary);
        let addresses = families.into_iter().map(|family| facts::node_ip(settings, node, family)).collect();
        Ok(Self { primary, addresses, warnings: check.warnings })
    }
}

/// The primary family: internal addresses come before external ones.
fn primary(settings: &Settings, node: Option<&Node>) -> Family {
    let of = |kind| {
        let all = node.into_iter().flat_map(|node| &node.addresses);
        all.filter(move |entry| entry.kind == kind).find_map(|entry| entry.address.as_ref().ok().copied())
    };
    let of_node = || of(AddressKind::Internal).or_else(|| of(AddressKind::External));
    settings.bind_address.or_else(of_node).map_or(Family::V4, Family::of)
}

// === impl StackError ===

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary(family) => write!(f, "no support for primary IP family \"{family}\""),
            Self::Incorrect(text) => write!(f, "kube-proxy configuration is incorrect: {text}"),
        }
    }
}

// === impl Check ===

impl Check {
    /// `IPv4-only`, or `IPv4-primary` where the other family is served, too.
    fn cluster(&self) -> String {
        format!("{}-{}", self.primary, if self.is_dual { "primary" } else { "only" })
    }

    /// The text, if there are families, and all are the other one.
    fn only_other(&self, what: &str, families: impl IntoIterator<Item = Family>) -> Option<String> {
        let mut families = families.into_iter().peekable();
        let first = *families.peek()?;
        families
            .all(|family| family != self.primary)
            .then(|| format!("cluster is {} but {what} contains only {first} addresses", self.cluster()))
    }

    /// The ranges by which pods of this node are recognised.
    fn pod_ranges(&mut self, config: &KubeProxyConfiguration, node: Option<&Node>) -> Result<(), StackError> {
        let cluster = config.cluster_cidr.split(',').filter_map(|text| parse_cidr(text.trim())).map(Family::of_net);
        let of_node = node.into_iter().flat_map(|node| &node.pod_cidrs);
        let of_node = of_node.filter_map(|range| range.as_ref().ok()).map(|range| Family::of_net(*range));
        let cluster = self.only_other("clusterCIDRs", cluster.collect::<Vec<_>>());
        let of_node = self.only_other("node.spec.podCIDRs", of_node.collect::<Vec<_>>());
        for (text, mode) in [(cluster, LOCAL_MODE_CLUSTER_CIDR), (of_node, LOCAL_MODE_NODE_CIDR)] {
            match text {
                Some(text) if config.detect_local_mode == mode && !self.is_dual => {
                    return Err(StackError::Incorrect(text));
                }
                text => self.warnings.extend(text),
            }
        }
        Ok(())
    }

    fn node_port_addresses(&mut self, config: &KubeProxyConfiguration) {
        let texts = &config.node_port_addresses;
        if texts.is_empty() {
            self.warnings.push(
                "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using \
                 `--nodeport-addresses primary`"
                    .to_owned(),
            );
        }
        if texts.iter().any(|text| text == NODE_PORT_ADDRESSES_PRIMARY) {
            return;
        }
        let families: Vec<Family> = texts.iter().filter_map(|text| parse_cidr(text)).map(Family::of_net).collect();
        let only_primary = !families.is_empty() && families.iter().all(|family| *family == self.primary);
        if self.is_dual && only_primary {
            let (primary, other) = (self.primary, if self.primary == Family::V4 { Family::V6 } else { Family::V4 });
            self.warnings.push(format!(
                "cluster is {} but nodePortAddresses contains only {primary} addresses; NodePort connections will be \
                 accepted on all local {other} IPs",
                self.cluster()
            ));
        } else {
            self.warnings.extend(self.only_other("nodePortAddresses", families));
        }
    }

    /// Settings that concern the other family alone, where that one isn't served.
    fn single_stack(&mut self, config: &KubeProxyConfiguration) {
        if self.is_dual {
            return;
        }
        if config.mode == MODE_IPVS {
            let excluded = config.ipvs.exclude_cidrs.iter().filter_map(|text| parse_cidr(text)).map(Family::of_net);
            let excluded = self.only_other("ipvs.excludeCIDRs", excluded.collect::<Vec<_>>());
            self.warnings.extend(excluded);
        }
        let addresses = [
            ("healthzBindAddress", &config.healthz_bind_address),
            ("metricsBindAddress", &config.metrics_bind_address),
        ];
        for (field, text) in addresses {
            // A wildcard of either family listens on both.
            let address = parse_socket_address(text).map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
            let text = self.only_other(field, address.map(Family::of));
            self.warnings.extend(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{NodeAddress, ObjectName};

    use super::*;

    const BOTH: &[Family] = &Family::ALL;
    const V4: &[Family] = &[Family::V4];

    fn node(addresses: &[&str], ranges: &[&str]) -> Node {
        let internal = |text: &&str| NodeAddress { kind: AddressKind::Internal, address: Ok(text.parse().unwrap()) };
        Node {
            addresses: addresses.iter().map(internal).collect(),
            pod_cidrs: ranges.iter().map(|text| Ok(text.parse().unwrap())).collect(),
            name: ObjectName::cluster_wide("here"),
            zone: None,
            deleting: false,
            to_be_deleted: false,
        }
    }

    fn check(
        edit: impl FnOnce(&mut KubeProxyConfiguration),
        node: Option<&Node>,
        served: &[Family],
    ) -> Result<Stack, StackError> {
        let mut config =
            KubeProxyConfiguration { node_port_addresses: vec!["primary".to_owned()], ..Default::default() };
        edit(&mut config);
        config.apply_platform_defaults();
        Stack::check(&config, &Settings::from_config(&config, "here"), node, served)
    }

    #[test]
    fn the_primary_family_is_that_of_the_first_address() {
        let dual = node(&["fd00::1", "192.0.2.1"], &[]);
        let stack = check(|_| {}, Some(&dual), BOTH).unwrap();
        assert_eq!((stack.primary, stack.warnings), (Family::V6, Vec::new()));
        assert_eq!(stack.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["fd00::1", "192.0.2.1"]);
        let bound = check(|config| config.bind_address = "192.0.2.9".to_owned(), Some(&dual), BOTH).unwrap();
        assert_eq!(bound.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.9", "fd00::1"]);
        assert_eq!(check(|_| {}, None, BOTH).unwrap().primary, Family::V4);
        let error = check(|_| {}, Some(&dual), V4).unwrap_err();
        assert_eq!(error.to_string(), "no support for primary IP family \"IPv6\"");
    }

    #[test]
    fn an_internal_address_comes_before_an_external_one() {
        let external = NodeAddress { kind: AddressKind::External, address: Ok("192.0.2.1".parse().unwrap()) };
        let mut mixed = node(&["fd00::1"], &[]);
        mixed.addresses = [external.clone()].into_iter().chain(mixed.addresses).collect();
        assert_eq!(check(|_| {}, Some(&mixed), BOTH).unwrap().primary, Family::V6);
        let address = Ok("fd00::1".parse().unwrap());
        mixed.addresses = [NodeAddress { address, ..external.clone() }, external].into();
        assert_eq!(check(|_| {}, Some(&mixed), BOTH).unwrap().primary, Family::V6, "the first of those that there are");
    }

    #[test]
    fn ranges_of_the_other_family_alone_are_fatal_where_they_recognise_pods() {
        let v4 = node(&["192.0.2.1"], &["fd00:1::/64"]);
        let cluster = |config: &mut KubeProxyConfiguration| config.cluster_cidr = "fd00::/48".to_owned();
        let error = check(cluster, None, V4).unwrap_err().to_string();
        let text = "cluster is IPv4-only but clusterCIDRs contains only IPv6 addresses";
        assert_eq!(error, format!("kube-proxy configuration is incorrect: {text}"));
        let dual = check(cluster, None, BOTH).unwrap().warnings;
        assert_eq!(dual, [text.replace("only but", "primary but")]);
        let by_node = |config: &mut KubeProxyConfiguration| config.detect_local_mode = "NodeCIDR".to_owned();
        let error = check(by_node, Some(&v4), V4).unwrap_err().to_string();
        assert!(error.ends_with("cluster is IPv4-only but node.spec.podCIDRs contains only IPv6 addresses"), "{error}");
        assert_eq!(check(|_| {}, Some(&v4), V4).unwrap().warnings.len(), 1, "of no consequence in this mode");
    }

    #[test]
    fn node_port_addresses_that_leave_a_family_open_are_named() {
        let warnings = |texts: &[&str], served| {
            let texts = texts.iter().map(ToString::to_string).collect();
            check(|config| config.node_port_addresses = texts, None, served).unwrap().warnings
        };
        assert!(warnings(&[], BOTH)[0].starts_with("nodePortAddresses is unset; "));
        let primary = warnings(&["10.0.0.0/8"], BOTH);
        assert!(
            primary[0].contains("only IPv4 addresses; ") && primary[0].ends_with("all local IPv6 IPs"),
            "{primary:?}"
        );
        assert_eq!(
            warnings(&["fd00::/8"], V4),
            ["cluster is IPv4-only but nodePortAddresses contains only IPv6 addresses"]
        );
        assert_eq!(warnings(&["10.0.0.0/8"], V4), [""; 0]);
        assert_eq!(warnings(&["10.0.0.0/8", "fd00::/8"], BOTH), [""; 0]);
    }

    #[test]
    fn settings_of_a_family_that_is_not_served_are_named() {
        let edit = |config: &mut KubeProxyConfiguration| {
            config.mode = "ipvs".to_owned();
            config.ipvs.exclude_cidrs = vec!["fd00::/8".to_owned()];
            config.metrics_bind_address = "[::1]:10249".to_owned();
            config.healthz_bind_address = "[::]:10256".to_owned();
        };
        let fields = ["ipvs.excludeCIDRs", "metricsBindAddress"];
        let texts = fields.map(|field| format!("cluster is IPv4-only but {field} contains only IPv6 addresses"));
        assert_eq!(check(edit, None, V4).unwrap().warnings, texts);
        assert_eq!(check(edit, None, BOTH).unwrap().warnings, [""; 0]);
    }
}
