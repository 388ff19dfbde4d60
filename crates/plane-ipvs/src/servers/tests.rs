//! Virtual servers over an IPVS in memory, which fails on demand and has servers of other programs.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, Once};

use ferry_api::object::Protocol;
use ferry_conformance::states;
use ferry_kernel::ipvs::{Flags, Forwarding, IpvsError, IpvsServer, ListedServer, Lost, RefusalCause, RefusedCommand};
use ferry_kernel::netlink::MessageError;
use ferry_model::{Endpoint, Pool};
use ferry_plane::{Applied, Op};
use ferry_ruleset::read::TableOwner;
use ferry_ruleset::table::TableObject;
use tracing::{Event, Metadata, Subscriber, span};

use super::admission::of_another_program;
use super::convert::{destination, kernel_server};
use super::*;
use crate::element::{ElementKey, Value};
use crate::server::{Listed, Weighted};

const EINTR: i32 = 4;
/// The time within which the destinations of all servers are listed twice.
const ROUND: Duration = Duration::from_secs(60);
/// The time within which each server is read by itself.
const ONE_BY_ONE: Duration = Duration::from_secs(1800);

#[derive(Debug, Default)]
struct State {
    servers: BTreeMap<ServerId, Found>,
    /// another program makes this server before the next commit
    intruder: Option<(ServerId, Found)>,
    /// a client connects to these destinations of all servers before the next commit, if they have a weight
    client: Option<Endpoint>,
    /// answers to the next commit are lost from this command on
    lost_from: Option<usize>,
    /// schedulers whose modules are gone
    lacking: Vec<Scheduler>,
    /// the next reads of destinations: false fails
    reads: VecDeque<bool>,
    sent: Vec<Command>,
    /// the server that the listing has reached
    listed: Option<ServerId>,
    /// servers that the listing leaves out
    unlisted: Vec<ServerId>,
    /// servers that the next list leaves out
    undumped: Vec<ServerId>,
    /// the listing can't be read
    listing_fails: bool,
    /// the processor time so far, and those of reading the destinations of one server and of listing one
    used: Duration,
    cost: Duration,
    cost_of_listing: Duration,
    /// the number of servers that were asked for by themselves
    lookups: usize,
}

impl State {
    /// Makes the changes that another program and a client make right before a commit.
    fn act_before_commit(&mut self) {
        if let Some((id, found)) = self.intruder.take() {
            self.servers.insert(id, found);
        }
        if let Some(endpoint) = self.client.take() {
            let all = self.servers.values_mut().flat_map(|found| &mut found.destinations);
            let chosen = all.filter(|(to, _)| convert::endpoint_of(to.address) == endpoint && to.weight > 0);
            chosen.for_each(|(_, connections)| connections.active += 1);
        }
    }
}

/// IPVS in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<State>>);

impl Memory {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A kernel half that has read everything, of which nothing was its own.
    fn kernel(&self) -> ServersKernel {
        let options = ServerOptions {
            scheduler: Scheduler::Rr,
            excluded: Vec::new(),
            timeouts: None,
            grace: Duration::from_secs(900),
            reports: None,
            forwarding_reports: None,
        };
        let kernel = ServersKernel::over(Box::new(self.clone()), Family::V4, options, false);
        ServersKernel { adopted: true, ..kernel }
    }

    fn sent(&self) -> Vec<Command> {
        std::mem::take(&mut self.state().sent)
    }
}

fn error(number: i32) -> IpvsError {
    io::Error::from_raw_os_error(number).into()
}

impl Director for Memory {
    fn servers(&mut self, _: Family) -> Result<Vec<IpvsServer>, IpvsError> {
        let mut state = self.state();
        let undumped = std::mem::take(&mut state.undumped);
        let dumped = state.servers.iter().filter(|(id, _)| !undumped.contains(id));
        Ok(dumped.map(|(_, found)| found.server).collect())
    }

    fn server(&mut self, id: &ipvs::ServerId) -> Result<Option<IpvsServer>, IpvsError> {
        let mut state = self.state();
        state.lookups += 1;
        Ok(state.servers.get(&id_of(*id)).map(|found| found.server))
    }

