use ferry_api::object::ObjectName;

use super::super::history::Witness;
use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A plan with a clock of its own.
struct Bench {
    plan: RequestPlan,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        Self { plan: RequestPlan::new(SourceTiming::default(), Jitter::seeded(3)), now: Instant::now() }
    }

    /// A plan whose list is complete at version 100.
    fn listed() -> Self {
        let mut bench = Self::new();
        assert!(matches!(bench.begin(), NextRequest::StreamingList { .. }));
        bench.answered();
        bench.plan.listed("100".into(), Witnesses::default());
        bench.pass(2 * SECOND);
        assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
        bench
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn begin(&mut self) -> NextRequest {
        self.plan.begin(self.now)
    }

    fn answered(&mut self) {
        self.plan.answered(self.now);
    }

    /// The pause after a failure, and true for an expected failure.
    fn failed(&mut self, failure: RequestFailure) -> (Duration, bool) {
        match self.plan.ended(Some(failure), self.now) {
            AttemptResult::Failed { pause, quiet, .. } => {
                self.now += pause;
                (pause, quiet)
            }
            AttemptResult::GoOn(_) => panic!("it goes on"),
        }
    }

    fn fails(&mut self, cause: FailureCause) -> Duration {
        self.failed(RequestFailure::new(cause, "it failed")).0
    }

    /// Begins a step that fails at once.
    fn try_and_fail(&mut self, cause: FailureCause) -> (NextRequest, Duration) {
        let step = self.begin();
        if !matches!(cause, FailureCause::Unreached | FailureCause::Refused { within: false, .. }) {
            self.answered();
        }
        let pause = self.fails(cause);
        (step, pause)
    }

    /// Begins the step after successful checks.
    fn begin_past_checks(&mut self) -> NextRequest {
        loop {
            match self.begin() {
                NextRequest::Check { .. } => {
                    self.answered();
                    self.plan.checked(None, self.now);
                    self.plan.ended(None, self.now);
                }
                step => return step,
            }
        }
    }

    /// Begins the step after successful checks, which fails at once.
    fn try_past_checks(&mut self, cause: FailureCause) -> NextRequest {
        let step = self.begin_past_checks();
        if !matches!(cause, FailureCause::Unreached | FailureCause::Refused { within: false, .. }) {
            self.answered();
        }
        self.fails(cause);
        step
    }

    /// Begins a watch that delivers a version and fails.
    fn watch_to(&mut self, version: &str, cause: FailureCause) -> Duration {
        assert!(matches!(self.begin(), NextRequest::Watch { .. }));
        self.answered();
        assert!(self.plan.advanced(version.into()));
        self.fails(cause)
    }
}

fn refused(code: u16) -> FailureCause {
    FailureCause::Refused { code, within: false }
}

fn error_event(code: u16) -> FailureCause {
    FailureCause::Refused { code, within: true }
}

fn is_streaming(step: &NextRequest) -> bool {
    matches!(step, NextRequest::StreamingList { .. })
}

