use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use ferry_api::object::ObjectName;
use ferry_kernel::conntrack::{Deletion, Filter, FlowStatus, Tuple};
use ferry_model::ServiceState;
use ferry_model::state::{
    Action, Endpoint, Frontend, FrontendAddr, FrontendKind, Pool, PortState, Scope, Snat, SourceRanges, Treatment,
};
use ferry_plane::{Acknowledged, CommitError, Outcome, Unit, UnitId};

use super::super::queue::AGAIN;
use super::super::reports::FlowObserver;
use super::super::testing::Holds;
use super::*;

/// The timeout that a packet sets, in seconds.
const FULL: u32 = 30;

/// A connection table during whose list, and during whose first removal, something happens.
#[derive(Default)]
struct Fake<'a> {
    entries: Vec<Entry>,
    gone: HashSet<Entry>,
    /// by source port; the full timeout, unless set
    timeouts: HashMap<u16, u32>,
    unwatchable: bool,
    /// timeouts are set, but an error is returned
    half_set: bool,
    after_dump: Option<Box<dyn FnMut() + 'a>>,
    after_deletion: Option<Box<dyn FnOnce() + 'a>>,
    dumps: usize,
    interrupted: bool,
}

impl Fake<'_> {
    fn left(&self) -> Vec<Entry> {
        self.entries.iter().filter(|entry| !self.gone.contains(entry)).copied().collect()
    }
}

impl ConntrackTable for Fake<'_> {
    fn local_addresses(&mut self, _: &[&str]) -> io::Result<Vec<IpAddr>> {
        Ok(vec!["192.0.2.1".parse().unwrap()])
    }

    fn dump(&mut self, filter: &Filter, each: &mut dyn FnMut(&Entry)) -> Result<(), ConntrackError> {
        self.dumps += 1;
        self.left().iter().filter(|entry| filter.matches(entry)).for_each(each);
        if let Some(after) = &mut self.after_dump {
            after();
        }
        if std::mem::take(&mut self.interrupted) {
            return Err(ConntrackError::Interrupted(io::ErrorKind::Interrupted.into()));
        }
        Ok(())
    }

    fn delete(&mut self, entries: &[Entry]) -> Deletion {
        let before = self.gone.len();
        self.gone.extend(entries);
        if let Some(after) = self.after_deletion.take() {
            after();
        }
        Deletion { deleted: self.gone.len() - before, ..Deletion::default() }
    }

    fn unanswered_timeout(&mut self) -> io::Result<u32> {
        if self.unwatchable { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(FULL) }
    }

    fn timeouts(&mut self, entries: &[Entry], each: &mut dyn FnMut(&Entry, u32)) -> Result<(), ConntrackError> {
        let left = self.left().into_iter().filter(|entry| entries.iter().any(|known| known.is_same_flow(entry)));
        left.for_each(|entry| {
            each(&entry, self.timeouts.get(&entry.original.source_port).copied().unwrap_or(FULL - 1));
        });
        Ok(())
    }

    fn set_timeouts(&mut self, entries: &[(Entry, u32)]) -> Result<(), ConntrackError> {
        self.timeouts.extend(entries.iter().map(|(entry, seconds)| (entry.original.source_port, *seconds)));
        if self.half_set { Err(io::Error::from_raw_os_error(1).into()) } else { Ok(()) }
    }
}

/// A UDP Service at 10.96.0.1:53 with these endpoints.
fn unit(endpoints: &[u8]) -> Arc<Unit> {
    let endpoint = |n: &u8| Endpoint { address: IpAddr::from([10, 1, 0, *n]), port: 53 };
    let treatment = Treatment::all(Action::Forward { to: Scope::Cluster, snat: Snat::Keep });
    Arc::new(Unit::Service(ServiceState {
        name: ObjectName::new("default", "dns"),
        health_check: None,
        ports: vec![PortState {
            name: "".into(),
            protocol: Protocol::Udp,
            affinity: None,
            cluster: Pool::new(endpoints.iter().map(endpoint).collect::<Vec<_>>()),
            local: Pool::default(),
            lingering: Pool::default(),
            balance: None,
            shadowed: None,
            frontends: [Frontend {
                kind: FrontendKind::ClusterIp,
                at: FrontendAddr::Vip(IpAddr::from([10, 96, 0, 1]), 53),
                sources: SourceRanges::Any,
                treatment,
            }]
            .into(),
        }],
    }))
}

