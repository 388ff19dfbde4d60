//! Counts the source's events for metrics.

use std::sync::Arc;
use std::time::SystemTime;

use ferry_api::object::{AddressType, Family, Kind, KubeObject, ObjectName, Timestamp};
use ferry_model::store::Event;

use super::queue::Reports;
use super::reporter::{Report, unix_seconds};
use crate::metrics::Metrics;

/// Reports changes to the main thread, from the core.
#[derive(Debug)]
pub struct ChangeReporter {
    metrics: Arc<Metrics>,
    reports: Reports,
    families: Vec<Family>,
    /// start of the process: changes triggered before it don't count for the network programming latency
    born: Timestamp,
}

/// Data of an event that its count needs after it has been applied.
#[derive(Debug)]
pub struct Noted {
    counted: Counted,
    trigger: Option<(ObjectName, Family, Timestamp)>,
}

#[derive(Clone, Copy, Debug)]
enum Counted {
    Service,
    /// a slice of this family; `None` if only the store knew the family
    Slice(Option<Family>),
    Nothing,
}

// === impl ChangeReporter ===

impl ChangeReporter {
    /// A counter for these families.
    pub fn new(metrics: Arc<Metrics>, reports: Reports, families: Vec<Family>) -> Self {
        Self { metrics, reports, families, born: timestamp(SystemTime::now()) }
    }

    /// Notes an event before it is applied.
    pub fn note(&self, event: &Event) -> Noted {
        let mut trigger = None;
        let counted = match event {
            Event::Upsert(KubeObject::Service(_)) | Event::Delete(Kind::Service, _) => Counted::Service,
            Event::Upsert(KubeObject::EndpointSlice(slice)) => {
                let family = match slice.address_type {
                    AddressType::Ipv4 => Some(Family::V4),
                    AddressType::Ipv6 => Some(Family::V6),
                    AddressType::Other => None,
                };
                if let (Some(family), Some(service), Some(time)) = (family, &slice.service, slice.trigger_time)
                    && time > self.born
                    && self.families.contains(&family)
                {
                    trigger = Some((service.clone(), family, time));
                }
                family.map_or(Counted::Nothing, |family| Counted::Slice(Some(family)))
            }
            Event::Delete(Kind::EndpointSlice, _) => Counted::Slice(None),
            Event::Upsert(_) | Event::Delete(..) | Event::Unreadable(..) | Event::Restart(_) | Event::Synced(_) => {
                Counted::Nothing
            }
        };
        Noted { counted, trigger }
    }

    /// Counts an event that changed something.
    pub fn count(&self, noted: Noted) {
        let metrics = &self.metrics;
        match noted.counted {
            Counted::Service => {
                metrics.service_changes_total.inc_by(self.families.len() as u64);
                self.reports.send(Report::Changed { services: 1, slices: 0 });
            }
            Counted::Slice(family) if family.is_none_or(|family| self.families.contains(&family)) => {
                metrics.endpoint_changes_total.inc();
                self.reports.send(Report::Changed { services: 0, slices: 1 });
            }
            Counted::Slice(_) | Counted::Nothing => {}
        }
        if let Some((service, family, time)) = noted.trigger {
            self.reports.send(Report::Triggered { service, family, time });
        }
    }

    /// Notes a change that is handed to the family's engine.
    pub fn queued(&self, family: Family) {
        let label = family.to_string();
        self.metrics.last_queued.with_label_values(&[&label]).set(unix_seconds(SystemTime::now()));
    }

    /// Sets the number of Services with policy Local that have endpoints, none of them on this node.
    pub fn without_local_endpoints(&self, family: Family, policy: &str, services: usize) {
        let label = family.to_string();
        let gauge = self.metrics.no_local_endpoints.with_label_values(&[label.as_str(), policy]);
        gauge.set(i64::try_from(services).unwrap_or(i64::MAX));
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanoseconds: since.subsec_nanos() }
}