fn watch_version(step: &NextRequest) -> &str {
    match step {
        NextRequest::Watch { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_streaming_list_then_watches_from_the_newest_version() {
    let mut bench = Bench::new();
    let NextRequest::StreamingList { seconds, recency: Recency::Any } = bench.begin() else {
        panic!("no streaming list")
    };
    assert!((300..600).contains(&seconds));
    bench.answered();
    assert!(!bench.plan.is_complete());
    bench.plan.listed("7".into(), Witnesses::default());
    assert!(bench.plan.is_complete());
    assert!(bench.plan.advanced("9".into()));
    assert!(!bench.plan.advanced("9".into()), "nothing new");
    assert!(!bench.plan.advanced("8".into()), "never back");
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    let step = bench.begin();
    assert_eq!(watch_version(&step), "9");
    let NextRequest::Watch { seconds, .. } = step else { unreachable!() };
    assert!((300..600).contains(&seconds));
}

#[test]
fn versions_that_are_no_numbers_are_taken_as_they_come() {
    let mut bench = Bench::listed();
    assert!(bench.plan.advanced("x".into()));
    assert!(!bench.plan.advanced("x".into()));
    assert!(bench.plan.advanced("a".into()));
    assert!(!bench.plan.is_behind("1"));
}

#[test]
fn a_streaming_list_that_fails_is_tried_once_more_before_pages() {
    let passing = [
        FailureCause::Interrupted,
        FailureCause::Expired,
        FailureCause::Broken,
        FailureCause::Foreign,
        FailureCause::Endless,
        FailureCause::Short,
        refused(401),
        refused(429),
        refused(503),
        error_event(503),
    ];
    for cause in passing {
        let mut bench = Bench::new();
        for _ in 0..2 {
            let (step, pause) = bench.try_and_fail(cause);
            assert!(is_streaming(&step), "{cause:?}");
            assert!((50 * MS..2 * SECOND).contains(&pause), "{cause:?} {pause:?}");
        }
        let recency = if cause == FailureCause::Expired { Recency::Latest } else { Recency::Any };
        assert_eq!(bench.begin(), NextRequest::List(recency), "{cause:?}");
    }
    let lasting =
        [FailureCause::Silent, FailureCause::Unsupported, refused(400), refused(422), refused(500), error_event(500)];
    for cause in lasting {
        let mut bench = Bench::new();
        assert!(is_streaming(&bench.try_and_fail(cause).0));
        assert_eq!(bench.begin(), NextRequest::List(Recency::Any), "{cause:?}");
    }
    let mut bench = Bench::new();
    for cause in [FailureCause::Unreached, FailureCause::Unequipped, FailureCause::Unreached] {
        bench.try_and_fail(cause);
        assert!(is_streaming(&bench.begin()), "nobody has seen that it streams");
    }
}

#[test]
fn a_refusal_of_streaming_is_remembered_for_an_hour() {
    let lasting =
        [refused(400), refused(422), refused(500), error_event(500), FailureCause::Unsupported, FailureCause::Silent];
    let passing = [refused(401), refused(403), refused(429), error_event(429), refused(503), FailureCause::Expired];
    for (cause, lasts) in lasting.map(|cause| (cause, true)).into_iter().chain(passing.map(|cause| (cause, false))) {
        let mut bench = Bench::new();
        bench.try_and_fail(cause);
        assert_eq!(matches!(bench.begin(), NextRequest::List(_)), lasts, "{cause:?}");
        bench.answered();
        bench.plan.listed("100".into(), Witnesses::default());
        bench.plan.ended(None, bench.now);
        bench.pass(100 * SECOND);
        bench.try_and_fail(FailureCause::Expired);
        assert_eq!(is_streaming(&bench.begin()), !lasts, "{cause:?}");
        bench.pass(3600 * SECOND);
        assert!(is_streaming(&bench.begin()), "{cause:?}");
    }
}

#[test]
fn pages_that_fail_are_followed_by_another_try_at_streaming() {
    let mut bench = Bench::new();
    bench.try_and_fail(FailureCause::Interrupted);
    bench.try_and_fail(FailureCause::Short);
    assert!(!is_streaming(&bench.try_and_fail(FailureCause::Unreached).0));
    assert!(!is_streaming(&bench.try_and_fail(refused(500)).0));
    assert!(is_streaming(&bench.begin()));
}

#[test]
fn a_token_that_expired_leads_to_a_list_of_now() {
    let mut bench = Bench::new();
    bench.try_and_fail(refused(422));
    assert_eq!(bench.try_and_fail(FailureCause::Expired).0, NextRequest::List(Recency::Any));
    assert_eq!(bench.begin(), NextRequest::List(Recency::Latest));
}

#[test]
fn a_later_list_never_shows_an_older_state_and_is_from_the_servers_cache() {
    let mut bench = Bench::listed();
    bench.watch_to("120", FailureCause::Expired);
    for _ in 0..2 {
        let step = bench.try_and_fail(FailureCause::Interrupted).0;
        assert!(
            matches!(&step, NextRequest::StreamingList { recency: Recency::Since(known), .. } if &**known == "120")
        );
    }
    assert_eq!(bench.begin(), NextRequest::List(Recency::Since("120".into())));
    // a server that hasn't reached that version
    bench.fails(FailureCause::Future);
    assert!(matches!(
        bench.begin(),
        NextRequest::StreamingList { recency: Recency::Latest, .. } | NextRequest::List(Recency::Latest)
    ));
    bench.answered();
    bench.plan.listed("90".into(), Witnesses::default());
    bench.try_and_fail(FailureCause::Expired);
    assert!(
        matches!(bench.begin(), NextRequest::StreamingList { recency: Recency::Since(known), .. } if &*known == "90")
    );
}

#[test]
fn a_watch_that_ends_properly_goes_on_at_once_if_it_was_of_use() {
    let mut bench = Bench::listed();
    // it lasted
    bench.begin();
    bench.answered();
    bench.pass(SECOND);
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    // it delivered something
    bench.begin();
    bench.answered();
    bench.plan.advanced("101".into());
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    // neither
    let mut bounds = Vec::new();
    for _ in 0..6 {
        bench.begin();
        bench.answered();
        bench.plan.advanced("101".into());
        let AttemptResult::Failed { pause, quiet: false, answered: true, .. } = bench.plan.ended(None, bench.now)
        else {
            panic!("it goes on")
        };
        bounds.push(pause);
    }
    assert!(bounds[0] >= 100 * MS && bounds[0] < 200 * MS);
    assert!(bounds[5] >= 3 * SECOND && bounds[5] < 7 * SECOND);
}

#[test]
fn a_long_time_to_the_first_answer_does_not_count_as_lasting() {
    let mut bench = Bench::listed();
    bench.begin();
    bench.pass(20 * SECOND);
    bench.answered();
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::Failed { .. }));
}

#[test]
fn waits_grow_to_their_bounds_and_start_anew_after_progress() {
    for (cause, first, bound) in [
        (FailureCause::Unequipped, 100 * MS, SECOND),
        (FailureCause::Interrupted, 100 * MS, 15 * SECOND),
        (refused(500), 500 * MS, 15 * SECOND),
        (refused(503), 500 * MS, 15 * SECOND),
        (error_event(503), 500 * MS, 15 * SECOND),
        (refused(429), 500 * MS, 15 * SECOND),
        (refused(401), 500 * MS, SECOND),
        (refused(403), 500 * MS, SECOND),
    ] {
        let mut bench = Bench::listed();
        let pauses: Vec<Duration> = (0..10).map(|_| bench.try_and_fail(cause).1).collect();
        assert!(pauses[0] < 2 * first, "{cause:?} {pauses:?}");
        assert!(pauses.iter().all(|pause| *pause >= first && *pause < 2 * bound), "{cause:?} {pauses:?}");
        assert!(pauses[9] >= bound, "{cause:?} {pauses:?}");
        let mut bench = Bench::listed();
        (0..3).for_each(|_| drop(bench.try_and_fail(cause)));
        bench.plan.away = false;
        let after = bench.watch_to("101", cause);
        assert!(after < 2 * first, "{cause:?} {after:?}");
    }
}

#[test]
fn the_next_attempt_to_connect_is_waited_for_elsewhere() {
    let mut bench = Bench::listed();
    for _ in 0..20 {
        let pause = bench.try_and_fail(FailureCause::Unreached).1;
        assert!((50 * MS..100 * MS).contains(&pause), "{pause:?}");
    }
}

#[test]
fn refusals_that_go_on_are_asked_seldom() {
    for code in [401, 403] {
        let mut bench = Bench::listed();
        let start = bench.now;
        while bench.now < start + 30 * SECOND {
            assert!(!bench.plan.is_refused(bench.now));
            assert!(bench.try_and_fail(refused(code)).1 < 2 * SECOND);
        }
        assert!(bench.plan.is_refused(bench.now));
        let pauses: Vec<Duration> = (0..10).map(|_| bench.try_and_fail(refused(code)).1).collect();
        assert!(pauses[9] >= 8 * SECOND && pauses[9] < 16 * SECOND, "{pauses:?}");
        bench.watch_to("101", refused(code));
        assert!(!bench.plan.is_refused(bench.now));
    }
}

#[test]
fn a_server_that_refuses_while_it_starts_is_found_soon() {
    let mut bench = Bench::listed();
    for _ in 0..20 {
        bench.try_and_fail(FailureCause::Unreached);
    }
    let start = bench.now;
    while bench.now < start + 500 * MS {
        bench.try_and_fail(refused(403));
    }
    assert!(bench.now < start + 1500 * MS, "{:?}", bench.now - start);
    // neither backoff resets the other
    for _ in 0..20 {
        bench.try_and_fail(refused(403));
        bench.try_and_fail(FailureCause::Unreached);
    }
    assert!(bench.try_and_fail(refused(403)).1 >= SECOND);
}

#[test]
fn what_a_server_asks_for_is_obeyed_within_bounds() {
    let mut bench = Bench::listed();
    let mut wait = |seconds| {
        bench.begin();
        bench.failed(RequestFailure::new(refused(429), "busy").after(Some(seconds * SECOND))).0
    };
    let waits: Vec<Duration> = (0..20).map(|_| wait(40)).collect();
    assert!(waits.iter().all(|wait| (40 * SECOND..50 * SECOND).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != waits[0]), "by chance");
    assert!((299 * SECOND..375 * SECOND).contains(&wait(299)), "whole");
    assert!((300 * SECOND..375 * SECOND).contains(&wait(7000)));
    assert!(wait(0) >= 100 * MS);
}

#[test]
fn too_old_leads_to_a_list_and_repeatedly_to_one_after_a_while() {
    let mut bench = Bench::listed();
    assert_eq!(watch_version(&bench.begin()), "100");
    let (pause, quiet) = bench.failed(RequestFailure::new(FailureCause::Expired, "410"));
    assert_eq!((pause, quiet), (50 * MS, true));
    let mut last = Duration::ZERO;
    for round in 0..12 {
        assert!(is_streaming(&bench.begin()), "{round}");
        bench.answered();
        bench.plan.listed("200".into(), Witnesses::default());
        // changes between don't make lists cheaper
        bench.plan.advanced(format!("{}", 300 + round).into());
        let (pause, quiet) = bench.failed(RequestFailure::new(FailureCause::Expired, "410"));
        assert!(!quiet && pause >= 100 * MS && pause < 16 * SECOND);
        last = pause;
    }
    assert!(last >= 8 * SECOND, "{last:?}");
    bench.begin();
    bench.answered();
    bench.plan.listed("900".into(), Witnesses::default());
    bench.pass(61 * SECOND);
    assert_eq!(bench.failed(RequestFailure::new(FailureCause::Expired, "410")), (Duration::ZERO, true));
}

#[test]
fn broken_bytes_twice_at_one_version_lead_to_a_list() {
    for cause in [FailureCause::Broken, error_event(400), refused(400), refused(422), refused(404)] {
        let mut bench = Bench::listed();
        bench.try_past_checks(cause);
        let step = bench.try_past_checks(cause);
        assert_eq!(watch_version(&step), "100", "{cause:?}");
        assert!(is_streaming(&bench.begin()), "{cause:?}");
    }
    let mut bench = Bench::listed();
    bench.try_and_fail(FailureCause::Broken);
    bench.watch_to("101", FailureCause::Broken);
    assert_eq!(watch_version(&bench.begin()), "101", "a newer version is another chance");
    bench.fails(FailureCause::Broken);
    assert!(is_streaming(&bench.begin()));
}

#[test]
fn broken_watches_after_complete_lists_are_no_busy_loop() {
    let mut bench = Bench::listed();
    let start = bench.now;
    let mut lists = 0;
    while bench.now < start + 60 * SECOND {
        if is_streaming(&bench.begin()) {
            lists += 1;
            bench.answered();
            bench.plan.listed("100".into(), Witnesses::default());
            bench.plan.ended(None, bench.now);
        } else {
            bench.answered();
            bench.fails(FailureCause::Broken);
        }
    }
    assert!((3..16).contains(&lists), "{lists}");
}

#[test]
fn a_server_that_cannot_answer_is_asked_from_the_same_version() {
    let failing = [500, 501, 502, 503, 504, 599].into_iter().flat_map(|code| [refused(code), error_event(code)]);
    let others = [refused(429), refused(403), error_event(429), FailureCause::Interrupted, FailureCause::Silent];
    for cause in failing.chain(others) {
        let mut bench = Bench::listed();
        for _ in 0..20 {
            assert_eq!(watch_version(&bench.try_past_checks(cause)), "100", "{cause:?}");
        }
    }
    // Nor does it count toward other failures.
    let mut bench = Bench::listed();
    bench.try_past_checks(FailureCause::Broken);
    bench.try_past_checks(refused(500));
    bench.try_past_checks(error_event(500));
    assert_eq!(watch_version(&bench.begin_past_checks()), "100");
    bench.fails(FailureCause::Broken);
    assert!(is_streaming(&bench.begin()));
}

#[test]
fn a_server_behind_leads_to_a_list() {
    let mut bench = Bench::listed();
    assert!(bench.plan.is_behind("99"));
    assert!(!bench.plan.is_behind("100") && !bench.plan.is_behind("101") && !bench.plan.is_behind("x"));
    bench.try_and_fail(FailureCause::Behind);
    assert!(is_streaming(&bench.begin()));
}

#[test]
fn what_keeps_bytes_back_gets_short_streams() {
    let seconds = |step: NextRequest| match step {
        NextRequest::Watch { seconds, .. } => seconds,
        other => panic!("{other:?}"),
    };
    let mut bench = Bench::listed();
    for _ in 0..2 {
        assert!(seconds(bench.begin()) >= 300);
        bench.answered();
        bench.pass(130 * SECOND);
        bench.fails(FailureCause::Silent);
    }
    assert_eq!(seconds(bench.begin()), 32);
    // all comes at the end
    bench.answered();
    bench.pass(32 * SECOND);
    bench.plan.received_bytes(bench.now);
    bench.plan.advanced("101".into());
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    assert_eq!(seconds(bench.begin()), 32);
    // now it comes when it happens
    bench.answered();
    bench.plan.received_bytes(bench.now);
    bench.pass(32 * SECOND);
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    assert!(seconds(bench.begin()) >= 300);
}

#[test]
fn watches_that_never_say_anything_lead_to_a_list() {
    let mut bench = Bench::listed();
    let mut open = Duration::ZERO;
    while let NextRequest::Watch { seconds, .. } = bench.begin() {
        bench.answered();
        // by the server's end, by ours, or by a cut
        let (time, failure) = match open.as_secs() % 3 {
            0 => (Duration::from_secs(seconds).min(130 * SECOND), None),
            1 => (130 * SECOND, Some(RequestFailure::new(FailureCause::Silent, "silent"))),
            _ => (50 * SECOND, Some(RequestFailure::new(FailureCause::Interrupted, "cut"))),
        };
        bench.pass(time);
        open += time;
        if let AttemptResult::Failed { pause, .. } = bench.plan.ended(failure, bench.now) {
            bench.pass(pause);
        }
        assert!(open < 800 * SECOND);
    }
    assert!(open >= 600 * SECOND);
    assert!(is_streaming(&bench.begin()));
    // an hour without a server is different
    let mut bench = Bench::listed();
    bench.pass(3600 * SECOND);
    bench.try_and_fail(FailureCause::Unreached);
    bench.try_past_checks(FailureCause::Interrupted);
    assert_eq!(watch_version(&bench.begin()), "100");
}

#[test]
fn a_cut_of_a_watch_that_worked_is_nothing_special() {
    let mut bench = Bench::listed();
    bench.begin();
    bench.answered();
    bench.pass(2 * SECOND);
    let (pause, quiet) = bench.failed(RequestFailure::new(FailureCause::Interrupted, "cut"));
    assert!(quiet && pause >= 100 * MS && pause < 200 * MS);
    bench.begin();
    bench.answered();
    assert!(!bench.failed(RequestFailure::new(FailureCause::Interrupted, "cut")).1, "this one brought nothing");
}

#[test]
fn a_server_without_streaming_lists_is_nothing_special() {
    for (cause, special) in
        [(refused(422), false), (refused(400), false), (FailureCause::Unsupported, false), (refused(500), true)]
    {
        let mut bench = Bench::new();
        bench.begin();
        bench.answered();
        assert_eq!(bench.failed(RequestFailure::new(cause, "no")).1, !special, "{cause:?}");
        // but paged lists have to work
        bench.begin();
        bench.answered();
        assert!(!bench.failed(RequestFailure::new(cause, "no")).1, "{cause:?}");
    }
}

#[test]
fn a_kind_that_is_not_offered_is_asked_for_later_as_at_the_start() {
    let mut bench = Bench::listed();
    bench.begin();
    assert_eq!(bench.plan.rest(), 600 * SECOND);
    assert!(is_streaming(&bench.begin()));
}

#[test]
fn no_sequence_of_failures_is_a_busy_loop() {
    let causes = [
        FailureCause::Unreached,
        FailureCause::Interrupted,
        FailureCause::Silent,
        FailureCause::Expired,
        FailureCause::Broken,
        FailureCause::Foreign,
        FailureCause::Endless,
        FailureCause::Short,
        FailureCause::Unsupported,
        FailureCause::Behind,
        FailureCause::Future,
        FailureCause::Unequipped,
        refused(400),
        refused(401),
        refused(404),
        refused(429),
        refused(500),
        error_event(500),
    ];
    let mut jitter = Jitter::seeded(11);
    let mut bench = Bench::new();
    for _ in 0..10_000 {
        bench.begin();
        bench.answered();
        let cause = causes[usize::try_from(jitter.among(&(0..causes.len() as u64))).unwrap()];
        let pause = bench.fails(cause);
        assert!(pause >= 50 * MS && pause < 30 * SECOND, "{cause:?} {pause:?}");
    }
}

/// Objects that changed to these versions, the newest first; `None` for deleted ones.
fn witnesses(versions: &[Option<&str>]) -> Witnesses {
    let mut all = Witnesses::default();
    for (number, version) in versions.iter().enumerate().rev() {
        let name = ObjectName::new("n", &format!("o{number}"));
        all.changed(Witness { name, version: version.map(Into::into) });
    }
    all
}

/// A plan with the versions of its last changes, newest first, after an outage.
fn returned(versions: &[Option<&str>], absence: Duration) -> Bench {
    let mut bench = Bench::listed();
    bench.plan.witnessed(witnesses(versions));
    bench.try_and_fail(FailureCause::Unreached);
    bench.pass(absence);
    bench
}

/// A check with this result.
fn check(bench: &mut Bench, found: Option<&str>) {
    let step = bench.begin();
    assert!(matches!(&step, NextRequest::Check { version, .. } if &**version == "100"), "{step:?}");
    bench.answered();
    bench.plan.checked(found, bench.now);
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(Duration::ZERO)));
}

