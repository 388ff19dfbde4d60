//! The local addresses of open TCP connections, from `/proc/net/tcp` and `/proc/net/tcp6` (proc(5)).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferry_family::Family;

/// States of include/net/tcp_states.h in which nothing is left to be sent, or no connection exists.
const NOT_OPEN: [u8; 4] = [FIN_WAIT2, TIME_WAIT, CLOSE, LISTEN];
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

/// The local addresses of the open TCP connections in the network namespace of this thread; an IPv4 address that is mapped into IPv6
/// counts as IPv6.
///
/// # Errors
/// The system's.
pub fn local_addresses(family: Family) -> io::Result<BTreeSet<IpAddr>> {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/tcp",
        Family::V6 => "/proc/thread-self/net/tcp6",
    };
    let mut addresses = BTreeSet::new();
    for line in BufReader::new(File::open(file)?).lines() {
        addresses.extend(open_at(&line?));
    }
    Ok(addresses)
}

/// The local address in a line; `None` of the heading, and of what is not open.
fn open_at(line: &str) -> Option<IpAddr> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, _port) = fields.next()?.split_once(':')?;
    let state = u8::from_str_radix(fields.nth(1)?, 16).ok()?;
    if NOT_OPEN.contains(&state) { None } else { address(local) }
}

/// The kernel prints each 32 bits of an address as a number of this machine's byte order.
fn address(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn open_connections_count_and_listeners_dont() {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace
            .run(|| {
                for address in [IpAddr::from([127, 0, 0, 2]), Ipv6Addr::LOCALHOST.into()] {
                    let family = Family::of(address);
                    let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
                    assert!(local_addresses(family).unwrap().is_empty());
                    // It waits to be accepted.
                    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                    assert!(local_addresses(family).unwrap().contains(&address));
                    drop(listener.accept().unwrap());
                    drop(client);
                    assert!(!local_addresses(family).unwrap().contains(&address));
                }
            })
            .unwrap();
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in "[ -~é]{0,80}") {
            open_at(&line);
        }
    }
}
