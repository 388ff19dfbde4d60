//! Typed objects are equal after encoding, a commit to the kernel and reading back.

use std::time::Instant;

use super::ruleset::{Layout, V4, V6, base_chain, chain, lookup, plain_set, port};
use super::*;

fn whole_ruleset(layout: Layout) {
    let family = layout.family;
    let mut ruleset = layout.ruleset();
    let learn = ruleset.chains.iter_mut().find(|(chain, _)| chain.name == "learn").unwrap();
    learn.1.extend([layout.update_rule(), layout.family_rule()]);
    let mut socket = NftSocket::open().unwrap();
    commit(&mut socket, family, |batch| {
        batch.add_table(Some("a comment"));
        write(batch, &ruleset);
    })
    .unwrap();
    let found = read_back(&mut socket, family);
    let wanted = expected(&ruleset);
    for (name, rules) in &wanted.rules {
        assert_eq!(found.rules.get(name), Some(rules), "{name}");
    }
    assert_eq!(found, wanted);
    for (set, element) in ruleset.elements.iter().filter(|(set, _)| *set != "source-ranges") {
        assert_eq!(socket.element(family, TABLE, set, &element.key).unwrap().as_ref(), Some(element), "{set}");
    }
}

#[test]
fn ipv4() {
    isolated(|| whole_ruleset(V4));
}

#[test]
fn ipv6() {
    isolated(|| whole_ruleset(V6));
}

#[test]
fn tables() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        assert_eq!(socket.table(Family::V4, TABLE).unwrap(), None);
        assert_eq!(socket.tables(Family::V4).unwrap(), Vec::<String>::new());
        commit(&mut socket, Family::V4, |batch| batch.add_table(Some("layout 1 – ü"))).unwrap();
        commit(&mut socket, Family::V6, |batch| batch.add_table(None)).unwrap();
        let table = socket.table(Family::V4, TABLE).unwrap().unwrap();
        let comment = Some("layout 1 – ü".to_owned());
        assert_eq!(table, Table { name: TABLE.to_owned(), comment, dormant: false, owner: None });
        assert_eq!(socket.table(Family::V6, TABLE).unwrap().unwrap().comment, None);
        assert_eq!(socket.tables(Family::V6).unwrap(), [TABLE]);
        let stats = commit(&mut socket, Family::V4, NftBatch::delete_table).unwrap();
        assert_eq!(stats.messages, 1);
        assert_eq!(socket.table(Family::V4, TABLE).unwrap(), None);
        assert_eq!(socket.tables(Family::V6).unwrap(), [TABLE]);
    });
}

#[test]
fn objects_of_other_tables_are_left_out() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let mut other = NftBatch::new(Family::V4, "another");
        other.add_table(None);
        write(&mut other, &V4.ruleset());
        socket.commit(other).unwrap();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_chain(&chain("services"));
        })
        .unwrap();
        assert_eq!(socket.chains(Family::V4, TABLE).unwrap(), [chain("services")]);
        assert_eq!(socket.sets(Family::V4, TABLE).unwrap(), []);
        assert_eq!(socket.rules(Family::V4, TABLE, None).unwrap(), []);
        assert_eq!(socket.rules(Family::V4, TABLE, Some("services")).unwrap(), []);
    });
}

#[test]
fn deletions_and_one_chains_rules() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let accept = [Expr::Verdict(Verdict::Accept)];
        let drop = [Expr::Verdict(Verdict::Drop)];
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_chain(&chain("one"));
            batch.add_chain(&chain("two"));
            batch.add_rule("one", &drop);
            batch.add_rule("two", &accept);
            batch.add_rule("two", &drop);
            batch.add_set(&plain_set("set", data_type::MARK, 4));
            batch.add_element("set", &[1, 2, 3, 4], None, ElementData::None);
        })
        .unwrap();
        let of_two = socket.rules(Family::V4, TABLE, Some("two")).unwrap();
        let exprs: Vec<_> = of_two.iter().map(|(chain, rule)| (chain.as_str(), rule.exprs.as_slice())).collect();
        assert_eq!(exprs, [("two", &accept[..]), ("two", &drop[..])]);
        commit(&mut socket, Family::V4, |batch| {
            batch.flush_chain("two");
            batch.add_rule("two", &drop);
            batch.flush_chain("one");
            batch.delete_chain("one");
            batch.delete_element("set", &[1, 2, 3, 4], None);
            batch.delete_set("set");
        })
        .unwrap();
        let left = read_back(&mut socket, Family::V4);
        assert_eq!(left.chains, BTreeSet::from([chain("two")]));
        assert_eq!(left.sets, BTreeSet::new());
        assert_eq!(left.rules["two"], [Rule { exprs: drop.to_vec(), comment: None, handle: 0 }]);
    });
}

