//! The listener separates foreign changes from own ones, by sender and by generation.

use super::ruleset::chain;
use super::tool::nft;
use super::*;

/// Records of the listener: names of changed tables, losses and unobserved changes.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    tables: Vec<String>,
    /// names of the processes that ended a transaction
    processes: Vec<String>,
    lost: usize,
    /// the subscription was, too
    errors: usize,
    unobserved: usize,
}

impl ForeignChanges for Seen {
    fn record(&mut self, event: &NftEvent) {
        self.tables.push(event.table.clone());
    }

    fn committed_by(&mut self, process: &str) {
        self.processes.push(process.to_owned());
    }

    fn lost(&mut self, error: Option<&std::io::Error>) {
        self.lost += 1;
        self.errors += usize::from(error.is_some());
    }

    fn unobserved(&mut self) {
        self.unobserved += 1;
    }

    fn merge(&mut self, later: Self) {
        self.tables.extend(later.tables);
        self.processes.extend(later.processes);
        self.lost += later.lost;
        self.errors += later.errors;
        self.unobserved += later.unobserved;
    }
}

/// A subscribed listener, and the socket by which it reads the generation.
fn listener() -> (NftListener<Seen>, NftSocket) {
    let mut listener = NftListener::default();
    listener.join().unwrap();
    (listener, NftSocket::open().unwrap())
}

/// Without the names of the processes, which are those of the test's threads.
fn taken(listener: &mut NftListener<Seen>) -> Seen {
    Seen { processes: Vec::new(), ..std::mem::take(listener.changes().unwrap()) }
}

fn tables<const N: usize>(names: [&str; N]) -> Seen {
    Seen { tables: names.map(str::to_owned).into(), ..Seen::default() }
}

fn unobserved() -> Seen {
    Seen { unobserved: 1, ..Seen::default() }
}

/// Creates tables by an unregistered socket, one commit each.
fn add(names: &[&str]) {
    let mut socket = NftSocket::open().unwrap();
    for name in names {
        let mut batch = NftBatch::new(Family::V4, name);
        batch.add_table(None);
        socket.commit(batch).unwrap();
    }
}

#[test]
fn commits_of_own_sockets_are_no_foreign_changes() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        listener.own(&socket);
        commit(&mut socket, Family::V4, |batch| batch.add_table(None)).unwrap();
        assert_eq!(taken(&mut listener), Seen::default());
        add(&["foreign"]);
        commit(&mut socket, Family::V4, |batch| batch.add_chain(&chain("c"))).unwrap();
        nft("add table ip6 tool");
        assert_eq!(taken(&mut listener), tables(["foreign", "tool"]));
        assert_eq!(taken(&mut listener), Seen::default(), "taken");
    });
}

#[test]
fn a_transaction_names_the_thread_that_committed_it() {
    isolated(|| {
        let (mut listener, _) = listener();
        rustix::thread::set_name(c"sync-v4").unwrap();
        add(&["one"]);
        nft("add table ip other; add table ip third");
        rustix::thread::set_name(c"of-a-thread-with-a-long-name").unwrap();
        add(&["two"]);
        assert_eq!(listener.progress(), ReadProgress::Complete);
        let seen = std::mem::take(listener.changes().unwrap());
        assert_eq!(seen.processes, ["sync-v4", "nft", "of-a-thread-wit"]);
        assert_eq!(seen.tables, ["one", "other", "third", "two"]);
    });
}

#[test]
fn foreign_commits_wake_and_own_ones_do_not() {
    isolated(|| {
        let mut listener = NftListener::<Seen>::default();
        // One socket before the subscription, one after it.
        let mut sockets = [NftSocket::open().unwrap(), NftSocket::open().unwrap()];
        listener.own(&sockets[0]);
        let arrivals = listener.arrivals().unwrap();
        listener.own(&sockets[1]);
        for socket in &mut sockets {
            commit(socket, Family::V4, |batch| batch.add_table(None)).unwrap();
            assert!(!arrivals.is_ready());
        }
        add(&["foreign"]);
        assert!(arrivals.is_ready());
        arrivals.wait().unwrap();
        assert_eq!(taken(&mut listener), tables(["foreign"]));
        assert!(!arrivals.is_ready());
    });
}

#[test]
fn a_subscription_that_is_renewed_is_waited_for_as_before() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        let arrivals = listener.arrivals().unwrap();
        listener.around(Accounting::Quiet, &mut socket, |_| permit(false), |()| Some(0)).unwrap();
        permit(true);
        assert_eq!(taken(&mut listener), Seen { lost: 2, errors: 1, ..Seen::default() });
        assert!(!arrivals.is_ready());
        add(&["later"]);
        assert!(arrivals.is_ready());
        assert_eq!(taken(&mut listener), tables(["later"]));
    });
}

#[test]
fn a_change_by_another_socket_is_own_if_the_generation_moved_by_as_many() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        add(&["before"]);
        let result = listener.around(Accounting::ByGeneration, &mut socket, |_| add(&["own", "two"]), |()| Some(2));
        result.unwrap();
        add(&["after"]);
        assert_eq!(taken(&mut listener), tables(["before", "after"]));
        let nothing = listener.around(Accounting::ByGeneration, &mut socket, |_| "result", |_| Some(0)).unwrap();
        assert_eq!((nothing, taken(&mut listener)), ("result", Seen::default()));
    });
}

