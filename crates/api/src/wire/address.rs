//! Parses IP addresses, CIDRs and bind addresses like Kubernetes: leading zeros are decimal (`010.0.0.1` is `10.0.0.1`), and an
//! IPv4-mapped IPv6 address is its IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::object::Parsed;

/// Parses an IP address; `None` if it is none. A zone (`fe80::1%eth0`) isn't allowed.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        parse_ipv6(text).map(|address| address.to_canonical())
    } else {
        parse_ipv4(text).map(IpAddr::V4)
    }
}

/// Parses a CIDR and keeps its host bits; `None` if it is none.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let prefix = u8::try_from(decimal(prefix, 128)?).ok()?;
    if !address.contains(':') {
        return Ipv4Net::new(parse_ipv4(address)?, prefix).ok().map(IpNet::V4);
    }
    let address = parse_ipv6(address)?;
    match (address.to_ipv4_mapped(), prefix.checked_sub(96)) {
        (Some(mapped), Some(prefix)) => Ipv4Net::new(mapped, prefix).ok().map(IpNet::V4),
        _ => Ipv6Net::new(address, prefix).ok().map(IpNet::V6),
    }
}

/// Parses a source range, or keeps the text; surrounding blanks are ignored. A bare address is the range of this address alone.
pub fn source_range(text: &str) -> Parsed<IpNet> {
    let text = text.trim();
    parse_cidr(text).or_else(|| parse_ip(text).map(IpNet::from)).ok_or_else(|| text.into())
}

/// Parses an IP address, or keeps the text.
pub fn ip(text: &str) -> Parsed<IpAddr> {
    parse_ip(text).ok_or_else(|| text.into())
}

/// Parses a CIDR, or keeps the text.
pub fn cidr(text: &str) -> Parsed<IpNet> {
    parse_cidr(text).ok_or_else(|| text.into())
}

/// Parses `IP:port`, the format of bind addresses (`0.0.0.0:10256`, `[::]:10256`); `None` if it is none. Port 0 is allowed.
pub fn parse_socket_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = split_host_port(text)?;
    Some(SocketAddr::new(parse_ip(host)?, u16::try_from(decimal(port, 65_535)?).ok()?))
}

/// Splits `host:port` or `[host]:port` at its last colon, without checking the parts; `None` if there is no port or the brackets
/// are wrong.
pub(crate) fn split_host_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:")?,
        None => text.rsplit_once(':').filter(|(host, _)| !host.contains(':'))?,
    };
    (!host.contains(['[', ']']) && !port.contains(['[', ']', ':'])).then_some((host, port))
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = u8::try_from(decimal(parts.next()?, 255)?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    let Some((groups, last)) = text.rsplit_once(':').filter(|(_, last)| last.contains('.')) else {
        return text.parse().ok();
    };
    // The standard library refuses leading zeros in the IPv4 part.
    let [a, b, c, d] = parse_ipv4(last)?.octets();
    format!("{groups}:{:x}:{:x}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])).parse().ok()
}

/// A number of decimal digits only, however many leading zeros it has, up to `most`.
fn decimal(text: &str, most: u32) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0u32, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit).filter(|value| *value <= most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, wanted) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0000000000.01", Some("10.0.0.1")),
            ("10.180.00.001", Some("10.180.0.1")),
            ("255.255.255.255", Some("255.255.255.255")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("::ffff:010.0.0.01", Some("10.0.0.1")),
            ("::FFFF:a00:1", Some("10.0.0.1")),
            ("64:ff9b::010.0.0.1", Some("64:ff9b::a00:1")),
            ("FD00:0:0::1", Some("fd00::1")),
            ("::", Some("::")),
            ("", None),
            ("10.0.0", None),
            ("10.0.0.256", None),
            ("10.0.0.1.2", None),
            ("10.0.0.", None),
            (".10.0.0.1", None),
            ("10.0.0.+1", None),
            ("10.0.0.0x1", None),
            (" 10.0.0.1", None),
            ("10.0.0.1/32", None),
            ("fe80::1%eth0", None),
            ("::10.0.0", None),
            ("1.2.3.4:5", None),
            (":::", None),
            ("12345::", None),
            ("99999999999.0.0.1", None),
            ("localhost", None),
            ("１０.0.0.1", None),
        ] {
            assert_eq!(parse_ip(text).map(|address| address.to_string()).as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn ranges_keep_host_bits() {
        for (text, wanted) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.0.0.1/8", Some("10.0.0.1/8")),
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::/0", Some("::/0")),
            ("fd00::1/64", Some("fd00::1/64")),
            ("::ffff:10.0.0.0/104", Some("10.0.0.0/8")),
            ("::ffff:0.0.0.0/95", Some("::ffff:0.0.0.0/95")),
            ("10.0.0.0/33", None),
            ("::/129", None),
            ("::/256", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/-1", None),
            ("10.0.0.0/+8", None),
            ("10.0.0.0", None),
            ("10.0.0/8", None),
            ("/8", None),
            ("10.0.0.0/8/8", None),
            ("", None),
        ] {
            assert_eq!(parse_cidr(text).map(|net| net.to_string()).as_deref(), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_does_not_parse_is_kept() {
        assert_eq!(ip("10.0.0.999"), Err("10.0.0.999".into()));
        assert_eq!(cidr("10.0.0.0"), Err("10.0.0.0".into()));
        assert_eq!(ip("::1"), Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    }

    #[test]
    fn source_ranges() {
        for (text, wanted) in [
            ("198.51.100.7", Ok("198.51.100.7/32")),
            (" 198.51.100.007\t", Ok("198.51.100.7/32")),
            ("\n198.51.100.7/24 ", Ok("198.51.100.7/24")),
            ("2001:db8::7", Ok("2001:db8::7/128")),
            ("::ffff:198.51.100.7", Ok("198.51.100.7/32")),
            (" 198.51.100.0 /24 ", Err("198.51.100.0 /24")),
            ("198.51.100.0/33", Err("198.51.100.0/33")),
            ("198.51.100", Err("198.51.100")),
            ("  ", Err("")),
        ] {
            let got = source_range(text).map(|range| range.to_string());
            assert_eq!(got, wanted.map(str::to_owned).map_err(Box::from), "{text:?}");
        }
    }

    #[test]
    fn host_and_port() {
        for (text, wanted) in [
            ("0.0.0.0:10256", Some(("0.0.0.0", "10256"))),
            ("[::]:10256", Some(("::", "10256"))),
            (":80", Some(("", "80"))),
            ("host:", Some(("host", ""))),
            ("[::]", None),
            ("::1", None),
            ("::1:80", None),
            ("[::1]80", None),
            ("[::1", None),
            ("host]:80", None),
            ("[[::1]]:80", None),
            ("[::1]:8:0", None),
            ("10.0.0.1", None),
            ("", None),
        ] {
            assert_eq!(split_host_port(text), wanted, "{text:?}");
        }
        assert_eq!(parse_socket_address("[::1]:10249"), Some("[::1]:10249".parse().unwrap()));
        assert_eq!(parse_socket_address("010.0.0.1:080"), Some("10.0.0.1:80".parse().unwrap()));
        assert_eq!(parse_socket_address("10.0.0.1:65536"), None);
        assert_eq!(parse_socket_address("localhost:1"), None);
    }
}
