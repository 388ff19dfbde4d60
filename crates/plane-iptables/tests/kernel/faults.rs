//! Faults: a tool that is killed, hangs, lies or is missing, a lock that is never free, rules that the kernel refuses. In both
//! variants nothing half-written stays, and everything is in sync once the cause is gone.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::machine::{FEATURES, Machine, assert_same, inside, settle, wanted};
use crate::wrapper::with_wrapper;
use ferry_api::object::{Family, Protocol};
use ferry_conformance::good;
use ferry_conformance::states::{self, everything, pool};
use ferry_kernel::iptables::{Backend, IptablesChainName, Rule, Table, Target};
use ferry_lab::patience::slowly;
use ferry_model::{Action, Context, FrontendAddr, FrontendKind, PortState, Profile, Treatment};
use ferry_plane::engine::Engine;
use ferry_plane::{Applied, Batch, CommitError, Compile, Delta, Kernel, Object, Outcome, SyncEngine, Unit, UnitId};
use ferry_plane_iptables::object::{ChainId, ChainRules, OwnedRulesKey, RuleOwner};
use ferry_plane_iptables::{Counters, IptObject, Iptables, IptablesCommitLock, IptablesEngine, IptablesKernel};

/// A timeout that is not reached.
const LONG: Duration = Duration::from_secs(60);
/// Timeouts that only a hanging tool reaches: all runs of an engine have the same, on a busy machine too.
const HANGS: Duration = Duration::from_secs(6);
const HANGS_TWICE: Duration = Duration::from_secs(3);

fn started(machine: &Machine) -> IptablesEngine {
    let mut engine = machine.engine();
    engine.offer(everything(machine.family));
    good(engine.sync(Instant::now()));
    engine
}

/// Services that lose their endpoints and get others: rules are added and deleted in both tables.
fn change(family: Family) -> Delta {
    let mut delta = everything(family);
    for (id, unit) in &mut delta.units {
        let Some(Unit::Service(state)) = unit.as_mut().map(Arc::make_mut) else { continue };
        for port in &mut state.ports {
            if id.to_string().ends_with("/plain") {
                port.cluster = pool(family, &[]);
                for frontend in &mut port.frontends {
                    frontend.treatment = Treatment::all(Action::Reject);
                }
            } else if !port.cluster.is_empty() {
                port.cluster = pool(family, &[2, 7]);
            }
        }
    }
    delta
}

fn failed(outcome: &Outcome, words: &[&str]) {
    let text = outcome.error.as_ref().unwrap_or_else(|| panic!("no error: {outcome:?}")).to_string();
    for word in words {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_tool_that_is_killed_after_its_first_commit_leaves_nothing_half_written() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine);
        for withdrawn in [false, true] {
            wrapper.fault("sed '/^COMMIT$/q' | $REAL \"$@\"\nkill -9 $$\n");
            engine.offer(change(machine.family));
            let outcome = engine.sync(Instant::now());
            failed(&outcome, &["-restore", "killed by signal 9"]);
            wrapper.well();
            if withdrawn {
                engine.offer(everything(machine.family));
            }
            settle(&mut engine, Instant::now());
            assert_same(&machine.read_back(), &wanted(&engine), "recovered");
            engine.offer(everything(machine.family));
            good(engine.sync(Instant::now()));
            assert_same(&machine.read_back(), &wanted(&engine), "back again");
        }
    });
}

fn is_waiting(engine: &IptablesEngine) -> bool {
    let mut waiting = false;
    engine.each_pending(&mut |_unit| waiting = true);
    waiting
}