#[test]
fn replacing_a_whole_table_is_one_transaction() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let ruleset = V4.ruleset();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_chain(&base_chain("nat-prerouting", ChainKind::Filter, Hook::Input, 7));
        })
        .unwrap();
        commit(&mut socket, Family::V4, |batch| {
            batch.delete_table();
            batch.add_table(Some("new"));
            write(batch, &ruleset);
        })
        .unwrap();
        assert_eq!(read_back(&mut socket, Family::V4), expected(&ruleset));
    });
}

#[test]
fn a_commit_is_conditional_on_the_generation() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let first = socket.generation().unwrap();
        commit(&mut socket, Family::V4, |batch| batch.add_table(None)).unwrap();
        let second = socket.generation().unwrap();
        assert_ne!(first, second);
        let stale = commit(&mut socket, Family::V4, |batch| {
            batch.add_chain(&chain("stale"));
            batch.set_generation(first);
        });
        let CommitFailure::Messages(errors) = stale.unwrap_err() else { panic!("not refused as a batch") };
        assert_eq!(errors[0].error.error.raw_os_error(), Some(libc::ERESTART));
        assert_eq!(errors[0].position, 0);
        commit(&mut socket, Family::V4, |batch| {
            batch.set_generation(second);
            batch.add_chain(&chain("fresh"));
        })
        .unwrap();
        assert_eq!(socket.chains(Family::V4, TABLE).unwrap(), [chain("fresh")]);
    });
}

#[test]
fn empty_batches_are_not_sent() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let before = socket.generation().unwrap();
        assert_eq!(commit(&mut socket, Family::V4, |_| {}).unwrap(), CommitStats::default());
        assert_eq!(socket.generation().unwrap(), before);
    });
}

#[test]
fn catch_all_elements() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let map = Set { data: Some(SetData::Verdict), ..plain_set("map", data_type::IPV4_ADDR, 4) };
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_set(&map);
            batch.add_element("map", &[], None, ElementData::Verdict(VerdictRef::Drop));
        })
        .unwrap();
        let any = Element {
            key: Octets::default(),
            key_end: None,
            data: OwnedData::Verdict(Verdict::Drop),
            interval_end: false,
        };
        assert_eq!(elements(&mut socket, Family::V4, "map"), BTreeSet::from([any]));
        commit(&mut socket, Family::V4, |batch| batch.delete_element("map", &[], None)).unwrap();
        assert_eq!(elements(&mut socket, Family::V4, "map"), BTreeSet::new());
    });
}

/// 100,000 endpoints of 10,000 services, in either family's width.
#[test]
fn a_hundred_thousand_elements() {
    const COUNT: u32 = 100_000;
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let ruleset = V6.ruleset();
        let key = |n: u32| [V6.address(1), vec![6, 0, 0, 0], port(80).to_vec(), n.to_ne_bytes().to_vec()].concat();
        let keys: Vec<Vec<u8>> = (0..COUNT).map(key).collect();
        let value = [V6.address(2), port(8080).to_vec()].concat();
        let started = Instant::now();
        let mut batch = NftBatch::new(Family::V6, TABLE);
        batch.add_table(None);
        batch.add_set(&ruleset.sets[0]);
        keys.iter().for_each(|key| batch.add_element("endpoints", key, None, ElementData::Value(&value)));
        println!("built in {:?}", started.elapsed());
        // 28 + 28 bytes of element in 60,000 byte messages
        assert!(batch.messages() < 200, "{} messages", batch.messages());
        let stats = socket.commit(batch).unwrap();
        println!("{stats:?}, committed after {:?}", started.elapsed());
        let started = Instant::now();
        let mut seen = vec![false; COUNT as usize];
        let each = &mut |element: Element| {
            let slot = u32::from_ne_bytes(element.key[24..28].try_into().unwrap());
            assert_eq!(element.key[..], keys[slot as usize][..]);
            assert_eq!(element.data, OwnedData::Value(Octets::new(&value).unwrap()));
            assert!(!std::mem::replace(&mut seen[slot as usize], true), "{slot} twice");
        };
        socket.elements(Family::V6, TABLE, "endpoints", each).unwrap();
        println!("read in {:?}", started.elapsed());
        assert!(seen.iter().all(|seen| *seen));
        let rest = commit(&mut socket, Family::V6, |batch| {
            keys.iter().skip(1).for_each(|key| batch.delete_element("endpoints", key, None));
        });
        assert!(rest.unwrap().messages > 1);
        assert_eq!(elements(&mut socket, Family::V6, "endpoints").len(), 1);
    });
}

