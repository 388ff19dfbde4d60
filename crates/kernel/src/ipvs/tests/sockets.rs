//! Sockets over scripted answers.

use std::io;

use ferry_family::Family;

use super::*;
use crate::errno::ErrorClass;
use crate::netlink::scripted::{Scripted, done, errno, message, reply, session};
use crate::netlink::{Messages, flag};

type Answers = Vec<io::Result<Vec<u8>>>;

/// The controller's answer that the family has this number.
fn resolved(sequence: u32, family: u16) -> Answers {
    let [low, high] = family.to_ne_bytes();
    vec![Ok(message(16, 0, sequence, &[1, 2, 0, 0, 6, 0, 1, 0, low, high])), Ok(reply(sequence, 0))]
}

/// A socket that has resolved the family with sequence number 1, and these further answers.
fn socket(script: impl IntoIterator<Item = Answers>) -> IpvsSocket<Scripted> {
    IpvsSocket::over(session([resolved(1, FAMILY)].into_iter().chain(script))).unwrap()
}

/// As many commands, of which each is another.
fn commands(count: usize) -> Vec<Command> {
    let server = |n: usize| ServerId { port: u16::try_from(n).unwrap(), ..v4_server().id };
    (0..count).map(|n| Command::NewServer(IpvsServer { id: server(n), ..v4_server() })).collect()
}

fn object(sequence: u32, hex: &str) -> Vec<u8> {
    message(FAMILY, 0, sequence, &bytes(hex))
}

fn dumped(socket: &mut IpvsSocket<Scripted>, family: Option<Family>) -> Result<(Vec<IpvsServer>, usize), IpvsError> {
    let mut servers = Vec::new();
    let others = socket.dump_servers(family, &mut |server| servers.push(server))?;
    Ok((servers, others))
}

#[test]
fn a_kernel_without_the_family_is_distinguished() {
    let error = IpvsSocket::over(session([vec![Ok(reply(1, libc::ENOENT))]])).unwrap_err();
    assert!(matches!(error, IpvsError::Absent), "{error:?}");
    assert_eq!(error.to_string(), "the kernel has no IPVS (module ip_vs)");
    let error = IpvsSocket::over(session([vec![Ok(reply(1, libc::EPERM))]])).unwrap_err();
    assert!(matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Denied));
}

#[test]
fn servers_are_dumped_by_family_and_others_counted() {
    let all =
        || vec![Ok([V4_SERVER, MARK].map(|hex| object(2, hex)).concat()), Ok([object(2, V6_SERVER), done(2)].concat())];
    for (family, wanted) in [
        (None, vec![v4_server(), v6_server()]),
        (Some(Family::V4), vec![v4_server()]),
        (Some(Family::V6), vec![v6_server()]),
    ] {
        let mut socket = socket([all()]);
        assert_eq!(dumped(&mut socket, family).unwrap(), (wanted, 1));
        let sent = &socket.session().transport().sent[1];
        let request = Messages::new(sent).next().unwrap().unwrap();
        assert_eq!(
            (request.kind, request.flags, request.payload),
            (FAMILY, flag::REQUEST | flag::DUMP, &[4, 1, 0, 0][..])
        );
    }
}

#[test]
fn an_interrupted_dump_is_temporary_and_a_malformed_one_is_not() {
    let interrupted = message(FAMILY, flag::DUMP_INTR, 2, &bytes(V4_SERVER));
    let error = dumped(&mut socket([vec![Ok([interrupted, done(2)].concat())]]), None).unwrap_err();
    assert!(matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Transient));
    let error = dumped(&mut socket([vec![Ok([object(2, V4_DESTINATION), done(2)].concat())]]), None).unwrap_err();
    assert!(matches!(error, IpvsError::Io(error) if error.kind() == io::ErrorKind::InvalidData));
}

#[test]
fn destinations_of_one_server_are_dumped() {
    let mut socket = socket([vec![Ok([object(2, V4_DESTINATION), done(2)].concat())], vec![Ok(done(3))]]);
    let mut found = Vec::new();
    for _ in 0..2 {
        socket.dump_destinations(&v4_server().id, &mut |destination, _| found.push(destination)).unwrap();
    }
    assert_eq!(found, [v4_destination()]);
}

#[test]
fn one_server_is_read_or_missing() {
    let mut socket = socket([
        vec![Ok(object(2, V6_SERVER)), Ok(reply(2, 0))],
        vec![Ok(reply(3, libc::ESRCH))],
        vec![Ok(reply(4, libc::EPERM))],
        vec![Ok(object(5, MARK)), Ok(reply(5, 0))],
        vec![Ok(reply(6, 0))],
    ]);
    let id = v6_server().id;
    assert_eq!(socket.server(&id).unwrap(), Some((v6_server(), Statistics::default())));
    assert_eq!(socket.server(&id).unwrap(), None);
    for _ in 0..3 {
        socket.server(&id).unwrap_err();
    }
}

#[test]
fn timeouts_are_read_and_set() {
    let mut socket = socket([vec![Ok(object(2, TIMEOUTS)), Ok(reply(2, 0))], vec![Ok(reply(3, 0))]]);
    let timeouts = socket.timeouts().unwrap();
    socket.set_timeouts(timeouts).unwrap();
    let request = Messages::new(&socket.session().transport().sent[2]).next().unwrap().unwrap();
    assert_eq!(request.payload, bytes(TIMEOUTS));
}