/// Asserts that the watch continues, and no list follows.
#[track_caller]
fn assert_goes_on(bench: &mut Bench) {
    for _ in 0..3 {
        let step = bench.begin();
        assert_eq!(watch_version(&step), "100", "no list");
        bench.answered();
        bench.pass(400 * SECOND);
        bench.plan.received_bytes(bench.now);
        assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    }
}

/// Asserts that the watch continues, and a list follows within a minute.
#[track_caller]
fn assert_is_listed_in_a_while(bench: &mut Bench) {
    let NextRequest::Watch { version, seconds } = bench.begin() else { panic!("no watch") };
    assert!(&*version == "100" && (1..=60).contains(&seconds), "{seconds}");
    bench.answered();
    bench.pass(61 * SECOND);
    bench.plan.ended(None, bench.now);
    let step = bench.begin();
    assert!(matches!(&step, NextRequest::StreamingList { recency: Recency::Since(known), .. } if &**known == "100"));
    bench.answered();
    bench.plan.listed("100".into(), Witnesses::default());
    bench.pass(100 * SECOND);
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
    assert!(matches!(bench.begin(), NextRequest::Watch { .. }), "once is enough");
}

#[test]
fn a_cut_is_no_absence() {
    let mut bench = Bench::listed();
    bench.try_and_fail(FailureCause::Interrupted);
    assert_goes_on(&mut bench);
}

