//! Plans the commands that turn a virtual server of the kernel into the desired one.

use std::collections::BTreeMap;

use ferry_kernel::ipvs::{self, Command, Connections, IpvsDestination, IpvsProtocol, IpvsServer};
use ferry_model::{Endpoint, Scheduler};

use super::convert::{destination, endpoint_of};
use crate::server::Weighted;

/// A virtual server as the kernel has it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) server: IpvsServer,
    pub(crate) destinations: Vec<(IpvsDestination, Connections)>,
}

/// The commands that fill a new server.
pub(crate) fn fill(id: ipvs::ServerId, endpoints: &[Weighted]) -> impl Iterator<Item = Command> {
    endpoints.iter().map(move |weighted| add(id, weighted))
}

/// Adds the commands that change a server: settings first, then endpoints that come or get another weight, and those that go
/// last, so that the server has an endpoint at each step. Returns the endpoints that drain, with weight 0.
pub(crate) fn change(
    found: &Found,
    server: IpvsServer,
    endpoints: &[Weighted],
    commands: &mut Vec<Command>,
) -> Vec<Endpoint> {
    let keeps_timeout = server.timeout_seconds == 0;
    let timeout_seconds = if keeps_timeout { 0 } else { found.server.timeout_seconds };
    if (IpvsServer { timeout_seconds, ..found.server }) != server {
        commands.push(Command::EditServer(server));
    }
    let mut there: BTreeMap<Endpoint, IpvsDestination> =
        found.destinations.iter().map(|(at, _)| (endpoint_of(at.address), *at)).collect();
    for weighted in endpoints {
        match there.remove(&weighted.endpoint) {
            None => commands.push(add(server.id, weighted)),
            Some(at) => {
                let wanted = destination(weighted.endpoint, weighted.weight);
                if at != wanted {
                    commands.push(Command::EditDestination(server.id, wanted));
                }
            }
        }
    }
    let mut draining = Vec::new();
    for (endpoint, at) in there {
        if !drains(&server) {
            commands.push(Command::DeleteDestination(server.id, at.address));
            continue;
        }
        if at.weight != 0 {
            commands.push(Command::EditDestination(server.id, destination(endpoint, 0)));
        }
        draining.push(endpoint);
    }
    draining
}

/// True if an endpoint that leaves its server keeps its connections: those of TCP end by themselves. One without connections drains, too,
/// since it may get one until its weight is 0. UDP and SCTP flows would go on as long as their clients send. With `dh` all connections
/// to a frontend go to one endpoint, and would be refused while that one has weight 0.
fn drains(server: &IpvsServer) -> bool {
    server.id.protocol == IpvsProtocol::Tcp && server.scheduler.name() != Scheduler::Dh.name()
}

fn add(id: ipvs::ServerId, weighted: &Weighted) -> Command {
    Command::NewDestination(id, destination(weighted.endpoint, weighted.weight))
}

#[cfg(test)]
mod tests {
    use ferry_kernel::ipvs::{Flags, Forwarding};

    use super::*;