    fn destinations(&mut self, id: &ipvs::ServerId) -> Result<Vec<(IpvsDestination, Connections)>, IpvsError> {
        let mut state = self.state();
        state.used = state.used + state.cost;
        if state.reads.pop_front() == Some(false) {
            return Err(error(EINTR));
        }
        Ok(state.servers.get(&id_of(*id)).map(|found| found.destinations.clone()).unwrap_or_default())
    }

    fn next_listed(&mut self) -> Result<Option<ListedServer>, IpvsError> {
        let mut state = self.state();
        if state.listing_fails {
            return Err(error(EINTR));
        }
        state.used = state.used + state.cost_of_listing;
        let from = state.listed.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = state.servers.range((from, Bound::Unbounded));
        let next = rest.into_iter().find(|(id, _)| !state.unlisted.contains(id));
        let listed = |(to, _): &(IpvsDestination, Connections)| {
            (IpvsDestination { upper_threshold: 0, lower_threshold: 0, ..*to }, Connections::default())
        };
        let next = next.map(|(id, found)| (*id, found.destinations.iter().map(listed).collect()));
        state.listed = next.as_ref().map(|(id, _)| *id);
        Ok(next.map(|(id, destinations)| ListedServer { id: Some(kernel_id(id)), destinations }))
    }

    fn processor_time(&self) -> Duration {
        self.state().used
    }

    fn commit(&mut self, commands: &[Command]) -> Result<Vec<RefusedCommand>, Lost> {
        let mut state = self.state();
        state.act_before_commit();
        let lacking: Vec<&str> = state.lacking.iter().map(|gone| gone.name()).collect();
        let mut failures = Vec::new();
        for (index, command) in commands.iter().enumerate() {
            state.sent.push(*command);
            let at = id_of(*command.server());
            let cause = match (*command, state.servers.get_mut(&at)) {
                (Command::NewServer(_), Some(_)) => Some(RefusalCause::Exists),
                (Command::NewServer(server), None) if lacking.contains(&server.scheduler.name()) => {
                    Some(RefusalCause::NoScheduler(server.scheduler))
                }
                (Command::NewServer(server), None) => {
                    state.servers.insert(at, Found { server, destinations: Vec::new() });
                    None
                }
                (_, None) => Some(RefusalCause::NoServer),
                (Command::EditServer(server), Some(found)) => {
                    found.server = server;
                    None
                }
                (Command::DeleteServer(_), Some(_)) => {
                    state.servers.remove(&at);
                    None
                }
                (Command::NewDestination(_, to), Some(found)) => {
                    found.destinations.retain(|(other, _)| other.address != to.address);
                    found.destinations.push((to, Connections::default()));
                    None
                }
                (Command::EditDestination(_, to), Some(found)) => {
                    found
                        .destinations
                        .iter_mut()
                        .filter(|(at, _)| at.address == to.address)
                        .for_each(|(at, _)| *at = to);
                    None
                }
                (Command::DeleteDestination(_, address), Some(found)) => {
                    found.destinations.retain(|(other, _)| other.address != address);
                    None
                }
            };
            if let Some(cause) = cause {
                let error = io::Error::from_raw_os_error(17);
                failures.push(RefusedCommand {
                    index,
                    cause,
                    error: MessageError { sequence: 0, offset: None, error, text: None },
                });
            }
        }
        match state.lost_from.take() {
            None => Ok(failures),
            Some(from) => {
                failures.retain(|failure| failure.index < from);
                Err(Lost { from, failures, error: error(EINTR) })
            }
        }
    }

    fn set_timeouts(&mut self, _: Timeouts) -> Result<(), IpvsError> {
        Ok(())
    }
}

const NODE: [u8; 4] = [192, 0, 2, 1];

fn vip(last: u8) -> ServerId {
    ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, last].into(), port: 80 }
}

fn node_port(port: u16) -> ServerId {
    ServerId { protocol: Protocol::Tcp, address: NODE.into(), port }
}

