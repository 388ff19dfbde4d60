//! The first page: health, freshness of objects, what is not served as specified, what the kernel refuses, and the last changes.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use ferry_api::object::{Family, Kind};
use ferry_model::Diagnostic;
use jiff::Timestamp;
use maud::{Markup, html};

use super::ROOT;
use super::plot::{latencies, time};
use super::services::{self, counted};
use crate::control::{Quarantined, service_of};
use crate::core::Desk;
use crate::health::{Fresh, TestState};
use crate::report::{Inbox, PastPass};
use crate::serve::healthz::Health;

/// Content of the page, gathered on the main thread.
#[derive(Debug)]
pub(super) struct Overview {
    pub(super) families: Vec<FamilyHealth>,
    /// true if load balancers may send traffic to this node
    pub(super) eligible: bool,
    /// the last periodic tests of the data path; `None` without such tests
    pub(super) self_test: Option<BTreeMap<Family, TestState>>,
    /// the kinds of objects, with an API server
    pub(super) kinds: Vec<(Kind, Fresh)>,
    pub(super) quarantined: Vec<Quarantined>,
    /// oldest first
    pub(super) passes: Vec<PastPass>,
}

/// Health of a family.
#[derive(Debug)]
pub(super) struct FamilyHealth {
    pub(super) family: Family,
    pub(super) healthy: bool,
    /// the seconds that the oldest change has waited
    pub(super) waiting: Option<f64>,
    /// why the last sync pass failed, if a change waits
    pub(super) reason: Option<String>,
}

/// Problems of objects: unreadable fields, and addresses that another Service has.
#[derive(Debug)]
pub(super) struct NotAsSpecified {
    /// the first ones
    pub(super) problems: Vec<Diagnostic>,
    /// the number of all others
    pub(super) more: usize,
}

/// Passes that are listed.
const LISTED: usize = 20;
/// Problems of objects that are listed.
const PROBLEMS: usize = 20;

// === impl Overview ===

impl Overview {
    /// The present state.
    pub(super) fn of(inbox: &mut Inbox, health: &Health) -> Self {
        inbox.catch_up();
        let now = Instant::now();
        let Health { pulses, eligible, freshness, data_path, .. } = health;
        let families = pulses.families.iter().map(|(family, pulse)| {
            let waiting = pulse.waiting(now).map(|waiting| waiting.as_secs_f64());
            let reason = waiting.and_then(|_| inbox.failure(*family)).map(str::to_owned);
            FamilyHealth { family: *family, healthy: pulses.is_healthy(pulse, now), waiting, reason }
        });
        Self {
            families: families.collect(),
            eligible: eligible.load(Ordering::Relaxed),
            self_test: data_path.as_ref().map(|data_path| data_path.states()),
            kinds: freshness.iter().flat_map(|freshness| freshness.now(now)).collect(),
            quarantined: inbox.quarantined().map(Quarantined::of).collect(),
            passes: inbox.passes().cloned().collect(),
        }
    }

    /// The page; takes the core's lock.
    pub(super) fn markup(&self, desk: &Desk) -> Markup {
        let counts = services::Counts::of(desk);
        let problems = NotAsSpecified::of(desk).markup();
        html! {
            p {
                a href={ (ROOT) "/services" } { (counted(counts.services, "Service")) } ", "
                (counted(counts.endpoints, "endpoint")) " in EndpointSlices, " (counts.frontends) " addresses and node ports"
            }
            h3 { "Families" }
            div class="table" { table {
                tr { th { "Family" } th { "Health" } th { "Oldest change that waits" } }
                @for FamilyHealth { family, healthy, waiting, reason } in &self.families {
                    tr {
                        td { (family) }
                        td class=(if *healthy { "good" } else { "bad" }) { (if *healthy { "healthy" } else { "unhealthy: a change has waited for more than twice the sync period" }) }
                        td {
                            @match waiting { Some(seconds) => { (format!("{seconds:.1} s")) } None => { "none" } }
                            @if let Some(reason) = reason { ": " (reason) }
                        }
                    }
                }
            } }
            p class=(if self.eligible { "good" } else { "bad" }) {
                @if self.eligible { "The node is eligible for the traffic of load balancers" }
                @else { "The node is not eligible for the traffic of load balancers, and /healthz answers 503: its Node is being deleted, has a taint of the autoscaler, or isn't known yet" }
            }
            (self.tests())
            (self.objects())
            (problems)
            (self.refused())
            (self.changes())
        }
    }

