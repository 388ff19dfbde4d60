//! Virtual servers with their destinations, from `/proc/net/ip_vs` (net/netfilter/ipvs/ip_vs_ctl.c): all in one file, while netlink needs
//! a dump for each server. On user-mode Linux 1,000 servers with 10 destinations each take 9 ms, and 149 ms by netlink.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;

use super::connections::address;
use super::destination::{Connections, Forwarding, IpvsDestination};
use super::server::{IpvsProtocol, ServerId};

/// A virtual server as the file lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedServer {
    /// The server's identity; `None` of one that serves a firewall mark, or whose line is of no known form.
    pub id: Option<ServerId>,
    /// Its destinations, the last added one first. The file tells neither their thresholds nor the clients that session affinity sends
    /// to them: those are zeros.
    pub destinations: Vec<(IpvsDestination, Connections)>,
}

/// The file, which is read server by server.
///
/// The kernel renders a page at a time, and finds the place of each by counting servers: one is left out if another before it was
/// deleted since the page before, or listed twice if one was added. Until Linux 6.12 at least, servers of other network namespaces make
/// it count wrongly, so that some are left out at each page. The counting takes time that grows with the square of the number of servers. A
/// page may be older than a change that was made meanwhile.
#[derive(Debug)]
pub struct Listing<R = BufReader<File>> {
    file: R,
    line: Vec<u8>,
    /// the server whose destinations are being read
    current: Option<ListedServer>,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedLine {
    /// A virtual server; `None` of one that serves a firewall mark.
    Server(Option<ServerId>),
    /// A destination of the server above it.
    Destination(IpvsDestination, Connections),
}

// === impl Listing ===

impl Listing {
    /// Opens the file of this thread's network namespace.
    ///
    /// # Errors
    /// The system's; not found without IPVS.
    pub fn open() -> io::Result<Self> {
        Ok(Self::over(BufReader::new(File::open("/proc/thread-self/net/ip_vs")?)))
    }
}

impl<R: BufRead> Listing<R> {
    fn over(file: R) -> Self {
        Self { file, line: Vec::new(), current: None }
    }

    /// The next server; `None` at the end. The heading is left out, and so is a destination of no known form.
    ///
    /// # Errors
    /// The system's, also when the module `ip_vs` was removed since the file was opened.
    pub fn next_server(&mut self) -> io::Result<Option<ListedServer>> {
        loop {
            self.line.clear();
            if self.file.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(self.current.take());
            }
            let line = std::str::from_utf8(&self.line).unwrap_or_default();
            let id = match decode_listed(line) {
                Some(ListedLine::Destination(destination, connections)) => {
                    if let Some(current) = &mut self.current {
                        current.destinations.push((destination, connections));
                    }
                    continue;
                }
                None if line.trim_start().starts_with("->") || self.current.is_none() => continue,
                Some(ListedLine::Server(id)) => id,
                // The destinations below are not those of the server above.
                None => None,
            };
            let before = self.current.replace(ListedServer { id, destinations: Vec::new() });
            if before.is_some() {
                return Ok(before);
            }
        }
    }
}

/// Decodes a line of the file; `None` of its heading.
pub fn decode_listed(line: &str) -> Option<ListedLine> {
    let mut fields = line.split_ascii_whitespace();
    let protocol = match fields.next()? {
        "->" => return decode_destination(fields),
        "FWM" => return Some(ListedLine::Server(None)),
        name => IpvsProtocol::ALL.into_iter().find(|protocol| protocol.name() == name)?,
    };
    let at = socket_address(fields.next()?)?;
    Some(ListedLine::Server(Some(ServerId { address: at.ip(), port: at.port(), protocol })))
}

fn decode_destination<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<ListedLine> {
    let address = socket_address(fields.next()?)?;
    let forwarding = Forwarding::of_name(fields.next()?)?;
    let mut number = || fields.next()?.parse().ok();
    let destination =
        IpvsDestination { address, weight: number()?, forwarding, upper_threshold: 0, lower_threshold: 0 };
    Some(ListedLine::Destination(destination, Connections { active: number()?, inactive: number()?, persistent: 0 }))
}