/// A run that is too large for the memory of the proxy's control group is killed each time. A Service beside it must not wait for ever.
#[test]
fn a_script_that_is_too_large_for_the_tool_is_divided() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine);
        let before = machine.read_back();
        let whole = "input=$FOLDER/input\ntext > $input\n";
        let lines =
            |most: usize| format!("[ $(wc -l < $input) -le {most} ] || kill -9 $$\nexec $REAL \"$@\" < $input\n");
        engine.offer(change(machine.family));
        // The size of the change as one run, which the tool refuses to take.
        wrapper.fault(&format!("{whole}kill -9 $$\n"));
        let now = Instant::now();
        failed(&engine.sync(now), &["killed by signal 9"]);
        assert_same(&machine.read_back(), &before, "nothing of it");
        let input = fs::read_to_string(machine.folder().join("input")).unwrap();
        let most = input.lines().count() - 1;
        wrapper.fault(&format!("{whole}{}", lines(most)));
        settle(&mut engine, now);
        assert!(!is_waiting(&engine), "in parts of up to {most} lines");
        assert_same(&machine.read_back(), &wanted(&engine), "in parts");
        wrapper.well();
    });
}

/// Shell code: a deletion of the last section of table nat fails, once; `$FOLDER/broken` is left behind.
const LAST_DELETION: &str = "input=$FOLDER/input\ntext > $input\nif [ -e $FOLDER/broken ] || ! grep -q '^-D KUBE-SERVICES .*-j KUBE-SVC' $input; then exec $REAL \"$@\" < $input; fi\ntouch $FOLDER/broken\nsed 's/^-D KUBE-SERVICES .*-j KUBE-SVC.*/-D KUBE-SERVICES -d 192.0.2.1 -j KUBE-MARK-MASQ/;s/^-D KUBE-SERVICES -d 192.0.2.1/-D KUBE-SERVICES -p tcp/' $input | $REAL \"$@\"\nexit $?\n";

/// Shell code: the kernel has no memory for the last section of table nat, once.
const LAST_MEMORY: &str = "input=$FOLDER/input\ntext > $input\nlast=$(grep -n '^\\*nat' $input | tail -1 | cut -d: -f1)\nif [ -e $FOLDER/broken ] || ! grep -q '^-D KUBE-SERVICES .*-j KUBE-SVC' $input; then exec $REAL \"$@\" < $input; fi\ntouch $FOLDER/broken\nhead -$((last - 1)) $input | $REAL \"$@\" || exit 4\necho \"iptables-restore: line $((last + 1)) failed: Memory allocation problem.\" >&2\nexit 1\n";

/// Endpoints of some Services change, and one with endpoints is deleted: additions, and rules that are deleted by their text.
fn change_and_one_gone(family: Family) -> Delta {
    let mut delta = change(family);
    let gone = everything(family).units.into_keys().find(|id| id.to_string().ends_with("/local")).unwrap();
    delta.units.insert(gone, None);
    delta
}

/// All additions are in force in the nft variant, and in the legacy variant those of the tables before; no deletion is. The
/// engine must read back the objects of the batch.
fn additions_are_in_force(fault: &str, word: &str) {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine);
        let before = machine.read_back();
        let delta = change_and_one_gone(machine.family);
        let compile = Iptables::new(machine.family, FEATURES);
        let context = delta.context.clone().unwrap();
        let mut after = Vec::new();
        for unit in delta.units.values().flatten() {
            compile.compile(&context, unit, &mut after);
        }
        let batch = difference(&before, &after);
        wrapper.fault(fault);
        let failure = engine.kernel_mut().commit(&batch).unwrap_err();
        wrapper.well();
        assert!(failure.to_string().contains(word), "{failure}");
        assert_eq!(failure.applied, Applied::Unknown);
        let found = machine.read_back();
        assert!(engine.kernel_mut().tend(Instant::now()).unwrap().is_empty(), "it is no foreign change");
        let missing: Vec<_> = after.iter().filter(|object| !found.contains(object)).collect();
        // Table nat is one section of the legacy variant.
        assert_eq!(missing.is_empty(), machine.backend == Backend::Nft, "{missing:?}");
        let strange = |object: &&IptObject| !before.contains(object) && !after.contains(object);
        assert!(!found.iter().any(|object| strange(&object)), "{found:?}");
        assert!(batch.delete.iter().all(|object| found.contains(object)), "{found:?}");
        // The same batch continues where the first attempt ended.
        let bytes = engine.kernel().counters().bytes();
        engine.kernel_mut().commit(&batch).unwrap();
        assert!(engine.kernel().counters().bytes() > bytes);
        assert_same(&machine.read_back(), &after, "finished");
        assert!(engine.kernel_mut().tend(Instant::now()).unwrap().is_empty());
    });
}

