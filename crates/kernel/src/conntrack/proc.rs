//! Reads small conntrack tables from `/proc/net/nf_conntrack`.
//!
//! A netlink dump takes the lock of every bucket, empty or not: 10 ms of CPU time for 262,144 of them. The file skips empty
//! buckets without a lock, in 0.2 ms, and costs 2.2 µs for each entry, so that it is slower from 4,500 entries on. Kernels
//! that start at the first entry again for each page reach that point earlier, and an entry at the border of two pages is
//! missed if an entry before it ends in between: so only small tables are read from the file, by callers that repeat the check.
//! The file has no ids ([`Entry::id`]); they are requested over netlink.

use std::fs::File;
use std::io::{self, BufReader};
use std::net::IpAddr;

use super::{Entry, Filter, FlowStatus, Tuple};
use crate::netlink::Malformed;
use crate::sysctl;

/// Maximum number of entries of a small table.
pub(super) const SMALL_TABLE: usize = 2000;
/// The table of the calling thread's namespace; `/proc/net` shows that of the process's main thread.
const FILE: &str = "/proc/thread-self/net/nf_conntrack";

/// The fields of a line while it is parsed.
#[derive(Default)]
struct LineFields<'a> {
    sources: Pair<IpAddr>,
    destinations: Pair<IpAddr>,
    source_ports: Pair<u16>,
    destination_ports: Pair<u16>,
    zone: u16,
    unanswered: bool,
    /// words other than `key=value`, in order
    words: Vec<&'a str>,
}

/// One field of both tuples: original, then reply.
struct Pair<T>(Option<T>, Option<T>);

// === impl LineFields ===

impl<'a> LineFields<'a> {
    fn read(line: &'a str) -> Result<Self, Malformed> {
        let mut fields = Self::default();
        for word in line.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once('=') else {
                fields.unanswered |= word == "[UNREPLIED]";
                fields.words.push(word);
                continue;
            };
            match key {
                "src" => fields.sources.add(value)?,
                "dst" => fields.destinations.add(value)?,
                "sport" => fields.source_ports.add(value)?,
                "dport" => fields.destination_ports.add(value)?,
                "zone" | "zone-orig" | "zone-reply" => fields.zone = fields.zone.max(parse(value)?),
                _ => {} // counters, marks and times
            }
        }
        Ok(fields)
    }

    /// The original and the reply tuple; `None` if one has no ports.
    fn tuples(&self) -> Option<(Tuple, Tuple)> {
        let original = Tuple {
            source: self.sources.0?,
            destination: self.destinations.0?,
            source_port: self.source_ports.0?,
            destination_port: self.destination_ports.0?,
        };
        let reply = Tuple {
            source: self.sources.1?,
            destination: self.destinations.1?,
            source_port: self.source_ports.1?,
            destination_port: self.destination_ports.1?,
        };
        Some((original, reply))
    }
}

// === impl Pair ===

impl<T> Default for Pair<T> {
    fn default() -> Self {
        Self(None, None)
    }
}

impl<T: std::str::FromStr> Pair<T> {
    fn add(&mut self, text: &str) -> Result<(), Malformed> {
        let place = if self.0.is_none() { &mut self.0 } else { &mut self.1 };
        *place = Some(parse(text)?);
        Ok(())
    }
}

/// Parses a line of `/proc/net/nf_conntrack`. It has no id: that of the entry is 0. `None` if the protocol has no ports.
///
/// # Errors
/// [`Malformed`] if the line is no entry.
pub fn decode_line(line: &str) -> Result<Option<Entry>, Malformed> {
    let fields = LineFields::read(line)?;
    // `ipv4 2 udp 17 29 …`
    let protocol = fields.words.get(3).ok_or(Malformed("conntrack line without a protocol"))?;
    let protocol = parse(protocol)?;
    let Some((original, reply)) = fields.tuples() else { return Ok(None) };
    let status = if fields.unanswered { FlowStatus::default() } else { FlowStatus::SEEN_REPLY };
    Ok(Some(Entry { original, reply, protocol, status, id: 0, zone: fields.zone }))
}

/// Reads the matching entries, without ids. `None` if the table is not small, the file can't be read, or a matching entry is in
/// a conntrack zone: these cases are left to netlink.
pub(super) fn entries(filter: &Filter) -> Option<Vec<Entry>> {
    let count = sysctl::read("net.netfilter.nf_conntrack_count").ok()?.parse::<usize>().ok()?;
    if count > SMALL_TABLE {
        return None;
    }
    read(BufReader::with_capacity(16 * 1024, File::open(FILE).ok()?), filter).ok()?
}