fn sync(observer: &mut FlowObserver, before: &[u8], after: &[u8]) {
    let acked = Acknowledged { id: UnitId::Base, before: Some(unit(before)), after: Some(unit(after)) };
    observer.begin();
    observer.end(&Outcome { acked: vec![acked], ..Outcome::default() }, &Holds(Vec::new()));
}

fn entry(client: u16, endpoint: u8) -> Entry {
    let (client, to, endpoint): (SocketAddr, SocketAddr, SocketAddr) =
        (([10, 0, 0, 9], client).into(), ([10, 96, 0, 1], 53).into(), ([10, 1, 0, endpoint], 53).into());
    let tuple = |from: SocketAddr, to: SocketAddr| Tuple {
        source: from.ip(),
        destination: to.ip(),
        source_port: from.port(),
        destination_port: to.port(),
    };
    let (original, reply) = (tuple(client, to), tuple(endpoint, client));
    Entry { original, reply, protocol: 17, status: FlowStatus::SEEN_REPLY, id: u32::from(client.port()), zone: 0 }
}

fn unanswered(client: u16, endpoint: u8) -> Entry {
    Entry { status: FlowStatus::default(), ..entry(client, endpoint) }
}

/// A pass over what is due, as the thread makes it.
fn pass(reports: &FlowReports, table: &mut Fake<'_>) -> (Result<(), PassError>, usize) {
    let rules = reports.take(Family::V4, Instant::now());
    pass_by(reports, rules, table, &mut Unanswered::default(), |pass| pass.run())
}

