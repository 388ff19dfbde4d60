//! Errors of the kernel are mapped to the operations that it refuses.

use super::ruleset::{V4, V6, chain, plain_set};
use super::*;

/// Writes a table with a set and a map of addresses, both with the element 192.0.2.1.
fn prepared() -> NftSocket {
    let mut socket = NftSocket::open().unwrap();
    let map = Set {
        data: Some(SetData::Value { data_type: data_type::IPV4_ADDR, len: 4 }),
        ..plain_set("map", data_type::IPV4_ADDR, 4)
    };
    commit(&mut socket, Family::V4, |batch| {
        batch.add_table(None);
        batch.add_set(&plain_set("addresses", data_type::IPV4_ADDR, 4));
        batch.add_set(&map);
        batch.add_element("addresses", &[192, 0, 2, 1], None, ElementData::None);
        batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[1, 1, 1, 1]));
    })
    .unwrap();
    socket
}

fn refused(result: Result<CommitStats, CommitFailure>) -> Vec<BatchError> {
    match result {
        Err(CommitFailure::Messages(errors)) => errors,
        other => panic!("not refused: {other:?}"),
    }
}

/// The index of the refused operation, given the position of each.
fn index_of(error: &BatchError, positions: &[usize]) -> usize {
    positions.partition_point(|position| *position <= error.position) - 1
}

fn errno(error: &BatchError) -> Option<i32> {
    error.error.error.raw_os_error()
}

#[test]
fn an_error_in_the_middle_of_500_elements_is_located() {
    isolated(|| {
        let mut socket = prepared();
        let mut positions = Vec::new();
        let result = commit(&mut socket, Family::V4, |batch| {
            for n in 0..500_u32 {
                positions.push(batch.position());
                match n {
                    250 => batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[9, 9, 9, 9])),
                    n => batch.add_element("map", &n.to_be_bytes(), None, ElementData::Value(&[1, 1, 1, 1])),
                }
            }
            assert_eq!(batch.messages(), 1);
        });
        let errors = refused(result);
        assert_eq!(errors.len(), 1);
        assert_eq!(errno(&errors[0]), Some(libc::EEXIST));
        assert!(errors[0].error.offset.is_some());
        assert_eq!(index_of(&errors[0], &positions), 250);
        assert_eq!(elements(&mut socket, Family::V4, "map").len(), 1, "no operation of the batch is in force");
    });
}

#[test]
fn errors_at_the_edges_of_messages_are_located() {
    isolated(|| {
        let mut socket = prepared();
        for bad in [&[0][..], &[4999], &[0, 2500, 4999], &[7, 8]] {
            let mut positions = Vec::new();
            let errors = refused(commit(&mut socket, Family::V4, |batch| {
                for n in 0..5000_u32 {
                    positions.push(batch.position());
                    if bad.contains(&n) {
                        batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[9, 9, 9, 9]));
                    } else {
                        batch.add_element("map", &n.to_be_bytes(), None, ElementData::Value(&[1, 1, 1, 1]));
                    }
                }
                assert!((3..6).contains(&batch.messages()), "{}", batch.messages());
            }));
            let found: Vec<_> =
                errors.iter().map(|error| u32::try_from(index_of(error, &positions)).unwrap()).collect();
            // two refused elements in one message: the kernel stops at the first
            let wanted: &[u32] = if bad == [7, 8] { &[7] } else { bad };
            assert_eq!(found, wanted);
            assert!(errors.iter().all(|error| errno(error) == Some(libc::EEXIST)));
        }
    });
}

#[test]
fn every_refused_message_is_reported() {
    isolated(|| {
        let mut socket = prepared();
        let mut positions = Vec::new();
        let result = commit(&mut socket, Family::V4, |batch| {
            for n in 0..300 {
                positions.push(batch.position());
                if n % 3 == 0 { batch.delete_chain("missing") } else { batch.add_chain(&chain(&format!("c{n}"))) }
            }
        });
        let errors = refused(result);
        let found: Vec<usize> = errors.iter().map(|error| index_of(error, &positions)).collect();
        assert_eq!(found, (0..300).step_by(3).collect::<Vec<_>>());
        for (error, index) in errors.iter().zip(found) {
            assert_eq!(error.message_start, positions[index]);
            assert_eq!(error.message_end, positions[index + 1]);
        }
        assert_eq!(socket.chains(Family::V4, TABLE).unwrap(), []);
    });
}

#[test]
fn identical_objects_are_accepted_and_missing_ones_refused() {
    isolated(|| {
        let mut socket = prepared();
        commit(&mut socket, Family::V4, |batch| {
            batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[1, 1, 1, 1]));
            batch.add_element("addresses", &[192, 0, 2, 1], None, ElementData::None);
        })
        .unwrap();
        let other = commit(&mut socket, Family::V4, |batch| {
            batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[2, 2, 2, 2]));
        });
        assert_eq!(errno(&refused(other)[0]), Some(libc::EEXIST));
        commit(&mut socket, Family::V4, |batch| {
            batch.delete_element("map", &[192, 0, 2, 1], None);
            batch.add_element("map", &[192, 0, 2, 1], None, ElementData::Value(&[2, 2, 2, 2]));
        })
        .unwrap();
        let missing = [
            commit(&mut socket, Family::V4, |batch| batch.delete_element("map", &[9, 9, 9, 9], None)),
            commit(&mut socket, Family::V4, |batch| batch.delete_set("missing")),
            commit(&mut socket, Family::V4, |batch| batch.delete_chain("missing")),
            commit(&mut socket, Family::V4, |batch| batch.flush_chain("missing")),
            commit(&mut socket, Family::V4, |batch| batch.add_rule("missing", &[Expr::Verdict(Verdict::Drop)])),
            commit(&mut socket, Family::V4, |batch| batch.add_element("missing", &[1], None, ElementData::None)),
            commit(&mut socket, Family::V6, NftBatch::delete_table),
        ];
        for result in missing {
            assert_eq!(errno(&refused(result)[0]), Some(libc::ENOENT));
        }
    });
}

