//! An address: the Service that serves it, and what happens to a connection there.

use std::collections::BTreeSet;
use std::iter;
use std::net::IpAddr;

use ferry_api::object::{Family, ObjectName};
use ferry_model::{
    Frontend, FrontendAddr, NodePortAddresses, Origin, Packet, PortReasons, PortState, Verdict, claiming_field, decide,
    origin,
};

use super::known::KnownState;
use super::service::{action_text, in_one_family, kind_text, policy_field, port_names};
use super::tree::{Explanation, Fact};
use super::unserved;
use crate::core::{FamilyView, has_address};
use crate::inspect::connection::{Connection, TransportAddress};

/// Services that a problem names as losers of an address: thousands may claim one.
const NAMED: usize = 5;

/// The frontend at an address.
struct AddressFrontend {
    service: ObjectName,
    port: PortState,
    frontend: Frontend,
}

/// Explains who serves an address and port.
pub(super) fn explain(known: &KnownState<'_>, to: &TransportAddress, answer: &mut Explanation) {
    let family = Family::of(to.at.ip());
    let Some(in_family) = &known.view.family(family) else {
        answer.problem(unserved(family));
        return;
    };
    match served(known, in_family, to) {
        Some(served) => {
            answer.facts.push(Fact::leaf(claim_text(to, &served)));
            explain_service(known, in_family, (to, &served), answer);
        }
        None => nobody(known, in_family, to, answer),
    }
}

/// Explains what happens to a connection.
pub(super) fn explain_connection(known: &KnownState<'_>, connection: &Connection, answer: &mut Explanation) {
    let (to, client) = (&connection.to, connection.client);
    let family = Family::of(client);
    let Some(in_family) = &known.view.family(family) else {
        answer.problem(unserved(family));
        return;
    };
    let packet = connection.packet(known.view.addresses);
    let states = known.view.concerned(&packet, in_family);
    let verdict = decide(&states, in_family.base, &packet, in_family.context, known.view.profile);
    let served = served(known, in_family, to);
    let (from, detector) = origin_text(&packet, in_family);
    let what = match &verdict {
        Verdict::Forward(endpoints) if endpoints.len() == 1 => "forwarded to the only endpoint".to_owned(),
        Verdict::Forward(endpoints) => format!("forwarded to one of {} endpoints", endpoints.len()),
        Verdict::Drop => "dropped: no answer".to_owned(),
        Verdict::Reject => "refused".to_owned(),
        Verdict::Pass => "not handled by the proxy".to_owned(),
    };
    let mut children = vec![Fact::leaf(format!("{client} is {from}{detector}"))];
    if let Some(served) = &served {
        let service = known.store().objects(&served.service).service;
        children.push(Fact::leaf(claim_text(to, served)));
        if !served.frontend.admits(client) {
            let name = &served.service;
            answer.problem(format!(
                "{client} is in no range of spec.loadBalancerSourceRanges of Service {name}: dropped"
            ));
        } else if let Some(service) = service {
            let treatment = served.frontend.treatment;
            let action = match origin(&packet, in_family.context) {
                Origin::Pod => treatment.pod,
                Origin::Host => treatment.host,
                Origin::Other => treatment.other,
            };
            let policy = policy_field(service, served.frontend.kind);
            children.push(Fact::leaf(format!("from {from}: {}", action_text(action, policy))));
        }
    }
    answer.facts.push(Fact::with(format!("{client} -> {to}: {what}"), children));
    match &served {
        Some(served) => explain_service(known, in_family, (to, served), answer),
        None => nobody(known, in_family, to, answer),
    }
}

/// The origin of a connection as text, and the local detector that decides it.
fn origin_text(packet: &Packet, in_family: &FamilyView<'_>) -> (&'static str, String) {
    let detector = in_family.context.local.as_ref().map_or_else(String::new, |detector| format!(" ({detector})"));
    match origin(packet, in_family.context) {
        Origin::Pod => ("a pod of this node", detector),
        Origin::Host => ("this node", String::new()),
        Origin::Other if detector.is_empty() => ("elsewhere", " as far as can be told".to_owned()),
        Origin::Other => ("elsewhere", format!(", no pod of this node{detector}")),
    }
}

