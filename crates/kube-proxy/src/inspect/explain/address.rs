//! An address: the Service that serves it, and what happens to a connection there.

use std::net::IpAddr;

use ferry_api::object::{Family, Service};
use ferry_model::{
    Frontend, FrontendAddr, NodePortAddresses, Origin, Packet, PortReasons, PortState, ServiceState, Verdict, decide,
    origin,
};

use super::service::{action_text, in_one_family, kind_text, policy_field, port_names};
use super::tree::{Answer, Tree};
use crate::inspect::connection::{Connection, Destination};
use crate::inspect::known::{InFamily, Known};

/// The frontend at an address.
struct Served<'a> {
    state: &'a ServiceState,
    port: &'a PortState,
    frontend: &'a Frontend,
}

/// Explains who serves an address and port.
pub(super) fn explain(known: &Known<'_>, to: &Destination, answer: &mut Answer) {
    let in_family = known.family(Family::of(to.at.ip()));
    match served(known, in_family, to) {
        Some(served) => {
            answer.facts.push(Tree::leaf(claim_text(to, &served)));
            explain_service(known, in_family, &served, answer);
        }
        None => nobody(known, in_family, to, answer),
    }
}

/// Explains what happens to a connection.
pub(super) fn explain_connection(known: &Known<'_>, connection: &Connection, answer: &mut Answer) {
    let (to, client) = (&connection.to, connection.client);
    let in_family = known.family(Family::of(client));
    let packet = connection.packet(&known.desired.addresses);
    let states = in_family.services.iter().copied();
    let verdict = decide(states, in_family.base, &packet, &in_family.context, &known.profile);
    let served = served(known, in_family, to);
    let (from, detector) = origin_text(&packet, in_family);
    let what = match &verdict {
        Verdict::Forward(endpoints) if endpoints.len() == 1 => "forwarded to the only endpoint".to_owned(),
        Verdict::Forward(endpoints) => format!("forwarded to one of {} endpoints", endpoints.len()),
        Verdict::Drop => "dropped: no answer".to_owned(),
        Verdict::Reject => "refused".to_owned(),
        Verdict::Pass => "not handled by the proxy".to_owned(),
    };
    let mut children = vec![Tree::leaf(format!("{client} is {from}{detector}"))];
    if let Some(served) = &served {
        let service = known.store().objects(&served.state.name).service;
        children.push(Tree::leaf(claim_text(to, served)));
        if !served.frontend.admits(client) {
            let name = &served.state.name;
            answer.problem(format!(
                "{client} is in no range of spec.loadBalancerSourceRanges of Service {name}: dropped"
            ));
        } else if let Some(service) = service {
            let treatment = served.frontend.treatment;
            let action = match origin(&packet, &in_family.context) {
                Origin::Pod => treatment.pod,
                Origin::Host => treatment.host,
                Origin::Other => treatment.other,
            };
            let policy = policy_field(service, served.frontend.kind);
            children.push(Tree::leaf(format!("from {from}: {}", action_text(action, policy))));
        }
    }
    answer.facts.push(Tree::with(format!("{client} -> {to}: {what}"), children));
    match &served {
        Some(served) => explain_service(known, in_family, served, answer),
        None => nobody(known, in_family, to, answer),
    }
}

/// The origin of a connection as text, and the local detector that decides it.
fn origin_text(packet: &Packet, in_family: &InFamily<'_>) -> (&'static str, String) {
    let detector = in_family.context.local.as_ref().map_or_else(String::new, |detector| format!(" ({detector})"));
    match origin(packet, &in_family.context) {
        Origin::Pod => ("a pod of this node", detector),
        Origin::Host => ("this node", String::new()),
        Origin::Other if detector.is_empty() => ("elsewhere", " as far as can be told".to_owned()),
        Origin::Other => ("elsewhere", format!(", no pod of this node{detector}")),
    }
}

/// The frontend at this address, or the node port of this number if the address serves node ports.
fn served<'a>(known: &Known<'a>, in_family: &InFamily<'a>, to: &Destination) -> Option<Served<'a>> {
    let (address, port) = (to.at.ip(), to.at.port());
    let at = |wanted: FrontendAddr| {
        in_family.services.iter().copied().find_map(|state| {
            let ports = state.ports.iter().filter(|of| of.protocol == to.protocol);
            let mut all = ports.flat_map(|port| port.frontends.iter().map(move |frontend| (port, frontend)));
            let (port, frontend) = all.find(|(_, frontend)| frontend.at == wanted)?;
            Some(Served { state, port, frontend })
        })
    };
    let serves_node_ports = match &in_family.base.node_ports {
        NodePortAddresses::All => known.desired.addresses.contains(&address),
        NodePortAddresses::Only(addresses) => addresses.contains(&address),
    };
    at(FrontendAddr::Vip(address, port)).or_else(|| at(FrontendAddr::NodePort(port)).filter(|_| serves_node_ports))
}

fn claim_text(to: &Destination, served: &Served<'_>) -> String {
    let Served { state, port, frontend } = served;
    let name = if port.name.is_empty() { String::new() } else { format!(" port {}", port.name) };
    format!("{to} is a {} of Service {}{name}", kind_text(frontend.kind), state.name)
}

fn explain_service(known: &Known<'_>, in_family: &InFamily<'_>, served: &Served<'_>, answer: &mut Answer) {
    if let Some(service) = known.store().objects(&served.state.name).service {
        let wanted = |port: &PortReasons<'_>| *port.name == *served.port.name && port.protocol == served.port.protocol;
        let tree = in_one_family(known, in_family, service, &wanted, answer);
        answer.facts.push(tree);
    }
}

/// No frontend is there: whose address it is, and with which ports.
fn nobody(known: &Known<'_>, in_family: &InFamily<'_>, to: &Destination, answer: &mut Answer) {
    let address = to.at.ip();
    let names = |service: &Service| {
        let text = |text: &Result<IpAddr, Box<str>>| text.as_ref().is_ok_and(|ip| *ip == address);
        let ingress = service.ingress.iter().map(|ingress| &ingress.ip);
        service.cluster_ips.iter().chain(&service.cluster_ip).chain(&service.external_ips).chain(ingress).any(text)
    };
    let mut found = false;
    for name in known.store().service_names() {
        let Some(service) = known.store().objects(name).service.filter(|service| names(service)) else { continue };
        found = true;
        answer.problem(format!(
            "no Service serves {to}: {address} belongs to Service {name}, whose ports are {}",
            port_names(service)
        ));
        let tree = in_one_family(known, in_family, service, &|_| true, answer);
        answer.facts.push(tree);
    }
    if !found && known.desired.addresses.contains(&address) {
        let port = to.at.port();
        answer.problem(format!(
            "no Service serves {to}: it is an address of this node, and no Service has the node port {port}"
        ));
    } else if !found {
        let in_range = in_family.base.service_cidrs.iter().find(|range| range.contains(&address));
        let range = in_range.map_or_else(String::new, |range| format!("; it is in the ServiceCIDR {range}"));
        answer.problem(format!("no Service serves {to}{range}"));
    }
}