/// 600 commands in three sends, with errors at the edges of each; only the last message of a send is acknowledged.
#[test]
fn refused_commands_are_returned_and_the_others_committed() {
    let refused = |first: u32, errors: &[(u32, i32)], last: u32| -> Answers {
        let mut answers: Answers = errors.iter().map(|(n, errno)| Ok(reply(first + n, *errno))).collect();
        answers.push(Ok(reply(last, 0)));
        answers
    };
    let mut socket = socket([
        refused(2, &[(0, libc::EEXIST), (7, libc::EINVAL)], 257),
        vec![Ok(reply(258, libc::EEXIST)), Ok(reply(513, libc::ESRCH))],
        refused(514, &[(86, libc::ENOMEM)], 601),
    ]);
    let failures = socket.commit(&commands(600)).unwrap();
    let wanted = [
        (0, RefusalCause::Exists, libc::EEXIST),
        (7, RefusalCause::Other, libc::EINVAL),
        (256, RefusalCause::Exists, libc::EEXIST),
        (511, RefusalCause::NoServer, libc::ESRCH),
        (598, RefusalCause::Other, libc::ENOMEM),
    ];
    let found =
        failures.iter().map(|failure| (failure.index, failure.cause, failure.error.error.raw_os_error().unwrap()));
    assert_eq!(found.collect::<Vec<_>>(), wanted);
    let sent = &socket.session().transport().sent[1..];
    let acknowledged = sent.iter().map(|datagram| {
        let flags: Vec<_> = Messages::new(datagram).map(|message| message.unwrap().flags).collect();
        (flags.len(), flags.iter().position(|flags| *flags == flag::REQUEST | flag::ACK))
    });
    assert_eq!(acknowledged.collect::<Vec<_>>(), [(256, Some(255)), (256, Some(255)), (88, Some(87))]);
    let bytes = sent.iter().map(|datagram| datagram.len() as u64).sum();
    assert_eq!(socket.sent(), Sent { sends: 3, messages: 600, bytes });
    assert!(socket.commit(&[]).unwrap().is_empty());
    assert_eq!(socket.sent().sends, 3);
}

#[test]
fn failures_name_their_causes() {
    let mut socket = socket([vec![Ok(reply(2, libc::ENOENT)), Ok(reply(3, libc::ESRCH))], resolved(4, FAMILY)]);
    let failures = socket.commit(&commands(2)).unwrap();
    let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "the kernel has no scheduler rr (module ip_vs_rr): No such file or directory (os error 2)",
            "no such server: No such process (os error 3)",
        ]
    );
}

#[test]
fn lost_answers_leave_the_rest_unknown() {
    let mut socket = socket([
        vec![Ok(reply(2, libc::EEXIST)), Ok(reply(257, 0))],
        vec![Ok(reply(258, libc::EEXIST)), errno(libc::ENOBUFS), Ok(reply(513, 0))],
        vec![Ok(reply(514, 0))],
    ]);
    let lost = socket.commit(&commands(600)).unwrap_err();
    assert_eq!((lost.from, lost.failures.len()), (256, 2));
    assert!(matches!(&lost.error, IpvsError::Io(error) if error.raw_os_error() == Some(libc::ENOBUFS)));
    assert_eq!(lost.to_string(), "commit to IPVS was not acknowledged: No buffer space available (os error 105)");
    assert!(socket.commit(&commands(1)).unwrap().is_empty(), "the socket is usable");
}

/// The kernel's answer to an unknown family is the same as to a missing scheduler.
#[test]
fn a_module_that_was_removed_or_loaded_again_is_noticed() {
    let mut gone = socket([vec![Ok(reply(2, libc::ENOENT))], vec![Ok(reply(3, libc::ENOENT))]]);
    let lost = gone.commit(&commands(1)).unwrap_err();
    assert!(matches!(lost.error, IpvsError::Absent));

    let mut gone = socket([vec![Ok(reply(2, libc::ENOENT))], vec![Ok(reply(3, libc::ENOENT))]]);
    assert!(matches!(dumped(&mut gone, None), Err(IpvsError::Absent)));

    let mut again = socket([
        vec![Ok(reply(2, libc::ENOENT))],
        resolved(3, 77),
        vec![Ok([message(77, 0, 4, &bytes(V4_SERVER)), done(4)].concat())],
        vec![Ok(reply(5, libc::ENOENT))],
        resolved(6, 78),
        vec![Ok(reply(7, 0))],
    ]);
    let transient =
        |error: IpvsError| matches!(error, IpvsError::Io(error) if ErrorClass::of(&error) == ErrorClass::Transient);
    assert!(transient(dumped(&mut again, None).unwrap_err()));
    assert_eq!(dumped(&mut again, None).unwrap(), (vec![v4_server()], 0));
    assert!(transient(again.commit(&commands(1)).unwrap_err().error));
    assert!(again.commit(&commands(1)).unwrap().is_empty());
    let last = again.session().transport().sent.last().unwrap();
    assert_eq!(Messages::new(last).next().unwrap().unwrap().kind, 78);
}
