//! Paths and queries of the requests for each kind, as upstream's proxy sends them.

use ferry_api::object::{Kind, ObjectName};

use crate::query::encoded;

/// One kind of objects as a resource of the API server.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// plural and group, as in error texts of the server
    pub(super) name: &'static str,
    path: &'static str,
    /// selectors, in the form of the end of a query
    selectors: String,
    /// the cluster may lack it
    pub(super) optional: bool,
}

/// Required recency of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Recency {
    /// any state in the server's cache
    Any,
    /// the state of this version or a later one, from the server's cache once that has reached it
    Since(Box<str>),
    /// the latest state: the server has to read its store
    Latest,
}

/// Objects in one page of a list.
const PAGE: usize = 500;

impl Resource {
    /// The resource of a kind, selected for this node.
    pub(super) fn new(kind: Kind, node_name: &str) -> Self {
        let (name, path, label, field, optional) = match kind {
            Kind::Service => (
                "services",
                "/api/v1/services",
                Some("!service.kubernetes.io/service-proxy-name"),
                Some("spec.clusterIP!=None".to_owned()),
                false,
            ),
            Kind::EndpointSlice => (
                "endpointslices.discovery.k8s.io",
                "/apis/discovery.k8s.io/v1/endpointslices",
                Some("!service.kubernetes.io/headless"),
                None,
                false,
            ),
            Kind::Node => ("nodes", "/api/v1/nodes", None, Some(format!("metadata.name={node_name}")), false),
            Kind::ServiceCidr => {
                ("servicecidrs.networking.k8s.io", "/apis/networking.k8s.io/v1/servicecidrs", None, None, true)
            }
        };
        let mut selectors = String::new();
        for (key, selector) in [("labelSelector", label), ("fieldSelector", field.as_deref())] {
            if let Some(selector) = selector {
                selectors.extend(["&", key, "=", &encoded(selector)]);
            }
        }
        Self { kind, name, path, selectors, optional }
    }

    /// A streaming list: a watch that begins with all objects and marks their end.
    pub(super) fn streaming_list(&self, recency: &Recency, seconds: u64) -> String {
        let Self { path, selectors, .. } = self;
        let version = match recency {
            Recency::Any => "&resourceVersion=0".to_owned(),
            Recency::Since(version) => format!("&resourceVersion={}", encoded(version)),
            Recency::Latest => String::new(),
        };
        format!(
            "{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{version}\
             &allowWatchBookmarks=true&timeoutSeconds={seconds}{selectors}"
        )
    }

    /// The first page of a list. A list at a version has no limit, since with a limit many servers would read their store.
    pub(super) fn list(&self, recency: &Recency) -> String {
        let Self { path, selectors, .. } = self;
        match recency {
            Recency::Any => format!("{path}?limit={PAGE}&resourceVersion=0{selectors}"),
            Recency::Since(version) => format!("{path}?{}{selectors}", not_older_than(version)),
            Recency::Latest => format!("{path}?limit={PAGE}{selectors}"),
        }
    }

    /// One object by its name, if it exists and is selected, at a version or later, from the server's cache.
    pub(super) fn only(&self, name: &ObjectName, version: &str) -> String {
        let Self { path, selectors, .. } = self;
        let path = if self.kind.is_cluster_wide() {
            (*path).to_owned()
        } else {
            let (folder, plural) = path.rsplit_once('/').unwrap_or(("", path));
            format!("{folder}/namespaces/{}/{plural}", encoded(name.namespace()))
        };
        let field = format!("fieldSelector=metadata.name%3D{}", encoded(name.name()));
        let selectors = match selectors.split_once("fieldSelector=") {
            // The one Node is selected by its name already.
            Some(_) if self.kind == Kind::Node => selectors.clone(),
            Some((before, others)) => format!("{before}{field}%2C{others}"),
            None => format!("{selectors}&{field}"),
        };
        format!("{path}?{}{selectors}", not_older_than(version))
    }

    /// An object that every cluster has: the Service and the EndpointSlice `kubernetes`, the first ServiceCIDR; of Nodes this
    /// node's.
    pub(super) fn common(&self) -> ObjectName {
        const NAME: &str = "kubernetes";
        if self.kind.is_cluster_wide() { ObjectName::cluster_wide(NAME) } else { ObjectName::new("default", NAME) }
    }

    /// A further page.
    pub(super) fn page(&self, token: &str) -> String {
        let Self { path, selectors, .. } = self;
        format!("{path}?limit={PAGE}&continue={}{selectors}", encoded(token))
    }

