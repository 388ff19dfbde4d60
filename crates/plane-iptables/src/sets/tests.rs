use std::cell::RefCell;

use ferry_plane::Applied;

use super::*;

const A: IptablesChainName = IptablesChainName::literal("FERRY-SRC-AAAAAAAAAAAAAAAA");
const B: IptablesChainName = IptablesChainName::literal("FERRY-SRC-BBBBBBBBBBBBBBBB");
const C: IptablesChainName = IptablesChainName::literal("FERRY-SRC-CCCCCCCCCCCCCCCC");
const UNFINISHED: IptablesChainName = IptablesChainName::literal("FERRY-NXT-AAAAAAAAAAAAAAAA");
/// Of another program.
const OTHER: IptablesChainName = IptablesChainName::literal("KUBE-CLUSTER-IP");

const PROCESS: u64 = 7;
const MOMENT: Duration = Duration::from_millis(1);

/// Ipsets in memory. Notes what it is asked, and fails where a test says so.
#[derive(Debug, Default)]
struct MemoryIpsets {
    sets: RefCell<BTreeMap<String, (ipset::Set, Vec<Member>)>>,
    calls: RefCell<Vec<String>>,
    /// errors by the index of the call
    failing: RefCell<BTreeMap<usize, io::ErrorKind>>,
}

impl MemoryIpsets {
    /// Fills a set as another program would.
    fn put(&self, name: IptablesChainName, family: Family, nets: &[IpNet]) {
        let (name, elements) = (name.to_string(), u32::try_from(nets.len()).ok());
        let set = ipset::Set {
            name: name.clone(),
            type_name: ipset::NETS.to_owned(),
            family: Some(family),
            references: 0,
            elements,
        };
        self.sets.borrow_mut().insert(name, (set, nets.iter().copied().map(Member::Net).collect()));
    }

    fn change(&self, name: IptablesChainName, change: impl FnOnce(&mut ipset::Set)) {
        change(&mut self.sets.borrow_mut().get_mut(name.as_str()).unwrap().0);
    }

    fn remove(&self, name: IptablesChainName) {
        self.sets.borrow_mut().remove(name.as_str()).unwrap();
    }

    fn names(&self) -> Vec<String> {
        self.sets.borrow().keys().cloned().collect()
    }

    /// The calls since the last time; the next one has index 0.
    fn take_calls(&self) -> Vec<String> {
        self.calls.take()
    }