/// The batch that turns one list of objects into the other, in the order of the engine.
fn difference(before: &[IptObject], after: &[IptObject]) -> Batch<IptObject> {
    let key_in = |list: &[IptObject], object: &IptObject| list.iter().any(|other| other.key() == object.key());
    let pick = |list: &[IptObject], of: &dyn Fn(&IptObject) -> bool| -> Vec<IptObject> {
        let mut picked: Vec<IptObject> = list.iter().filter(|object| of(object)).cloned().collect();
        picked.sort_by_key(Object::rank);
        picked
    };
    let mut delete = pick(before, &|object| !key_in(after, object) && !object.spare());
    delete.reverse();
    Batch {
        create: pick(after, &|object| !key_in(before, object)),
        replace: pick(after, &|object| key_in(before, object) && !before.contains(object)),
        delete,
    }
}

#[test]
fn a_deletion_that_fails_last_leaves_what_is_known() {
    additions_are_in_force(LAST_DELETION, "differs");
}

#[test]
fn a_last_section_without_memory_leaves_what_is_known() {
    additions_are_in_force(LAST_MEMORY, "Memory allocation problem");
}

#[test]
fn a_deletion_that_fails_last_is_made_good_without_reading_everything() {
    for fault in [LAST_DELETION, LAST_MEMORY] {
        with_wrapper("-restore", LONG, |machine, wrapper| {
            let mut engine = started(machine);
            wrapper.fault(fault);
            engine.offer(change_and_one_gone(machine.family));
            let now = Instant::now();
            let mut outcome = engine.sync(now);
            assert!(machine.folder().join("broken").exists(), "the fault was met");
            assert!(!outcome.full, "{outcome:?}");
            if outcome.error.is_some() {
                outcome = engine.tend(now + Duration::from_millis(50));
            }
            assert!(!good(outcome).full);
            assert_same(&machine.read_back(), &wanted(&engine), "finished");
            for turn in 1..5_u32 {
                let outcome = good(engine.tend(now + turn * Duration::from_millis(300)));
                assert!(!outcome.full && outcome.repairs == 0, "{outcome:?}");
            }
        });
    }
}

/// The Services of the failed change are back in their old state: the leftovers of the first attempt are deleted.
#[test]
fn a_change_that_is_withdrawn_after_half_of_it_leaves_nothing() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine);
        wrapper.fault(LAST_MEMORY);
        engine.offer(change_and_one_gone(machine.family));
        let now = Instant::now();
        let outcome = engine.sync(now);
        failed(&outcome, &["Memory allocation problem"]);
        engine.offer(everything(machine.family));
        for turn in 1..5_u32 {
            assert!(!good(engine.tend(now + turn * Duration::from_millis(300))).full);
        }
        assert_same(&machine.read_back(), &wanted(&engine), "withdrawn");
    });
}

#[test]
fn a_tool_that_is_killed_at_the_first_sync_of_all() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        wrapper.fault("sed '/^COMMIT$/q' | $REAL \"$@\"\nkill -9 $$\n");
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        failed(&engine.sync(Instant::now()), &["killed"]);
        wrapper.well();
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted(&engine), "recovered");
    });
}