    /// A watch from a version.
    pub(super) fn watch(&self, version: &str, seconds: u64) -> String {
        let Self { path, selectors, .. } = self;
        format!(
            "{path}?watch=true&resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds={seconds}{selectors}",
            encoded(version)
        )
    }
}

fn not_older_than(version: &str) -> String {
    format!("resourceVersion={}&resourceVersionMatch=NotOlderThan", encoded(version))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A query as a set, since its order means nothing.
    fn split(text: &str) -> (&str, BTreeSet<&str>) {
        let (path, query) = text.split_once('?').unwrap();
        let parts: Vec<&str> = query.split('&').collect();
        let set: BTreeSet<&str> = parts.iter().copied().collect();
        assert_eq!(parts.len(), set.len(), "{text}");
        (path, set)
    }

    #[test]
    fn streaming_lists_as_upstream_1_36_but_from_the_servers_cache() {
        let common = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                      &timeoutSeconds=432&resourceVersion=0";
        let wanted = [
            (Kind::Node, format!("/api/v1/nodes?{common}&fieldSelector=metadata.name%3Dnode-1")),
            (
                Kind::Service,
                format!(
                    "/api/v1/services?{common}&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
                     &fieldSelector=spec.clusterIP%21%3DNone"
                ),
            ),
            (
                Kind::EndpointSlice,
                format!(
                    "/apis/discovery.k8s.io/v1/endpointslices?{common}\
                     &labelSelector=%21service.kubernetes.io%2Fheadless"
                ),
            ),
            (Kind::ServiceCidr, format!("/apis/networking.k8s.io/v1/servicecidrs?{common}")),
        ];
        for (kind, wanted) in wanted {
            let asked = Resource::new(kind, "node-1").streaming_list(&Recency::Any, 432);
            assert_eq!(split(&asked), split(&wanted));
        }
    }

    #[test]
    fn pages_and_watches_keep_the_selectors() {
        let slices = Resource::new(Kind::EndpointSlice, "n");
        let path = "/apis/discovery.k8s.io/v1/endpointslices";
        let label = "labelSelector=%21service.kubernetes.io%2Fheadless";
        assert_eq!(slices.list(&Recency::Any), format!("{path}?limit=500&resourceVersion=0&{label}"));
        assert_eq!(slices.list(&Recency::Latest), format!("{path}?limit=500&{label}"));
        let since = Recency::Since("7".into());
        let not_older = "resourceVersion=7&resourceVersionMatch=NotOlderThan";
        assert_eq!(slices.list(&since), format!("{path}?{not_older}&{label}"));
        assert!(slices.streaming_list(&since, 9).contains("&resourceVersionMatch=NotOlderThan&resourceVersion=7&"));
        assert!(!slices.streaming_list(&Recency::Latest, 9).contains("resourceVersion="));
        assert_eq!(slices.page("ab+/=&c"), format!("{path}?limit=500&continue=ab%2B%2F%3D%26c&{label}"));
        assert_eq!(
            slices.watch("12", 301),
            format!("{path}?watch=true&resourceVersion=12&allowWatchBookmarks=true&timeoutSeconds=301&{label}")
        );
    }

    #[test]
    fn one_object_is_found_by_its_name() {
        let not_older = "resourceVersion=7&resourceVersionMatch=NotOlderThan";
        let only = |kind, name: &ObjectName| Resource::new(kind, "n").only(name, "7");
        assert_eq!(
            only(Kind::EndpointSlice, &ObjectName::new("shop", "web-1")),
            format!(
                "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?{not_older}\
                 &labelSelector=%21service.kubernetes.io%2Fheadless&fieldSelector=metadata.name%3Dweb-1"
            )
        );
        assert_eq!(
            only(Kind::Service, &ObjectName::new("shop", "web")),
            format!(
                "/api/v1/namespaces/shop/services?{not_older}&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
                 &fieldSelector=metadata.name%3Dweb%2Cspec.clusterIP%21%3DNone"
            )
        );
        assert_eq!(
            only(Kind::Node, &ObjectName::cluster_wide("n")),
            format!("/api/v1/nodes?{not_older}&fieldSelector=metadata.name%3Dn")
        );
        assert_eq!(
            only(Kind::ServiceCidr, &ObjectName::cluster_wide("kubernetes")),
            format!("/apis/networking.k8s.io/v1/servicecidrs?{not_older}&fieldSelector=metadata.name%3Dkubernetes")
        );
    }

    #[test]
    fn only_service_cidrs_are_optional() {
        let optional = |kind| Resource::new(kind, "n").optional;
        assert!(optional(Kind::ServiceCidr));
        assert!(![Kind::Service, Kind::EndpointSlice, Kind::Node].into_iter().any(optional));
    }
}