#[test]
fn after_an_absence_of_any_length_an_unchanged_witness_saves_the_list() {
    for absence in [2 * SECOND, 301 * SECOND, 86_400 * SECOND] {
        for cause in [FailureCause::Unreached, FailureCause::Unequipped, refused(403), refused(503)] {
            let mut bench = returned(&[Some("99"), Some("98")], absence);
            bench.try_and_fail(cause);
            check(&mut bench, Some("99"));
            assert_goes_on(&mut bench);
        }
    }
}

#[test]
fn what_changed_since_is_delivered_by_the_watch_and_no_reason_for_a_list() {
    let mut bench = returned(&[Some("99"), Some("98"), Some("97")], 301 * SECOND);
    check(&mut bench, Some("120"));
    check(&mut bench, Some("98"));
    assert_goes_on(&mut bench);
    // all of them
    let mut bench = returned(&[Some("99")], 301 * SECOND);
    check(&mut bench, Some("101"));
    assert_goes_on(&mut bench);
    // deleted since, and deleted before
    for versions in [[Some("99"), Some("98")], [None, Some("98")]] {
        let mut bench = returned(&versions, SECOND);
        check(&mut bench, None);
        check(&mut bench, Some("98"));
        assert_goes_on(&mut bench);
    }
}

#[test]
fn another_history_leads_to_a_list_in_a_while() {
    for (version, found) in [(Some("99"), "98"), (Some("99"), "100"), (None, "7")] {
        let mut bench = returned(&[version], 2 * SECOND);
        check(&mut bench, Some(found));
        assert_is_listed_in_a_while(&mut bench);
    }
    let mut bench = returned(&[Some("99"), Some("98")], 2 * SECOND);
    check(&mut bench, None);
    check(&mut bench, Some("110"));
    assert_is_listed_in_a_while(&mut bench);
    // unless the watch delivers the deletion
    let mut bench = returned(&[Some("99"), Some("98")], 2 * SECOND);
    check(&mut bench, None);
    check(&mut bench, Some("110"));
    bench.plan.witnessed(witnesses(&[None]));
    assert_goes_on(&mut bench);
}