/// Another program that keeps committing interrupts every dump; the dumped table doesn't change, so the dump succeeds.
#[test]
fn dumps_during_concurrent_commits() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (stop, running) = (AtomicBool::new(false), AtomicBool::new(false));
    let namespace = Namespace::new().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            namespace.run(|| {
                let mut socket = NftSocket::open().unwrap();
                while !stop.load(Ordering::Relaxed) {
                    for add in [true, false] {
                        let mut batch = NftBatch::new(Family::V4, "noise");
                        if add {
                            batch.add_table(None)
                        } else {
                            batch.delete_table()
                        }
                        socket.commit(batch).unwrap();
                    }
                    running.store(true, Ordering::Relaxed);
                }
            })
        });
        let listed = namespace.run(|| {
            let mut socket = NftSocket::open().unwrap();
            let set = plain_set("set", data_type::IPV4_ADDR, 4);
            commit(&mut socket, Family::V4, |batch| {
                batch.add_table(None);
                batch.add_set(&set);
                (0..20_000_u32).for_each(|n| batch.add_element("set", &n.to_be_bytes(), None, ElementData::None));
            })
            .unwrap();
            while !running.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let listed: Vec<usize> = (0..5).map(|_| elements(&mut socket, Family::V4, "set").len()).collect();
            stop.store(true, Ordering::Relaxed);
            listed
        });
        stop.store(true, Ordering::Relaxed);
        assert_eq!(listed.unwrap(), [20_000; 5]);
    });
}

#[test]
fn missing_tables_and_sets_are_not_found() {
    use std::io::ErrorKind::NotFound;
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let family = Family::V4;
        for exists in [false, true] {
            let none = &mut |_| panic!("an element of nothing");
            assert_eq!(socket.elements(family, TABLE, "set", none).unwrap_err().kind(), NotFound);
            assert_eq!(socket.element(family, TABLE, "set", &[1, 2, 3, 4]).unwrap_err().kind(), NotFound);
            if exists {
                assert_eq!(socket.rules(family, TABLE, Some("no-such-chain")).unwrap(), []);
            } else {
                assert_eq!(socket.sets(family, TABLE).unwrap_err().kind(), NotFound);
                assert_eq!(socket.chains(family, TABLE).unwrap_err().kind(), NotFound);
                assert_eq!(socket.rules(family, TABLE, None).unwrap_err().kind(), NotFound);
                commit(&mut socket, family, |batch| batch.add_table(None)).unwrap();
            }
        }
        commit(&mut socket, family, |batch| batch.add_set(&plain_set("set", data_type::IPV4_ADDR, 4))).unwrap();
        assert_eq!(socket.element(family, TABLE, "set", &[1, 2, 3, 4]).unwrap(), None);
    });
}

/// Foreign objects in place of our own decode to different values.
#[test]
fn foreign_objects_decode_as_such() {
    isolated(|| {
        tool::nft(&format!(
            "table ip {TABLE} {{ chain dropping {{ type filter hook input priority 0; policy drop; }}
             chain routing {{ type route hook output priority 5; }}
             set named {{ type ipv4_addr; }}
             map m {{ type ipv4_addr : verdict; elements = {{ 192.0.2.1 : continue }} }}
             chain c {{ counter ip saddr {{ 192.0.2.1, 192.0.2.3 }} drop comment \"hello\"; tcp dport 1-5 accept; }}
             }}"
        ));
        let mut socket = NftSocket::open().unwrap();
        let found = read_back(&mut socket, Family::V4);
        let hooks: Vec<_> = found.chains.iter().map(|chain| (chain.name.as_str(), chain.hook)).collect();
        let other = |hook, priority| Some(BaseHook { kind: ChainKind::Other, hook, priority });
        assert_eq!(hooks, [("c", None), ("dropping", other(Hook::Input, 0)), ("routing", other(Hook::Output, 5))]);
        assert_eq!(found.sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["m", "named"]);
        assert_eq!(found.elements["m"].iter().next().unwrap().data, OwnedData::Other);
        let rules = &found.rules["c"];
        assert_eq!(rules[0].comment.as_deref(), Some("hello"));
        assert!(matches!(&rules[0].exprs[0], Expr::Opaque { name, .. } if name == "counter"), "{rules:?}");
        assert_eq!(rules[0].exprs.last(), Some(&Expr::Verdict(Verdict::Drop)));
        assert!(rules[1].exprs.iter().any(|expr| matches!(expr, Expr::Opaque { .. })), "{rules:?}");
        tool::nft(&format!("add table ip {TABLE} {{ flags dormant; }}"));
        assert!(socket.table(Family::V4, TABLE).unwrap().unwrap().dormant);
    });
}

#[test]
fn a_rule_that_refers_to_a_set_of_the_same_batch() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_table(None);
            batch.add_set(&Set {
                data: Some(SetData::Verdict),
                ..plain_set(
                    "map",
                    concat_type(&[data_type::IPV4_ADDR, data_type::INET_PROTO, data_type::INET_SERVICE]),
                    12,
                )
            });
            batch.add_chain(&chain("c"));
            batch.add_rule("c", &[&V4.service_key()[..], &[lookup("map", Some(0))]].concat());
        })
        .unwrap();
        let rules = socket.rules(Family::V4, TABLE, Some("c")).unwrap();
        assert_eq!(rules[0].1.exprs.last(), Some(&lookup("map", Some(0))));
    });
}