fn pass_by(
    reports: &FlowReports,
    rules: FlowRules,
    table: &mut Fake<'_>,
    unanswered: &mut Unanswered,
    work: impl FnOnce(&mut CleanerPass<'_>) -> Result<(), PassError>,
) -> (Result<(), PassError>, usize) {
    pass_of_mode(reports, (rules, ferry_model::ReplyOwner::Endpoint.into()), table, unanswered, work)
}

fn pass_of_mode(
    reports: &FlowReports,
    (rules, replies): (FlowRules, Replies),
    table: &mut Fake<'_>,
    unanswered: &mut Unanswered,
    work: impl FnOnce(&mut CleanerPass<'_>) -> Result<(), PassError>,
) -> (Result<(), PassError>, usize) {
    let mut deleted = 0;
    let mut pass = CleanerPass {
        reports,
        family: Family::V4,
        rules,
        replies,
        local: Vec::new(),
        own_devices: &[],
        table,
        unanswered,
        deleted: &mut deleted,
    };
    (work(&mut pass), deleted)
}

/// The first check of a change, then the next look at flows without an answer; `between`: what happens before that. Returns
/// the number of flows that each deleted.
fn two_looks(reports: &FlowReports, table: &mut Fake<'_>, between: impl FnOnce(&mut Fake<'_>)) -> [usize; 2] {
    let (mut unanswered, rules) = (Unanswered::default(), reports.take(Family::V4, Instant::now()));
    let (result, first) = pass_by(reports, rules, table, &mut unanswered, |pass| pass.run());
    assert!(result.is_ok());
    reports.done(Family::V4);
    between(table);
    let flows = unanswered.take(unanswered.next().unwrap_or_else(Instant::now));
    let rules = reports.take_again(Family::V4, flows.iter().flat_map(|flow| frontends(&flow.entry)));
    let (result, second) = pass_by(reports, rules, table, &mut unanswered, |pass| pass.run_unanswered(&flows));
    assert!(result.is_ok());
    reports.done(Family::V4);
    [first, second]
}

/// The entry that a late answer of an endpoint has made.
fn late(client: u16, endpoint: u8) -> Entry {
    let flow = unanswered(client, endpoint);
    let (from, to) = (flow.reply.from(), flow.reply.to());
    let reply =
        Tuple { destination: from.ip(), destination_port: from.port(), source: to.ip(), source_port: to.port() };
    Entry { original: flow.reply, reply, ..flow }
}

/// The first check leaves them: they may as well be requests of the endpoint itself.
#[test]
fn an_endpoint_that_returns_loses_what_its_late_answers_have_made_where_client_ports_are_kept() {
    for keeps_client_ports in [false, true] {
        let reports = Arc::new(FlowReports::new(keeps_client_ports));
        sync(&mut reports.observer(Family::V4), &[1], &[1, 2]);
        let all = [entry(1, 1), unanswered(2, 2), late(3, 2), late(4, 3)];
        let mut table = Fake { entries: all.to_vec(), ..Fake::default() };
        let mut check = |at| {
            let replies = Replies { keeps_client_ports, ..ferry_model::ReplyOwner::Endpoint.into() };
            let rules = (reports.take(Family::V4, at), replies);
            let (result, deleted) =
                pass_of_mode(&reports, rules, &mut table, &mut Unanswered::default(), |pass| pass.run());
            assert!(result.is_ok());
            reports.done(Family::V4);
            deleted
        };
        let now = Instant::now();
        assert_eq!((check(now), check(now + AGAIN)), (0, usize::from(keeps_client_ports)));
        let is_left = |entry: &&Entry| !keeps_client_ports || **entry != late(3, 2);
        assert_eq!(table.left(), all.iter().filter(is_left).copied().collect::<Vec<_>>());
    }
}

#[test]
fn entries_of_several_filters_are_listed_once() {
    let reports = Arc::new(FlowReports::default());
    let mut table = Fake { entries: vec![unanswered(1, 1), entry(2, 1), late(3, 1)], ..Fake::default() };
    let all = Filter { family: Family::V4, protocol: 17, destination: None, port: None, unanswered: true };
    let of_frontend = Filter { port: Some(53), unanswered: false, ..all };
    let (rules, mut listed) = (reports.take(Family::V4, Instant::now()), Vec::new());
    let (result, _) = pass_by(&reports, rules, &mut table, &mut Unanswered::default(), |pass| {
        Ok(pass.list(&[of_frontend, all], &mut |entry| listed.push(*entry))?)
    });
    assert!(result.is_ok());
    assert_eq!(listed, table.entries);
}

#[test]
fn a_client_that_sends_again_without_an_answer_loses_its_flow() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let entries = vec![unanswered(1, 1), unanswered(2, 2), unanswered(3, 2), unanswered(4, 2)];
    let mut table = Fake { entries, ..Fake::default() };
    let deleted = two_looks(&reports, &mut table, |table| {
        assert_eq!(table.timeouts, [2, 3, 4].map(|client| (client, FULL - 3)).into(), "only stale flows are touched");
        // 3 sends again, 4 is answered and sends again
        table.timeouts.extend([(3, FULL - 1), (4, FULL - 1)]);
        table.entries[3].status = FlowStatus::SEEN_REPLY;
    });
    assert_eq!(deleted, [0, 1]);
    assert_eq!(table.left(), [unanswered(1, 1), unanswered(2, 2), entry(4, 2)]);
}

#[test]
fn an_endpoint_that_returns_keeps_the_flow_of_a_client_that_sends_again() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2], &[1]);
    let mut table = Fake { entries: vec![unanswered(3, 2)], ..Fake::default() };
    let deleted = two_looks(&reports, &mut table, |table| {
        table.timeouts.insert(3, FULL - 1);
        sync(&mut observer, &[1], &[1, 2]);
    });
    assert_eq!((deleted, table.left().len()), ([0, 0], 1));
}

#[test]
fn a_flow_without_a_packet_for_a_second_waits_for_no_answer() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let timeouts = HashMap::from([(2, FULL - 2), (3, FULL - 1), (4, 2)]);
    let entries = vec![unanswered(2, 2), unanswered(3, 2), unanswered(4, 2), unanswered(5, 1)];
    let mut table = Fake { entries, timeouts, ..Fake::default() };
    assert_eq!(two_looks(&reports, &mut table, |_| {}), [2, 0]);
    assert_eq!(table.left(), [unanswered(3, 2), unanswered(5, 1)]);
}