#[test]
fn a_kind_without_objects_is_checked_too_and_not_listed() {
    let mut bench = returned(&[], 301 * SECOND);
    assert!(matches!(bench.begin(), NextRequest::Check { name: None, .. }));
    check(&mut bench, None);
    assert_goes_on(&mut bench);
}

#[test]
fn absences_dont_put_off_a_list_for_ever() {
    let mut bench = returned(&[Some("99")], SECOND);
    check(&mut bench, Some("98"));
    let start = bench.now;
    while let NextRequest::Watch { .. } = bench.begin() {
        bench.fails(FailureCause::Unreached);
        bench.pass(4 * SECOND);
        assert!(matches!(bench.begin(), NextRequest::Watch { .. } | NextRequest::StreamingList { .. }));
        bench.answered();
        bench.pass(SECOND);
        bench.fails(FailureCause::Interrupted);
        assert!(bench.now < start + 130 * SECOND);
    }
}

#[test]
fn a_server_that_lags_is_watched_and_checked_again_before_a_list_of_now() {
    let mut bench = returned(&[Some("99")], 2 * SECOND);
    let (start, mut checks) = (bench.now, 0);
    loop {
        match bench.begin() {
            NextRequest::Check { .. } => {
                checks += 1;
                bench.fails(FailureCause::Future);
            }
            NextRequest::Watch { version, seconds } => {
                assert!(&*version == "100" && (1..=11).contains(&seconds), "{seconds}");
                bench.answered();
                bench.pass(Duration::from_secs(seconds));
                assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(_)));
            }
            step => {
                assert!(matches!(step, NextRequest::StreamingList { recency: Recency::Latest, .. }), "{step:?}");
                break;
            }
        }
    }
    assert!((20..=42).contains(&(bench.now - start).as_secs()) && checks >= 3, "{checks} {:?}", bench.now - start);
    // one that catches up
    let mut bench = returned(&[Some("99")], 2 * SECOND);
    assert!(matches!(bench.begin(), NextRequest::Check { .. }));
    bench.fails(FailureCause::Future);
    let NextRequest::Watch { seconds, .. } = bench.begin() else { panic!("no watch") };
    bench.answered();
    bench.pass(Duration::from_secs(seconds));
    bench.plan.ended(None, bench.now);
    check(&mut bench, Some("99"));
    assert_goes_on(&mut bench);
}

