//! Metrics of the process, read at each scrape.

use std::fmt::Write as _;

use super::text;
use crate::platform::{self, ProcessFigures};

/// One metric of the process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMetric {
    /// its name
    pub name: &'static str,
    /// the type in its TYPE line
    pub kind: &'static str,
    help: &'static str,
    value: fn(&ProcessFigures) -> Option<f64>,
}

/// Every metric of this module.
pub const TABLE: &[ProcessMetric] = &[
    ProcessMetric {
        name: "process_cpu_seconds_total",
        kind: "counter",
        help: "Total user and system CPU time spent in seconds.",
        value: |figures| figures.processor_seconds,
    },
    ProcessMetric {
        name: "process_max_fds",
        kind: "gauge",
        help: "Maximum number of open file descriptors.",
        value: |figures| figures.descriptor_limit,
    },
    ProcessMetric {
        name: "process_network_receive_bytes_total",
        kind: "counter",
        help: "Number of bytes received by the process over the network.",
        value: |figures| figures.received_bytes,
    },
    ProcessMetric {
        name: "process_network_transmit_bytes_total",
        kind: "counter",
        help: "Number of bytes sent by the process over the network.",
        value: |figures| figures.sent_bytes,
    },
    ProcessMetric {
        name: "process_open_fds",
        kind: "gauge",
        help: "Number of open file descriptors.",
        value: |figures| figures.descriptors,
    },
    ProcessMetric {
        name: "process_resident_memory_bytes",
        kind: "gauge",
        help: "Resident memory size in bytes.",
        value: |figures| figures.resident_bytes,
    },
    ProcessMetric {
        name: "process_start_time_seconds",
        kind: "gauge",
        help: "Start time of the process since unix epoch in seconds.",
        value: |figures| figures.start_seconds,
    },
    ProcessMetric {
        name: "process_virtual_memory_bytes",
        kind: "gauge",
        help: "Virtual memory size in bytes.",
        value: |figures| figures.virtual_bytes,
    },
    ProcessMetric {
        name: "process_virtual_memory_max_bytes",
        kind: "gauge",
        help: "Maximum amount of virtual memory available in bytes.",
        value: |figures| figures.virtual_limit_bytes,
    },
];

/// Appends all readable metrics to a page in Prometheus' text format.
pub(super) fn append(page: &mut String) {
    let figures = platform::process_figures();
    for row in TABLE {
        if let Some(value) = (row.value)(&figures) {
            text::head(page, row.name, row.kind, row.help);
            // Writing to a String cannot fail.
            let _ = writeln!(page, "{} {}", row.name, text::number(value));
        }
    }
}

/// Start time of the process, in Unix seconds; 0 if unreadable.
pub(crate) fn start_time() -> f64 {
    platform::process_figures().start_seconds.unwrap_or_default()
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
}