fn endpoint(last: u8) -> Endpoint {
    Endpoint { address: [10, 244, 0, last].into(), port: 8080 }
}

fn wanted(endpoints: &[u8]) -> VirtualServer {
    let settings = ServerSettings { scheduler: Scheduler::Rr, persistence: None, altered: false };
    let endpoints = endpoints.iter().map(|last| Weighted { endpoint: endpoint(*last), weight: 1 }).collect();
    VirtualServer { settings, endpoints, listed: Listed::default() }
}

fn found(id: ServerId, scheduler: Scheduler, endpoints: &[u8]) -> Found {
    let server = kernel_server(id, ServerSettings { scheduler, ..wanted(&[]).settings }, scheduler).unwrap();
    let to = |last: &u8| (destination(endpoint(*last), 1), Connections::default());
    Found { server, destinations: endpoints.iter().map(to).collect() }
}

fn server(id: ServerId, endpoints: &[u8]) -> IpvsObject {
    IpvsObject::Server(id, wanted(endpoints))
}

fn creates(objects: impl IntoIterator<Item = IpvsObject>) -> Batch<IpvsObject> {
    Batch { create: objects.into_iter().collect(), ..Batch::default() }
}

thread_local! {
    /// events that this thread has logged
    static LINES: Cell<u32> = const { Cell::new(0) };
}

/// Counts the events of each thread. One of all threads, since a thread without any may decide for all that an event that it
/// logs first is of no interest.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        LINES.set(LINES.get() + 1);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The number of lines that this logs.
pub(super) fn logged(work: impl FnOnce()) -> u32 {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(Lines).unwrap());
    let before = LINES.get();
    work();
    LINES.get() - before
}

fn refused(result: Result<(), CommitError>) -> Vec<(Op, usize)> {
    match result {
        Err(CommitError::Refused(refusals)) => refusals.into_iter().map(|(op, index, _)| (op, index)).collect(),
        other => panic!("{other:?}"),
    }
}

fn read_back(kernel: &mut ServersKernel, id: ServerId) -> Vec<IpvsObject> {
    let some = kernel.read_back(&Extent::Keys(vec![IpvsKey::Server(id)])).unwrap();
    let all = kernel.read_back(&Extent::All).unwrap();
    assert!(all.iter().filter(|object| matches!(object, IpvsObject::Server(at, _) if *at == id)).eq(&some));
    some
}

#[test]
fn another_programs_server_is_refused_before_anything_is_sent() {
    let (memory, foreign) = (Memory::default(), vip(2));
    memory.state().servers.insert(foreign, found(foreign, Scheduler::Rr, &[9]));
    let mut kernel = memory.kernel();
    let batch = creates([server(vip(1), &[1]), server(foreign, &[1]), server(vip(3), &[1])]);
    assert_eq!(refused(kernel.admit(&batch)), [(Op::Create, 1)]);
    let many = (0..100).map(|last| server(vip(last), &[1]));
    assert_eq!(refused(kernel.admit(&creates(many))), [(Op::Create, 2)]);
    assert!(memory.sent().is_empty() && read_back(&mut kernel, foreign).is_empty());
}

#[test]
fn a_server_that_leads_nowhere_else_is_read_back_before_anything_is_sent() {
    let memory = Memory::default();
    memory.state().servers.insert(vip(1), found(vip(1), Scheduler::Wlc, &[1]));
    let mut kernel = memory.kernel();
    let batch = creates([server(vip(1), &[1, 2])]);
    for _ in 0..2 {
        assert!(matches!(kernel.admit(&batch), Err(CommitError::Drifted { .. })));
    }
    assert!(memory.sent().is_empty());
    let settings = ServerSettings { scheduler: Scheduler::Wlc, ..wanted(&[]).settings };
    assert_eq!(
        read_back(&mut kernel, vip(1)),
        [IpvsObject::Server(vip(1), VirtualServer { settings, ..wanted(&[1]) })]
    );
}

