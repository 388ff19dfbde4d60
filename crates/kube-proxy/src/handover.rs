//! Hand-over from another mode, or variant of iptables: once a family's rules are in force in the domains of this run's engines,
//! removes that family's rules from all other domains. Until then those serve. Sweeps again after one to five minutes, since a
//! proxy of the other mode that still runs writes its rules again, and leaves them behind when it ends. Each sweep has a thread
//! of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem, thread};

use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_plane::Served;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::flows::FlowReports;
use crate::planes::{self, Established, RetireError, Retirement, RuleDomain};
use crate::platform;
use crate::report::SyncPass;

/// The domains of other modes and variants, and the times of the sweeps of each family.
#[derive(Debug)]
pub struct Handover {
    /// all domains but those of the engines
    others: Vec<RuleDomain>,
    flows: Arc<FlowReports>,
    config: Arc<KubeProxyConfiguration>,
    /// families with sweeps
    begun: BTreeSet<Family>,
    waiting: Vec<(Instant, Sweep)>,
    sender: UnboundedSender<Sweep>,
    /// completed sweeps
    completed: UnboundedReceiver<Sweep>,
}

/// A sweep of one family: removes its rules from these domains. Holds the results of the sweeps before it.
#[derive(Clone, Debug)]
struct Sweep {
    family: Family,
    domains: Vec<RuleDomain>,
    config: Arc<KubeProxyConfiguration>,
    /// domains in which nothing was left once
    cleared: BTreeSet<&'static str>,
    /// the failures that were logged last
    logged: BTreeMap<&'static str, String>,
    /// rules were removed, by this sweep or by attempts before it that failed half way
    removed: bool,
    /// frontends of those rules
    served: Vec<Served>,
    /// by domain, frontends of the rules that a failed attempt has found: it may have removed some of them
    attempted: BTreeMap<&'static str, Vec<Served>>,
    /// pause before the next sweep
    pause: Duration,
    /// until then established connections keep the rules that they need
    spares_until: Instant,
}

/// The result for one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweepResult {
    Nothing,
    Removed,
    /// rules that another program has written after all had been removed; they are removed again
    Returned,
    /// rules may be left, but can't be removed
    Kept,
}

const STACK_BYTES: usize = 1024 * 1024;
/// Stands for the text of a sweep that waits for connections, whose number changes.
const WAITS: &str = "waits for connections";
/// Pause after a failure, doubling up to the longest.
const RETRY: Duration = Duration::from_secs(1);
/// Interval of checks once no rules are left, doubling while another program continues to write.
const AGAIN: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(300);

// === impl Handover ===

impl Handover {
    /// A hand-over to `own`, the domains of the engines, which it never touches, from all others. Flows that the others' rules
    /// may have sent to wrong endpoints are checked. Established connections that need the others' rules keep them for the
    /// grace period of virtual servers.
    pub fn new(own: &[RuleDomain], flows: Arc<FlowReports>, config: Arc<KubeProxyConfiguration>) -> Self {
        let is_own = |domain: &RuleDomain| own.iter().any(|own| own.name == domain.name);
        let others = planes::domains().filter(|domain| !is_own(domain)).collect();
        let (sender, completed) = unbounded_channel();
        Self { others, flows, config, begun: BTreeSet::new(), waiting: Vec::new(), sender, completed }
    }

    /// Begins the sweeps of a family after the first pass that left everything in force.
    pub fn sync_pass(&mut self, pass: &SyncPass) {
        if pass.settled && self.begun.insert(pass.family) {
            let grace = self.config.ferry.ipvs_termination_grace_period.to_std();
            self.begin(Sweep::new(pass.family, self.others.clone(), &self.config, grace));
        }
    }

    /// Removes all rules of a family that is switched off, of all modes: they would become stale.
    pub fn abandon(&mut self, family: Family) {
        if self.begun.insert(family) {
            self.begin(Sweep::new(family, planes::domains().collect(), &self.config, Duration::ZERO));
        }
    }