#[test]
fn a_check_that_fails_is_made_again_and_one_that_is_refused_is_done_without() {
    for cause in [FailureCause::Unreached, FailureCause::Interrupted, refused(429), refused(503), FailureCause::Silent]
    {
        let mut bench = returned(&[Some("99")], SECOND);
        for _ in 0..5 {
            assert!(matches!(bench.try_and_fail(cause).0, NextRequest::Check { .. }), "{cause:?}");
        }
    }
    for cause in [401, 403].map(refused) {
        let mut bench = returned(&[Some("99")], SECOND);
        let start = bench.now;
        while let NextRequest::Check { .. } = bench.begin() {
            bench.fails(cause);
            assert!(bench.now < start + 60 * SECOND);
        }
        assert!(bench.now >= start + 30 * SECOND, "a server that has just started refuses for a while");
    }
    for cause in [refused(400), refused(404), FailureCause::Foreign, FailureCause::Broken] {
        let mut bench = returned(&[Some("99")], SECOND);
        assert!(matches!(bench.try_and_fail(cause).0, NextRequest::Check { .. }), "{cause:?}");
        let NextRequest::Watch { seconds, .. } = bench.begin() else { panic!("no watch: {cause:?}") };
        assert!(seconds <= 60, "a list follows: {cause:?}");
    }
}