/// Upstream's proxy sets other flags, as another version may.
#[test]
fn a_server_with_other_flags_is_taken_over_as_altered_and_no_look_reports_it() {
    let memory = Memory::default();
    let mut there = found(vip(1), Scheduler::Rr, &[1]);
    there.server.flags.0 |= Flags::SCHEDULER_1.0;
    memory.state().servers.insert(vip(1), there);
    let mut kernel = memory.kernel();
    assert!(matches!(kernel.admit(&creates([server(vip(1), &[1])])), Err(CommitError::Drifted { .. })));
    let settings = ServerSettings { altered: true, ..wanted(&[]).settings };
    let altered = VirtualServer { settings, ..wanted(&[1]) };
    assert_eq!(read_back(&mut kernel, vip(1)), [IpvsObject::Server(vip(1), altered)]);
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new(), "it is as it was read");
}

#[test]
fn many_servers_to_create_are_looked_for_in_one_list() {
    for (count, lookups) in [(64, 64), (65, 0)] {
        let memory = Memory::default();
        memory.kernel().admit(&creates((0..count).map(|last| server(vip(last), &[1])))).unwrap();
        assert_eq!(memory.state().lookups, lookups, "{count}");
    }
}

/// The answer to a command is lost, and another program has made the server since its admission.
#[test]
fn another_programs_server_is_not_taken_for_ours_without_an_answer() {
    for lost in [true, false] {
        let (memory, id) = (Memory::default(), vip(1));
        let mut kernel = memory.kernel();
        let batch = creates([server(id, &[1, 2])]);
        kernel.admit(&batch).unwrap();
        let foreign = found(id, Scheduler::Rr, &[9]);
        memory.state().intruder = Some((id, foreign.clone()));
        memory.state().lost_from = lost.then_some(0);
        let failure = kernel.commit(&batch).unwrap_err();
        assert_eq!((failure.applied, matches!(failure.error, CommitError::Refused(_))), (Applied::Unknown, !lost));
        assert_eq!(read_back(&mut kernel, id), []);
        assert_eq!(refused(kernel.admit(&batch)), [(Op::Create, 0)]);
        assert_eq!(memory.state().servers[&id].destinations, foreign.destinations);
    }
}

#[test]
fn a_created_server_is_ours_without_an_answer() {
    for (from, endpoints) in [(0, true), (1, true), (0, false)] {
        let memory = Memory::default();
        let mut kernel = memory.kernel();
        let batch = creates([vip(1), vip(2)].map(|id| server(id, if endpoints { &[1, 2] } else { &[] })));
        kernel.admit(&batch).unwrap();
        memory.state().lost_from = Some(from);
        assert_eq!(kernel.commit(&batch).unwrap_err().applied, Applied::Unknown);
        for id in [vip(1), vip(2)] {
            assert_eq!(read_back(&mut kernel, id), [server(id, &[])], "from {from}");
        }
        assert!(matches!(kernel.admit(&batch), Err(CommitError::Drifted { .. })));
    }
}

/// Before the first command is sent, a later operation can't be planned.
/// Its module was unloaded while no server used it: nothing can take its place.
#[test]
fn without_the_configured_scheduler_its_servers_wait_and_others_do_not() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    memory.state().lacking = vec![Scheduler::Rr];
    let other = VirtualServer {
        settings: ServerSettings { scheduler: Scheduler::Wlc, ..wanted(&[]).settings },
        ..wanted(&[2])
    };
    let batch = creates([server(vip(1), &[1]), IpvsObject::Server(vip(2), other), server(vip(3), &[3])]);
    let failure = kernel.commit(&batch).unwrap_err();
    let CommitError::Refused(refusals) = failure.error else { panic!("{failure:?}") };
    let refused: Vec<usize> = refusals.iter().map(|(_, index, _)| *index).collect();
    assert_eq!(refused, [0, 2]);
    let text = format!("{:?}", refusals[0].2);
    assert!(text.contains("the kernel has no scheduler rr") && text.contains("ip_vs_rr"), "{text}");
    assert_eq!(memory.state().servers.keys().copied().collect::<Vec<_>>(), [vip(2)]);
    memory.state().lacking.clear();
    kernel.commit(&creates([server(vip(1), &[1]), server(vip(3), &[3])])).unwrap();
    assert_eq!(memory.state().servers.len(), 3);
}

