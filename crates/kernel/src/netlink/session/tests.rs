//! Sessions with scripted answers.

use super::*;
use crate::netlink::control;
use crate::netlink::scripted::{Scripted, done, errno, message, reply, session};

const KIND: u16 = 100;
const OTHER: u16 = 101;

fn object(sequence: u32, payload: &[u8]) -> Vec<u8> {
    message(KIND, 0, sequence, payload)
}

fn payloads(objects: &AnswerObjects) -> Vec<&[u8]> {
    objects.of(KIND).collect()
}

fn no_attributes(_: &mut MessageWriter) {}

/// The usual criterion of protocols: a list is complete if it was not interrupted.
fn uninterrupted(objects: &AnswerObjects) -> io::Result<bool> {
    Ok(!objects.interrupted)
}

#[test]
fn a_request_is_numbered_and_acknowledged_and_collects_its_objects() {
    let mut session = session([
        vec![Ok([object(1, b"one1"), message(OTHER, 0, 1, b"xxxx"), object(1, b"two2")].concat()), Ok(reply(1, 0))],
        vec![Ok(reply(2, 0))],
    ]);
    let objects = session.request(KIND, flag::CREATE, |writer| writer.raw(b"head")).unwrap();
    assert_eq!(payloads(&objects), [b"one1", b"two2"]);
    assert_eq!(objects.iter().map(|(kind, _)| kind).collect::<Vec<_>>(), [KIND, OTHER, KIND]);
    assert_eq!(session.request(OTHER, 0, no_attributes).unwrap().iter().count(), 0);
    let wanted = [
        message(KIND, flag::REQUEST | flag::ACK | flag::CREATE, 1, b"head"),
        message(OTHER, flag::REQUEST | flag::ACK, 2, &[]),
    ];
    assert_eq!(session.transport.sent, wanted);
}

#[test]
fn a_refusal_is_an_error_and_ends_the_exchange() {
    let mut session = session([vec![Ok(reply(1, libc::ENOENT))], vec![Ok(reply(2, 0))]]);
    let error = session.request(KIND, 0, no_attributes).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert!(!session.aborted);
    session.request(KIND, 0, no_attributes).unwrap();
}

#[test]
fn answers_to_other_requests_are_skipped() {
    let mut session = session([vec![
        Ok([object(7, b"late"), reply(7, libc::EPERM), object(0, b"news"), object(1, b"mine")].concat()),
        Ok(reply(1, 0)),
    ]]);
    assert_eq!(payloads(&session.request(KIND, 0, no_attributes).unwrap()), [b"mine"]);
}

#[test]
fn unread_answers_of_an_aborted_exchange_are_drained_before_the_next() {
    // after the overrun, the rest of the first answer is drained, errors included
    let mut session = session([
        vec![Ok(object(1, b"some")), errno(libc::ENOBUFS), Ok(reply(1, libc::EPERM)), errno(libc::ENOMEM)],
        vec![Ok(reply(2, 0))],
    ]);
    let error = session.request(KIND, 0, no_attributes).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
    assert_eq!(session.transport.unread.len(), 2);
    session.request(KIND, 0, no_attributes).unwrap();
    assert_eq!(session.transport.unread.len(), 0);
}