#[test]
fn a_tool_that_hangs_is_given_up() {
    let bound = slowly(HANGS);
    with_wrapper("-restore", bound, |machine, wrapper| {
        let mut engine = started(machine);
        wrapper.fault("exec sleep 1000\n");
        engine.offer(change(machine.family));
        failed(&engine.sync(Instant::now()), &["-restore", &format!("timed out after {bound:?}")]);
        wrapper.well();
        settle(&mut engine, Instant::now());
        assert_same(&machine.read_back(), &wanted(&engine), "recovered");
    });
}

#[test]
fn a_tool_that_answers_garbage_changes_nothing() {
    with_wrapper("-save", LONG, |machine, wrapper| {
        drop(started(machine));
        let before = machine.saved();
        wrapper.fault("echo '*nat'\necho 'what is this'\nexit 0\n");
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        failed(&engine.sync(Instant::now()), &["-save", "line 2", "what is this"]);
        assert_eq!(engine.kernel().counters().runs(), 0);
        wrapper.well();
        assert_eq!(machine.saved(), before);
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
    });
}

/// iptables-save hangs, as in the nft variant while others keep writing: chains are read one by one.
#[test]
fn a_tool_that_never_comes_to_the_end_of_a_table_keeps_nobody_waiting() {
    with_wrapper("-save", slowly(HANGS_TWICE), |machine, wrapper| {
        if machine.backend == Backend::Legacy {
            return;
        }
        drop(started(machine));
        wrapper.fault("echo '*nat'; echo ':KUBE-SERVICES - [0:0]'; exec sleep 1000\n");
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0);
        engine.offer(change(machine.family));
        good(engine.sync(Instant::now()));
        wrapper.well();
        assert_same(&machine.read_back(), &wanted(&engine), "changed");
    });
}

#[test]
fn a_tool_that_is_gone_is_used_when_it_is_back() {
    with_wrapper("-restore", LONG, |machine, wrapper| {
        let mut engine = started(machine);
        let program = wrapper.program(machine);
        let aside = machine.folder().join("aside");
        fs::rename(&program, &aside).unwrap();
        wrapper.end_idle();
        engine.offer(change(machine.family));
        let outcome = engine.sync(Instant::now());
        failed(&outcome, &[&machine.program("-restore")]);
        assert!(matches!(outcome.error.as_deref(), Some(CommitError::Unusable(_))), "{outcome:?}");
        fs::rename(&aside, &program).unwrap();
        good(engine.sync(Instant::now()));
        assert_same(&machine.read_back(), &wanted(&engine), "recovered");
    });
}

#[test]
fn a_lock_that_is_never_free_is_named() {
    for family in Family::ALL {
        let mut machine = Machine::new(Backend::Legacy, family);
        machine.environment.lock_wait = Duration::from_millis(200);
        let namespace = ferry_kernel::netns::Namespace::new().unwrap();
        namespace
            .run(|| {
                let mut engine = started(&machine);
                let lock = fs::File::create(&machine.environment.lock_file).unwrap();
                lock.lock().unwrap();
                engine.offer(change(family));
                let outcome = engine.sync(Instant::now());
                failed(&outcome, &[machine.environment.lock_file.to_str().unwrap()]);
                assert!(matches!(outcome.error.as_deref(), Some(CommitError::Busy(_))), "{outcome:?}");
                let counters = engine.kernel().counters();
                assert!(counters.lock_waits() >= 1 && counters.lock_wait() >= Duration::from_millis(200));
                drop(lock);
                good(engine.sync(Instant::now()));
                assert_same(&machine.read_back(), &wanted(&engine), "recovered");
            })
            .unwrap();
    }
}

/// Compiles like the mode, but the kernel refuses the objects of services named `bad…`.
struct Spoilt {
    iptables: Iptables,
    what: Spoiling,
}

#[derive(Clone, Copy, Debug)]
enum Spoiling {
    /// a target that is invalid in nat: detected when all of the section is committed
    Target,
    /// a chain that does not exist
    Chain,
    /// a rule in a shared chain, where there are others
    SharedRule,
}

