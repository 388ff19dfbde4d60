//! Connections through virtual servers, from `/proc/net/ip_vs_conn` (net/netfilter/ipvs/ip_vs_conn.c).
//!
//! The counter of a destination's active connections includes half-open ones. An ended connection counts again if its client uses the port
//! for one to the same destination by another way: IPVS sees the answers only, takes the first for that of a connection which the destination
//! has opened (`SYN_SENT`), and never sees the end.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};

use super::server::{Protocol, ServerId};

/// States of a connection that carries data, or soon will.
const ESTABLISHED: [&str; 2] = ["ESTABLISHED", "SYN_RECV"];

/// Counts the established connections of TCP and SCTP, and those that clients have begun, through the servers that are `counted`, in the
/// network namespace of this thread. Reads a line for each connection of any state.
///
/// # Errors
/// The system's; not found without IPVS.
pub fn established(mut counted: impl FnMut(ServerId) -> bool) -> io::Result<usize> {
    let mut count = 0;
    for line in BufReader::new(File::open("/proc/thread-self/net/ip_vs_conn")?).lines() {
        count += usize::from(decode_established(&line?).is_some_and(&mut counted));
    }
    Ok(count)
}

/// The server of an established connection, from the connection's line; `None` of the heading and of connections in other states.
pub fn decode_established(line: &str) -> Option<ServerId> {
    let mut fields = line.split_ascii_whitespace();
    let protocol = match fields.next()? {
        "TCP" => Protocol::Tcp,
        "SCTP" => Protocol::Sctp,
        _ => return None,
    };
    // behind the client's address and port, and before the destination's
    let address = address(fields.nth(2)?)?;
    let port = u16::from_str_radix(fields.next()?, 16).ok()?;
    let state = fields.nth(2)?;
    ESTABLISHED.contains(&state).then_some(ServerId { address, port, protocol })
}

/// IPv4 as a hexadecimal number, IPv6 as usual.
fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    Some(Ipv4Addr::from(u32::from_str_radix(text, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of Linux 6.12.
    const LINES: &str = "\
Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP CB007102 9C40 CB007101 7531 0AF40103 1F90 ESTABLISHED     899
TCP CB007102 9C41 CB007101 7531 0AF40103 1F90 TIME_WAIT       118
TCP fd00:00cc:0000:0000:0000:0000:0000:0002 9C42 fd00:0096:0000:0000:0000:0000:0000:0001 0050 fd00:0244:0000:0000:0000:0000:0000:0003 1F90 SYN_RECV         59
TCP CB007102 9C43 CB007101 7531 0AF40103 1F90 SYN_SENT        119
UDP CB007102 9C44 CB007101 7531 0AF40103 1F90 UDP             299
";

    fn server(address: &str, port: u16) -> ServerId {
        ServerId { address: address.parse().unwrap(), port, protocol: Protocol::Tcp }
    }

    #[test]
    fn only_those_that_are_established_or_begun_count() {
        let found: Vec<ServerId> = LINES.lines().filter_map(decode_established).collect();
        assert_eq!(found, [server("203.0.113.1", 30001), server("fd00:96::1", 80)]);
    }

    #[test]
    fn other_lines_are_no_connection() {
        for line in
            ["", "TCP", "TCP a", "TCP CB007102 9C40 CB007101 17531 0AF40103 1F90 ESTABLISHED", "TCP x x : 1 x x NONE"]
        {
            assert_eq!(decode_established(line), None, "{line}");
        }
    }
}