#[test]
fn an_answer_that_is_missing_or_malformed_is_an_error() {
    let mut session = session([vec![], vec![Ok(object(2, b"only"))], vec![Ok(vec![1, 2, 3])]]);
    for _ in 0..2 {
        let error = session.request(KIND, 0, no_attributes).unwrap_err();
        assert_eq!(error.to_string(), "the kernel did not answer");
        assert!(error.get_ref().unwrap().is::<Unanswered>());
    }
    assert_eq!(session.request(KIND, 0, no_attributes).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(session.aborted);
}

#[test]
fn an_attribute_that_is_too_long_is_not_sent() {
    let mut session = session([]);
    let error = session.request(KIND, 0, |writer| writer.text(1, &"x".repeat(1 << 16))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(session.transport.sent.len(), 0);
}

#[test]
fn a_list_is_passed_on_object_by_object_and_reports_an_interruption() {
    for (flags, interrupted) in [(0, false), (flag::DUMP_INTR, true)] {
        // the flag may be set on any message of the list, also on its end
        for at in 0..2 {
            let flags = |place| if at == place { flags } else { 0 };
            let mut session = session([vec![
                Ok(message(KIND, flags(0), 1, b"aaaa")),
                Ok([object(1, b"bbbb"), message(control::DONE, flags(1), 1, &[])].concat()),
            ]]);
            let mut seen = Vec::new();
            let listed = session.list::<io::Error>(KIND, no_attributes, &mut |object| {
                seen.push(object.payload.to_vec());
                Ok(())
            });
            assert_eq!(listed.unwrap(), Interrupted(interrupted));
            assert_eq!(seen, [b"aaaa", b"bbbb"]);
            assert_eq!(session.transport.sent, [message(KIND, flag::REQUEST | flag::DUMP, 1, &[])]);
        }
    }
}

#[test]
fn an_error_of_the_caller_aborts_the_exchange() {
    let mut session = session([vec![Ok([object(1, b"aaaa"), done(1)].concat())], vec![Ok(done(2))]]);
    let error = session.list(KIND, no_attributes, &mut |_| Err(io::Error::other("enough"))).unwrap_err();
    assert_eq!(error.to_string(), "enough");
    assert!(session.aborted);
    assert_eq!(session.list::<io::Error>(KIND, no_attributes, &mut |_| Ok(())).unwrap(), Interrupted(false));
    assert!(!session.aborted);
}

#[test]
fn a_dump_is_repeated_until_it_is_complete() {
    let mut session = session([
        vec![Ok([message(KIND, flag::DUMP_INTR, 1, b"part"), done(1)].concat())],
        vec![Ok(object(2, b"part")), Ok(message(control::DONE, 0, 2, &(-libc::EINTR).to_ne_bytes()))],
        vec![Ok([object(3, b"left"), object(3, b"rght"), done(3)].concat())],
    ]);
    let objects = session.dump(KIND, 3, &no_attributes, &mut uninterrupted).unwrap();
    assert_eq!(payloads(&objects), [b"left", b"rght"]);
    assert_eq!(session.transport.sent.len(), 3);
}

#[test]
fn a_dump_that_is_never_complete_ends() {
    let interrupted = |n| vec![Ok([message(KIND, flag::DUMP_INTR, n, b"part"), done(n)].concat())];
    let mut session = session([interrupted(1), interrupted(2)]);
    let error = session.dump(KIND, 2, &no_attributes, &mut uninterrupted).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
}

#[test]
fn a_dump_is_not_repeated_after_other_errors() {
    let mut session = session([vec![Ok(reply(1, libc::EPERM))]]);
    let error = session.dump(KIND, 9, &no_attributes, &mut uninterrupted).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
    assert_eq!(session.transport.sent.len(), 1);
}

/// Sends a datagram of three messages; returns the sequence numbers and errors of the refused ones, and the number of objects.
fn refused(session: &mut Session<Scripted>, end: AnswerEnd) -> io::Result<(Vec<(u32, i32)>, usize)> {
    let mut requests = session.requests();
    for flags in [0, 0, flag::ACK] {
        requests.add(KIND, flags, no_attributes);
    }
    let (mut refused, mut objects) = (Vec::new(), 0);
    session.exchange::<io::Error>(&requests, end, &mut |answer| {
        match answer {
            AnswerMessage::Object(_) => objects += 1,
            AnswerMessage::Refused(refusal) => refused.push((refusal.sequence, refusal.error.raw_os_error().unwrap())),
        }
        Ok(())
    })?;
    Ok((refused, objects))
}

#[test]
fn several_requests_are_sent_at_once_and_refused_on_their_own() {
    let mut session = session([
        vec![Ok(reply(1, libc::ENOENT)), Ok([reply(2, libc::EPERM), reply(3, 0)].concat())],
        vec![Ok(reply(5, libc::ENOENT)), Ok(reply(6, libc::EBUSY))],
        vec![Ok(reply(7, libc::ENOENT))],
    ]);
    assert_eq!(refused(&mut session, AnswerEnd::Reply).unwrap(), (vec![(1, libc::ENOENT), (2, libc::EPERM)], 0));
    let numbers: Vec<_> = Messages::new(&session.transport.sent[0]).map(|message| message.unwrap().sequence).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!(refused(&mut session, AnswerEnd::Reply).unwrap(), (vec![(5, libc::ENOENT), (6, libc::EBUSY)], 0));
    refused(&mut session, AnswerEnd::Reply).unwrap_err();
    assert!(session.aborted);
    let none = session.requests();
    session.exchange::<io::Error>(&none, AnswerEnd::Reply, &mut |_| panic!()).unwrap();
    assert_eq!(session.transport.sent.len(), 3, "nothing to send");
}

#[test]
fn the_last_object_ends_an_exchange_without_acknowledgement() {
    let answers = |first| vec![Ok(object(first, b"aaaa")), Ok(object(first + 2, b"cccc"))];
    let mut session = session([answers(1), answers(4)]);
    assert_eq!(refused(&mut session, AnswerEnd::Any).unwrap(), (vec![], 2));
    assert!(!session.aborted);
    assert_eq!(refused(&mut session, AnswerEnd::Reply).unwrap_err().to_string(), "the kernel did not answer");
}

#[test]
fn a_transaction_uses_the_callers_sequence_numbers() {
    let mut session = session([
        vec![Ok(reply(1, 0))],
        vec![Ok([reply(1, libc::EEXIST), reply(9, libc::EPERM), reply(2, 0)].concat())],
        vec![Ok(reply(2, 0))],
    ]);
    session.request(KIND, 0, no_attributes).unwrap();
    let mut refused = Vec::new();
    let datagram = [object(1, b"left"), object(2, b"rght")].concat();
    session
        .transact::<io::Error>(&datagram, 1..=2, &mut |answer| {
            if let AnswerMessage::Refused(refusal) = answer {
                refused.push(refusal.sequence);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(refused, [1]);
    assert_eq!(session.transport.sent[1], datagram);
    session.request(KIND, 0, no_attributes).unwrap();
}

#[test]
fn sequence_numbers_wrap_to_zero() {
    let mut session = session([vec![Ok(reply(u32::MAX, libc::EBUSY)), Ok(reply(0, libc::ENOENT)), Ok(reply(1, 0))]]);
    session.sequence = u32::MAX - 1;
    let wanted = (vec![(u32::MAX, libc::EBUSY), (0, libc::ENOENT)], 0);
    assert_eq!(refused(&mut session, AnswerEnd::Reply).unwrap(), wanted);
    assert_eq!(session.sequence, 1);
}

#[test]
fn a_sequence_number_has_a_position_among_the_requests() {
    let mut session = session([]);
    session.sequence = u32::MAX - 1;
    let mut requests = session.requests();
    for _ in 0..3 {
        requests.add(KIND, 0, no_attributes);
    }
    let positions = [u32::MAX - 1, u32::MAX, 0, 1, 2].map(|sequence| requests.position(sequence));
    assert_eq!(positions, [None, Some(0), Some(1), Some(2), None]);
}