#[test]
fn overlapping_ranges_are_refused() {
    isolated(|| {
        for layout in [V4, V6] {
            let mut socket = NftSocket::open().unwrap();
            let ruleset = layout.ruleset();
            commit(&mut socket, layout.family, |batch| {
                batch.add_table(None);
                write(batch, &ruleset);
            })
            .unwrap();
            let (_, range) = ruleset.elements.iter().find(|(set, _)| *set == "source-ranges").unwrap();
            let end = range.key_end.unwrap();
            // its last address alone, which is within it
            let inner = commit(&mut socket, layout.family, |batch| {
                batch.add_element("source-ranges", &end, Some(&end), ElementData::None);
            });
            assert_eq!(errno(&refused(inner)[0]), Some(libc::EEXIST));
            commit(&mut socket, layout.family, |batch| {
                batch.add_element("source-ranges", &range.key, Some(&end), ElementData::None);
                batch.delete_element("source-ranges", &range.key, Some(&end));
                batch.add_element("source-ranges", &end, Some(&end), ElementData::None);
            })
            .unwrap();
            let left = elements(&mut socket, layout.family, "source-ranges");
            assert_eq!(
                left.iter().map(|element| (element.key, element.key_end)).collect::<Vec<_>>(),
                [(end, Some(end))]
            );
        }
    });
}

#[test]
fn a_loop_of_chains_is_refused() {
    isolated(|| {
        let mut socket = prepared();
        let jump = |to: &str| [Expr::Verdict(Verdict::Jump(to.to_owned()))];
        let mut positions = Vec::new();
        let result = commit(&mut socket, Family::V4, |batch| {
            batch.add_chain(&ruleset::base_chain("base", ChainKind::Nat, Hook::Output, 0));
            batch.add_chain(&chain("a"));
            batch.add_chain(&chain("b"));
            for (chain, to) in [("base", "a"), ("a", "b"), ("b", "a")] {
                positions.push(batch.position());
                batch.add_rule(chain, &jump(to));
            }
        });
        let errors = refused(result);
        assert!(errors.iter().all(|error| matches!(errno(error), Some(libc::ELOOP | libc::EMLINK))), "{errors:?}");
        assert!(errors.iter().all(|error| error.position >= positions[0] || error.position == 0), "{errors:?}");
    });
}

#[test]
fn without_capabilities_the_error_is_not_of_an_operation() {
    isolated(|| {
        let mut socket = NftSocket::open().unwrap();
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        match commit(&mut socket, Family::V4, |batch| batch.add_table(None)) {
            Err(CommitFailure::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
            other => panic!("{other:?}"),
        }
    });
}

/// Attributes that the format cannot express are not sent: the kernel would misread or skip them, and accept the message.
#[test]
fn names_and_data_that_are_too_long_are_refused() {
    isolated(|| {
        let mut socket = prepared();
        let long = "x".repeat(70_000);
        let goto = ElementData::Verdict(VerdictRef::Goto(&long));
        let operations: [&dyn Fn(&mut NftBatch); 6] = [
            &|batch| batch.add_chain(&chain(&long)),
            &|batch| batch.add_rule(&long, &[]),
            &|batch| batch.add_rule("c", &vec![Expr::RejectTcpReset; 3000]),
            &|batch| batch.add_element("addresses", long.as_bytes(), None, ElementData::None),
            &|batch| batch.add_element("addresses", &[1, 2, 3, 4], Some(long.as_bytes()), ElementData::None),
            &|batch| batch.add_element("map", &[1, 2, 3, 4], None, goto),
        ];
        for (index, operation) in operations.iter().enumerate() {
            let mut positions = Vec::new();
            let errors = refused(commit(&mut socket, Family::V4, |batch| {
                positions.push(batch.position());
                batch.add_chain(&chain("c"));
                positions.push(batch.position());
                operation(batch);
                positions.push(batch.position());
                batch.add_element("addresses", &[9, 9, 9, 9], None, ElementData::None);
            }));
            assert_eq!(errno(&errors[0]), Some(libc::EMSGSIZE), "{index}");
            assert_eq!(index_of(&errors[0], &positions), 1, "{index}");
            let end = errors[0].message_end;
            assert!(errors[0].message_start <= errors[0].position && errors[0].position < end, "{index}");
        }
        // longer than any register or name, but expressible: refused by the kernel
        let moderate = "x".repeat(300);
        refused(commit(&mut socket, Family::V4, |batch| batch.add_chain(&chain(&moderate))));
        refused(commit(&mut socket, Family::V4, |batch| {
            batch.add_element("addresses", moderate.as_bytes(), None, ElementData::None);
        }));
        assert_eq!(socket.chains(Family::V4, TABLE).unwrap(), []);
        let error = socket.element(Family::V4, TABLE, "addresses", long.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    });
}

#[test]
fn a_socket_is_usable_after_errors() {
    isolated(|| {
        let mut socket = prepared();
        for n in 0..50_u8 {
            refused(commit(&mut socket, Family::V4, |batch| batch.delete_chain("missing")));
            commit(&mut socket, Family::V4, |batch| {
                batch.add_element("addresses", &[10, 0, 0, n], None, ElementData::None)
            })
            .unwrap();
            assert_eq!(elements(&mut socket, Family::V4, "addresses").len(), usize::from(n) + 2);
        }
    });
}