#[test]
fn a_server_that_was_never_asked_for_is_not_ours() {
    let (memory, own, id) = (Memory::default(), vip(1), vip(2));
    let mut kernel = memory.kernel();
    let first = creates([server(own, &[1])]);
    kernel.admit(&first).unwrap();
    kernel.commit(&first).unwrap();
    let batch = Batch { replace: vec![server(own, &[2])], ..creates([server(id, &[1])]) };
    kernel.admit(&batch).unwrap();
    memory.state().servers.insert(id, found(id, Scheduler::Rr, &[9]));
    memory.state().reads = [false].into();
    assert!(matches!(kernel.commit(&batch).unwrap_err().error, CommitError::Busy(_)));
    assert_eq!((read_back(&mut kernel, id), read_back(&mut kernel, own)), (vec![], vec![server(own, &[1])]));
}

#[test]
fn servers_stay_ours_when_reading_fails() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    let batch = creates([vip(1), vip(2)].map(|id| server(id, &[1])));
    kernel.commit(&batch).unwrap();
    memory.state().reads = [true, false].into();
    assert!(kernel.read_back(&Extent::All).is_err());
    assert_eq!(kernel.read_back(&Extent::All).unwrap(), batch.create);
}

/// True if a server that was found is taken over by a batch that makes the table.
fn adopts(traces: Traces, (id, there): (ServerId, Found), endpoints: &[u8], replaces: bool) -> bool {
    let memory = Memory::default();
    memory.state().servers.insert(id, there);
    let mut kernel = ServersKernel { traces: Some(traces), ..memory.kernel() };
    let port = ElementKey::NodePort { protocol: Protocol::Tcp, port: 30_080 };
    let table = vec![IpvsObject::Table(TableObject::Table(TableOwner::Ours))];
    let objects = [IpvsObject::element(port, Value::Drop), server(id, endpoints)];
    let batch = match replaces {
        true => Batch { replace: table, ..creates(objects) },
        false => creates(table.into_iter().chain(objects)),
    };
    match kernel.admit(&batch) {
        Err(CommitError::Drifted { .. }) => true,
        other => {
            assert_eq!(refused(other).len(), 1);
            false
        }
    }
}

fn traces() -> Traces {
    Traces { bound: [vip(1).address].into(), local: [NODE.into()].into(), ..Traces::default() }
}

/// The table is gone, and the endpoints have changed while no proxy ran.
#[test]
fn a_left_server_of_a_node_port_is_ours_by_its_endpoints() {
    let at = |id, endpoints: &[u8]| adopts(traces(), (id, found(id, Scheduler::Wlc, endpoints)), &[2, 3], false);
    let port = node_port(30_080);
    assert!(at(port, &[1, 2]) && at(port, &[]), "it shares an endpoint, or has none");
    assert!(!at(port, &[1]), "another program's endpoints");
    let elsewhere = ServerId { address: [192, 0, 2, 99].into(), ..port };
    assert!(!at(elsewhere, &[1, 2]) && !at(elsewhere, &[]), "not this node's address");
    let external = ServerId { port: 80, ..port };
    assert!(at(external, &[1, 2]) && !at(external, &[]));
    let mut routed = found(port, Scheduler::Rr, &[1, 2]);
    routed.destinations[0].0.forwarding = Forwarding(3);
    assert!(!adopts(traces(), (port, routed), &[2, 3], false));
    let excluded = Traces { excluded: vec!["192.0.2.0/24".parse().unwrap()], ..traces() };
    assert!(!adopts(excluded, (port, found(port, Scheduler::Rr, &[1, 2])), &[2, 3], false));
    let never_ran = || Traces { bound: HashSet::new(), local: HashSet::new(), ..traces() };
    assert!(!adopts(never_ran(), (port, found(port, Scheduler::Rr, &[])), &[2, 3], false));
}

#[test]
fn a_server_of_another_program_is_named_with_what_to_do() {
    let text = of_another_program(vip(1));
    assert!(text.contains(&vip(1).to_string()) && text.contains("ipvsadm -ln"), "{text}");
}