    fn server(protocol: IpvsProtocol) -> IpvsServer {
        let id = ipvs::ServerId { address: [10, 96, 0, 1].into(), port: 80, protocol };
        let scheduler = ipvs::Scheduler::new("rr").unwrap();
        IpvsServer { id, scheduler, flags: Flags::default(), timeout_seconds: 0, netmask: id.host_netmask() }
    }

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { address: [10, 244, 0, last].into(), port: 8080 }
    }

    fn at(last: u8, weight: u32, active: u32) -> (IpvsDestination, Connections) {
        (destination(endpoint(last), weight), Connections { active, inactive: 0, persistent: 0 })
    }

    fn wanted(all: &[(u8, u32)]) -> Vec<Weighted> {
        all.iter().map(|(last, weight)| Weighted { endpoint: endpoint(*last), weight: *weight }).collect()
    }

    fn plan(
        protocol: IpvsProtocol,
        there: &[(IpvsDestination, Connections)],
        to: &[(u8, u32)],
    ) -> (Vec<String>, Vec<Endpoint>) {
        let found = Found { server: server(protocol), destinations: there.to_vec() };
        let mut commands = Vec::new();
        let draining = change(&found, server(protocol), &wanted(to), &mut commands);
        let text = |command: &Command| match command {
            Command::EditDestination(_, to) => format!("{command} weight {}", to.weight),
            _ => command.to_string(),
        };
        (commands.iter().map(text).collect(), draining)
    }

    #[test]
    fn an_unchanged_server_needs_no_command() {
        let there = [at(2, 1, 0), at(1, 3, 5)];
        assert_eq!(plan(IpvsProtocol::Tcp, &there, &[(1, 3), (2, 1)]), (vec![], vec![]));
    }

    #[test]
    fn endpoints_come_before_others_go() {
        let (commands, draining) = plan(IpvsProtocol::Udp, &[at(1, 1, 0)], &[(2, 1)]);
        let id = "UDP 10.96.0.1:80";
        let expected =
            [format!("add destination 10.244.0.2:8080 to {id}"), format!("delete destination 10.244.0.1:8080 of {id}")];
        assert_eq!((&commands[..], draining), (&expected[..], vec![]));
        let (commands, draining) = plan(IpvsProtocol::Tcp, &[at(1, 1, 0)], &[(2, 1)]);
        let id = "TCP 10.96.0.1:80";
        let expected = [
            format!("add destination 10.244.0.2:8080 to {id}"),
            format!("edit destination 10.244.0.1:8080 of {id} weight 0"),
        ];
        assert_eq!((&commands[..], draining), (&expected[..], vec![endpoint(1)]), "it may have connections by then");
    }

    #[test]
    fn an_endpoint_with_tcp_connections_drains_and_one_that_comes_back_gets_its_weight() {
        let edit = |last: u8, weight: u32| {
            format!("edit destination 10.244.0.{last}:8080 of TCP 10.96.0.1:80 weight {weight}")
        };
        let (commands, draining) = plan(IpvsProtocol::Tcp, &[at(1, 1, 2), at(2, 0, 3)], &[(2, 4)]);
        assert_eq!((commands, draining), (vec![edit(2, 4), edit(1, 0)], vec![endpoint(1)]));
        let (commands, draining) = plan(IpvsProtocol::Tcp, &[at(1, 0, 2)], &[]);
        assert_eq!((commands, draining), (vec![], vec![endpoint(1)]), "it drains already");
    }

    #[test]
    fn endpoints_of_udp_and_sctp_go_at_once() {
        for protocol in [IpvsProtocol::Udp, IpvsProtocol::Sctp] {
            let idle = (at(2, 1, 0).0, Connections { inactive: 7, ..Connections::default() });
            let (commands, draining) = plan(protocol, &[at(1, 1, 9), idle], &[]);
            assert!(
                commands.len() == 2 && commands.iter().all(|one| one.starts_with("delete destination")),
                "{commands:?}"
            );
            assert_eq!(draining, []);
        }
    }

    #[test]
    fn a_server_that_has_one_endpoint_for_all_clients_drains_none() {
        let dh = IpvsServer { scheduler: ipvs::Scheduler::new("dh").unwrap(), ..server(IpvsProtocol::Tcp) };
        let found = Found { server: dh, destinations: vec![at(1, 1, 9)] };
        let mut commands = Vec::new();
        assert_eq!(change(&found, dh, &[], &mut commands), []);
        assert!(matches!(commands[..], [Command::DeleteDestination(..)]), "{commands:?}");
    }

    #[test]
    fn altered_settings_and_destinations_are_set_again() {
        let tunnel = (IpvsDestination { forwarding: Forwarding(2), ..at(1, 1, 0).0 }, Connections::default());
        let (commands, _) = plan(IpvsProtocol::Tcp, &[tunnel], &[(1, 1)]);
        assert_eq!(commands.len(), 1, "{commands:?}");
        let persistent = IpvsServer { flags: Flags::PERSISTENT, timeout_seconds: 60, ..server(IpvsProtocol::Tcp) };
        let mut commands = Vec::new();
        let found = Found { server: persistent, destinations: vec![] };
        change(&found, server(IpvsProtocol::Tcp), &[], &mut commands);
        assert_eq!(commands, [Command::EditServer(server(IpvsProtocol::Tcp))]);
        // The kernel keeps the timeout of a server that isn't persistent any more.
        let was_persistent = IpvsServer { timeout_seconds: 60, ..server(IpvsProtocol::Tcp) };
        let found = Found { server: was_persistent, destinations: vec![] };
        commands.clear();
        change(&found, server(IpvsProtocol::Tcp), &[], &mut commands);
        assert_eq!(commands, []);
    }
}
