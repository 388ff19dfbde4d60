//! Batches of datagrams: `recvmmsg(2)` and `sendmmsg(2)` over fixed buffers, with the local address of each datagram
//! (`IP_PKTINFO`, `IPV6_PKTINFO`). Also the number of bytes that a TCP socket has not delivered yet.

use std::io;
use std::mem::{self, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

/// The most datagrams that one system call receives or sends.
pub const BATCH: usize = 32;
/// The largest datagram: 65,535 bytes of an IP packet, headers included.
const LARGEST_BYTES: usize = 65_535;
/// Space for one control message with `in6_pktinfo`, the larger of both (40 bytes), in words.
const CONTROL_WORDS: usize = 8;

/// Buffers for [`BATCH`] datagrams of any size, used again for each batch. They are 2 MiB of address space; the kernel provides
/// memory only for the pages that datagrams have filled.
#[derive(Debug)]
pub struct Datagrams {
    bytes: Vec<u8>,
    received: Vec<ReceivedDatagram>,
}

/// One received datagram, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// The sender.
    pub source: SocketAddr,
    /// The address that the datagram was sent to, if the socket reports it ([`report_local_address`]).
    pub local: Option<IpAddr>,
    /// The number of bytes.
    pub length: usize,
}

/// Where datagrams are sent: the receiver, and the local address they leave from, if the socket is bound to all.
pub type Route = (SocketAddr, Option<IpAddr>);

/// The control messages of one datagram, aligned as `cmsghdr` has to be.
type Control = [u64; CONTROL_WORDS];

// === impl Datagrams ===