/// A run was killed before it replaced the table of another mode.
#[test]
fn a_half_made_server_is_ours_by_its_settings() {
    let at = |scheduler, endpoints: &[u8], replaces| {
        adopts(Traces::default(), (vip(1), found(vip(1), scheduler, endpoints)), &[2, 3], replaces)
    };
    assert!(at(Scheduler::Rr, &[], true) && at(Scheduler::Rr, &[1, 2], true));
    assert!(!at(Scheduler::Wlc, &[], true) && !at(Scheduler::Rr, &[1], true));
    assert!(!at(Scheduler::Rr, &[], false), "the table would have been made before");
}

#[test]
fn traces_count_only_until_the_table_is_there() {
    let memory = Memory::default();
    let mut kernel = ServersKernel { traces: Some(traces()), ..memory.kernel() };
    kernel.admit(&creates([IpvsObject::Table(TableObject::Table(TableOwner::Ours))])).unwrap();
    assert!(kernel.traces.is_some(), "it isn't written yet");
    kernel.admit(&creates([server(vip(1), &[1])])).unwrap();
    assert!(kernel.traces.is_none());
}

/// The drift that looks report from now on, within this time.
fn reported(kernel: &mut ServersKernel, within: Duration) -> BTreeSet<IpvsKey> {
    let mut now = kernel.wake(Instant::now()).unwrap();
    let (end, mut reported) = (now + within, BTreeSet::new());
    while now <= end {
        if let Some(Extent::Keys(keys)) = kernel.tend(now).unwrap().by_others {
            reported.extend(keys);
        }
        now = kernel.wake(now).unwrap();
    }
    reported
}

/// Asserts that looks find, within this time and wherever they are, what damages the destinations of each of some servers.
fn assert_found(damage: impl Fn(&mut Vec<(IpvsDestination, Connections)>), within: Duration) {
    // More than are read one by one meanwhile.
    for count in [100_u16, 1000] {
        let memory = Memory::default();
        let mut kernel = memory.kernel();
        kernel.commit(&creates((0..count).map(|number| server(node_port(30_000 + number), &[1])))).unwrap();
        // Somewhere in a round.
        assert_eq!(reported(&mut kernel, Duration::from_secs(13)), BTreeSet::new());
        memory.state().servers.values_mut().for_each(|found| damage(&mut found.destinations));
        assert_eq!(reported(&mut kernel, within).len(), usize::from(count));
    }
}

#[test]
fn damage_to_destinations_is_found_within_a_minute() {
    assert_found(Vec::clear, ROUND);
    assert_found(|destinations| destinations.iter_mut().for_each(|(to, _)| to.weight = 7), ROUND);
}

#[test]
fn damage_to_thresholds_is_found_within_half_an_hour() {
    assert_found(|destinations| destinations.iter_mut().for_each(|(to, _)| to.upper_threshold = 7), ONE_BY_ONE);
}

#[test]
fn servers_that_the_listing_leaves_out_are_read_one_by_one() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((0..400).map(|number| server(node_port(30_000 + number), &[1])))).unwrap();
    // Not those that looks read one by one within this time.
    let left_out: Vec<_> = (30_300..30_400).map(node_port).collect();
    memory.state().unlisted.clone_from(&left_out);
    assert_eq!(reported(&mut kernel, 2 * ROUND), BTreeSet::new(), "they are as they should be");
    for id in &left_out {
        memory.state().servers.get_mut(id).unwrap().destinations.clear();
    }
    let damaged: BTreeSet<_> = left_out.into_iter().map(IpvsKey::Server).collect();
    assert_eq!(reported(&mut kernel, ROUND), damaged);
}

#[test]
fn the_listing_of_a_round_says_nothing_of_a_server_that_changed_in_it() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((0..400).map(|number| server(node_port(30_000 + number), &[1])))).unwrap();
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new());
    let changed = node_port(30_399);
    kernel.note(changed, &wanted(&[2]));
    let round = kernel.looks.round();
    while kernel.looks.round() == round {
        assert_eq!(reported(&mut kernel, Duration::ZERO), BTreeSet::new(), "the round lists it as it was");
    }
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::from([IpvsKey::Server(changed)]));
}