#[test]
fn all_changes_are_foreign_if_the_generation_moved_by_more_less_or_an_unknown_number() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        for (n, commits) in [Some(1), Some(3), Some(0), None].into_iter().enumerate() {
            let names = [format!("own-{n}"), format!("foreign-{n}")];
            let names = [names[0].as_str(), names[1].as_str()];
            listener.around(Accounting::ByGeneration, &mut socket, |_| add(&names), |()| commits).unwrap();
            assert_eq!(taken(&mut listener), tables(names), "{commits:?}");
        }
    });
}

#[test]
fn a_quiet_change_is_not_notified_and_a_foreign_one_beside_it_is_suspected() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        add(&["before"]);
        let own = |name: &'static str| {
            move |socket: &mut NftSocket| {
                let mut batch = NftBatch::new(Family::V4, name);
                batch.add_table(None);
                socket.commit(batch)
            }
        };
        let commits = |result: &Result<CommitStats, CommitFailure>| Some(u32::from(result.is_ok()));
        listener.around(Accounting::Quiet, &mut socket, own("own"), commits).unwrap().unwrap();
        assert_eq!(taken(&mut listener), tables(["before"]));
        let beside = |socket: &mut NftSocket| {
            add(&["beside"]);
            own("second")(socket)
        };
        listener.around(Accounting::Quiet, &mut socket, beside, commits).unwrap().unwrap();
        assert_eq!(taken(&mut listener), unobserved());
        // A refused transaction doesn't move the generation.
        let refused = |socket: &mut NftSocket| commit(socket, Family::V4, |batch| batch.delete_chain("missing"));
        listener.around(Accounting::Quiet, &mut socket, refused, commits).unwrap().unwrap_err();
        assert_eq!(taken(&mut listener), Seen::default());
        listener.around(Accounting::Quiet, &mut socket, |_| add(&["unknown"]), |()| None).unwrap();
        add(&["later"]);
        assert_eq!(taken(&mut listener), Seen { unobserved: 1, ..tables(["later"]) }, "the subscription is back");
    });
}

#[test]
fn lost_notifications_are_reported_once() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        listener.set_receive_buffer(4096).unwrap();
        let names: Vec<String> = (0..200).map(|n| format!("table-{n}")).collect();
        add(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let seen = taken(&mut listener);
        assert_eq!((seen.lost, seen.errors), (1, 0));
        assert_eq!(taken(&mut listener), Seen::default());
        // Those of a change of our own are lost without harm if the generation is right, and with it if it isn't.
        for (commits, lost) in [(200, 0), (199, 1)] {
            let replace = |_: &mut NftSocket| names.iter().for_each(|name| replace(name));
            listener.around(Accounting::ByGeneration, &mut socket, replace, |()| Some(commits)).unwrap();
            assert_eq!(taken(&mut listener).lost, lost);
        }
    });
}

/// Replaces a table by one commit of an unregistered socket.
fn replace(name: &str) {
    let mut batch = NftBatch::new(Family::V4, name);
    batch.delete_table();
    batch.add_table(None);
    NftSocket::open().unwrap().commit(batch).unwrap();
}

#[test]
fn without_a_subscription_changes_are_made_and_everything_counts_as_lost_once() {
    isolated(|| {
        let mut listener = NftListener::<Seen>::default();
        let mut socket = NftSocket::open().unwrap();
        listener.around(Accounting::Quiet, &mut socket, |_| add(&["quiet"]), |()| Some(1)).unwrap();
        listener.around(Accounting::ByGeneration, &mut socket, |_| add(&["loud"]), |()| Some(1)).unwrap();
        assert_eq!(taken(&mut listener), Seen { lost: 1, ..Seen::default() });
        add(&["later"]);
        assert_eq!(taken(&mut listener), tables(["later"]));
    });
}

/// Grants or drops this thread's capability to query nf_tables.
fn permit(permitted: bool) {
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.set(rustix::thread::CapabilitySet::NET_ADMIN, permitted);
    rustix::thread::set_capabilities(None, sets).unwrap();
}

#[test]
fn a_subscription_that_cannot_be_accounted_for_is_dropped_and_renewed() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        // After this change neither the generation nor the subscription is permitted.
        let change = |_: &mut NftSocket| {
            add(&["own"]);
            permit(false);
        };
        for accounting in [Accounting::Quiet, Accounting::ByGeneration] {
            listener.around(accounting, &mut socket, change, |()| Some(1)).unwrap();
            assert!(listener.changes().is_err(), "not renewed while it is forbidden");
            permit(true);
            assert_eq!(taken(&mut listener), Seen { lost: 2, errors: 1, ..Seen::default() }, "{accounting:?}");
            add(&["later"]);
            assert_eq!(taken(&mut listener), tables(["later"]));
            nft("flush ruleset");
            drop(taken(&mut listener));
        }
    });
}

#[test]
fn nothing_is_changed_if_the_generation_cannot_be_read_before() {
    isolated(|| {
        let (mut listener, mut socket) = listener();
        permit(false);
        let mut made = false;
        listener.around(Accounting::Quiet, &mut socket, |_| made = true, |()| Some(0)).unwrap_err();
        listener.around(Accounting::ByGeneration, &mut socket, |_| made = true, |()| Some(0)).unwrap_err();
        assert!(!made);
    });
}