/// `None` if the file has far more lines than the kernel has counted, or a matching entry is in a zone.
fn read(file: impl io::BufRead, filter: &Filter) -> io::Result<Option<Vec<Entry>>> {
    let mut found = Vec::new();
    let (mut file, mut line) = (file, String::new());
    for _ in 0..SMALL_TABLE * 2 {
        line.clear();
        if file.read_line(&mut line)? == 0 {
            return Ok(Some(found));
        }
        let entry = decode_line(&line)?.filter(|entry| filter.matches(entry));
        if entry.is_some_and(|entry| entry.zone != 0) {
            return Ok(None);
        }
        found.extend(entry);
    }
    Ok(None)
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, Malformed> {
    text.parse().map_err(|_| Malformed("invalid field in a conntrack line"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_family::Family;

    const UDP: &str = "ipv4     2 udp      17 29 src=10.0.0.9 dst=10.96.0.1 sport=4000 dport=53 [UNREPLIED] src=10.1.0.2 \
                       dst=10.0.0.9 sport=5353 dport=4000 mark=0 zone=0 use=2";
    const TCP: &str = "ipv6     10 tcp      6 431999 ESTABLISHED src=fd00:0000:0000:0000:0000:0000:0000:0001 \
                       dst=fd00:0096:0000:0000:0000:0000:0000:0001 sport=4000 dport=80 packets=3 bytes=180 \
                       src=fd00:0001:0000:0000:0000:0000:0000:0001 dst=fd00:0000:0000:0000:0000:0000:0000:0001 sport=8080 \
                       dport=4000 packets=2 bytes=112 [ASSURED] mark=0 secctx=a=b zone=0 use=2";

    #[test]
    fn lines_are_entries() {
        let entry = decode_line(UDP).unwrap().unwrap();
        assert_eq!((entry.protocol, entry.status, entry.zone), (17, FlowStatus::default(), 0));
        assert_eq!(entry.original.to().to_string(), "10.96.0.1:53");
        assert_eq!(entry.original.from().to_string(), "10.0.0.9:4000");
        assert_eq!(entry.reply.from().to_string(), "10.1.0.2:5353");
        let entry = decode_line(TCP).unwrap().unwrap();
        assert_eq!((entry.protocol, entry.status), (6, FlowStatus::SEEN_REPLY));
        assert_eq!(entry.original.to().to_string(), "[fd00:96::1]:80");
        assert_eq!(entry.reply.from().to_string(), "[fd00:1::1]:8080");
        let offloaded = UDP.replace("17 29 ", "17 ").replace("[UNREPLIED] ", "") + " [OFFLOAD]";
        assert_eq!(decode_line(&offloaded).unwrap().unwrap().status, FlowStatus::SEEN_REPLY);
        for zone in ["zone=7", "zone-orig=7", "zone-reply=7"] {
            assert_eq!(decode_line(&UDP.replace("zone=0", zone)).unwrap().unwrap().zone, 7);
        }
    }

    #[test]
    fn lines_without_ports_are_skipped_and_malformed_lines_refused() {
        let ping = "ipv4     2 icmp     1 29 src=10.0.0.9 dst=10.0.0.1 type=8 code=0 id=7 src=10.0.0.1 dst=10.0.0.9 type=0 \
                    code=0 id=7 mark=0 use=2";
        assert_eq!(decode_line(ping).unwrap(), None);
        for bad in ["", "ipv4 2 udp", "ipv4 2 udp seventeen", &UDP.replace("sport=4000", "sport=70000")] {
            assert!(decode_line(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn files_too_long_or_with_zones_are_left_to_netlink() {
        let filter = Filter { family: Family::V4, protocol: 17, destination: None, port: None, unanswered: false };
        let lines = |line: &str, count| format!("{line}\n").repeat(count);
        assert_eq!(read(lines(UDP, 7).as_bytes(), &filter).unwrap().unwrap().len(), 7);
        assert_eq!(read(lines(TCP, 7).as_bytes(), &filter).unwrap(), Some(Vec::new()));
        assert_eq!(read(lines(UDP, SMALL_TABLE * 2).as_bytes(), &filter).unwrap(), None);
        assert_eq!(read(lines(&UDP.replace("zone=0", "zone=1"), 1).as_bytes(), &filter).unwrap(), None);
        assert!(read(lines("nonsense", 1).as_bytes(), &filter).is_err());
    }
}