    /// Waits until a sweep is due or finished, and starts it or schedules the next. Cancel-safe.
    pub async fn go_on(&mut self) {
        let next = self.waiting.iter().map(|(at, _)| *at).min();
        let due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(sweep) = self.completed.recv() => self.complete(sweep),
            () = due => {
                let now = Instant::now();
                let (due, waiting) = mem::take(&mut self.waiting).into_iter().partition(|(at, _)| *at <= now);
                self.waiting = waiting;
                let due: Vec<(Instant, Sweep)> = due;
                due.into_iter().for_each(|(_, sweep)| self.begin(sweep));
            }
        }
    }

    fn complete(&mut self, mut sweep: Sweep) {
        if mem::take(&mut sweep.removed) {
            self.flows.mislead(sweep.family, mem::take(&mut sweep.served));
        }
        self.waiting.push((Instant::now() + sweep.pause, sweep));
    }

    fn begin(&mut self, sweep: Sweep) {
        if let Err(error) = sweep.clone().start(self.sender.clone()) {
            tracing::warn!(
                family = %sweep.family,
                err = %error,
                "Starting the thread that removes rules of other modes failed, retrying in 60 s"
            );
            self.waiting.push((Instant::now() + AGAIN, sweep));
        }
    }
}

// === impl Sweep ===

impl Sweep {
    fn new(family: Family, domains: Vec<RuleDomain>, config: &Arc<KubeProxyConfiguration>, grace: Duration) -> Self {
        Self {
            family,
            domains,
            config: Arc::clone(config),
            cleared: BTreeSet::new(),
            logged: BTreeMap::new(),
            removed: false,
            served: Vec::new(),
            attempted: BTreeMap::new(),
            pause: Duration::ZERO,
            spares_until: Instant::now() + grace,
        }
    }

    /// Sweeps on a thread of its own, and sends itself when that is complete.
    fn start(mut self, completed: UnboundedSender<Self>) -> io::Result<()> {
        let thread = thread::Builder::new().name("handover".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            let found: Vec<SweepResult> = self.domains.clone().into_iter().map(|domain| self.at(domain)).collect();
            self.pause = pause(&found, self.pause);
            if found.iter().any(|found| *found != SweepResult::Nothing) {
                // The read rules may have been large.
                platform::trim_memory();
            }
            // Without a receiver the program is ending.
            let _ = completed.send(self);
        })?;
        Ok(())
    }

    fn at(&mut self, domain: RuleDomain) -> SweepResult {
        let mut served = self.attempted.remove(domain.name).unwrap_or_default();
        let spares = Instant::now() < self.spares_until;
        let established = if spares { Established::Spared } else { Established::Ended };
        let retirement = Retirement { established, config: &self.config };
        let result = domain.retire(self.family, retirement, &mut served);
        let found = self.log(domain, result);
        if found == SweepResult::Kept {
            // The next attempt may find none of these any more.
            served.sort_unstable();
            served.dedup();
            self.attempted.insert(domain.name, served);
        } else {
            self.removed |= found != SweepResult::Nothing || !served.is_empty();
            self.served.extend(served);
        }
        found
    }

    /// Logs a result that differs from the last one.
    fn log(&mut self, domain: RuleDomain, result: Result<usize, RetireError>) -> SweepResult {
        let (family, RuleDomain { mode, name: domain, .. }) = (self.family, domain);
        let error = match result {
            Ok(objects) => {
                let differs = self.logged.remove(domain).is_some();
                let first = self.cleared.insert(domain);
                return match objects {
                    0 => {
                        if first || differs {
                            tracing::debug!(%family, mode, domain, "No leftover rules found");
                        }
                        SweepResult::Nothing
                    }
                    _ if first => {
                        tracing::info!(%family, mode, domain, objects, "Removed rules of an earlier run");
                        SweepResult::Removed
                    }
                    _ => {
                        tracing::warn!(
                            %family,
                            mode,
                            domain,
                            objects,
                            "Removed rules that another proxy has written again: is a kube-proxy of this mode still running?"
                        );
                        SweepResult::Returned
                    }
                };
            }
            Err(RetireError::Absent(error)) => {
                if self.is_new(domain, format!("{error:#}")) {
                    tracing::debug!(%family, mode, domain, err = %error, "Mode is not available here, so it has no rules");
                }
                return SweepResult::Nothing;
            }
            Err(RetireError::Waits(error)) => {
                if self.is_new(domain, WAITS.to_owned()) {
                    tracing::info!(
                        %family,
                        mode,
                        domain,
                        reason = %error,
                        "Keeping rules of an earlier run until the connections that need them have ended"
                    );
                }
                return SweepResult::Kept;
            }
            Err(RetireError::Failed(error)) => format!("{error:#}"),
        };
        if self.is_new(domain, error.clone()) {
            tracing::warn!(
                %family,
                mode,
                domain,
                err = error,
                "Removing rules of an earlier run failed, they may take precedence over the current ones, retrying"
            );
        }
        SweepResult::Kept
    }

    /// Records what a sweep of this domain has logged; true if the last one has not logged the same.
    fn is_new(&mut self, domain: &'static str, text: String) -> bool {
        let last = self.logged.insert(domain, text);
        last.as_ref() != self.logged.get(domain)
    }
}

