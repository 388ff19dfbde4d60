//! What is written, byte by byte, and what is read of the kernel's own bytes.

use super::*;
use crate::errno::ErrorClass;
use crate::netlink::MessageWriter;

fn written(command: &Command) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    command.encode(&mut writer);
    writer.into_bytes()
}

/// Offsets in the kernel's message about a server: the end of what identifies it, its flags, and its statistics.
const REFERENCE_END: usize = 52;
const FLAGS_AT: usize = 64;
const SETTINGS_END: usize = 88;

/// The kernel's bytes of a server up to `end`, as a request with this command: nested, without the flag that the kernel adds.
fn request(command: u8, kernels: &str, end: usize) -> Vec<u8> {
    let mut wanted = bytes(kernels);
    wanted[FLAGS_AT] &= !2;
    wanted.truncate(end);
    wanted[0] = command;
    wanted[4..6].copy_from_slice(&u16::try_from(end - 4).unwrap().to_ne_bytes());
    wanted[7] |= 0x80;
    wanted
}

#[test]
fn the_kernels_servers_are_decoded() {
    let counted =
        Statistics { connections: (3 << 32) + 7, packets_in: 9, packets_out: 8, bytes_in: 1 << 32, bytes_out: 2 << 32 };
    assert_eq!(decode_server(&bytes(V4_SERVER)), Ok(Some(v4_server())));
    assert_eq!(decode_statistics(&bytes(V4_SERVER)), Ok(counted));
    assert_eq!(decode_server(&bytes(V6_SERVER)), Ok(Some(v6_server())));
    assert_eq!(decode_statistics(&bytes(V6_SERVER)), Ok(Statistics::default()));
    assert_eq!(decode_server(&bytes(MARK)), Ok(None));
}

/// Kernels before 4.1 have counters of 32 bits for connections and packets only.
#[test]
fn older_statistics_are_decoded() {
    let mut older = bytes(V4_SERVER);
    let newer = older.len() - 124;
    older.truncate(newer);
    older[4..6].copy_from_slice(&u16::try_from(newer - 4).unwrap().to_ne_bytes());
    let statistics = decode_statistics(&older).unwrap();
    assert_eq!((statistics.connections, statistics.packets_out, statistics.bytes_out), (7, 8, 2 << 32));
}

#[test]
fn servers_of_other_protocols_and_families_are_left_out() {
    for (at, value) in [(20, 1), (20, 51), (21, 1), (12, 1), (13, 1)] {
        let mut other = bytes(V4_SERVER);
        other[at] = value;
        assert_eq!(decode_server(&other), Ok(None), "byte {at}");
    }
    for (number, protocol) in [(6, IpvsProtocol::Tcp), (17, IpvsProtocol::Udp), (132, IpvsProtocol::Sctp)] {
        let mut server = bytes(V4_SERVER);
        server[20] = number;
        assert_eq!(decode_server(&server).unwrap().unwrap().id.protocol, protocol);
    }
}

#[test]
fn the_kernels_destinations_and_timeouts_are_decoded() {
    let connections = Connections { active: 2, inactive: 1, persistent: 5 };
    assert_eq!(decode_destination(&bytes(V4_DESTINATION)), Ok((v4_destination(), connections)));
    assert_eq!(decode_destination(&bytes(V6_DESTINATION)), Ok((v6_destination(), Connections::default())));
    let timeouts = Timeouts { tcp_seconds: 900, tcp_fin_seconds: 120, udp_seconds: 300 };
    assert_eq!(decode_timeouts(&bytes(TIMEOUTS)), Ok(timeouts));
    let mut writer = MessageWriter::new();
    timeouts.encode(&mut writer);
    assert_eq!(writer.bytes(), &bytes(TIMEOUTS)[4..]);
}

#[test]
fn other_answers_are_malformed() {
    for kernels in [V4_DESTINATION, TIMEOUTS, "", "010100", "01010000"] {
        assert!(decode_server(&bytes(kernels)).is_err(), "{kernels:?}");
        assert!(decode_statistics(&bytes(kernels)).is_err(), "{kernels:?}");
    }
    for kernels in [V4_SERVER, TIMEOUTS, "", "050100", "05010000"] {
        assert!(decode_destination(&bytes(kernels)).is_err(), "{kernels:?}");
    }
    assert!(decode_timeouts(&bytes(V4_SERVER)).is_err());
    let nothing = Timeouts { tcp_seconds: 0, tcp_fin_seconds: 0, udp_seconds: 0 };
    assert_eq!(decode_timeouts(&bytes("0c010000")), Ok(nothing));
}

