//! A synchronous netlink socket.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_sys::SocketAddr;

use super::Transport;

/// Receive buffer for one datagram: dumps fill at most 32 KiB, a single large object may need more.
const RECEIVE_BYTES: usize = 64 * 1024;

/// Offset of the port id in a message's header: after length, type, flags and sequence number.
const PORT_ID_AT: u32 = 12;

/// A bound netlink socket with extended acknowledgements enabled. Never blocks: the kernel answers within the `send` call, so
/// an answer is either there to read or will not come.
#[derive(Debug)]
pub struct NetlinkSocket {
    inner: netlink_sys::Socket,
    port_id: u32,
    send_bytes: usize,
}

// === impl NetlinkSocket ===

impl NetlinkSocket {
    /// Opens a socket of a netlink protocol (`netlink_sys::protocols`).
    ///
    /// # Errors
    /// The system's error, for example for an unknown protocol.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut inner = netlink_sys::Socket::new(protocol)?;
        inner.set_non_blocking(true)?;
        inner.set_ext_ack(true)?;
        inner.set_cap_ack(true)?;
        let port_id = inner.bind_auto()?.port_number();
        inner.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { inner, port_id, send_bytes: 0 })
    }

    /// The socket's port id, which the kernel reports as the originator of its changes.
    pub fn port_id(&self) -> u32 {
        self.port_id
    }

    /// Sets the size of the receive buffer, in bytes of unread datagrams; beyond the system's limit (`rmem_max`) if the process
    /// has `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.set_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, bytes)
    }

    /// Enables `NETLINK_GET_STRICT_CHK`.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_strict(&self) -> io::Result<()> {
        self.inner.set_netlink_get_strict_chk(true)
    }

    /// Subscribes to a multicast group.
    ///
    /// # Errors
    /// The system's error.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.inner.add_membership(group)
    }

    /// Unsubscribes from a multicast group.
    ///
    /// # Errors
    /// The system's error.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.inner.drop_membership(group)
    }

    fn set_buffer(&self, forced: libc::c_int, limited: libc::c_int, bytes: usize) -> io::Result<()> {
        // the kernel doubles the value and keeps it in an int
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX / 2).min(libc::c_int::MAX / 2);
        self.set_option(forced, bytes).or_else(|_| self.set_option(limited, bytes))
    }

    /// Lets the kernel drop datagrams of which the first message has one of these port ids.
    ///
    /// # Errors
    /// The system's; `InvalidInput` if there are more than a filter can name.
    pub fn drop_from(&self, port_ids: &BTreeSet<u32>) -> io::Result<()> {
        let mut filter = filter(port_ids)?;
        let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
        self.set_option(libc::SO_ATTACH_FILTER, program)
    }

    #[expect(unsafe_code, reason = "no safe wrapper knows the FORCE options, or filters")]
    fn set_option<T>(&self, name: libc::c_int, value: T) -> io::Result<()> {
        let size = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
        // SAFETY: the descriptor is open while `self` lives; the pointer is to a value that outlives the call, and
        // `size` is its size; the kernel only reads it, and what a filter program points to, which the caller keeps.
        let result = unsafe {
            libc::setsockopt(self.inner.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), size)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A classic BPF program that drops datagrams by the port id in their first header.
fn filter(port_ids: &BTreeSet<u32>) -> io::Result<Vec<libc::sock_filter>> {
    let instruction = |code: u32, jump, k| {
        let code = u16::try_from(code).unwrap_or_default();
        libc::sock_filter { code, jt: jump, jf: 0, k }
    };
    let (load, compare, leave) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::BPF_RET);
    let mut filter = vec![instruction(load, 0, PORT_ID_AT)];
    for (index, port_id) in port_ids.iter().enumerate() {
        // Over the comparisons that follow, and over the instruction that accepts.
        let jump = u8::try_from(port_ids.len() - index).map_err(|_| io::ErrorKind::InvalidInput)?;
        // A load is in network byte order, the header in the machine's.
        filter.push(instruction(compare, jump, u32::from_be_bytes(port_id.to_ne_bytes())));
    }
    filter.push(instruction(leave, 0, u32::MAX));
    filter.push(instruction(leave, 0, 0));
    Ok(filter)
}

impl Transport for NetlinkSocket {
    /// Enlarges the send buffer if the datagram needs it; fails with `EMSGSIZE` without the right to do so.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if datagram.len() > self.send_bytes {
            self.set_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, datagram.len())?;
            self.send_bytes = datagram.len();
        }
        retry(|| self.inner.send(datagram, 0))
            .and_then(|sent| if sent == datagram.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) })
    }

    /// Fails with `InvalidData` if the datagram is larger than the receive buffer, which no known one is.
    fn receive(&mut self, datagram: &mut Vec<u8>) -> io::Result<bool> {
        datagram.clear();
        datagram.reserve(RECEIVE_BYTES);
        let room = datagram.capacity();
        match retry(|| self.inner.recv(datagram, libc::MSG_TRUNC)) {
            Ok(length) if length > room => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "netlink datagram too large"))
            }
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