/// The pause after a check with these results; `before` is the last one.
fn pause(found: &[SweepResult], before: Duration) -> Duration {
    let (least, goes_on) = if found.contains(&SweepResult::Kept) {
        (RETRY, true)
    } else {
        (AGAIN, found.contains(&SweepResult::Returned))
    };
    if goes_on { (before * 2).clamp(least, LONGEST) } else { least }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_model::state::FrontendAddr;

    use super::*;

    const SOME: RuleDomain = RuleDomain { mode: "some", name: "somewhere", retire: |_, _, _| Ok(0) };

    /// A mode may have several domains, and hands over from those of its own that this run doesn't use.
    #[test]
    fn the_domains_of_the_engines_are_left_alone() {
        let all: Vec<RuleDomain> = planes::domains().collect();
        for used in 0..1_usize << all.len() {
            let (own, others): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(at, _)| used & 1 << at != 0);
            let own: Vec<RuleDomain> = own.into_iter().map(|(_, domain)| *domain).collect();
            let handover = Handover::new(&own, Arc::default(), Arc::default());
            let cleared: Vec<&str> = handover.others.iter().map(|domain| domain.name).collect();
            assert_eq!(cleared, others.iter().map(|(_, domain)| domain.name).collect::<Vec<_>>());
        }
    }

    /// Virtual servers in ipvs.excludeCIDRs are other programs', whatever the mode.
    #[test]
    fn a_mode_that_does_not_run_reads_its_section() {
        fn ranges(_: Family, retirement: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
            Ok(retirement.config.ipvs.exclude_cidrs.len())
        }
        let mut config = KubeProxyConfiguration::default();
        config.ipvs.exclude_cidrs = vec!["192.0.2.0/24".to_owned()];
        let mut sweep = Sweep::new(Family::V4, Vec::new(), &Arc::new(config), Duration::ZERO);
        assert_eq!(sweep.at(RuleDomain { retire: ranges, ..SOME }), SweepResult::Removed);
    }

    #[test]
    fn what_is_new_is_said() {
        let mut sweep = Sweep::new(Family::V4, Vec::new(), &Arc::default(), Duration::ZERO);
        let mut says = |result| {
            let mut found = None;
            let text = crate::logging::logged(4, || found = Some(sweep.log(SOME, result)));
            (found.unwrap(), text)
        };
        let failed = |why: &'static str| Err(RetireError::Failed(anyhow::Error::msg(why)));
        let (found, text) = says(failed("no tool"));
        assert!(found == SweepResult::Kept && text.starts_with('W') && text.contains("err=\"no tool\""), "{text}");
        assert_eq!(says(failed("no tool")), (SweepResult::Kept, String::new()));
        let (found, text) = says(failed("locked"));
        assert!(found == SweepResult::Kept && text.contains("locked"), "{text}");
        let (found, text) = says(Ok(7));
        assert!(found == SweepResult::Removed && text.starts_with('I') && text.contains("objects=7"), "{text}");
        assert_eq!(says(Ok(0)), (SweepResult::Nothing, String::new()));
        let (found, text) = says(Ok(7));
        assert!(found == SweepResult::Returned && text.starts_with('W') && text.contains("still running"), "{text}");
        assert_eq!(says(failed("locked")).0, SweepResult::Kept);
        let absent = || Err(RetireError::Absent(anyhow::Error::msg("no nf_tables")));
        let (found, text) = says(absent());
        assert!(found == SweepResult::Nothing && text.contains("no nf_tables"), "{text}");
        assert_eq!(says(absent()), (SweepResult::Nothing, String::new()));
        let (found, text) = says(Ok(0));
        assert!(found == SweepResult::Nothing && text.contains("No leftover rules found"), "{text}");
        assert_eq!(says(Ok(0)), (SweepResult::Nothing, String::new()));
    }

    /// The flows of a frontend whose rules a failed attempt removed are checked once all is removed, also if nothing is left to
    /// remove by then.
    #[test]
    fn what_an_attempt_met_that_failed_half_way_is_kept() {
        const fn port(number: u16) -> Served {
            Served::Frontend(Protocol::Udp, FrontendAddr::NodePort(number))
        }
        const SERVED: [Served; 3] = [port(1), port(2), port(3)];
        fn half_way(_: Family, _: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
            served.extend([SERVED[1], SERVED[0]]);
            Err(RetireError::Failed(anyhow::Error::msg("killed")))
        }
        fn the_rest(_: Family, _: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
            served.push(SERVED[2]);
            Ok(1)
        }
        let domain = |retire| RuleDomain { retire, ..SOME };
        for (last, expected) in [(domain(the_rest), &SERVED[..]), (domain(|_, _, _| Ok(0)), &SERVED[..2])] {
            let mut sweep = Sweep::new(Family::V4, Vec::new(), &Arc::default(), Duration::ZERO);
            for _ in 0..3 {
                assert_eq!(sweep.at(domain(half_way)), SweepResult::Kept);
                assert!(!sweep.removed && sweep.served.is_empty(), "the rules may be in force still");
            }
            sweep.at(last);
            assert!(sweep.removed && sweep.attempted.is_empty());
            assert_eq!(sweep.served, expected);
        }
        let mut sweep = Sweep::new(Family::V4, Vec::new(), &Arc::default(), Duration::ZERO);
        sweep.at(domain(|_, _, _| Ok(0)));
        assert!(!sweep.removed);
    }

    #[test]
    fn who_goes_on_writing_is_met_less_and_less_often() {
        let pauses = |found: &[SweepResult]| {
            let mut last = Duration::ZERO;
            let next = |_| {
                last = pause(found, last);
                last.as_secs()
            };
            (0..5).map(next).collect::<Vec<_>>()
        };
        assert_eq!(pauses(&[SweepResult::Nothing, SweepResult::Removed]), [60; 5]);
        assert_eq!(pauses(&[SweepResult::Nothing, SweepResult::Returned]), [60, 120, 240, 300, 300]);
        assert_eq!(pauses(&[SweepResult::Kept, SweepResult::Returned]), [1, 2, 4, 8, 16]);
        assert_eq!(pause(&[SweepResult::Nothing], LONGEST), AGAIN);
        assert_eq!(pause(&[SweepResult::Kept], LONGEST), LONGEST);
    }
}
