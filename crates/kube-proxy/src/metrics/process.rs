//! Metrics of the process, read from /proc at each scrape.

use std::fmt::Write as _;
use std::fs;

use rustix::process::{Resource, getrlimit};

use super::text;

/// One metric of the process.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// its name
    pub name: &'static str,
    /// the type in its TYPE line
    pub kind: &'static str,
    help: &'static str,
    value: fn(&Reading) -> Option<f64>,
}

/// Content of files of /proc, read once per scrape.
#[derive(Debug, Default)]
struct Reading {
    /// the fields of `stat` after the name, from field 3 of its documentation on
    stat: Vec<f64>,
    /// `InOctets` and `OutOctets` of `netstat`
    octets: Option<(f64, f64)>,
    /// boot time, Unix seconds
    boot: Option<f64>,
}

/// Every metric of this module.
pub const TABLE: &[Row] = &[
    Row {
        name: "process_cpu_seconds_total",
        kind: "counter",
        help: "Total user and system CPU time spent in seconds.",
        value: |reading| Some((reading.stat(14)? + reading.stat(15)?) / ticks()),
    },
    Row {
        name: "process_max_fds",
        kind: "gauge",
        help: "Maximum number of open file descriptors.",
        value: |_| limit(Resource::Nofile),
    },
    Row {
        name: "process_network_receive_bytes_total",
        kind: "counter",
        help: "Number of bytes received by the process over the network.",
        value: |reading| Some(reading.octets?.0),
    },
    Row {
        name: "process_network_transmit_bytes_total",
        kind: "counter",
        help: "Number of bytes sent by the process over the network.",
        value: |reading| Some(reading.octets?.1),
    },
    Row {
        name: "process_open_fds",
        kind: "gauge",
        help: "Number of open file descriptors.",
        // Reading the directory opens one file.
        value: |_| Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64),
    },
    Row {
        name: "process_resident_memory_bytes",
        kind: "gauge",
        help: "Resident memory size in bytes.",
        value: |reading| Some(reading.stat(24)? * rustix::param::page_size() as f64),
    },
    Row {
        name: "process_start_time_seconds",
        kind: "gauge",
        help: "Start time of the process since unix epoch in seconds.",
        value: |reading| Some(reading.boot? + reading.stat(22)? / ticks()),
    },
    Row {
        name: "process_virtual_memory_bytes",
        kind: "gauge",
        help: "Virtual memory size in bytes.",
        value: |reading| reading.stat(23),
    },
    Row {
        name: "process_virtual_memory_max_bytes",
        kind: "gauge",
        help: "Maximum amount of virtual memory available in bytes.",
        value: |_| limit(Resource::As),
    },
];

/// Appends all readable metrics to a page in Prometheus' text format.
pub(super) fn append(page: &mut String) {
    let reading = Reading::take();
    for row in TABLE {
        if let Some(value) = (row.value)(&reading) {
            text::head(page, row.name, row.kind, row.help);
            // Writing to a String cannot fail.
            let _ = writeln!(page, "{} {}", row.name, text::number(value));
        }
    }
}

/// Start time of the process, in Unix seconds; 0 if unreadable.
pub(crate) fn start_time() -> f64 {
    let reading = Reading::take();
    let value = TABLE.iter().find(|row| row.name == "process_start_time_seconds").and_then(|row| (row.value)(&reading));
    value.unwrap_or_default()
}

fn ticks() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// A soft limit; unlimited is the largest number, as in Go's client.
fn limit(resource: Resource) -> Option<f64> {
    Some(getrlimit(resource).current.map_or(u64::MAX as f64, |value| value as f64))
}

// === impl Reading ===

impl Reading {
    fn take() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The program's name may contain any character, even a parenthesis.
        let numbers = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        Self {
            // The state, a letter, counts as 0.
            stat: numbers.split_whitespace().map(|text| text.parse().unwrap_or(0.0)).collect(),
            octets: fs::read_to_string("/proc/self/net/netstat").ok().as_deref().and_then(octets),
            boot: fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot),
        }
    }

    /// A field by its number in the documentation of `/proc/PID/stat`, which counts from 1.
    fn stat(&self, number: usize) -> Option<f64> {
        self.stat.get(number.checked_sub(3)?).copied()
    }
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
    fn all_can_be_read_here() {
        let mut page = String::new();
        append(&mut page);
        for row in TABLE {
            let line = page.lines().find(|line| line.starts_with(&format!("{} ", row.name))).unwrap();
            let value: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert!(value >= 0.0, "{line}");
        }
        let start = start_time() as u64;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!(start <= now + 1 && now - start < 86_400, "{start} {now}");
    }

    #[test]
    fn octets_are_found_by_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: X InOctets OutOctets\nIpExt: 3 4 5\n";
        assert_eq!(octets(text), Some((4.0, 5.0)));
        assert_eq!(octets("IpExt: InOctets\n"), None);
    }
}