#[test]
fn servers_of_others_are_listed_and_left_alone() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    let others = (20_000..20_500).map(node_port).map(|id| (id, found(id, Scheduler::Rr, &[9])));
    memory.state().servers.extend(others);
    kernel.commit(&creates((30_000..30_400).map(|port| server(node_port(port), &[1])))).unwrap();
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new());
    memory.state().servers.values_mut().for_each(|found| found.destinations.clear());
    let damaged: BTreeSet<_> = (30_000..30_400).map(|port| IpvsKey::Server(node_port(port))).collect();
    assert_eq!(reported(&mut kernel, ROUND), damaged);
}

#[test]
fn without_the_listing_servers_are_read_one_by_one() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((30_000..30_400).map(|port| server(node_port(port), &[1])))).unwrap();
    memory.state().listing_fails = true;
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new());
    memory.state().servers.remove(&node_port(30_399));
    memory.state().servers.values_mut().for_each(|found| found.destinations.clear());
    let damaged: BTreeSet<_> = (30_000..30_400).map(|port| IpvsKey::Server(node_port(port))).collect();
    assert_eq!(reported(&mut kernel, ROUND), damaged, "also the one that the list of servers lacks");
}

/// The processor time of a look limits the servers that it reads one by one; both kinds get a part of it.
#[test]
fn servers_that_the_listing_leaves_out_are_read_beside_all() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((20_000..30_000).map(|port| server(node_port(port), &[1])))).unwrap();
    memory.state().cost = Duration::from_micros(150);
    // Neither the first nor the last.
    let left_out: Vec<_> = (25_000..25_010).map(node_port).collect();
    memory.state().unlisted.clone_from(&left_out);
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new());
    for id in &left_out {
        memory.state().servers.get_mut(id).unwrap().destinations.clear();
    }
    let damaged: BTreeSet<_> = left_out.into_iter().map(IpvsKey::Server).collect();
    assert_eq!(reported(&mut kernel, ROUND), damaged);
}

/// Lets so many looks come, which find nothing.
fn look(kernel: &mut ServersKernel, times: u32) {
    let mut now = Instant::now();
    for _ in 0..times {
        now = kernel.wake(now).unwrap();
        assert_eq!(kernel.tend(now).unwrap().by_others, None);
    }
}

#[test]
fn a_look_ends_when_its_processor_time_is_exceeded() {
    let read_five = (Duration::from_micros(150), Duration::ZERO, Duration::from_micros(5 * 150));
    // The clock is read after each 64 servers with an endpoint: after the first 128 the time is used up, and not exceeded.
    let listing = Duration::from_nanos(9375);
    let list_192 = (Duration::ZERO, listing, listing * 192);
    for (cost, cost_of_listing, used) in [read_five, list_192] {
        let memory = Memory::default();
        let mut kernel = memory.kernel();
        kernel.commit(&creates((20_000..25_000).map(|port| server(node_port(port), &[1])))).unwrap();
        (memory.state().cost, memory.state().cost_of_listing) = (cost, cost_of_listing);
        look(&mut kernel, 1);
        assert_eq!(memory.state().used, used);
    }
}

#[test]
fn servers_that_the_listing_has_are_read_one_by_one_in_rotation_alone() {
    let cost = Duration::from_micros(1);
    for (count, in_each_look) in [(900, 1), (901, 2)] {
        let memory = Memory::default();
        let mut kernel = memory.kernel();
        kernel.commit(&creates((0..count).map(|number| server(node_port(30_000 + number), &[1])))).unwrap();
        memory.state().cost = cost;
        // Two rounds and some.
        look(&mut kernel, 40);
        assert_eq!(memory.state().used, cost * 40 * in_each_look, "{count}");
    }
}

