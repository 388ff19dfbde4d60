//! Notifications of a netlink protocol's multicast groups.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Malformed, NetlinkSocket, Transport};

/// A socket that only listens. It belongs to no group when it is opened.
#[derive(Debug)]
pub struct Notifications<T = NetlinkSocket> {
    transport: T,
    datagram: Vec<u8>,
}

/// True if notifications were lost: anything may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Overrun(
    /// true if so
    pub bool,
);

// === impl Notifications ===

impl Notifications {
    /// Opens a listener of a netlink protocol (`netlink_sys::protocols`) in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub fn open(protocol: isize) -> io::Result<Self> {
        NetlinkSocket::open(protocol).map(Self::new)
    }

    /// Sets how many bytes of unread notifications the kernel keeps, overhead included, before it reports an overrun.
    ///
    /// # Errors
    /// The system's.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.transport.set_receive_buffer(bytes)
    }

    /// Subscribes to a multicast group.
    ///
    /// # Errors
    /// The system's; `EPERM` where the group needs a capability.
    pub fn join(&self, group: u32) -> io::Result<()> {
        self.transport.join(group)
    }

    /// Ends a subscription. Notifications from before can still be read.
    ///
    /// # Errors
    /// The system's.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        self.transport.leave(group)
    }

    /// Lets the kernel drop the notifications of changes that these sockets make.
    ///
    /// # Errors
    /// The system's.
    pub fn ignore(&self, port_ids: &BTreeSet<u32>) -> io::Result<()> {
        self.transport.drop_from(port_ids)
    }

    /// The address of this socket.
    pub fn port_id(&self) -> u32 {
        self.transport.port_id()
    }
}

impl<T: Transport> Notifications<T> {
    /// A listener over this transport.
    pub fn new(transport: T) -> Self {
        Self { transport, datagram: Vec::new() }
    }

    /// Hands every unread datagram to `each`, without waiting. One that can't be decoded counts as lost.
    ///
    /// # Errors
    /// The system's, an overrun excepted.
    pub fn read(&mut self, each: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>) -> io::Result<Overrun> {
        self.read_some(usize::MAX, each)
    }

    /// As [`Notifications::read`], but no more than so many datagrams.
    ///
    /// # Errors
    /// The system's, an overrun excepted.
    pub fn read_some(
        &mut self,
        datagrams: usize,
        each: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
    ) -> io::Result<Overrun> {
        let mut overrun = Overrun(false);
        for _ in 0..datagrams {
            match self.transport.receive(&mut self.datagram) {
                Ok(false) => return Ok(overrun),
                Ok(true) => overrun.0 |= each(&self.datagram).is_err(),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => overrun.0 = true,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => overrun.0 = true,
                Err(error) => return Err(error),
            }
        }
        Ok(overrun)
    }
}

impl AsFd for Notifications {
    /// Readable when a notification has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// results of `receive`, the last one first; then it returns nothing
    struct Scripted(Vec<io::Result<Vec<u8>>>);

    impl Transport for Scripted {
        fn send(&mut self, _: &[u8]) -> io::Result<()> {
            panic!("a listener doesn't send")
        }

        fn receive(&mut self, datagram: &mut Vec<u8>) -> io::Result<bool> {
            let Some(next) = self.0.pop() else { return Ok(false) };
            *datagram = next?;
            Ok(true)
        }
    }

    /// Reads until nothing is left: the datagrams that were shown, and the overrun or the error.
    fn read(script: impl IntoIterator<Item = io::Result<Vec<u8>>>) -> (Vec<Vec<u8>>, io::Result<Overrun>) {
        let mut script: Vec<_> = script.into_iter().collect();
        script.reverse();
        let mut seen = Vec::new();
        let overrun = Notifications::new(Scripted(script)).read(&mut |datagram| {
            seen.push(datagram.to_vec());
            if datagram == b"garbage" { Err(Malformed("garbage")) } else { Ok(()) }
        });
        (seen, overrun)
    }

    fn datagram(text: &str) -> io::Result<Vec<u8>> {
        Ok(text.as_bytes().to_vec())
    }

    #[test]
    fn everything_unread_is_shown() {
        let (seen, overrun) = read([datagram("a"), datagram("b")]);
        assert_eq!((seen, overrun.unwrap()), (vec![b"a".to_vec(), b"b".to_vec()], Overrun(false)));
        let (seen, overrun) = read([]);
        assert_eq!((seen, overrun.unwrap()), (vec![], Overrun(false)));
    }

    #[test]
    fn reading_some_leaves_the_rest() {
        let mut notifications = Notifications::new(Scripted(vec![datagram("b"), datagram("a")]));
        for wanted in [&["a"][..], &["b"], &[]] {
            let mut seen = Vec::new();
            let mut see = |datagram: &[u8]| {
                seen.push(String::from_utf8_lossy(datagram).into_owned());
                Ok(())
            };
            assert_eq!(notifications.read_some(1, &mut see).unwrap(), Overrun(false));
            assert_eq!(seen, wanted);
        }
    }

    #[test]
    fn lost_notifications_are_reported_and_the_rest_is_read() {
        for lost in [
            Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(io::ErrorKind::InvalidData.into()),
            datagram("garbage"),
        ] {
            let (seen, overrun) = read([datagram("a"), lost, datagram("b")]);
            assert_eq!((seen.first(), seen.last()), (Some(&b"a".to_vec()), Some(&b"b".to_vec())));
            assert_eq!(overrun.unwrap(), Overrun(true));
        }
    }

    #[test]
    fn other_errors_end_the_reading() {
        let (seen, overrun) = read([datagram("a"), Err(io::Error::from_raw_os_error(libc::ENOMEM)), datagram("b")]);
        assert_eq!(seen, [b"a"]);
        assert_eq!(overrun.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