impl Compile for Spoilt {
    type Object = IptObject;
    type Hint = std::convert::Infallible;
    const PROFILE: Profile = Iptables::PROFILE;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<IptObject>) {
        self.iptables.compile(context, unit, out);
        let Unit::Service(state) = unit else { return };
        if !state.name.name().starts_with("bad") {
            return;
        }
        let in_nat = |name: &str| ChainId { table: Table::Nat, name: IptablesChainName::new(name).unwrap() };
        let nowhere = IptablesChainName::new("KUBE-SVC-NOWHERENOWHERENO").unwrap();
        let (id, own) = (in_nat("KUBE-EXT-BADBADBADBADBADB"), true);
        let (id, own, target) = match self.what {
            Spoiling::Target => (id, own, Target::Reject),
            Spoiling::Chain => (id, own, Target::Jump(nowhere)),
            Spoiling::SharedRule => (in_nat("KUBE-NODEPORTS"), false, Target::Masquerade { random_fully: false }),
        };
        let rules = [Rule { target, ..Rule::default() }].into();
        out.push(if own {
            IptObject::Chain(id, ChainRules(rules))
        } else {
            IptObject::OwnedRules(OwnedRulesKey { chain: id, owner: RuleOwner::NodePort(1, Protocol::Tcp) }, rules)
        });
    }
}

/// A service of two ports, one with endpoints and one without: rules in both tables.
fn bad(family: Family) -> (UnitId, Option<Arc<Unit>>) {
    let port = |number, treatment, endpoints: &[u8]| {
        let at = FrontendAddr::Vip(states::address(family, 96, 81), number);
        let frontend = states::frontend(FrontendKind::ClusterIp, at, treatment);
        let port = states::port(Protocol::Tcp, pool(family, endpoints), pool(family, &[]), vec![frontend]);
        PortState { name: format!("p{number}").into(), ..port }
    };
    let ports = vec![port(80, states::INTERNAL, &[1, 2]), port(81, Treatment::all(Action::Reject), &[])];
    states::service("bad", ports)
}

fn costs_its_own_service_only(machine: &Machine, what: Spoiling) {
    let kernel = IptablesKernel::new(machine.tool(), IptablesCommitLock::default(), Arc::new(Counters::default()));
    let iptables = Iptables::new(machine.family, FEATURES);
    let mut engine = Engine::new(Spoilt { iptables, what }, kernel);
    let now = Instant::now();
    let mut turn = |mut delta: Delta, seconds: u64, when: &str| {
        let when = format!("{what:?} {when}");
        let (id, unit) = bad(machine.family);
        delta.units.insert(id, unit);
        engine.offer(delta);
        let outcome = engine.sync(now + Duration::from_secs(seconds));
        assert!(outcome.error.is_none(), "{when}: {outcome:?}");
        let refused: Vec<String> = outcome.quarantined.iter().map(|(id, _)| id.to_string()).collect();
        assert_eq!(refused, ["service demo/bad"], "{when}: {outcome:?}");
        let mut wanted = engine.objects();
        wanted.sort();
        assert_eq!(engine.acked().len(), everything(machine.family).units.len(), "{when}");
        assert_same(&machine.read_back(), &wanted, &when);
        assert!(engine.kernel_mut().tend(now).unwrap().is_empty(), "{when}");
    };
    turn(everything(machine.family), 0, "among all at the start");
    turn(change(machine.family), 5, "later, together with others");
    turn(Delta::default(), 50, "alone");
}

#[test]
fn a_rule_that_the_kernel_refuses_costs_its_own_service_only() {
    inside(|machine| costs_its_own_service_only(machine, Spoiling::Target));
}

#[test]
fn a_rule_that_leads_nowhere_costs_its_own_service_only() {
    inside(|machine| costs_its_own_service_only(machine, Spoiling::Chain));
}

#[test]
fn an_entry_that_the_kernel_refuses_costs_its_own_service_only() {
    inside(|machine| costs_its_own_service_only(machine, Spoiling::SharedRule));
}

