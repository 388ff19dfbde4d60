//! Converts virtual servers between this mode's form and the kernel's.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use ferry_api::object::Protocol;
use ferry_kernel::ipvs::{self, Connections, Flags, Forwarding, IpvsDestination, IpvsProtocol, IpvsServer};
use ferry_model::{Endpoint, Scheduler};

use crate::server::{Listed, ServerId, ServerSettings, VirtualServer, Weighted};

/// The kernel's form of an identity.
pub(crate) fn kernel_id(id: ServerId) -> ipvs::ServerId {
    let protocol = match id.protocol {
        Protocol::Tcp => IpvsProtocol::Tcp,
        Protocol::Udp => IpvsProtocol::Udp,
        Protocol::Sctp => IpvsProtocol::Sctp,
    };
    ipvs::ServerId { address: id.address, port: id.port, protocol }
}

/// The identity of a server of the kernel.
pub(crate) fn id_of(id: ipvs::ServerId) -> ServerId {
    let protocol = match id.protocol {
        IpvsProtocol::Tcp => Protocol::Tcp,
        IpvsProtocol::Udp => Protocol::Udp,
        IpvsProtocol::Sctp => Protocol::Sctp,
    };
    ServerId { protocol, address: id.address, port: id.port }
}

/// The kernel's form of a server with this scheduler instead of its own. `None` if no kernel could have a scheduler of its name.
pub(crate) fn kernel_server(id: ServerId, settings: ServerSettings, scheduler: Scheduler) -> Option<IpvsServer> {
    let id = kernel_id(id);
    let mut flags = if settings.persistence.is_some() { Flags::PERSISTENT } else { Flags::default() };
    flags.0 |= match scheduler {
        // As upstream's proxy: the source port is a part of the hash. And as with `sh`.
        Scheduler::Mh => Flags::SCHEDULER_1.0 | Flags::SCHEDULER_2.0,
        // Clients of a draining endpoint get another: its place in the table of hashes stays, and they would be refused.
        Scheduler::Sh => Flags::SCHEDULER_1.0,
        _ => 0,
    };
    Some(IpvsServer {
        id,
        scheduler: ipvs::Scheduler::new(scheduler.name())?,
        flags,
        timeout_seconds: settings.persistence.map_or(0, NonZeroU32::get),
        netmask: id.host_netmask(),
    })
}

/// The settings of a server of the kernel.
pub(crate) fn settings_of(server: &IpvsServer) -> ServerSettings {
    let scheduler: Option<Scheduler> = server.scheduler.name().parse().ok();
    let is_persistent = server.flags.contains(Flags::PERSISTENT);
    let persistence = NonZeroU32::new(server.timeout_seconds).filter(|_| is_persistent);
    let plain = ServerSettings { scheduler: scheduler.unwrap_or_default(), persistence, altered: false };
    let same = kernel_server(id_of(server.id), plain, plain.scheduler).is_some_and(|same| {
        // The kernel keeps the timeout of a server that isn't persistent any more.
        IpvsServer { timeout_seconds: if is_persistent { server.timeout_seconds } else { 0 }, ..*server } == same
    });
    ServerSettings { altered: scheduler.is_none() || !same, ..plain }
}

/// The kernel's form of an endpoint.
pub(crate) fn destination(endpoint: Endpoint, weight: u32) -> IpvsDestination {
    IpvsDestination {
        address: SocketAddr::new(endpoint.address, endpoint.port),
        weight,
        forwarding: Forwarding::MASQUERADE,
        upper_threshold: 0,
        lower_threshold: 0,
    }
}

/// The endpoint of a destination.
pub(crate) fn endpoint_of(address: SocketAddr) -> Endpoint {
    Endpoint { address: address.ip(), port: address.port() }
}

/// The server with the destinations that get new connections: those of weight 0 are draining.
pub(crate) fn virtual_server(
    settings: ServerSettings,
    destinations: &[(IpvsDestination, Connections)],
) -> VirtualServer {
    let serving = destinations.iter().map(|(destination, _)| destination).filter(|serving| serving.weight > 0);
    let mut altered = settings.altered;
    let mut endpoints: Vec<Weighted> = serving
        .map(|found| {
            let weighted = Weighted { endpoint: endpoint_of(found.address), weight: found.weight };
            altered |= *found != destination(weighted.endpoint, weighted.weight);
            weighted
        })
        .collect();
    endpoints.sort_unstable();
    VirtualServer {
        settings: ServerSettings { altered, ..settings },
        endpoints: endpoints.into(),
        listed: Listed::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ServerId {
        ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, 1].into(), port: 80 }
    }

    fn settings(scheduler: Scheduler, seconds: u32) -> ServerSettings {
        ServerSettings { scheduler, persistence: NonZeroU32::new(seconds), altered: false }
    }

    #[test]
    fn settings_are_read_as_they_were_written() {
        for scheduler in Scheduler::ALL {
            for wanted in [settings(scheduler, 0), settings(scheduler, 10_800)] {
                let server = kernel_server(id(), wanted, scheduler).unwrap();
                assert_eq!(settings_of(&server), wanted);
            }
        }
        let once_persistent = IpvsServer {
            timeout_seconds: 7,
            ..kernel_server(id(), settings(Scheduler::Rr, 0), Scheduler::Rr).unwrap()
        };
        assert_eq!(settings_of(&once_persistent), settings(Scheduler::Rr, 0));
    }

    #[test]
    fn what_this_mode_never_makes_is_altered() {
        let plain = kernel_server(id(), settings(Scheduler::Rr, 60), Scheduler::Rr).unwrap();
        let odd = [
            IpvsServer { scheduler: ipvs::Scheduler::new("own").unwrap(), ..plain },
            IpvsServer { flags: Flags(plain.flags.0 | Flags::ONE_PACKET.0), ..plain },
            IpvsServer { netmask: 0xffff_ff00, ..plain },
        ];
        assert!(odd.iter().all(|server| settings_of(server).altered));
        assert!(!settings_of(&plain).altered);
    }

    #[test]
    fn draining_destinations_are_no_endpoints_and_odd_ones_alter_the_server() {
        let endpoint = |last: u8| Endpoint { address: [10, 244, 0, last].into(), port: 8080 };
        let at = |last, weight| (destination(endpoint(last), weight), Connections::default());
        let read = virtual_server(settings(Scheduler::Rr, 0), &[at(3, 2), at(1, 1), at(2, 0)]);
        let weighted = |last, weight| Weighted { endpoint: endpoint(last), weight };
        assert_eq!(read.endpoints[..], [weighted(1, 1), weighted(3, 2)]);
        assert!(!read.settings.altered);
        let tunnel = (IpvsDestination { forwarding: Forwarding(2), ..at(1, 1).0 }, Connections::default());
        assert!(virtual_server(settings(Scheduler::Rr, 0), &[tunnel]).settings.altered);
    }
    #[test]
    fn schedulers_that_hash_leave_out_endpoints_that_drain() {
        for scheduler in Scheduler::ALL {
            let hashing = match scheduler {
                Scheduler::Mh => 0x18,
                Scheduler::Sh => 0x8,
                _ => 0,
            };
            for (seconds, persistent) in [(0, 0), (60, Flags::PERSISTENT.0)] {
                let server = kernel_server(id(), settings(scheduler, seconds), scheduler).unwrap();
                assert_eq!(server.flags, Flags(hashing | persistent), "{scheduler}");
            }
        }
    }
}