/// The kernel's own format of a server is also the request that creates it.
#[test]
fn servers_are_written_in_the_kernels_format() {
    let v4 = |command| request(command, V4_SERVER, SETTINGS_END);
    assert_eq!(written(&Command::NewServer(v4_server())), v4(1));
    assert_eq!(written(&Command::EditServer(v4_server())), v4(2));
    assert_eq!(written(&Command::NewServer(v6_server())), request(1, V6_SERVER, SETTINGS_END));
    assert_eq!(written(&Command::DeleteServer(v4_server().id)), request(3, V4_SERVER, REFERENCE_END));
}

#[test]
fn the_kernels_own_flag_is_never_written() {
    let server = IpvsServer { flags: Flags(u32::MAX), ..v4_server() };
    let request = written(&Command::NewServer(server));
    assert_eq!(request[FLAGS_AT..FLAGS_AT + 8], [0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn destinations_follow_a_reference_to_their_server() {
    let server = &request(0, V4_SERVER, REFERENCE_END)[4..];
    let destination = bytes(
        "64000280140001000a010001000000000000000000000000060002001f90000006000b0002000000\
         080003000000000008000400030000000800050000000000080006000000000",
    );
    let destination = &destination[..];
    for (number, command) in [
        (5, Command::NewDestination(v4_server().id, v4_destination())),
        (6, Command::EditDestination(v4_server().id, v4_destination())),
    ] {
        let mut wanted = [&[number, 1, 0, 0], server, destination].concat();
        wanted[REFERENCE_END] = u8::try_from(wanted.len() - REFERENCE_END).unwrap();
        assert_eq!(written(&command), wanted);
    }
    let mut wanted = [&[7, 1, 0, 0], server, &destination[..40]].concat();
    wanted[REFERENCE_END] = 40;
    assert_eq!(written(&Command::DeleteDestination(v4_server().id, v4_destination().address)), wanted);
}

#[test]
fn schedulers_have_names_that_the_kernel_accepts() {
    for name in ["rr", "wlc", "mh", "fifteen-letters", "a_b"] {
        assert_eq!(Scheduler::new(name).unwrap().name(), name);
        assert_eq!(Scheduler::new(name).unwrap().to_string(), name);
    }
    for name in ["", "sixteen_letters_", "r r", "r\0", "rr\n", "$(rr)", "../rr", "ä"] {
        assert_eq!(Scheduler::new(name), None, "{name:?}");
    }
    assert!(Scheduler::new("a") < Scheduler::new("ab"));
}

#[test]
fn errors_mean_what_the_command_makes_of_them() {
    let (server, destination) = (v4_server(), v4_destination());
    let all = [
        Command::NewServer(server),
        Command::EditServer(server),
        Command::DeleteServer(server.id),
        Command::NewDestination(server.id, destination),
        Command::EditDestination(server.id, destination),
        Command::DeleteDestination(server.id, destination.address),
    ];
    let causes = |number| all.map(|command| command.cause(&std::io::Error::from_raw_os_error(number)));
    let (scheduler, destination) = (RefusalCause::NoScheduler(server.scheduler), RefusalCause::NoDestination);
    assert_eq!(causes(libc::EEXIST), [RefusalCause::Exists; 6]);
    assert_eq!(causes(libc::ESRCH), [RefusalCause::NoServer; 6]);
    assert_eq!(
        causes(libc::ENOENT),
        [scheduler, scheduler, RefusalCause::Other, RefusalCause::Other, destination, destination]
    );
    assert_eq!(causes(libc::EINVAL), [RefusalCause::Other; 6]);
    assert_eq!(ErrorClass::of(&std::io::Error::from_raw_os_error(libc::ESRCH)), ErrorClass::Missing);
    assert!(all.iter().all(|command| *command.server() == server.id));
    assert_eq!(
        all.map(|command| command.to_string()),
        [
            "add server TCP 10.96.0.1:80",
            "edit server TCP 10.96.0.1:80",
            "delete server TCP 10.96.0.1:80",
            "add destination 10.1.0.1:8080 to TCP 10.96.0.1:80",
            "edit destination 10.1.0.1:8080 of TCP 10.96.0.1:80",
            "delete destination 10.1.0.1:8080 of TCP 10.96.0.1:80",
        ]
    );
    assert_eq!(v6_server().id.to_string(), "UDP [fd00:96::1]:53");
    assert_eq!((v4_server().id.host_netmask(), v6_server().id.host_netmask()), (u32::MAX, 128));
}
