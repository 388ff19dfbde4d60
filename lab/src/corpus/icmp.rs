//! Decodes ICMP errors, to attribute refusals to packets of raw sockets, and sends pings, which have neither ports nor
//! servers.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::server::transparent;
use super::terrain::Terrain;
use crate::lab::LabMachine;
use crate::patience::slowly;

/// Time limit for an answer: it arrives within a millisecond; the rest is for a machine under load.
const PATIENCE: Duration = Duration::from_secs(3);
/// The echo requests of ICMP and ICMPv6.
const ECHO: [u8; 2] = [8, 128];
/// The echo replies of ICMP and ICMPv6.
const REPLY: [u8; 2] = [0, 129];

/// A packet refused by ICMP: port or protocol unreachable.
pub(super) struct IcmpRefusal {
    /// its destination
    pub(super) to: IpAddr,
    /// its protocol's number
    pub(super) protocol: u8,
    /// the first bytes after its IP header
    pub(super) begins: [u8; 8],
}

/// A ping to send.
#[derive(Clone, Copy)]
pub(super) struct Ping {
    /// the sending machine
    pub(super) from: LabMachine,
    /// its source address
    pub(super) source: IpAddr,
    /// its destination
    pub(super) to: IpAddr,
    /// the expected answer
    pub(super) expected: PingAnswer,
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingAnswer {
    /// a port is unreachable
    Refusal,
    /// an echo
    Echo,
}

/// Raw sockets of both families that receive every ICMP message.
pub(super) fn sockets() -> Vec<Socket> {
    let open = |domain, protocol| {
        Socket::new(domain, Type::RAW.nonblocking(), Some(protocol)).expect("a raw socket needs root")
    };
    vec![open(Domain::IPV4, Protocol::ICMPV4), open(Domain::IPV6, Protocol::ICMPV6)]
}

/// Reads all refusals received so far.
pub(super) fn read(sockets: &[Socket]) -> Vec<IcmpRefusal> {
    let mut refusals = Vec::new();
    each_packet(sockets, &mut |packet| refusals.extend(IcmpRefusal::decode(packet)));
    refusals
}

fn each_packet(sockets: &[Socket], each: &mut dyn FnMut(&[u8])) {
    for mut socket in sockets {
        let mut packet = [0; 512];
        while let Ok(length) = socket.read(&mut packet) {
            packet.get(..length).into_iter().for_each(&mut *each);
        }
    }
}

/// Sends pings and returns the indexes of those that didn't get the expected answer.
pub(super) fn unmet(terrain: &Terrain, pings: &[Ping]) -> BTreeSet<usize> {
    let mut open: BTreeSet<usize> = (0..pings.len()).collect();
    for place in LabMachine::ALL {
        let mine: Vec<(usize, Ping)> =
            pings.iter().copied().enumerate().filter(|(_, ping)| ping.from == place).collect();
        if !mine.is_empty() {
            let met = terrain.host(place).run(move || met_here(&mine));
            open.retain(|at| !met.contains(at));
        }
    }
    open
}

fn met_here(pings: &[(usize, Ping)]) -> BTreeSet<usize> {
    let sockets = sockets();
    for (at, ping) in pings {
        if let Err(error) = send(*ping, u16::try_from(*at).expect("a small number")) {
            // a reject rule in the output hook may fail the send itself
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "ping to {}: {error}", ping.to);
        }
    }
    let mut found = BTreeSet::new();
    let start = Instant::now();
    let limit = slowly(PATIENCE);
    while found.len() < pings.len() && start.elapsed() < limit {
        let mut ready: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(limit.saturating_sub(start.elapsed())).expect("seconds fit");
        let _ = poll(&mut ready, Some(&timeout));
        each_packet(&sockets, &mut |packet| {
            let met = pings.iter().find(|(at, ping)| match ping.expected {
                PingAnswer::Refusal => IcmpRefusal::decode(packet).is_some_and(|refusal| refusal.is_about(*at, ping)),
                PingAnswer::Echo => is_echo_of(packet, *at),
            });
            found.extend(met.map(|(at, _)| *at));
        });
    }
    found
}

/// True for the reply to the ping of this number.
fn is_echo_of(packet: &[u8], number: usize) -> bool {
    let message = match packet.first().map(|first| first >> 4) {
        Some(4) => header_length(packet).and_then(|length| packet.get(length..)),
        _ => Some(packet),
    };
    match message {
        Some([kind, 0, _, _, high, low, 0, 0, ..]) => {
            REPLY.contains(kind) && number == usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    }
}

fn send(ping: Ping, number: u16) -> std::io::Result<()> {
    let [high, low] = number.to_be_bytes();
    let (protocol, kind) = match ping.to {
        IpAddr::V4(_) => (Protocol::ICMPV4, ECHO[0]),
        IpAddr::V6(_) => (Protocol::ICMPV6, ECHO[1]),
    };
    let socket = transparent(ping.source, Type::RAW, Some(protocol))?;
    socket.bind(&SocketAddr::new(ping.source, 0).into())?;
    // the kernel writes the checksum of ICMPv6
    let sum = !(u16::from(kind) << 8).wrapping_add(number);
    let [sum_high, sum_low] = sum.to_be_bytes();
    socket.send_to(&[kind, 0, sum_high, sum_low, high, low, 0, 0], &SocketAddr::new(ping.to, 0).into())?;
    Ok(())
}

// === impl IcmpRefusal ===

impl IcmpRefusal {
    /// Decodes a message of an unreachable port or protocol. Over IPv4 a raw socket delivers the IP header too.
    fn decode(packet: &[u8]) -> Option<Self> {
        let of_v4 = packet.first()? >> 4 == 4;
        let message = if of_v4 { packet.get(header_length(packet)?..)? } else { packet };
        let refuses = match message.get(..2)? {
            [3, 2 | 3] => of_v4,
            [1, 4] | [4, 1] => !of_v4,
            _ => false,
        };
        let about = message.get(8..).filter(|_| refuses)?;
        let (to, protocol, length): (IpAddr, u8, usize) = if of_v4 {
            let to: [u8; 4] = about.get(16..20)?.try_into().ok()?;
            (to.into(), *about.get(9)?, header_length(about)?)
        } else {
            let to: [u8; 16] = about.get(24..40)?.try_into().ok()?;
            (to.into(), *about.get(6)?, 40)
        };
        Some(Self { to, protocol, begins: about.get(length..length + 8)?.try_into().ok()? })
    }

    /// True if it refuses this ping with this number.
    fn is_about(&self, number: usize, ping: &Ping) -> bool {
        let [kind, _, _, _, high, low, ..] = self.begins;
        ping.to == self.to && ECHO.contains(&kind) && number == usize::from(u16::from_be_bytes([high, low]))
    }

    /// Source and destination port of the refused packet, for a protocol with ports.
    pub(super) fn ports(&self) -> (u16, u16) {
        let [a, b, c, d, ..] = self.begins;
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }
}

fn header_length(packet: &[u8]) -> Option<usize> {
    Some(usize::from(packet.first()? & 0xf) * 4)
}