/// Another server may answer the rest of the round than the one that answered its beginning.
#[test]
fn a_round_of_checks_that_breaks_off_begins_anew() {
    for cause in [FailureCause::Unreached, FailureCause::Interrupted, refused(403), refused(503)] {
        for first in [None, Some("101")] {
            let mut bench = returned(&[Some("99"), Some("98")], SECOND);
            check(&mut bench, first);
            bench.begin();
            bench.fails(cause);
            assert!(bench.plan.asks_in_turn(), "{cause:?}: it waits for its turn again");
            check(&mut bench, Some("97"));
            assert_is_listed_in_a_while(&mut bench);
        }
    }
    // A deletion that the watch delivers after a second absence cancels no list.
    let mut bench = returned(&[Some("99")], SECOND);
    check(&mut bench, None);
    bench.begin();
    bench.fails(FailureCause::Unreached);
    bench.plan.witnessed(witnesses(&[None]));
    assert_is_listed_in_a_while(&mut bench);
}

#[test]
fn streams_that_end_well_but_at_once_are_no_loop() {
    let mut bench = Bench::listed();
    let pauses: Vec<Duration> = (101..121)
        .map(|version| {
            bench.begin();
            bench.answered();
            bench.plan.advanced(version.to_string().into());
            let AttemptResult::GoOn(pause) = bench.plan.ended(None, bench.now) else { panic!("it fails") };
            bench.pass(pause);
            pause
        })
        .collect();
    assert!(pauses[0] >= 50 * MS && pauses[0] < 100 * MS, "{pauses:?}");
    assert!(pauses[19] >= SECOND && pauses[19] < 2 * SECOND, "{pauses:?}");
    bench.begin();
    bench.answered();
    bench.pass(2 * SECOND);
    assert!(matches!(bench.plan.ended(None, bench.now), AttemptResult::GoOn(Duration::ZERO)));
}