impl Datagrams {
    /// Reserves the buffers.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: vec![0; BATCH * LARGEST_BYTES], received: Vec::with_capacity(BATCH) }
    }

    /// The datagrams of the last call of [`Self::receive`].
    #[must_use]
    pub fn received(&self) -> &[ReceivedDatagram] {
        &self.received
    }

    /// The bytes of a received datagram, by its position in [`Self::received`]; none of a position beyond.
    #[must_use]
    pub fn bytes(&self, position: usize) -> &[u8] {
        let length = self.received.get(position).map_or(0, |received| received.length);
        let start = position.saturating_mul(LARGEST_BYTES);
        self.bytes.get(start..start.saturating_add(length)).unwrap_or_default()
    }

    /// Receives what the socket holds, at most [`BATCH`] datagrams, without waiting. Those of the last call are gone.
    ///
    /// # Errors
    /// The system's error: `WouldBlock` if there is no datagram; of a connected socket also those that ICMP has reported, such as
    /// `ConnectionRefused`.
    #[expect(unsafe_code, reason = "recvmmsg(2) fills buffers by pointers")]
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.received.clear();
        // SAFETY: these are C structures of integers and pointers, for which all bits zero is a valid value.
        let (mut names, mut vectors, mut headers): (
            [libc::sockaddr_storage; BATCH],
            [libc::iovec; BATCH],
            [libc::mmsghdr; BATCH],
        ) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        let mut controls: [Control; BATCH] = [[0; CONTROL_WORDS]; BATCH];
        let buffers = self.bytes.chunks_exact_mut(LARGEST_BYTES).zip(&mut controls).zip(&mut names);
        for (((buffer, control), name), (vector, header)) in buffers.zip(vectors.iter_mut().zip(&mut headers)) {
            *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            header.msg_hdr.msg_name = ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = length_of::<libc::sockaddr_storage>();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        // SAFETY: every header points to a buffer, a name and a control buffer with their true lengths; they outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_negative| io::Error::last_os_error())?;
        for (header, name) in headers.iter().zip(&names).take(count) {
            // A sender without an IP address does not occur on a UDP socket; its datagram could not be answered.
            let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            self.received.push(ReceivedDatagram {
                source: decode(name).unwrap_or(unspecified),
                local: local_address(&header.msg_hdr),
                length: header.msg_len as usize,
            });
        }
        Ok(())
    }

    /// Sends received datagrams on, by their positions, without waiting: to `route`, or to the peer of a connected socket.
    /// Returns the number of those that were sent; positions that hold no datagram are skipped.
    ///
    /// # Errors
    /// The system's error if the first datagram could not be sent: `WouldBlock` if the socket's buffer is full.
    #[expect(unsafe_code, reason = "sendmmsg(2) reads buffers by pointers")]
    pub fn send(&self, socket: BorrowedFd<'_>, positions: &[usize], route: Option<Route>) -> io::Result<usize> {
        let mut name = route.map(|(to, _)| encode(to));
        let mut control: Control = [0; CONTROL_WORDS];
        let control_length = route.and_then(|(_, from)| from).map_or(0, |from| put_local_address(&mut control, from));
        // SAFETY: C structures of integers and pointers, for which all bits zero is a valid value.
        let (mut vectors, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let positions = positions.iter().filter(|&&position| position < self.received.len());
        let mut count = 0;
        for ((&position, vector), header) in positions.zip(&mut vectors).zip(&mut headers) {
            let bytes = self.bytes(position);
            *vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            if let Some((name, length)) = &mut name {
                header.msg_hdr.msg_name = ptr::from_mut(name).cast();
                header.msg_hdr.msg_namelen = *length;
            }
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            if control_length > 0 {
                header.msg_hdr.msg_control = control.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control_length as _;
            }
            count += 1;
        }
        if count == 0 {
            return Ok(0);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point to initialised buffers with their true lengths, which outlive the call; the
        // kernel only reads them.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags as _) };
        usize::try_from(sent).map_err(|_negative| io::Error::last_os_error())
    }
}

impl Default for Datagrams {
    fn default() -> Self {
        Self::new()
    }
}

/// Lets a UDP socket report the address that each datagram was sent to.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "setsockopt(2) for options that rustix lacks")]
pub fn report_local_address(socket: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let (level, option) =
        if ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) } else { (libc::IPPROTO_IP, libc::IP_PKTINFO) };
    let on: libc::c_int = 1;
    // SAFETY: the option's value is one integer, which outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(&on).cast(), length_of::<libc::c_int>())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The bytes that were written to a TCP socket and that its peer has not acknowledged yet.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "the ioctl SIOCOUTQ, which rustix lacks")]