/// The frontend at this address, or the node port of this number if the address serves node ports.
fn served(known: &KnownState<'_>, in_family: &FamilyView<'_>, to: &TransportAddress) -> Option<AddressFrontend> {
    let (address, port) = (to.at.ip(), to.at.port());
    let at = |wanted: FrontendAddr| {
        let service = known.store().claims().owner(in_family.family, wanted, to.protocol)?;
        let (state, _) = known.view.resolved(service, in_family);
        let ports = state.ports.into_iter().filter(|of| of.protocol == to.protocol);
        let mut found = ports.filter_map(|port| {
            let frontend = port.frontends.iter().find(|frontend| frontend.at == wanted)?.clone();
            Some(AddressFrontend { service: service.clone(), port, frontend })
        });
        found.next()
    };
    let at_node = || at(FrontendAddr::NodePort(port)).filter(|_| serves_node_ports(known, in_family, address));
    at(FrontendAddr::Vip(address, port)).or_else(at_node)
}

/// True if node ports are served at an address.
fn serves_node_ports(known: &KnownState<'_>, in_family: &FamilyView<'_>, address: IpAddr) -> bool {
    match &in_family.base.node_ports {
        NodePortAddresses::All => known.view.addresses.contains(&address),
        NodePortAddresses::Only(addresses) => addresses.contains(&address),
    }
}

fn claim_text(to: &TransportAddress, served: &AddressFrontend) -> String {
    let AddressFrontend { service, port, frontend } = served;
    let name = if port.name.is_empty() { String::new() } else { format!(" port {}", port.name) };
    format!("{to} is a {} of Service {service}{name}", kind_text(frontend.kind))
}

fn explain_service(
    known: &KnownState<'_>,
    in_family: &FamilyView<'_>,
    (to, served): (&TransportAddress, &AddressFrontend),
    answer: &mut Explanation,
) {
    report_losers(known, in_family, (to, served), answer);
    if let Some(service) = known.store().objects(&served.service).service {
        let wanted = |port: &PortReasons<'_>| *port.name == *served.port.name && port.protocol == served.port.protocol;
        let tree = in_one_family(known, in_family, service, &wanted, answer);
        answer.facts.push(tree);
    }
}

/// Reports the Services that claim the same address, port and protocol and lost it: a client that means one of them
/// reaches the endpoints of the owner.
fn report_losers(
    known: &KnownState<'_>,
    in_family: &FamilyView<'_>,
    (to, served): (&TransportAddress, &AddressFrontend),
    answer: &mut Explanation,
) {
    let (family, owner) = (in_family.family, &served.service);
    let node_port = serves_node_ports(known, in_family, to.at.ip()).then_some(FrontendAddr::NodePort(to.at.port()));
    let claimed: Vec<FrontendAddr> = iter::once(FrontendAddr::Vip(to.at.ip(), to.at.port())).chain(node_port).collect();
    let losers: BTreeSet<&ObjectName> = claimed
        .iter()
        .flat_map(|at| known.store().claims().claimants(family, *at, to.protocol))
        .filter(|name| *name != owner)
        .collect();
    if losers.is_empty() {
        return;
    }
    let field = |name: &ObjectName| {
        let service = known.store().objects(name).service?;
        claimed.iter().find_map(|at| claiming_field(service, family, *at, to.protocol))
    };
    let with_field = |name: &&ObjectName| match field(name) {
        Some(field) => format!("{name} ({field})"),
        None => name.to_string(),
    };
    let named: Vec<String> = losers.iter().take(NAMED).map(with_field).collect();
    let more = losers.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let named = named.join(", ");
    answer.problem(format!("{to} belongs to Service {owner}, which comes first: not served for {named}{more}"));
}

/// No frontend is there: whose address it is, and with which ports.
fn nobody(known: &KnownState<'_>, in_family: &FamilyView<'_>, to: &TransportAddress, answer: &mut Explanation) {
    let address = to.at.ip();
    let mut found = false;
    for name in known.store().service_names() {
        let Some(service) = known.store().objects(name).service.filter(|service| has_address(service, address)) else {
            continue;
        };
        found = true;
        answer.problem(format!(
            "no Service serves {to}: {address} belongs to Service {name}, whose ports are {}",
            port_names(service)
        ));
        let tree = in_one_family(known, in_family, service, &|_| true, answer);
        answer.facts.push(tree);
    }
    if !found && known.view.addresses.contains(&address) {
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
