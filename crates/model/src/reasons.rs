//! The reason why each endpoint of a Service is used or not: the slices and the choices of [`resolve`](crate::resolve()), endpoint by endpoint.

use ferry_api::object::{Conditions, Family, ObjectName, Protocol};

use crate::context::Context;
use crate::select::EndpointChoice;
pub use crate::select::Unused;
use crate::slices::{EndpointRow, PortIndex};
use crate::state::Endpoint;
use crate::store::ServiceObjects;
use crate::visible::{ValidPort, Visible, is_proxied, valid_ports};

/// The endpoints of one port of a Service in one IP family.
#[derive(Clone, Debug)]
pub struct PortReasons<'a> {
    /// index in spec.ports
    pub index: usize,
    /// its name; empty when unnamed
    pub name: &'a str,
    /// its protocol
    pub protocol: Protocol,
    /// its number
    pub port: u16,
    /// the endpoints of slice ports of this name and protocol, sorted
    pub endpoints: Vec<EndpointReasons<'a>>,
    /// the names and protocols of all ports of the Service's slices
    pub of_slices: Vec<(&'a str, Protocol)>,
}

/// One endpoint, and whether each traffic policy would choose it. A policy that no frontend uses chooses, too.
#[derive(Clone, Copy, Debug)]
pub struct EndpointReasons<'a> {
    /// the endpoint
    pub endpoint: Endpoint,
    /// the EndpointSlice that lists it
    pub slice: &'a ObjectName,
    /// its node, if the slice says so
    pub node: Option<&'a str>,
    /// its zone, if the slice says so
    pub zone: Option<&'a str>,
    /// its conditions
    pub conditions: Conditions,
    /// by policy Cluster
    pub cluster: Result<(), Unused>,
    /// by policy Local
    pub local: Result<(), Unused>,
}

/// The endpoints of each port that this family serves, in the order of the object; none if it doesn't serve the Service.
pub fn reasons<'a>(objects: &ServiceObjects<'a>, context: &Context, family: Family) -> Vec<PortReasons<'a>> {
    let Some(service) = objects.service.filter(|service| is_proxied(service)) else { return Vec::new() };
    if Visible::of(service, family).is_none() {
        return Vec::new();
    }
    let index = PortIndex::new(&objects.slices, family, &mut Vec::new());
    let of_port = |port: ValidPort<'a>| {
        let mut rows = Vec::new();
        index.endpoints(port.name, port.protocol, usize::MAX, &mut rows);
        let (cluster, local) = (EndpointChoice::of_cluster(&rows, context), EndpointChoice::of_local(&rows, context));
        let endpoint = |row: &EndpointRow<'a>| EndpointReasons {
            endpoint: row.endpoint,
            slice: row.slice_name(),
            node: row.node(),
            zone: row.zone(),
            conditions: row.conditions,
            cluster: cluster.judge(row),
            local: local.judge(row),
        };
        let endpoints = rows.iter().map(endpoint).collect();
        let ValidPort { index: at, name, protocol, port, .. } = port;
        PortReasons { index: at, name, protocol, port, endpoints, of_slices: index.names() }
    };
    valid_ports(service, &mut |_, _, _| {}).into_iter().map(of_port).collect()
}