/// Its timeout was shortened by the first change: it looks as old as an idle one at the next.
#[test]
fn a_watched_flow_is_not_idle_at_the_next_change() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2, 3], &[1, 3]);
    let mut table = Fake { entries: vec![unanswered(2, 2)], ..Fake::default() };
    let (mut watched, begin) = (Unanswered::default(), Instant::now());
    let check = |table: &mut Fake<'_>, watched: &mut Unanswered| {
        let rules = reports.take(Family::V4, Instant::now());
        let (result, deleted) = pass_by(&reports, rules, table, watched, |pass| pass.run());
        assert!(result.is_ok());
        reports.done(Family::V4);
        deleted
    };
    assert_eq!(check(&mut table, &mut watched), 0);
    table.timeouts.insert(2, FULL - 4);
    while let Some(next) = watched.next() {
        let flows = watched.take(next);
        assert!(watched.look(&flows, &mut table).unwrap().is_empty());
    }
    sync(&mut observer, &[1, 3], &[1]);
    assert_eq!(check(&mut table, &mut watched), 0);
    assert_eq!(watched.watch(&[unanswered(2, 2)], &mut table, begin).unwrap(), []);
    let later = Instant::now() + Duration::from_secs(3);
    assert_eq!(watched.watch(&[unanswered(2, 2)], &mut table, later).unwrap(), [unanswered(2, 2)], "no packet for 3 s");
}

#[test]
fn a_flow_whose_timeout_may_be_shortened_is_not_idle() {
    let mut table = Fake { entries: vec![unanswered(2, 2)], half_set: true, ..Fake::default() };
    let (mut watched, begin) = (Unanswered::default(), Instant::now());
    assert!(watched.watch(&table.entries.clone(), &mut table, begin).is_err());
    assert_eq!((table.timeouts[&2], watched.next()), (FULL - 3, None));
    table.half_set = false;
    assert_eq!(watched.watch(&table.entries.clone(), &mut table, begin + Duration::from_millis(100)).unwrap(), []);
}

#[test]
fn flows_that_cannot_be_watched_are_left_to_the_second_check() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let mut table = Fake { entries: vec![unanswered(2, 2), entry(3, 2)], unwatchable: true, ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!((deleted, table.left()), (1, vec![unanswered(2, 2)]));
    reports.done(Family::V4);
    let rules = reports.take(Family::V4, Instant::now() + Duration::from_millis(300));
    let (result, deleted) = pass_by(&reports, rules, &mut table, &mut Unanswered::default(), |pass| pass.run());
    assert!(result.is_ok());
    assert_eq!((deleted, table.left().len()), (1, 0));
}

/// The second check deletes the rest, whatever the client does.
#[test]
fn flows_are_watched_for_a_while_and_not_all_at_once() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let many = u16::try_from(3 * WATCHED).unwrap();
    let entries: Vec<Entry> = (0..many).map(|client| unanswered(client, 2)).collect();
    let mut table = Fake { entries, ..Fake::default() };
    let (mut watched, begin) = (Unanswered::default(), Instant::now());
    let rules = reports.take(Family::V4, begin);
    assert!(pass_by(&reports, rules, &mut table, &mut watched, |pass| pass.run()).0.is_ok());
    assert_eq!(table.timeouts.len(), WATCHED);
    let (mut looks, mut last) = (0, begin);
    while let Some(next) = watched.next() {
        assert!(watched.take(last).is_empty(), "not before its time");
        let flows = watched.take(next);
        assert_eq!(flows.len(), WATCHED);
        assert!(watched.look(&flows, &mut table).unwrap().is_empty());
        (looks, last) = (looks + 1, next);
    }
    assert!(looks == 5 && last < begin + Duration::from_millis(250), "{looks} {:?}", last - begin);
    reports.done(Family::V4);
    let rules = reports.take(Family::V4, Instant::now() + Duration::from_millis(300));
    let (result, deleted) = pass_by(&reports, rules, &mut table, &mut watched, |pass| pass.run());
    assert!(result.is_ok());
    assert_eq!(deleted, usize::from(many));
}

#[test]
fn flows_to_an_endpoint_that_is_gone_are_removed() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let mut table = Fake { entries: vec![entry(1, 1), entry(2, 2), entry(3, 2)], ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!((deleted, table.dumps), (2, 1));
    assert_eq!(table.left(), [entry(1, 1)]);
}

