//! Serves `/healthz` and `/livez`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use ferry_api::object::{Family, Kind};
use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::Value;

use super::http::{HttpRequest, HttpResponse, Routes};
use crate::health::{DataPath, Fresh, Freshness, Pulses, TestState};
use crate::metrics::Metrics;

/// State that probes are answered from.
#[derive(Clone, Debug)]
pub struct Health {
    /// the served families
    pub pulses: Pulses,
    /// true if load balancers may send traffic to this node
    pub eligible: Arc<AtomicBool>,
    /// staleness of the API server's objects; `None` with manifests
    pub freshness: Option<Arc<Freshness>>,
    /// results of periodic tests of the data path; `None` without such tests
    pub data_path: Option<Arc<DataPath>>,
    /// counters of the responses
    pub metrics: Arc<Metrics>,
}

/// A moment of the monotonic and the real-time clock.
#[derive(Clone, Copy, Debug)]
struct Now {
    instant: Instant,
    clock: SystemTime,
}

// === impl Health ===

impl Routes for Health {
    fn answer(&self, received: &HttpRequest) -> HttpResponse {
        let now = Now { instant: Instant::now(), clock: SystemTime::now() };
        let (counter, answer) = match received.path.as_str() {
            "/healthz" => (&self.metrics.healthz, self.probe(now, Some(self.eligible.load(Ordering::Relaxed)))),
            "/livez" => (&self.metrics.livez, self.probe(now, None)),
            _ => return HttpResponse::not_found(),
        };
        counter.with_label_values(&[answer.status.as_str()]).inc();
        answer
    }
}

impl Health {
    fn probe(&self, now: Now, eligible: Option<bool>) -> HttpResponse {
        let mut healthy = true;
        let mut latest: Option<Duration> = None;
        let mut status = Vec::new();
        for (family, pulse) in &self.pulses.families {
            let family_healthy = self.pulses.is_healthy(pulse, now.instant);
            let age = pulse.age(now.instant);
            healthy &= family_healthy;
            latest = [latest, age].into_iter().flatten().min();
            status
                .push(format!("\"{family}\":{{\"lastUpdated\":\"{}\",\"healthy\":{family_healthy}}}", now.before(age)));
        }
        // Load balancers should use other nodes; /livez is unaffected, since a restart of the process removes no cause.
        healthy &= eligible.is_none() || DataPath::is_healthy(self.data_path.as_deref());
        let ok = healthy && eligible.unwrap_or(true);
        // A healthy proxy was last up to date now.
        let last_updated = now.before(if ok { Some(Duration::ZERO) } else { latest });
        let eligible = eligible.map_or_else(String::new, |eligible| format!("\"nodeEligible\":{eligible},"));
        let tests = self.data_path.as_deref().map_or_else(String::new, |data_path| now.tests(data_path));
        let objects = self.freshness.as_deref().map_or_else(String::new, |freshness| now.objects(freshness));
        let body = format!(
            "{{\"lastUpdated\":\"{last_updated}\",\"currentTime\":\"{}\",{eligible}\"healthy\":{healthy},\
             \"status\":{{{}}}{tests}{objects}}}",
            now.before(Some(Duration::ZERO)),
            status.join(",")
        );
        let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        HttpResponse::of("application/json", body).with_status(status)
    }
}

// === impl Now ===