pub fn undelivered_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the request (SIOCOUTQ, the same number as TIOCOUTQ) writes one integer, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, ptr::from_mut(&mut count)) };
    if result == 0 { Ok(usize::try_from(count).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// True if the next byte of a TCP socket is an urgent one: a read ends before it, whatever is behind it.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "the ioctl SIOCATMARK, which rustix lacks")]
pub fn is_at_mark(socket: BorrowedFd<'_>) -> io::Result<bool> {
    /// `include/uapi/asm-generic/sockios.h`
    const SIOCATMARK: libc::c_ulong = 0x8905;
    let mut is_at_mark: libc::c_int = 0;
    // SAFETY: the request writes one integer, which outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCATMARK as _, ptr::from_mut(&mut is_at_mark)) };
    if result == 0 { Ok(is_at_mark != 0) } else { Err(io::Error::last_os_error()) }
}

/// The size of a C structure as system calls want it.
fn length_of<T>() -> libc::socklen_t {
    const { assert!(size_of::<T>() <= 1024, "a size that fits in every integer") };
    size_of::<T>() as libc::socklen_t
}

/// Writes an address as the kernel reads it, with its length.
#[expect(unsafe_code, reason = "sockaddr_storage stands for the structure of any family")]
fn encode(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: a C structure of integers, for which all bits zero is a valid value.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(address) => {
            let value = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is at least as large and as aligned as the structure of any family.
            unsafe { ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>().write(value) };
            (storage, length_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(address) => {
            let value = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>().write(value) };
            (storage, length_of::<libc::sockaddr_in6>())
        }
    }
}

/// Reads an address that the kernel has written; `None` of another family than IP.
#[expect(unsafe_code, reason = "sockaddr_storage stands for the structure of any family")]
fn decode(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure this is; sockaddr_storage is large and aligned enough for it.
            let value = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let address = Ipv4Addr::from(value.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(address, u16::from_be(value.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let value = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            let address = Ipv6Addr::from(value.sin6_addr.s6_addr);
            let port = u16::from_be(value.sin6_port);
            Some(SocketAddrV6::new(address, port, value.sin6_flowinfo, value.sin6_scope_id).into())
        }
        _other_family => None,
    }
}

/// The local address among the control messages of a received datagram.
#[expect(unsafe_code, reason = "control messages are read by pointers, as cmsg(3) has it")]
fn local_address(header: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the header's control buffer is alive and aligned, and the kernel has written its length; the macros stay inside.
    // A control message of one of these types has its structure as data, which is read without assuming its alignment.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            let data = libc::CMSG_DATA(message);
            match (found.cmsg_level, found.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _other_option => message = libc::CMSG_NXTHDR(header, message),
            }
        }
    }
    None
}

/// Writes a control message with the local address that datagrams leave from, and returns its length in bytes.
#[expect(unsafe_code, reason = "control messages are written by pointers, as cmsg(3) has it")]
fn put_local_address(control: &mut Control, from: IpAddr) -> usize {
    /// Space that one message takes, and the length that its head states.
    const fn lengths<T>() -> (usize, usize) {
        const { assert!(size_of::<T>() + size_of::<libc::cmsghdr>() <= size_of::<Control>() - 8) };
        // SAFETY: these only add and round up numbers.
        unsafe { (libc::CMSG_SPACE(size_of::<T>() as _) as usize, libc::CMSG_LEN(size_of::<T>() as _) as usize) }
    }
    // SAFETY: a C structure of integers and pointers, for which all bits zero is a valid value.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the buffer has space for the head and either structure (asserted above), so there is a first message, and its data
    // lies inside; it is written without assuming its alignment.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        let data = libc::CMSG_DATA(message);
        match from {
            IpAddr::V4(from) => {
                let (space, length) = lengths::<libc::in_pktinfo>();
                let address = libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
                let info =
                    libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: address, ipi_addr: libc::in_addr { s_addr: 0 } };
                (*message).cmsg_level = libc::IPPROTO_IP;
                (*message).cmsg_type = libc::IP_PKTINFO;
                (*message).cmsg_len = length as _;
                data.cast::<libc::in_pktinfo>().write_unaligned(info);
                space
            }
            IpAddr::V6(from) => {
                let (space, length) = lengths::<libc::in6_pktinfo>();
                let address = libc::in6_addr { s6_addr: from.octets() };
                (*message).cmsg_level = libc::IPPROTO_IPV6;
                (*message).cmsg_type = libc::IPV6_PKTINFO;
                (*message).cmsg_len = length as _;
                let info = libc::in6_pktinfo { ipi6_addr: address, ipi6_ifindex: 0 };
                data.cast::<libc::in6_pktinfo>().write_unaligned(info);
                space
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd as _;

    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.1:53", "[2001:db8::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address).0), Some(address));
        }
        let scoped = SocketAddr::from(SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3));
        assert_eq!(decode(&encode(scoped).0), Some(scoped));
    }

    /// Sends three datagrams of different sizes to one of several addresses, and returns two of them from the same address.
    fn exchange(wildcard: &str, address: &str) {
        let server = UdpSocket::bind(wildcard).unwrap();
        report_local_address(server.as_fd(), wildcard.starts_with('[')).unwrap();
        let address: SocketAddr = address.parse().unwrap();
        let to = SocketAddr::from((address.ip(), server.local_addr().unwrap().port()));
        let client = UdpSocket::bind(SocketAddr::from((address.ip(), 0))).unwrap();
        let largest = vec![7; 65_000];
        for bytes in [b"one".as_slice(), &[], &largest] {
            client.send_to(bytes, to).unwrap();
        }
        let mut datagrams = Datagrams::new();
        datagrams.receive(server.as_fd()).unwrap();
        let source = client.local_addr().unwrap();
        let received = |length| ReceivedDatagram { source, local: Some(address.ip()), length };
        assert_eq!(datagrams.received(), [received(3), received(0), received(65_000)]);
        assert_eq!(datagrams.bytes(0), b"one");
        assert_eq!(datagrams.bytes(2), largest);
        assert_eq!(datagrams.bytes(3), b"");

        client.connect(to).unwrap();
        assert_eq!(datagrams.send(server.as_fd(), &[2, 0, 9], Some((source, Some(address.ip())))).unwrap(), 2);
        let mut buffer = vec![0; 70_000];
        assert_eq!(client.recv(&mut buffer).unwrap(), 65_000);
        assert_eq!(client.recv(&mut buffer).unwrap(), 3);
        assert_eq!(datagrams.receive(server.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn batches_keep_sizes_senders_and_local_addresses() {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace
            .run(|| {
                exchange("0.0.0.0:0", "127.0.0.7:0");
                exchange("[::]:0", "[::1]:0");
            })
            .unwrap();
    }

    #[test]
    fn a_connected_socket_reports_a_closed_port() {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        namespace
            .run(|| {
                let pair = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
                pair.0.send_to(b"question", pair.1.local_addr().unwrap()).unwrap();
                let mut datagrams = Datagrams::new();
                datagrams.receive(pair.1.as_fd()).unwrap();
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.connect("127.0.0.1:9").unwrap();
                assert_eq!(datagrams.send(client.as_fd(), &[0], None).unwrap(), 1);
                let refusal = datagrams.receive(client.as_fd()).unwrap_err();
                assert_eq!(refusal.kind(), io::ErrorKind::ConnectionRefused);
                assert!(datagrams.received().is_empty());
            })
            .unwrap();
    }

    /// Runs a test with the two ends of a TCP connection over loopback.
    fn connected(test: impl FnOnce(TcpStream, TcpStream) + Send) {
        let namespace = Namespace::new().unwrap();
        namespace.raise_loopback().unwrap();
        let connect = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            test(sender, listener.accept().unwrap().0);
        };
        namespace.run(connect).unwrap();
    }

    #[test]
    fn a_read_ends_at_an_urgent_byte() {
        connected(|mut sender, mut receiver| {
            assert!(!is_at_mark(receiver.as_fd()).unwrap());
            sender.write_all(b"before").unwrap();
            rustix::net::send(&sender, b"!", rustix::net::SendFlags::OOB).unwrap();
            sender.write_all(b"behind").unwrap();
            let mut read = [0; 100];
            assert_eq!(receiver.read(&mut read).unwrap(), 6);
            assert!(is_at_mark(receiver.as_fd()).unwrap());
            assert_eq!(receiver.read(&mut read).unwrap(), 6);
            assert!(!is_at_mark(receiver.as_fd()).unwrap());
        });
    }

    #[test]
    fn undelivered_bytes_are_those_that_a_full_receiver_leaves() {
        connected(|mut sender, mut receiver| {
            assert_eq!(undelivered_bytes(sender.as_fd()).unwrap(), 0);
            sender.set_nonblocking(true).unwrap();
            let block = vec![0; 1 << 20];
            let mut written = 0;
            while let Ok(count) = sender.write(&block) {
                written += count;
            }
            assert!(undelivered_bytes(sender.as_fd()).unwrap() > 0);
            let mut rest = vec![0; written];
            receiver.read_exact(&mut rest).unwrap();
            while undelivered_bytes(sender.as_fd()).unwrap() > 0 {
                std::thread::yield_now();
            }
        });
    }
}
