//! Connections through virtual servers, from `/proc/net/ip_vs_conn` (net/netfilter/ipvs/ip_vs_conn.c).

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr};

use super::server::{IpvsProtocol, ServerId};

/// State of a connection whose first packet has come from the destination.
const ONE_SIDED: &str = "SYN_SENT";

/// Reads the TCP connections, in the network namespace of this thread, of which IPVS sees the destination's packets alone; calls `each`
/// with the server of each. A destination counts them as active for two minutes after their last packet, although no client's packet passes its
/// server: a client has used the port of an ended connection again, for one to the same destination that other rules translate.
///
/// The file has a line for each connection of any state. The kernel finds the place of each page by counting from the first entry, so a large
/// file takes time that grows with its square, and an entry at the border of two pages is missed if one before it ends meanwhile.
///
/// # Errors
/// The system's; not found without IPVS.
pub fn one_sided(each: &mut dyn FnMut(ServerId)) -> io::Result<()> {
    for line in BufReader::new(File::open("/proc/thread-self/net/ip_vs_conn")?).split(b'\n') {
        // Data of other programs' persistence engines can be any bytes.
        if let Some(server) = std::str::from_utf8(&line?).ok().and_then(decode_one_sided) {
            each(server);
        }
    }
    Ok(())
}

/// The server of a connection that [`one_sided`] reads, from its line; `None` of the heading and of all others.
pub fn decode_one_sided(line: &str) -> Option<ServerId> {
    let mut fields = line.split_ascii_whitespace();
    if fields.next()? != IpvsProtocol::Tcp.name() {
        return None;
    }
    // behind the client's address and port, and before the destination's
    let address = address(fields.nth(2)?)?;
    let port = u16::from_str_radix(fields.next()?, 16).ok()?;
    (fields.nth(2)? == ONE_SIDED).then_some(ServerId { address, port, protocol: IpvsProtocol::Tcp })
}

/// IPv4 as a hexadecimal number, IPv6 as usual.
pub(super) fn address(text: &str) -> Option<IpAddr> {
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
TCP fd00:00cc:0000:0000:0000:0000:0000:0002 9C42 fd00:0096:0000:0000:0000:0000:0000:0001 0050 fd00:0244:0000:0000:0000:0000:0000:0003 1F90 SYN_SENT         59
TCP CB007102 9C43 CB007101 7531 0AF40103 1F90 SYN_SENT        119
UDP CB007102 9C44 CB007101 7531 0AF40103 1F90 UDP             299
";

    fn server(address: &str, port: u16) -> ServerId {
        ServerId { address: address.parse().unwrap(), port, protocol: IpvsProtocol::Tcp }
    }

    #[test]
    fn only_those_that_the_destination_seems_to_have_opened_are_read() {
        let found: Vec<ServerId> = LINES.lines().filter_map(decode_one_sided).collect();
        assert_eq!(found, [server("fd00:96::1", 80), server("203.0.113.1", 30001)]);
    }

    #[test]
    fn other_lines_are_no_connection() {
        for line in
            ["", "TCP", "TCP a", "TCP CB007102 9C40 CB007101 17531 0AF40103 1F90 SYN_SENT", "TCP x x : 1 x x NONE"]
        {
            assert_eq!(decode_one_sided(line), None, "{line}");
        }
    }
}
