use super::*;

fn name(number: u64) -> ObjectName {
    ObjectName::new("n", &format!("o{number}"))
}

/// Versions 101 to 100 + `count`, of as many objects, all delivered up to version 200.
fn followed(count: u64) -> HistoryChecks {
    let mut witnesses = Witnesses::default();
    // unordered, as in a streaming list
    for number in (1..=count).rev().step_by(2).chain((1..=count).rev().skip(1).step_by(2)) {
        witnesses.listed(&name(number), &(100 + number).to_string());
    }
    let mut history = HistoryChecks::default();
    history.restart(witnesses);
    history
}

#[test]
fn the_newest_objects_of_a_list_are_the_witnesses() {
    let history = followed(20);
    let versions: Vec<&str> = history.witnesses.0.iter().filter_map(|known| known.version.as_deref()).collect();
    assert_eq!(versions, ["120", "119", "118", "117", "116", "115", "114", "113"]);
    let mut witnesses = Witnesses::default();
    witnesses.listed(&name(1), "no number");
    assert!(witnesses.0.is_empty());
    for version in ["101", "103", "102"] {
        witnesses.listed(&name(1), version);
    }
    assert_eq!(witnesses.0, [Witness { name: name(1), version: Some("103".into()) }]);
}

#[test]
fn an_unchanged_witness_settles_it_and_a_changed_one_doesnt() {
    let mut history = followed(20);
    assert_eq!(history.found(Some("120"), "200"), Finding::Same);
    // changed since, deleted since, unchanged
    let mut asked = Vec::new();
    for (found, finding) in [(Some("201"), Finding::Open), (None, Finding::Open), (Some("117"), Finding::Same)] {
        asked.push(history.name().cloned());
        assert_eq!(history.found(found, "200"), finding);
    }
    assert_eq!(asked, [20, 19, 17].map(|number| Some(name(number))));
    assert_eq!(history.name(), Some(&name(20)), "the next round begins with the newest again");
}

#[test]
fn a_change_that_the_watch_would_not_deliver_is_of_another_history() {
    for found in ["90", "119", "200"] {
        assert_eq!(followed(20).found(Some(found), "200"), Finding::Doubtful, "{found}");
    }
}

#[test]
fn witnesses_that_have_all_changed_are_the_watchs_matter() {
    for count in [1, 2, 3, 4, 8, 20] {
        let mut history = followed(count);
        let mut checks = 1;
        while history.found(Some("201"), "200") == Finding::Open {
            checks += 1;
        }
        assert!(checks <= 4, "{checks} checks of {count}");
        let mut history = followed(count);
        (1..checks).for_each(|_| assert_eq!(history.found(Some("201"), "200"), Finding::Open));
        assert_eq!(history.found(Some("201"), "200"), Finding::Same, "{count}");
    }
}

#[test]
fn what_is_gone_is_a_doubt_until_the_watch_delivers_its_deletion() {
    let deletion = |numbers: &[u64]| {
        let mut changes = Witnesses::default();
        numbers.iter().for_each(|number| changes.changed(Witness { name: name(*number), version: None }));
        changes
    };
    let doubted = || {
        let mut history = followed(3);
        for finding in [Finding::Open, Finding::Open, Finding::Doubtful] {
            assert_eq!(history.found(None, "200"), finding);
        }
        history.doubt(Instant::now(), &SourceTiming::default(), &mut Jitter::seeded(1));
        history
    };
    let mut history = doubted();
    history.changed(deletion(&[3, 7]));
    history.changed(deletion(&[2]));
    assert!(history.is_doubted());
    history.changed(deletion(&[1]));
    assert!(!history.is_doubted(), "the watch knows them");
    // A witness with another version settles it.
    let mut history = followed(2);
    assert_eq!(history.found(None, "200"), Finding::Open);
    assert_eq!(history.found(Some("50"), "200"), Finding::Doubtful);
    history.doubt(Instant::now(), &SourceTiming::default(), &mut Jitter::seeded(1));
    history.changed(deletion(&[2, 1]));
    assert!(history.is_doubted());
}

