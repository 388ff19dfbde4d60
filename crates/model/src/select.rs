//! Selects a port's endpoints under traffic policies Cluster and Local: readiness, fallback to terminating endpoints, topology
//! hints.

use ferry_api::object::Protocol;

use crate::context::Context;
use crate::profile::Profile;
use crate::slices::EndpointRow;
use crate::state::{Endpoint, MAX_ENDPOINTS, Pool};

/// The traffic policies that a port's frontends need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) cluster: bool,
    pub(crate) local: bool,
}

/// The pools of a port. A policy that no frontend uses has an empty pool.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) cluster: Pool,
    pub(crate) local: Pool,
    /// a usable endpoint exists on some node
    pub(crate) any: bool,
    /// number of usable endpoints beyond the limit of the larger pool
    pub(crate) beyond: usize,
}

/// Why a policy doesn't choose an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    /// its condition ready is false, and it isn't a terminating one that serves
    NotReady,
    /// it is terminating, and others are ready
    Terminating,
    /// policy Local, and it is on another node, or its node isn't known
    OtherNode,
    /// its hints for nodes don't name this node, and those of others do
    HintedToOtherNodes,
    /// its hints for zones don't name this node's zone, and those of others do
    HintedToOtherZones,
}

/// By what a policy chooses among the endpoints of a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointChoice<'a> {
    /// this node alone, for policy Local
    node: Option<&'a str>,
    topology: Topology<'a>,
    /// no endpoint is ready: those that are terminating and still serve are chosen, wherever hints point to
    is_last_resort: bool,
}

/// The preference of policy Cluster among ready endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology<'a> {
    All,
    Node(&'a str),
    Zone(&'a str),
}

/// Selects from the endpoints of a port, which are sorted.
pub(crate) fn select(rows: &[EndpointRow<'_>], uses: Uses, context: &Context) -> Selection {
    let mut selection = Selection { cluster: Pool::default(), local: Pool::default(), any: false, beyond: 0 };
    if rows.is_empty() {
        return selection;
    }
    let mut beyond = 0;
    let mut pool_of = |choice: EndpointChoice<'_>| {
        let (pool, more) = pool_of(rows, &|row| choice.judge(row).is_ok());
        beyond = beyond.max(more);
        pool
    };
    if uses.cluster {
        selection.cluster = pool_of(EndpointChoice::of_cluster(rows, context));
        selection.any = !selection.cluster.is_empty();
    }
    if uses.local {
        selection.any |= rows.iter().any(|row| is_ready(row) || is_draining(row));
        selection.local = pool_of(EndpointChoice::of_local(rows, context));
        if selection.local == selection.cluster {
            selection.local = selection.cluster.clone();
        }
    }
    selection.beyond = beyond;
    selection
}

fn is_ready(row: &EndpointRow<'_>) -> bool {
    row.conditions.ready
}

/// True for an endpoint that is terminating and still serves.
fn is_draining(row: &EndpointRow<'_>) -> bool {
    row.conditions.serving && row.conditions.terminating
}

/// The endpoints in neither pool that keep their established flows. Flows of UDP and SCTP don't end by themselves, so only
/// endpoints that still serve keep them. Connections of TCP are ended, if at all, once their endpoint has left the slices.
pub(crate) fn lingering(
    rows: &[EndpointRow<'_>],
    selection: &Selection,
    protocol: Protocol,
    profile: &Profile,
) -> Pool {
    let pools = [&selection.cluster, &selection.local];
    let ends_by_itself = protocol == Protocol::Tcp;
    if ends_by_itself && !profile.ends_connections || pools.iter().any(|pool| pool.len() == rows.len()) {
        return Pool::default();
    }
    let chosen = |row: &EndpointRow<'_>| pools.iter().any(|pool| pool.0.binary_search(&row.endpoint).is_ok());
    let keeps = |row: &EndpointRow<'_>| ends_by_itself || is_ready(row) || row.conditions.serving;
    let (pool, _) = pool_of(rows, &|row| keeps(row) && !chosen(row));
    pool
}

/// The selected endpoints up to the limit, and the number of those beyond it.
fn pool_of(rows: &[EndpointRow<'_>], wanted: &dyn Fn(&EndpointRow<'_>) -> bool) -> (Pool, usize) {
    let mut endpoints: Vec<Endpoint> = Vec::with_capacity(rows.len());
    endpoints.extend(rows.iter().filter(|row| wanted(row)).map(|row| row.endpoint));
    let beyond = endpoints.len().saturating_sub(MAX_ENDPOINTS);
    endpoints.truncate(MAX_ENDPOINTS);
    (if endpoints.is_empty() { Pool::default() } else { Pool::new(endpoints) }, beyond)
}

/// Hints apply only if all ready endpoints have them and one names this node or its zone: node hints first, then zone hints.
fn topology<'a>(rows: &[EndpointRow<'_>], context: &'a Context) -> Topology<'a> {
    let node = Some(context.node_name.as_str()).filter(|node| !node.is_empty());
    let zone = context.zone.as_deref().filter(|zone| !zone.is_empty());
    let (mut all_nodes, mut our_node, mut all_zones, mut our_zone) = (true, false, true, false);
    for row in rows.iter().filter(|row| is_ready(row)) {
        let (nodes, zones) = (row.node_hints(), row.zone_hints());
        all_nodes &= !nodes.is_empty();
        all_zones &= !zones.is_empty();
        our_node |= node.is_some_and(|node| names(nodes, node));
        our_zone |= zone.is_some_and(|zone| names(zones, zone));
    }
    match (node, zone) {
        (Some(node), _) if all_nodes && our_node => Topology::Node(node),
        (_, Some(zone)) if all_zones && our_zone => Topology::Zone(zone),
        _ => Topology::All,
    }
}

fn names(hints: &[Box<str>], name: &str) -> bool {
    hints.iter().any(|hint| **hint == *name)
}

// === impl EndpointChoice ===

impl<'a> EndpointChoice<'a> {
    /// That of policy Cluster.
    pub(crate) fn of_cluster(rows: &[EndpointRow<'_>], context: &'a Context) -> Self {
        Self { node: None, topology: topology(rows, context), is_last_resort: false }.or_last_resort(rows)
    }

    /// That of policy Local.
    pub(crate) fn of_local(rows: &[EndpointRow<'_>], context: &'a Context) -> Self {
        Self { node: Some(&context.node_name), topology: Topology::All, is_last_resort: false }.or_last_resort(rows)
    }

    fn or_last_resort(self, rows: &[EndpointRow<'_>]) -> Self {
        Self { is_last_resort: !rows.iter().any(|row| self.judge(row).is_ok()), ..self }
    }

    /// Whether the policy chooses this endpoint.
    pub(crate) fn judge(&self, row: &EndpointRow<'_>) -> Result<(), Unused> {
        if self.node.is_some_and(|node| !row.is_on(node)) {
            return Err(Unused::OtherNode);
        }
        match (is_ready(row), is_draining(row)) {
            (_, true) if self.is_last_resort => Ok(()),
            (true, _) => self.topology.judge(row),
            (false, true) => Err(Unused::Terminating),
            (false, false) => Err(Unused::NotReady),
        }
    }
}

// === impl Topology ===

impl Topology<'_> {
    fn judge(self, row: &EndpointRow<'_>) -> Result<(), Unused> {
        match self {
            Self::Node(node) if !names(row.node_hints(), node) => Err(Unused::HintedToOtherNodes),
            Self::Zone(zone) if !names(row.zone_hints(), zone) => Err(Unused::HintedToOtherZones),
            Self::All | Self::Node(_) | Self::Zone(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