    fn tests(&self) -> Markup {
        let Some(tests) = &self.self_test else { return html! {} };
        html! {
            h3 { "Self-test: connections through a Service of its own" }
            @if tests.is_empty() { p { "none yet" } }
            @for (family, TestState { result, failures, at }) in tests {
                @let age = format!("{:.0} s ago", at.elapsed().as_secs_f64());
                @match result {
                    Ok(duration) => { p class="good" { (family) ": gets through, in " (time(*duration)) ", " (age) } }
                    Err(error) => { p class="problem" { (family) ": has failed " (failures) " times in a row, " (age) ": " (error) } }
                }
            }
        }
    }

    fn objects(&self) -> Markup {
        html! {
            h3 { "Objects" }
            @if self.kinds.is_empty() {
                p { "from manifests on this machine" }
            } @else {
                div class="table" { table {
                    tr { th { "Kind" } th { "List" } th { "Connection" } th { "Last sign of the API server" } }
                    @for (kind, Fresh { synced, connected, contact }) in &self.kinds {
                        tr {
                            td { (kind) }
                            td class=(if *synced { "good" } else { "bad" }) { (if *synced { "complete" } else { "not complete since the start" }) }
                            td class=(if *connected { "good" } else { "bad" }) { (if *connected { "open" } else { "closed: the API server is away, or refuses" }) }
                            td { @match contact { Some(age) => { (format!("{:.0} s ago", age.as_secs_f64())) } None => { "never" } } }
                        }
                    }
                } }
            }
        }
    }

    fn refused(&self) -> Markup {
        html! {
            h3 { "Quarantine: rejected by the kernel" }
            @if self.quarantined.is_empty() { p { "nothing" } }
            @for Quarantined { family, service, error } in &self.quarantined {
                p class="problem" { (family) ": " (unit_link(service.as_deref())) ": " (error) "; what was accepted last stays in force" }
            }
        }
    }

    fn changes(&self) -> Markup {
        html! {
            h3 { "Last changes, and the time until they were in force" }
            (latencies(&self.passes))
            div class="table" { table {
                tr { th { "Time" } th { "Family" } th class="number" { "Took" } th class="number" { "Operations" } th { "What" } }
                @for pass in self.passes.iter().rev().take(LISTED) {
                    tr {
                        td { (moment(pass.ended)) }
                        td { (pass.family) }
                        td class="number" { (time(pass.elapsed)) }
                        td class="number" { (pass.operations) }
                        td { (what(pass)) }
                    }
                }
            } }
        }
    }
}

// === impl NotAsSpecified ===

impl NotAsSpecified {
    /// The present problems; takes the core's lock.
    pub(super) fn of(desk: &Desk) -> Self {
        desk.with_view(|view| Self {
            problems: view.diagnostics().take(PROBLEMS).cloned().collect(),
            more: view.diagnostics().skip(PROBLEMS).count(),
        })
    }

    fn markup(&self) -> Markup {
        let Self { problems, more } = self;
        html! {
            h3 { "Objects that are not served as specified" }
            @if problems.is_empty() { p { "none" } }
            @for problem in problems {
                @let Diagnostic { kind, name, field, winner, .. } = problem;
                p class="problem" {
                    (kind) " " @if *kind == Kind::Service { (services::link(&name.to_string())) } @else { (name) }
                    ", " (field) ": " (problem.problem())
                    @if let Some(winner) = winner { " (it is that of " (services::link(&winner.to_string())) ")" }
                }
            }
            @if *more > 0 { p { "and " (counted(*more, "more problem")) ": the log has a line for each" } }
        }
    }
}

fn what(pass: &PastPass) -> Markup {
    let more = pass.acknowledged.saturating_sub(pass.units.len());
    html! {
        @if let Some(error) = &pass.error { span class="bad" { "failed: " (error) } " " }
        @if pass.repairs > 0 { "repaired " (pass.repairs) " objects that others changed: " (pass.repaired.join(", ")) " " }
        @if !pass.contested.is_empty() { span class="bad" { "another program keeps changing " (pass.contested.join(", ")) } " " }
        @for unit in &pass.units { (unit_link(service_of(unit).as_deref())) " " }
        @if more > 0 { "and " (more) " more" }
    }
}

/// Links a Service to its explanation; `None` is the base.
fn unit_link(service: Option<&str>) -> Markup {
    service.map_or_else(|| html! { "what all Services share" }, services::link)
}

fn moment(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.strftime("%H:%M:%S").to_string()).unwrap_or_default()
}