#[test]
fn a_deletion_leads_to_the_next_witness() {
    let deleted = |history: &mut HistoryChecks| history.witnesses.changed(Witness { name: name(99), version: None });
    // it exists again, in the backup's version
    let mut history = followed(2);
    deleted(&mut history);
    assert_eq!(history.found(Some("150"), "200"), Finding::Doubtful);
    // still missing, which alone proves nothing
    assert_eq!(history.found(None, "200"), Finding::Open);
    assert_eq!(history.found(Some("90"), "200"), Finding::Doubtful);
    assert_eq!(history.found(None, "200"), Finding::Open);
    assert_eq!(history.found(Some("102"), "200"), Finding::Same);
    // nothing else is known
    let mut history = HistoryChecks::default();
    deleted(&mut history);
    assert_eq!(history.found(None, "200"), Finding::Same);
}

#[test]
fn a_kind_without_objects_agrees_with_a_server_without_any() {
    let mut history = HistoryChecks::default();
    assert_eq!(history.name(), None);
    assert_eq!(history.found(None, "200"), Finding::Same);
    assert_eq!(history.found(Some("5"), "200"), Finding::Doubtful);
}

#[test]
fn a_list_can_be_put_off_only_up_to_a_bound() {
    let (timing, mut jitter) = (SourceTiming::default(), Jitter::seeded(1));
    let mut history = followed(1);
    let start = Instant::now();
    let mut now = start;
    while !history.list_is_due(now) {
        history.doubt(now, &timing, &mut jitter);
        now += Duration::from_secs(4);
        assert!(now < start + Duration::from_secs(130));
    }
    assert!(history.is_doubted());
    history.restart(Witnesses::default());
    assert!(!history.is_doubted());
}

#[test]
fn a_server_that_lags_is_taken_for_restored_after_a_while_of_chance() {
    let timing = SourceTiming::default();
    let mut ends = Vec::new();
    for seed in 0..20 {
        let (mut jitter, mut history) = (Jitter::seeded(seed), followed(1));
        let start = Instant::now();
        let (mut now, mut checks) = (start, 1);
        while !history.lags("200", now, &timing, &mut jitter) {
            checks += 1;
            assert!(history.is_lagging() && !history.check_is_due(now));
            now += Duration::from_secs(history.seconds_left(now));
            assert!(history.check_is_due(now));
        }
        assert!((3..=8).contains(&checks), "{checks}");
        ends.push((now - start).as_secs());
    }
    assert!(ends.iter().all(|end| (20..=41).contains(end)), "{ends:?}");
    assert!(ends.iter().min() != ends.iter().max(), "{ends:?}");
    let (mut jitter, mut history) = (Jitter::seeded(1), followed(1));
    assert!(!history.lags("200", Instant::now(), &timing, &mut jitter));
    assert_eq!(history.found(Some("101"), "200"), Finding::Same);
    assert!(!history.is_lagging(), "it has caught up");
}

#[test]
fn what_a_server_that_lagged_delivers_is_no_witness_for_itself() {
    let lagging = || {
        let mut history = followed(1);
        assert!(!history.lags("200", Instant::now(), &SourceTiming::default(), &mut Jitter::seeded(1)));
        let mut changes = Witnesses::default();
        changes.changed(Witness { name: name(7), version: Some("201".into()) });
        history.changed(changes);
        history
    };
    let mut history = lagging();
    assert_eq!(history.name(), Some(&name(1)), "that of before");
    assert_eq!(history.found(Some("150"), "201"), Finding::Doubtful);
    let mut history = lagging();
    assert_eq!(history.found(Some("101"), "201"), Finding::Same);
    assert_eq!(history.name(), Some(&name(7)), "from now on");
    // The watch has delivered this change meanwhile.
    assert_eq!(lagging().found(Some("201"), "201"), Finding::Same);
}