/// An endpoint comes, and a client gets it, after the rules were taken and before the list.
#[test]
fn a_flow_to_an_endpoint_that_came_meanwhile_stays() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2], &[1]);
    let came = move || sync(&mut observer, &[1], &[1, 3]);
    let entries = vec![entry(1, 1), entry(2, 2), entry(3, 3)];
    let mut table = Fake { entries, after_dump: Some(Box::new(came)), ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!(deleted, 1);
    assert_eq!(table.left(), [entry(1, 1), entry(3, 3)]);
}

/// Many take a while.
#[test]
fn flows_to_an_endpoint_that_returns_while_they_are_removed_stay() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2], &[1]);
    let returned = move || sync(&mut observer, &[1], &[1, 2]);
    let many = u16::try_from(3 * DELETIONS_PER_SEND).unwrap();
    let entries = (0..many).map(|n| entry(n, 2)).collect();
    let mut table = Fake { entries, after_deletion: Some(Box::new(returned)), ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!((deleted, table.left().len()), (DELETIONS_PER_SEND, 2 * DELETIONS_PER_SEND));
}

/// The same with a pass that has committed, but not reported yet.
#[test]
fn a_sync_pass_that_has_not_reported_yet_is_waited_for() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2], &[1]);
    observer.begin();
    let telling = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let acked = Acknowledged { id: UnitId::Base, before: Some(unit(&[1])), after: Some(unit(&[1, 3])) };
        observer.end(&Outcome { acked: vec![acked], ..Outcome::default() }, &Holds(Vec::new()));
    });
    let mut table = Fake { entries: vec![entry(2, 2), entry(3, 3)], ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    telling.join().unwrap();
    assert!(result.is_ok());
    assert_eq!(deleted, 1);
    assert_eq!(table.left(), [entry(3, 3)]);
}

#[test]
fn nothing_is_removed_while_it_is_uncertain_what_is_in_force() {
    let reports = Arc::new(FlowReports::default());
    let mut observer = reports.observer(Family::V4);
    sync(&mut observer, &[1, 2], &[1]);
    let failed = move || {
        let error = Some(Arc::new(CommitError::Busy(io::ErrorKind::WouldBlock.into())));
        observer.begin();
        observer.end(&Outcome { error, ..Outcome::default() }, &Holds(Vec::new()));
    };
    let entries = vec![entry(2, 2)];
    let mut table = Fake { entries: entries.clone(), after_dump: Some(Box::new(failed)), ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(matches!(result, Err(PassError::Doubt)));
    assert_eq!((deleted, &table.left()), (0, &entries));
}

#[test]
fn more_than_fit_take_several_lists() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let many = 3 * u16::try_from(MOST).unwrap();
    let mut table = Fake { entries: (0..many).map(|n| entry(n, 2)).chain([entry(1, 1)]).collect(), ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!((deleted, table.dumps), (usize::from(many), 3));
    assert_eq!(table.left(), [entry(1, 1)]);
}

#[test]
fn what_an_interrupted_list_brought_is_removed_and_the_list_made_again() {
    let reports = Arc::new(FlowReports::default());
    sync(&mut reports.observer(Family::V4), &[1, 2], &[1]);
    let mut table = Fake { entries: vec![entry(2, 2)], interrupted: true, ..Fake::default() };
    let (result, deleted) = pass(&reports, &mut table);
    assert!(matches!(result, Err(PassError::Table(ConntrackError::Interrupted(_)))));
    assert_eq!((deleted, table.left().len()), (1, 0));
    reports.failed(Family::V4, Instant::now());
    let (result, _) = pass(&reports, &mut table);
    assert!(result.is_ok());
    assert_eq!(table.dumps, 2);
}

#[test]
fn an_error_is_logged_once_until_it_changes() {
    let mut cleaner = Cleaner::new(
        Arc::default(),
        Arc::new(Metrics::new().unwrap()),
        Vec::new(),
        ferry_model::ReplyOwner::Endpoint.into(),
    );
    let mut says = |error: Option<i32>| {
        let failure = error.map(|number| PassError::Table(io::Error::from_raw_os_error(number).into()));
        crate::logging::logged(4, || cleaner.log(Family::V4, failure))
    };
    assert_eq!(says(None), "");
    assert!(says(Some(1)).contains("Operation not permitted"));
    assert_eq!(says(Some(1)), "");
    assert!(says(Some(105)).contains("buffer space"));
    assert!(says(None).contains("succeeds again"));
    assert_eq!(says(None), "");
}