impl Now {
    /// The time `age` ago as RFC 3339 with nanoseconds; Go's zero time for never.
    fn before(&self, age: Option<Duration>) -> String {
        let then = age.and_then(|age| self.clock.checked_sub(age)).and_then(|then| Timestamp::try_from(then).ok());
        then.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |then| then.to_string())
    }

    /// The tests of the data path of each family: Ferry's own field beside upstream's.
    fn tests(&self, data_path: &DataPath) -> String {
        let of_family = |(family, state): (Family, TestState)| {
            let at = self.before(Some(self.instant.saturating_duration_since(state.at)));
            let error = state.result.err().map_or(Value::Null, Value::from);
            format!("\"{family}\":{{\"lastTested\":\"{at}\",\"failures\":{},\"error\":{error}}}", state.failures)
        };
        let families: Vec<String> = data_path.states().into_iter().map(of_family).collect();
        format!(",\"selfTest\":{{{}}}", families.join(","))
    }

    /// The staleness of each kind of object: Ferry's own field beside upstream's. It doesn't affect health, since Services are
    /// served without the API server, too.
    fn objects(&self, freshness: &Freshness) -> String {
        let kind = |(kind, fresh): (Kind, Fresh)| {
            let (synced, connected, contact) = (fresh.synced, fresh.connected, self.before(fresh.contact));
            format!("\"{kind}\":{{\"synced\":{synced},\"connected\":{connected},\"lastContact\":\"{contact}\"}}")
        };
        let kinds: Vec<String> = freshness.now(self.instant).map(kind).collect();
        let snapshot = freshness.snapshot_in_use().map_or_else(String::new, |confirmed| self.snapshot(confirmed));
        format!(",\"objects\":{{{}}}{snapshot}", kinds.join(","))
    }

    /// The staleness of the snapshot that serves; no age where the clock went back since.
    fn snapshot(&self, confirmed: SystemTime) -> String {
        let age = self.clock.duration_since(confirmed).ok();
        let seconds = age.map_or_else(|| "null".to_owned(), |age| age.as_secs().to_string());
        let text = Timestamp::try_from(confirmed).map(|time| time.to_string()).unwrap_or_default();
        format!(",\"snapshot\":{{\"confirmed\":\"{text}\",\"ageSeconds\":{seconds}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Pulse;

    const LIMIT: Duration = Duration::from_secs(60);

    fn health(start: Instant) -> Health {
        let pulse = |_| Arc::new(Pulse::new(start));
        Health {
            pulses: Pulses { families: Family::ALL.map(|family| (family, pulse(family))).into(), limit: LIMIT },
            eligible: Arc::new(AtomicBool::new(true)),
            freshness: None,
            data_path: None,
            metrics: Arc::new(Metrics::new().unwrap()),
        }
    }

    fn at(start: Instant, seconds: u64) -> Now {
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_000_000 + seconds) + Duration::from_millis(420);
        Now { instant: start + Duration::from_secs(seconds), clock }
    }

    #[test]
    fn healthy_body() {
        let start = Instant::now();
        let health = health(start);
        health.pulses.families.iter().for_each(|(_, pulse)| pulse.update(start + Duration::from_secs(1)));
        let answer = health.probe(at(start, 3), Some(true));
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(
            answer.body,
            "{\"lastUpdated\":\"2026-11-18T11:06:43.42Z\",\"currentTime\":\"2026-11-18T11:06:43.42Z\",\
             \"nodeEligible\":true,\"healthy\":true,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2026-11-18T11:06:41.42Z\",\"healthy\":true},\
             \"IPv6\":{\"lastUpdated\":\"2026-11-18T11:06:41.42Z\",\"healthy\":true}}}"
        );
        let answer = health.probe(at(start, 3), None);
        assert!(!answer.body.contains("nodeEligible"), "{}", answer.body);
    }

    #[test]
    fn a_change_that_waits_too_long_is_unhealthy() {
        let start = Instant::now();
        let health = health(start);
        let (_, pulse) = &health.pulses.families[0];
        pulse.update(start + Duration::from_secs(1));
        pulse.queue(start + Duration::from_secs(2));
        assert_eq!(health.probe(at(start, 61), None).status, StatusCode::OK);
        let answer = health.probe(at(start, 62), Some(true));
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.body.starts_with("{\"lastUpdated\":\"2026-11-18T11:06:41.42Z\""), "{}", answer.body);
        assert!(answer.body.contains("\"healthy\":false,\"status\":{\"IPv4\":{"), "{}", answer.body);
        assert!(answer.body.ends_with("\"IPv6\":{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"healthy\":true}}}"));
    }

    #[test]
    fn an_ineligible_node_is_alive() {
        let start = Instant::now();
        let health = health(start);
        health.eligible.store(false, Ordering::Relaxed);
        assert_eq!(health.answer(&HttpRequest::get("/livez")).status, StatusCode::OK);
        let answer = health.answer(&HttpRequest::get("/healthz"));
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.body.contains("\"nodeEligible\":false,\"healthy\":true"), "{}", answer.body);
        assert_eq!(health.metrics.healthz.with_label_values(&["503"]).get(), 1);
        assert_eq!(health.metrics.livez.with_label_values(&["200"]).get(), 1);
        assert_eq!(health.answer(&HttpRequest::get("/readyz")).status, StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_data_path_that_fails_is_unhealthy_and_alive() {
        let start = Instant::now();
        let data_path = Arc::new(DataPath::default());
        let health = Health { data_path: Some(Arc::clone(&data_path)), ..health(start) };
        let fail = || data_path.note(Family::V4, Err("a \"firewall\"".to_owned()), start + Duration::from_secs(1));
        fail();
        let answer = health.probe(at(start, 3), Some(true));
        assert_eq!(answer.status, StatusCode::OK);
        let test = ",\"selfTest\":{\"IPv4\":{\"lastTested\":\"2026-11-18T11:06:41.42Z\",\"failures\":1,\
            \"error\":\"a \\\"firewall\\\"\"}}}";
        assert!(answer.body.ends_with(test), "{}", answer.body);
        fail();
        fail();
        let answer = health.probe(at(start, 3), Some(true));
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(answer.body.contains("\"nodeEligible\":true,\"healthy\":false"), "{}", answer.body);
        assert_eq!(health.probe(at(start, 3), None).status, StatusCode::OK);
    }

    #[test]
    fn how_fresh_objects_are_is_told_and_decides_nothing() {
        let start = Instant::now();
        let freshness = Arc::new(Freshness::new(start, &[Kind::Service, Kind::ServiceCidr]));
        let health = Health { freshness: Some(Arc::clone(&freshness)), ..health(start) };
        freshness.connected(Kind::Service, start + Duration::from_secs(1));
        freshness.synced(Kind::Service);
        freshness.disconnected(Kind::Service);
        let answer = health.probe(at(start, 3600), None);
        assert_eq!(answer.status, StatusCode::OK);
        let objects = ",\"objects\":{\
            \"Service\":{\"synced\":true,\"connected\":false,\"lastContact\":\"2026-11-18T11:06:41.42Z\"},\
            \"ServiceCIDR\":{\"synced\":false,\"connected\":false,\"lastContact\":\"0001-01-01T00:00:00Z\"}}}";
        assert!(answer.body.ends_with(objects), "{}", answer.body);
    }
}
