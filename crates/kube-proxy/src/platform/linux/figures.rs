//! Reads the figures of this process from /proc.

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::platform::ProcessFigures;

/// The figures of this process now.
pub fn process_figures() -> ProcessFigures {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may contain any character, even a parenthesis.
    let numbers = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    // The state, a letter, counts as 0.
    let numbers: Vec<f64> = numbers.split_whitespace().map(|text| text.parse().unwrap_or(0.0)).collect();
    // A field by its number in the documentation of `/proc/PID/stat`, which counts from 1; the third is the first one here.
    let field = |number: usize| numbers.get(number.checked_sub(3)?).copied();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let octets = fs::read_to_string("/proc/self/net/netstat").ok().as_deref().and_then(octets);
    let boot = fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot);
    ProcessFigures {
        processor_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
        descriptor_limit: Some(limit(Resource::Nofile)),
        // Reading the directory opens one file.
        descriptors: fs::read_dir("/proc/self/fd").ok().map(|open| open.count().saturating_sub(1) as f64),
        received_bytes: octets.map(|(received, _)| received),
        sent_bytes: octets.map(|(_, sent)| sent),
        resident_bytes: field(24).map(|pages| pages * rustix::param::page_size() as f64),
        virtual_bytes: field(23),
        virtual_limit_bytes: Some(limit(Resource::As)),
        start_seconds: boot.zip(field(22)).map(|(boot, start)| boot + start / ticks),
    }
}

/// A soft limit; unlimited is the largest number, as in Go's client.
fn limit(resource: Resource) -> f64 {
    getrlimit(resource).current.map_or(u64::MAX as f64, |value| value as f64)
}

/// `netstat` has pairs of lines: names, then values.
fn octets(netstat: &str) -> Option<(f64, f64)> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let at = names.split_whitespace().position(|name| name == wanted)?;
        values.split_whitespace().nth(at)?.parse().ok()
    };
    Some((value("InOctets")?, value("OutOctets")?))
}

fn boot(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_found_by_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: X InOctets OutOctets\nIpExt: 3 4 5\n";
        assert_eq!(octets(text), Some((4.0, 5.0)));
        assert_eq!(octets("IpExt: InOctets\n"), None);
    }
}