#[test]
fn a_watch_that_falls_silent_is_nothing_special() {
    let mut bench = Bench::listed();
    bench.begin();
    bench.answered();
    bench.pass(130 * SECOND);
    assert!(bench.failed(RequestFailure::new(FailureCause::Silent, "nothing came")).1);
    let mut bench = Bench::new();
    bench.begin();
    bench.answered();
    assert!(!bench.failed(RequestFailure::new(FailureCause::Silent, "nothing came")).1, "a list is");
}

#[test]
fn after_an_interruption_one_kind_asks_first_and_nothing_is_checked() {
    for failure in [Some(RequestFailure::new(FailureCause::Interrupted, "cut")), None] {
        let mut bench = Bench::listed();
        for _ in 0..2 {
            assert!(matches!(bench.begin(), NextRequest::Watch { .. }));
            bench.answered();
            assert!(!bench.plan.asks_in_turn());
            bench.pass(100 * SECOND);
            bench.plan.ended(failure.clone(), bench.now);
            assert!(bench.plan.asks_in_turn(), "{failure:?}");
        }
        // The server may have been restored meanwhile.
        bench.plan.missed();
        assert!(matches!(bench.begin(), NextRequest::Check { .. }));
    }
    let mut bench = Bench::listed();
    let NextRequest::Watch { seconds, .. } = bench.begin() else { panic!("no watch") };
    bench.answered();
    bench.pass(Duration::from_secs(seconds));
    bench.plan.ended(None, bench.now);
    assert!(!bench.plan.asks_in_turn(), "a watch that ends in its time is no interruption");
}
