//! Options of sockets that have no safe interface elsewhere.

use std::io;
use std::mem::size_of;
use std::os::windows::io::{AsRawSocket as _, BorrowedSocket};
use std::ptr;

use windows_sys::Win32::Networking::WinSock::{
    SIO_TCP_INITIAL_RTO, SIO_UDP_CONNRESET, SO_ACCEPTCONN, SOCKET, SOL_SOCKET, TCP_INITIAL_RTO_PARAMETERS, WSAIoctl,
    getsockopt,
};

/// `TCP_INITIAL_RTO_NO_SYN_RETRANSMISSIONS`, in the width of its field.
const NO_SYN_RETRANSMISSIONS: u8 = u8::MAX - 1;
/// `TCP_INITIAL_RTO_UNSPECIFIED_RTT`: the system's default.
const UNSPECIFIED: u16 = u16::MAX;

/// Keeps ICMP errors from a UDP socket: otherwise receiving fails with `WSAECONNRESET` for each datagram that was sent to a
/// closed port. The socket of many peers can do nothing with that error, which does not name the peer.
///
/// # Errors
/// The system's error.
pub fn ignore_port_unreachable(socket: BorrowedSocket<'_>) -> io::Result<()> {
    // A BOOL; false stops the reports.
    control(socket, SIO_UDP_CONNRESET, &0_i32)
}

/// Lets a TCP socket send its first packet once, so that a refused connection fails at once. Otherwise the system tries again
/// after a refusal, which then takes two seconds.
///
/// # Errors
/// The system's error; before Windows 10 (16299) it lacks this option.
pub fn connect_without_retransmission(socket: BorrowedSocket<'_>) -> io::Result<()> {
    let parameters = TCP_INITIAL_RTO_PARAMETERS { Rtt: UNSPECIFIED, MaxSynRetransmissions: NO_SYN_RETRANSMISSIONS };
    control(socket, SIO_TCP_INITIAL_RTO, &parameters)
}

/// True if a TCP socket listens (`SO_ACCEPTCONN`).
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "getsockopt writes the value by a pointer")]
pub fn accepts_connections(socket: BorrowedSocket<'_>) -> io::Result<bool> {
    let mut value: i32 = 0;
    let mut length = 4;
    // A socket's number has the width of a pointer in both types.
    let number = socket.as_raw_socket() as SOCKET;
    // SAFETY: the socket is open as long as it is borrowed; the value is a BOOL of four bytes, which the length says.
    let result = unsafe { getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value != 0) } else { Err(io::Error::last_os_error()) }
}

/// Passes one value to a socket's driver.
#[expect(unsafe_code, reason = "WSAIoctl reads the value by a pointer")]
fn control<T>(socket: BorrowedSocket<'_>, code: u32, value: &T) -> io::Result<()> {
    const { assert!(size_of::<T>() <= 64, "a size that fits in every integer") };
    let mut returned = 0;
    // A socket's number has the width of a pointer in both types.
    let number = socket.as_raw_socket() as SOCKET;
    // SAFETY: the socket is open as long as it is borrowed; the input is one value with its true length, the output is absent,
    // and the call does not return before its end, since there is no OVERLAPPED.
    let result = unsafe {
        WSAIoctl(
            number,
            code,
            ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
            ptr::null_mut(),
            0,
            &raw mut returned,
            ptr::null_mut(),
            None,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::windows::io::AsSocket as _;

    use super::*;

    #[test]
    fn a_listener_is_told_from_other_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(accepts_connections(listener.as_socket()).unwrap());
        let connected = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!accepts_connections(connected.as_socket()).unwrap());
    }

    #[test]
    fn the_socket_of_a_listener_survives_a_closed_port() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        ignore_port_unreachable(socket.as_socket()).unwrap();
        socket.send_to(b"answer", closed).unwrap();
        socket.send_to(b"own", socket.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 10];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 3, "no error comes before the datagram");
    }
}