#[test]
fn a_chain_that_others_lead_to_stays_empty_and_the_rest_goes() {
    inside(|machine| {
        let mut engine = started(machine);
        machine.restore("*nat\n:CNI - [0:0]\n-A CNI -j KUBE-MARK-MASQ\nCOMMIT\n");
        machine.restore("*filter\n:CNI - [0:0]\n-A CNI -j KUBE-FORWARD\nCOMMIT\n");
        let chain = machine.iptables("-t nat -S KUBE-SERVICES");
        let vip = states::address(machine.family, 96, 1).to_string();
        let chain = chain.lines().find(|line| line.contains(&vip)).unwrap().rsplit_once(' ').unwrap().1.to_owned();
        machine.restore(&format!("*nat\n-A CNI -j {chain}\nCOMMIT\n"));
        // one service is deleted
        let mut gone = everything(machine.family);
        gone.units.retain(|id, _| id.to_string().ends_with("/plain"));
        gone.units.values_mut().for_each(|unit| *unit = None);
        engine.offer(gone);
        good(engine.sync(Instant::now()));
        let left = machine.iptables(&format!("-t nat -S {chain}"));
        assert_eq!(left.trim(), format!("-N {chain}"));
        Box::new(engine).retire(&mut Vec::new()).unwrap();
        let mut left: Vec<String> = machine.saved().into_iter().filter(|line| line.contains("KUBE-")).collect();
        left.retain(|line| !line.contains("KUBE-FIREWALL"));
        let mut expected: Vec<String> = [
            "filter -A CNI -j KUBE-FORWARD",
            "filter :KUBE-FORWARD -",
            "nat -A CNI -j KUBE-MARK-MASQ",
            "nat :KUBE-MARK-MASQ -",
        ]
        .map(str::to_owned)
        .to_vec();
        expected.extend([format!("nat -A CNI -j {chain}"), format!("nat :{chain} -")]);
        expected.sort();
        assert_eq!(left, expected);
    });
}

/// More stuck chains than are determined one by one.
#[test]
fn many_chains_that_others_lead_to_keep_nobody_waiting() {
    inside(|machine| {
        let family = machine.family;
        let mut engine = started(machine);
        let single = |number: u8| {
            let at = FrontendAddr::Vip(states::address(family, 97, number), 80);
            let frontend = states::frontend(FrontendKind::ClusterIp, at, states::INTERNAL);
            let cluster = pool(family, &[number]);
            let port = states::port(Protocol::Tcp, cluster, pool(family, &[]), vec![frontend]);
            states::service(&format!("single-{number}"), vec![port])
        };
        engine.offer(Delta { context: None, units: (1..50).map(single).collect() });
        good(engine.sync(Instant::now()));
        let chains: Vec<String> = machine
            .saved()
            .iter()
            .filter_map(|line| line.strip_prefix("nat :"))
            .filter(|line| line.starts_with("KUBE-SEP-"))
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect();
        let lead = chains.iter().fold(String::new(), |text, chain| text + &format!("-A CNI -j {chain}\n"));
        machine.restore(&format!("*nat\n:CNI - [0:0]\n{lead}COMMIT\n"));
        engine.offer(Delta { context: None, units: (1..50).map(|number| (single(number).0, None)).collect() });
        let now = settle(&mut engine, Instant::now());
        assert_eq!(engine.acked().len(), everything(machine.family).units.len(), "all went");
        let empty = |object: &IptObject| matches!(object, IptObject::Chain(id, rules) if id.name.as_str().starts_with("KUBE-S") && rules.0.is_empty());
        let mut left = machine.read_back();
        let before = left.len();
        left.retain(|object| !empty(object));
        assert!(before > left.len() + 40, "they are there, and empty");
        assert_same(&left, &wanted(&engine), "the others");
        machine.iptables("-t nat -F CNI");
        good(engine.repair(now));
        assert_same(&machine.read_back(), &wanted(&engine), "nobody leads to them any more");
    });
}