/// An address and a port in hexadecimal digits, an IPv6 address in brackets.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    Some(SocketAddr::new(address(host)?, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of Linux 6.12.
    const LINES: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr persistent 10800 FFFFFFFF
  -> 0AF40102:1F90      Masq    1      3          12        
  -> 0AF40103:1F90      Tunnel  0      0          0         
FWM  00000007 wlc 
  -> 0AF40109:0050      Route   1      0          0         
UDP  [fd00:0096:0000:0000:0000:0000:0000:0001]:0035 sh 
SCTP [fd00:0096:0000:0000:0000:0000:0000:0001]:0036 rr 
  -> [fd00:0244:0000:0000:0000:0000:0000:0003]:0035      Masq    100    0          1         
";

    fn server(protocol: IpvsProtocol, at: &str) -> ListedLine {
        let at: SocketAddr = at.parse().unwrap();
        ListedLine::Server(Some(ServerId { address: at.ip(), port: at.port(), protocol }))
    }

    fn destination(at: &str, weight: u32, forwarding: u32, (active, inactive): (u32, u32)) -> ListedLine {
        let address = at.parse().unwrap();
        let forwarding = Forwarding(forwarding);
        let destination = IpvsDestination { address, weight, forwarding, upper_threshold: 0, lower_threshold: 0 };
        ListedLine::Destination(destination, Connections { active, inactive, persistent: 0 })
    }

    #[test]
    fn servers_and_destinations_are_read_and_headings_left_out() {
        let lines: Vec<ListedLine> = LINES.lines().filter_map(decode_listed).collect();
        let wanted = [
            server(IpvsProtocol::Tcp, "10.96.0.1:80"),
            destination("10.244.1.2:8080", 1, 0, (3, 12)),
            destination("10.244.1.3:8080", 0, 2, (0, 0)),
            ListedLine::Server(None),
            destination("10.244.1.9:80", 1, 3, (0, 0)),
            server(IpvsProtocol::Udp, "[fd00:96::1]:53"),
            server(IpvsProtocol::Sctp, "[fd00:96::1]:54"),
            destination("[fd00:244::3]:53", 100, 0, (0, 1)),
        ];
        assert_eq!(lines, wanted);
    }

    /// The identities and the numbers of destinations of the servers that this text lists.
    fn listed(text: &str) -> Vec<(Option<String>, usize)> {
        let mut listing = Listing::over(text.as_bytes());
        let servers = std::iter::from_fn(|| listing.next_server().unwrap());
        servers.map(|server| (server.id.map(|id| id.to_string()), server.destinations.len())).collect()
    }

    #[test]
    fn destinations_belong_to_the_server_above_them() {
        let named = |name: &str, count| (Some(name.to_owned()), count);
        let wanted = [
            named("TCP 10.96.0.1:80", 2),
            (None, 1),
            named("UDP [fd00:96::1]:53", 0),
            named("SCTP [fd00:96::1]:54", 1),
        ];
        assert_eq!(listed(LINES), wanted);
        // Those of a server that is not understood are not those of the one before.
        let odd = LINES.replace("UDP  [", "DCCP [");
        assert_eq!(listed(&odd), [wanted[0].clone(), wanted[1].clone(), (None, 0), wanted[3].clone()]);
        assert_eq!(listed(""), []);
    }

    #[test]
    fn other_lines_are_left_out() {
        for line in [
            "",
            "TCP",
            "TCP  0A600001 rr",
            "TCP  0A600001:10050 rr",
            "ICMP 0A600001:0050 rr",
            "  -> 0AF40102:1F90 Masq 1 3",
            "  -> 0AF40102:1F90 Other 1 3 12",
            "  -> [fd00::1:1F90 Masq 1 3 12",
            "  -> 0AF40102:1F90 Masq -1 3 12",
        ] {
            assert_eq!(decode_listed(line), None, "{line}");
        }
    }
}
