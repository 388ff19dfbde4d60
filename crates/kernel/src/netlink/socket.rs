//! A synchronous netlink socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_sys::SocketAddr;

use super::Transport;

/// Receive buffer for one datagram: dumps fill at most 32 KiB, a single large object may need more.
const RECEIVE_BYTES: usize = 64 * 1024;

/// A bound netlink socket with extended acknowledgements enabled. Never blocks: the kernel answers within the `send` call, so
/// an answer is either there to read or will not come.
#[derive(Debug)]
pub struct Socket {
    inner: netlink_sys::Socket,
    port_id: u32,
    send_bytes: usize,
}

// === impl Socket ===

impl Socket {
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

    #[expect(unsafe_code, reason = "no safe wrapper has the FORCE options")]
    fn set_option(&self, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let size = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
        // SAFETY: the descriptor is open while `self` lives; the pointer is to an int that outlives the call, and
        // `size` is its size; the kernel only reads it.
        let result = unsafe {
            libc::setsockopt(self.inner.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const value).cast(), size)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Transport for Socket {
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

impl AsFd for Socket {
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