#[test]
fn a_listing_that_cannot_be_read_is_logged_when_that_begins() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((30_000..30_010).map(|port| server(node_port(port), &[1])))).unwrap();
    let lines = [true, false, true].map(|fails| {
        memory.state().listing_fails = fails;
        logged(|| look(&mut kernel, 3))
    });
    assert_eq!(lines, [1, 0, 1]);
}

#[test]
fn what_a_look_has_found_is_reported_although_another_fails() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((30_000..30_010).map(|port| server(node_port(port), &[1])))).unwrap();
    let now = kernel.wake(Instant::now()).unwrap();
    memory.state().servers.remove(&node_port(30_003));
    memory.state().reads.push_back(false);
    assert!(kernel.tend(now).is_err());
    let next = kernel.wake(now).unwrap();
    let gone = Extent::Keys(vec![IpvsKey::Server(node_port(30_003))]);
    assert_eq!(kernel.tend(next).unwrap().by_others, Some(gone));
}

/// The kernel leaves a server out of a list if another one is deleted meanwhile.
#[test]
fn a_server_that_one_list_leaves_out_stays_ours() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates((30_000..30_010).map(|port| server(node_port(port), &[1])))).unwrap();
    memory.state().undumped.push(node_port(30_003));
    assert_eq!(kernel.read_back(&Extent::All).unwrap().len(), 10);
    assert_eq!(reported(&mut kernel, ROUND), BTreeSet::new());
}

/// The connections of an endpoint are counted before the commands are sent: one that comes in between is not cut.
#[test]
fn a_connection_that_comes_while_its_endpoint_goes_is_kept() {
    for connects in [false, true] {
        let (memory, id) = (Memory::default(), vip(1));
        let mut kernel = memory.kernel();
        kernel.commit(&creates([server(id, &[1, 2])])).unwrap();
        memory.state().client = connects.then(|| endpoint(1));
        let batch = Batch { replace: vec![server(id, &[2])], ..Batch::default() };
        kernel.commit(&batch).unwrap();
        let there: Vec<(Endpoint, u32)> = memory.state().servers[&id]
            .destinations
            .iter()
            .map(|(to, _)| (convert::endpoint_of(to.address), to.weight))
            .collect();
        let kept = [(endpoint(1), 0), (endpoint(2), 1)];
        assert_eq!(there, if connects { &kept[..] } else { &kept[1..] }, "an unused one goes at once");
    }
}

#[test]
fn after_a_commit_only_servers_with_draining_endpoints_are_read_again() {
    let memory = Memory::default();
    let mut kernel = memory.kernel();
    kernel.commit(&creates([server(vip(1), &[1, 2]), server(vip(2), &[1, 2])])).unwrap();
    let cost = Duration::from_micros(1);
    memory.state().cost = cost;
    let replace = vec![server(vip(1), &[1]), server(vip(2), &[1, 2, 3])];
    kernel.commit(&Batch { replace, ..Batch::default() }).unwrap();
    assert_eq!(memory.state().used, cost * 3, "each before its change, and the first one after it");
}

/// A destination that drains at a start has a grace period until the slices of its Service are known.
#[test]
fn an_endpoint_that_drains_at_a_start_stays_while_it_is_listed() {
    for listed in [&[1][..], &[1, 2]] {
        let (memory, id) = (Memory::default(), vip(1));
        let mut kernel = memory.kernel();
        kernel.commit(&creates([server(id, &[1])])).unwrap();
        let draining = (destination(endpoint(2), 0), Connections { active: 1, ..Connections::default() });
        memory.state().servers.get_mut(&id).unwrap().destinations.push(draining);
        assert_eq!(read_back(&mut kernel, id), [server(id, &[1])]);
        let port = states::port(Protocol::Tcp, states::pool(Family::V4, listed), Pool::default(), Vec::new());
        kernel.acknowledged(&[IpvsObject::Server(id, VirtualServer { listed: Listed::of(&port), ..wanted(&[1]) })]);
        let late = kernel.wake(Instant::now()).unwrap() + Duration::from_secs(3600);
        kernel.tend(late).unwrap();
        assert_eq!(memory.state().servers[&id].destinations.len(), listed.len());
    }
}