    fn note(&self, call: String) -> io::Result<()> {
        let mut calls = self.calls.borrow_mut();
        calls.push(call);
        self.failing.borrow_mut().remove(&(calls.len() - 1)).map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl Ipsets for MemoryIpsets {
    fn list(&self) -> io::Result<Vec<ipset::Set>> {
        self.note("list".to_owned())?;
        Ok(self.sets.borrow().values().map(|(set, _)| set.clone()).collect())
    }

    fn members(&self, name: &str) -> io::Result<Vec<Member>> {
        self.note(format!("members {name}"))?;
        match self.sets.borrow().get(name) {
            Some((set, members)) if set.type_name == ipset::NETS => Ok(members.clone()),
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create(&self, name: &str, family: Family, nets: &[IpNet]) -> io::Result<()> {
        self.note(format!("create {name}"))?;
        if self.sets.borrow().contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.put(IptablesChainName::new(name).unwrap(), family, nets);
        Ok(())
    }

    fn swap(&self, one: &str, other: &str) -> io::Result<()> {
        self.note(format!("swap {one} {other}"))?;
        let mut sets = self.sets.borrow_mut();
        let (Some(first), Some(second)) = (sets.get(one).cloned(), sets.get(other).cloned()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        for (name, (set, members), old) in [(one, second.clone(), &first.0), (other, first.clone(), &second.0)] {
            let set = ipset::Set { name: name.to_owned(), references: old.references, ..set };
            sets.insert(name.to_owned(), (set, members));
        }
        Ok(())
    }

    fn destroy(&self, name: &str) -> io::Result<()> {
        self.note(format!("destroy {name}"))?;
        let mut sets = self.sets.borrow_mut();
        match sets.get(name) {
            Some((set, _)) if set.references > 0 => Err(io::ErrorKind::ResourceBusy.into()),
            Some(_) => {
                sets.remove(name);
                Ok(())
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn destroy_all(&self, names: &[IptablesChainName]) -> io::Result<Destroyed> {
        let mut destroyed = Destroyed::default();
        for name in names {
            match self.destroy(name.as_str()) {
                Ok(()) => destroyed.count += 1,
                Err(_) => drop(destroyed.referred.get_or_insert(name.to_string())),
            }
        }
        Ok(destroyed)
    }
}

fn unread() -> SourceSets<MemoryIpsets> {
    SourceSets { process: PROCESS, ..SourceSets::new(MemoryIpsets::default(), Family::V4) }
}

/// With these sets of one range each, all read.
fn read(names: &[IptablesChainName]) -> SourceSets<MemoryIpsets> {
    let mut sets = unread();
    for name in names {
        sets.ipsets.put(*name, Family::V4, &nets(&["10.0.0.0/8"]));
    }
    assert_eq!(sets.read(&Extent::All).unwrap().len(), names.len());
    sets.ipsets.take_calls();
    sets
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn set(name: IptablesChainName, texts: &[&str]) -> IptObject {
    IptObject::SourceSet(name, nets(texts).into())
}

fn creation(objects: &[IptObject]) -> Batch<IptObject> {
    Batch { create: objects.to_vec(), ..Batch::default() }
}

fn replacement(object: IptObject) -> Batch<IptObject> {
    Batch { replace: vec![object], ..Batch::default() }
}

fn deletion(names: &[IptablesChainName]) -> Batch<IptObject> {
    Batch { delete: names.iter().map(|name| set(*name, &[])).collect(), ..Batch::default() }
}

fn keys(names: &[IptablesChainName]) -> Extent<IptKey> {
    Extent::Keys(names.iter().copied().map(IptKey::SourceSet).collect())
}

/// The requests by which a set is replaced.
fn calls_of_replacement(name: IptablesChainName) -> [String; 4] {
    let next = names::next_sources(name, PROCESS);
    [format!("destroy {next}"), format!("create {next}"), format!("swap {next} {name}"), format!("destroy {next}")]
}

#[test]
fn sets_are_created_under_their_name_and_replaced_by_a_full_one() {
    let mut sets = unread();
    let first = [IptObject::RouteLocalnet, set(A, &["10.0.0.0/8", "192.0.2.0/24"])];
    assert!(sets.write(&creation(&first)).unwrap());
    assert_eq!(sets.ipsets.take_calls(), [format!("create {A}")]);
    assert_eq!(sets.read(&Extent::All).unwrap(), first[1..]);
    sets.ipsets.take_calls();

    let second = set(A, &["198.51.100.0/24"]);
    assert!(sets.write(&replacement(second.clone())).unwrap());
    assert_eq!(sets.ipsets.take_calls(), calls_of_replacement(A));
    assert_eq!(sets.ipsets.names(), [A.as_str()]);
    assert!(sets.tend(Instant::now()).unwrap().is_empty(), "its size is known");
    assert_eq!(sets.read(&Extent::All).unwrap(), [second]);
}

#[test]
fn a_batch_that_makes_no_set_asks_nothing_of_the_kernel() {
    let mut sets = unread();
    for batch in [Batch::default(), creation(&[IptObject::RouteLocalnet]), deletion(&[A])] {
        assert!(!sets.write(&batch).unwrap());
    }
    assert_eq!(sets.ipsets.take_calls(), [""; 0]);
}

#[test]
fn a_set_that_was_to_be_deleted_is_replaced_and_stays() {
    let (mut sets, now) = (read(&[A, B]), Instant::now());
    sets.delete(&deletion(&[A, B]), now);
    assert!(sets.write(&creation(&[set(A, &["192.0.2.0/24"])])).unwrap());
    assert_eq!(sets.ipsets.take_calls(), calls_of_replacement(A));
    assert!(sets.tend(now + LATER).unwrap().is_empty());
    assert_eq!(sets.ipsets.names(), [A.as_str()]);
    assert_eq!(sets.read(&Extent::All).unwrap(), [set(A, &["192.0.2.0/24"])]);
}

/// The part that may be in force after a failed write, and the error.
fn failure(sets: &mut SourceSets<MemoryIpsets>, batch: &Batch<IptObject>) -> (Applied, String) {
    let CommitFailure { error, applied } = sets.write(batch).unwrap_err();
    let which = match &error {
        CommitError::Refused(list) => list.iter().map(|(op, index, _)| format!("{op:?} {index} ")).collect(),
        _ => String::new(),
    };
    (applied, format!("{which}{error}"))
}

/// That set A was missing or in the way.
fn drifted() -> String {
    format!("the kernel differs from what was committed: ipset {A}")
}

/// That set A, the creation of this index, is in the way for good.
fn foreign(index: usize) -> String {
    format!("Create {index} refused: ipset {A}: another program's set, of the other family, has this name")
}

#[test]
fn errors_of_a_set_say_what_to_do_next() {
    use io::ErrorKind::{AlreadyExists, NotFound, PermissionDenied, ResourceBusy, Unsupported};
    let both = creation(&[IptObject::RouteLocalnet, set(A, &["10.0.0.0/8"]), set(B, &["10.0.0.0/8"])]);
    for (call, error, applied, text) in [
        (0, AlreadyExists, Applied::Nothing, foreign(1)),
        (0, PermissionDenied, Applied::Nothing, format!("Create 1 refused: ipset {A}: {PermissionDenied}")),
        (0, NotFound, Applied::Nothing, drifted()),
        (1, ResourceBusy, Applied::Unknown, format!("no resources: {ResourceBusy}")),
        (1, Unsupported, Applied::Unknown, format!("Create 2 refused: ipset {B}: {Unsupported}")),
    ] {
        let mut sets = unread();
        sets.ipsets.failing.borrow_mut().insert(call, error);
        assert_eq!(failure(&mut sets, &both), (applied, text));
    }
}

#[test]
fn a_set_in_the_way_is_drift_unless_it_is_of_the_other_family() {
    let batch = creation(&[set(A, &["10.0.0.0/8"])]);
    let mut sets = unread();
    sets.ipsets.put(A, Family::V4, &[]);
    assert_eq!(failure(&mut sets, &batch), (Applied::Nothing, drifted()));
    sets.ipsets.put(A, Family::V6, &[]);
    assert_eq!(failure(&mut sets, &batch), (Applied::Nothing, foreign(0)));
}

#[test]
fn a_replacement_that_fails_leaves_the_set_as_it_was() {
    let busy = format!("no resources: {}", io::ErrorKind::ResourceBusy);
    let mut sets = read(&[A]);
    for (call, calls) in [(0, 1), (1, 2), (2, 4)] {
        sets.ipsets.failing.borrow_mut().insert(call, io::ErrorKind::ResourceBusy);
        let failed = failure(&mut sets, &replacement(set(A, &["192.0.2.0/24"])));
        assert_eq!(failed, (Applied::Nothing, busy.clone()), "{call}");
        assert_eq!(sets.ipsets.take_calls(), calls_of_replacement(A)[..calls]);
        assert_eq!(sets.read(&Extent::All).unwrap(), [set(A, &["10.0.0.0/8"])]);
        assert_eq!(sets.ipsets.names(), [A.as_str()]);
        sets.ipsets.take_calls();
    }
    sets.ipsets.remove(A);
    assert_eq!(failure(&mut sets, &replacement(set(A, &[]))), (Applied::Nothing, drifted()));
    assert_eq!(sets.ipsets.names(), [""; 0]);
}

#[test]
fn a_replaced_set_that_is_still_in_use_is_deleted_later() {
    let (mut sets, next) = (read(&[A]), names::next_sources(A, PROCESS));
    sets.ipsets.failing.borrow_mut().insert(3, io::ErrorKind::ResourceBusy);
    assert!(sets.write(&replacement(set(A, &["192.0.2.0/24"]))).unwrap());
    assert_eq!(sets.ipsets.names(), [next.as_str(), A.as_str()]);
    sets.tend(Instant::now() + LOOK).unwrap();
    assert_eq!(sets.ipsets.names(), [A.as_str()]);
    assert_eq!(sets.read(&Extent::All).unwrap(), [set(A, &["192.0.2.0/24"])]);
}

#[test]
fn sets_of_source_ranges_of_the_family_are_read() {
    let mut sets = unread();
    sets.ipsets.put(B, Family::V4, &nets(&["192.0.2.0/24", "10.0.0.0/8"]));
    sets.ipsets.put(A, Family::V6, &nets(&["2001:db8::/32"]));
    sets.ipsets.put(OTHER, Family::V4, &nets(&["10.0.0.0/8"]));
    sets.ipsets.put(UNFINISHED, Family::V4, &nets(&["10.0.0.0/8"]));
    sets.ipsets.put(C, Family::V4, &[]);
    sets.ipsets.change(C, |set| "hash:ip,port".clone_into(&mut set.type_name));
    let (b, c) = (set(B, &["10.0.0.0/8", "192.0.2.0/24"]), set(C, &[]));
    assert_eq!(sets.read(&Extent::All).unwrap(), [b.clone(), c]);
    assert_eq!(sets.read(&keys(&[A, B])).unwrap(), [b]);
    sets.ipsets.take_calls();
    assert_eq!(sets.read(&Extent::Keys(vec![IptKey::RouteLocalnet])).unwrap(), []);
    assert_eq!(sets.ipsets.take_calls(), [""; 0], "no sets are asked for");
    sets.delete(&deletion(&[B]), Instant::now());
    assert_eq!(sets.read(&Extent::All).unwrap(), [set(C, &[])], "the other one is about to be deleted");
}

#[test]
fn a_set_that_vanishes_while_it_is_read_is_left_out_and_other_errors_are_reported() {
    let mut sets = read(&[A, B]);
    for (call, error, found) in [
        (1, io::ErrorKind::NotFound, Ok(vec![set(B, &["10.0.0.0/8"])])),
        (1, io::ErrorKind::InvalidInput, Ok(vec![set(A, &[]), set(B, &["10.0.0.0/8"])])),
        (2, io::ErrorKind::PermissionDenied, Err(io::ErrorKind::PermissionDenied)),
        (0, io::ErrorKind::Interrupted, Err(io::ErrorKind::Interrupted)),
    ] {
        sets.ipsets.failing.borrow_mut().insert(call, error);
        assert_eq!(sets.read(&Extent::All).map_err(|error| error.kind()), found);
        sets.ipsets.take_calls();
    }
}

#[test]
fn sets_whose_size_others_have_changed_are_reported_at_each_look() {
    let (mut sets, now) = (read(&[A, B, C]), Instant::now());
    assert_eq!(sets.wake(now), Some(now));
    assert!(sets.tend(now).unwrap().is_empty());
    assert_eq!((sets.ipsets.take_calls(), sets.wake(now)), (vec!["list".to_owned()], Some(now + LOOK)));

    sets.ipsets.put(A, Family::V4, &nets(&["10.0.0.0/8", "192.0.2.0/24"]));
    sets.ipsets.remove(B);
    // As before Linux 4.10.
    sets.ipsets.change(C, |set| set.elements = None);
    assert!(sets.tend(now + LOOK - MOMENT).unwrap().is_empty());
    assert_eq!(sets.ipsets.take_calls(), [""; 0], "no look is due");
    for look in 1..3 {
        assert_eq!(sets.tend(now + LOOK * look).unwrap(), Drift::by_proxies(keys(&[A, B])));
        assert_eq!(sets.wake(now), Some(now + LOOK * (look + 1)));
    }
}

#[test]
fn a_set_that_was_read_as_missing_is_not_looked_for() {
    let (mut sets, now) = (read(&[A, B]), Instant::now());
    for name in [A, B] {
        sets.ipsets.remove(name);
    }
    assert_eq!(sets.read(&keys(&[A])).unwrap(), []);
    assert_eq!(sets.tend(now).unwrap(), Drift::by_proxies(keys(&[B])));
    assert_eq!(sets.read(&Extent::All).unwrap(), []);
    sets.ipsets.take_calls();
    assert!(sets.tend(now + LOOK).unwrap().is_empty());
    assert_eq!((sets.ipsets.take_calls(), sets.wake(now)), (Vec::new(), None), "there are none to look at");
}

#[test]
fn a_set_is_deleted_a_while_after_its_rules() {
    let (mut sets, now) = (read(&[A, B]), Instant::now());
    sets.delete(&Batch { delete: vec![IptObject::RouteLocalnet], ..Batch::default() }, now);
    sets.tend(now).unwrap();
    assert_eq!(sets.wake(now), Some(now + LOOK), "the batch deletes none");
    sets.delete(&deletion(&[A]), now);
    assert_eq!(sets.wake(now), Some(now + LATER));
    sets.tend(now + LATER - MOMENT).unwrap();
    assert_eq!(sets.ipsets.names(), [A.as_str(), B.as_str()]);
    sets.tend(now + LATER).unwrap();
    assert_eq!((sets.ipsets.names(), sets.wake(now)), (vec![B.to_string()], Some(now + LOOK)));
    // Another program may have deleted it.
    sets.ipsets.remove(B);
    sets.delete(&deletion(&[B]), now);
    assert!(sets.tend(now + LATER).unwrap().is_empty());
    assert_eq!(sets.wake(now), None);
}

#[test]
fn a_set_that_a_rule_names_is_tried_again_soon_and_then_seldom() {
    let (mut sets, mut now) = (read(&[A]), Instant::now());
    sets.ipsets.put(B, Family::V4, &[]);
    for name in [A, B] {
        sets.ipsets.change(name, |set| set.references = 1);
        sets.delete(&deletion(&[name]), now);
        for pause in [LATER, LATER, LATER, LATER, LATER, LOOK, LOOK] {
            now += pause;
            assert_eq!(sets.wake(now), Some(now));
            assert!(sets.tend(now).unwrap().is_empty());
            assert!(sets.ipsets.take_calls().contains(&format!("destroy {name}")));
        }
        assert_eq!(sets.wake(now), Some(now + LOOK));
    }
    sets.ipsets.change(A, |set| set.references = 0);
    sets.tend(now + LOOK).unwrap();
    assert_eq!((sets.ipsets.names(), sets.wake(now)), (vec![B.to_string()], Some(now + 2 * LOOK)));
}

#[test]
fn what_a_process_has_not_put_in_place_is_deleted_after_a_full_reading() {
    let (mut sets, now) = (unread(), Instant::now());
    sets.ipsets.put(UNFINISHED, Family::V4, &[]);
    assert_eq!(sets.read(&keys(&[A])).unwrap(), []);
    assert_eq!(sets.wake(now), None);
    assert_eq!(sets.read(&Extent::All).unwrap(), []);
    assert_eq!(sets.wake(now), Some(now));
    sets.tend(now).unwrap();
    assert_eq!((sets.ipsets.names(), sets.wake(now)), (vec![UNFINISHED.to_string()], Some(now + LATER)));
    sets.tend(now + LATER).unwrap();
    assert_eq!((sets.ipsets.names(), sets.wake(now)), (Vec::new(), None));
}

#[test]
fn retirement_deletes_all_sets_of_the_family_and_waits_for_rules_a_few_times() {
    for (free_after, pauses, left) in [
        (0, 0, Destroyed { count: 3, referred: None }),
        (2, 2, Destroyed { count: 3, referred: None }),
        (6, 5, Destroyed { count: 2, referred: Some(A.to_string()) }),
    ] {
        let ipsets = MemoryIpsets::default();
        for name in [A, B, UNFINISHED, OTHER] {
            ipsets.put(name, Family::V4, &[]);
        }
        ipsets.put(C, Family::V6, &[]);
        ipsets.change(A, |set| set.references = u32::from(free_after > 0));
        let mut paused = 0;
        let destroyed = retire(&ipsets, Family::V4, &mut |pause| {
            assert_eq!(pause, LATER);
            paused += 1;
            ipsets.change(A, |set| set.references = u32::from(paused < free_after));
        });
        assert_eq!((destroyed.unwrap(), paused), (left.clone(), pauses));
        let stays: Vec<_> = left.referred.into_iter().chain([C.to_string(), OTHER.to_string()]).collect();
        assert_eq!(ipsets.names(), stays);
    }
}
