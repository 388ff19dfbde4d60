//! Support of tests and benchmarks: counts the requests that all processes of a network namespace send to the kernel.
//!
//! A device of kind nlmon has a copy of each netlink datagram of its namespace; a packet socket reads them. The senders don't
//! notice it, so it counts foreign tools as well.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::Emitable;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, netdevice, socket_with};

use super::{Messages, Session, flag, generic};

/// Name of the device.
const DEVICE: &str = "netlink-tap";
const RTM_NEWLINK: u16 = 16;
/// `ETH_P_ALL`, in network byte order
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();
/// `PACKET_STATISTICS`
const STATISTICS: libc::c_int = 6;
/// Receive buffer, in bytes of unread datagrams.
const RECEIVE_BYTES: libc::c_int = 256 << 20;
/// The largest datagram that is read whole: a transaction of nf_tables with tens of thousands of elements.
const LARGEST: usize = 16 << 20;
/// `IPVS_GENL_NAME`
const IPVS: &str = "IPVS";
/// `NFNL_MSG_BATCH_BEGIN` and `NFNL_MSG_BATCH_END`
const BATCH: [u16; 2] = [16, 17];

/// The kind of request of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    /// a change of a virtual server or destination, or of IPVS's settings
    IpvsChange,
    /// the list of all virtual servers
    ServerDump,
    /// one virtual server
    ServerRead,
    /// the destinations of one virtual server
    DestinationDump,
    /// an operation of an nf_tables transaction
    NftChange,
    /// a change of a device, an address or a route
    RouteChange,
    /// anything else, most of which are reads
    Other,
}

/// Numbers of messages, and of the datagrams that carried them: the system calls of the senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTally {
    /// number of datagrams
    pub sends: u64,
    /// number of messages
    pub messages: u64,
}

/// A tap of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Tap {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// number of IPVS's family; `None` if the kernel lacks it
    ipvs: Option<u16>,
}

// === impl Tap ===

impl Tap {
    /// Creates the device and starts to listen.
    ///
    /// # Errors
    /// The system's error; `Unsupported` or `NotSupported` if the kernel lacks nlmon.
    pub fn open() -> io::Result<Self> {
        let ipvs = generic::family(&mut Session::open(NETLINK_GENERIC)?, IPVS)?;
        let index = create()?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Bound before it gets a protocol: it never has datagrams of other devices.
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None::<Protocol>)?;
        let tap = Self { socket, buffer: vec![0; LARGEST], ipvs };
        tap.set_receive_buffer()?;
        tap.bind(index)?;
        Ok(tap)
    }

    /// The requests since the last call, or since the tap was opened.
    ///
    /// # Errors
    /// The system's error; an error if datagrams were lost.
    pub fn read(&mut self) -> io::Result<BTreeMap<RequestKind, MessageTally>> {
        let mut tallies = BTreeMap::<RequestKind, MessageTally>::new();
        while let Some((protocol, len)) = self.receive()? {
            let datagram = self.buffer.get(..len).ok_or(io::ErrorKind::InvalidData)?;
            let mut messages = BTreeMap::<RequestKind, u64>::new();
            for message in Messages::new(datagram) {
                let message = message?;
                // The kernel's answers are none. The type of the packet doesn't show its direction: it is always "outgoing".
                if message.flags & flag::REQUEST == 0 {
                    continue;
                }
                let command = message.payload.first().copied().unwrap_or_default();
                if let Some(request) = self.classify(protocol, message.kind, message.flags, command) {
                    *messages.entry(request).or_default() += 1;
                }
            }
            for (request, count) in messages {
                let tally = tallies.entry(request).or_default();
                tally.sends += 1;
                tally.messages += count;
            }
        }
        if self.dropped()? > 0 {
            return Err(io::Error::other("the tap has lost datagrams"));
        }
        Ok(tallies)
    }

    /// The kind of request; `None` for one that only frames others. The kinds of nf_tables' messages are `NFT_MSG_…` with the
    /// subsystem in the high byte, of which every read is one of "get"; those of routes are four for each object.
    fn classify(&self, protocol: isize, kind: u16, flags: u16, command: u8) -> Option<RequestKind> {
        const NF_TABLES: u16 = 10;
        const NFT_READS: [u16; 10] = [1, 4, 7, 10, 13, 16, 19, 21, 23, 25];
        let is_dump = flags & flag::DUMP == flag::DUMP;
        match protocol {
            NETLINK_GENERIC if Some(kind) == self.ipvs => Some(match command {
                4 if is_dump => RequestKind::ServerDump,
                4 => RequestKind::ServerRead,
                8 => RequestKind::DestinationDump,
                1..=3 | 5..=7 | 12 => RequestKind::IpvsChange,
                _ => RequestKind::Other,
            }),
            NETLINK_NETFILTER if BATCH.contains(&kind) => None,
            NETLINK_NETFILTER if kind >> 8 == NF_TABLES && !NFT_READS.contains(&(kind & 0xff)) => {
                Some(RequestKind::NftChange)
            }
            NETLINK_ROUTE if kind >= RTM_NEWLINK && kind % 4 != 2 => Some(RequestKind::RouteChange),
            _ => Some(RequestKind::Other),
        }
    }

    /// The next datagram, in either direction: its protocol and its length in the buffer.
    #[expect(unsafe_code, reason = "no safe wrapper knows the addresses of packet sockets")]
    fn receive(&mut self) -> io::Result<Option<(isize, usize)>> {
        let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
        let mut size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
        // SAFETY: the descriptor is open while `self` lives; both pointers are to values that outlive the call, and are passed
        // with their sizes.
        let received = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                self.buffer.as_mut_ptr().cast(),
                self.buffer.len(),
                libc::MSG_TRUNC,
                address.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        let Ok(len) = usize::try_from(received) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        };
        // SAFETY: all of it is integers, which were zeroed or written by the kernel.
        let address = unsafe { address.assume_init() };
        Ok(Some((isize::try_from(u16::from_be(address.sll_protocol)).unwrap_or(-1), len)))
    }

    #[expect(unsafe_code, reason = "no safe wrapper knows the addresses of packet sockets")]
    fn bind(&self, index: u32) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).unwrap_or(0),
            sll_protocol: ALL_PROTOCOLS,
            sll_ifindex: libc::c_int::try_from(index).unwrap_or(0),
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let size = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
        // SAFETY: the descriptor is open while `self` lives; the pointer is to a value that outlives the call, with its size.
        let result = unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), size) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[expect(unsafe_code, reason = "no safe wrapper knows the FORCE options")]
    fn set_receive_buffer(&self) -> io::Result<()> {
        let bytes = RECEIVE_BYTES;
        let size = libc::socklen_t::try_from(size_of_val(&bytes)).unwrap_or(0);
        // SAFETY: as in `bind`.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const bytes).cast(),
                size,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Number of datagrams lost since the last call.
    #[expect(unsafe_code, reason = "no safe wrapper knows the statistics of packet sockets")]
    fn dropped(&self) -> io::Result<u32> {
        // all packets, and the lost ones
        let mut statistics: [libc::c_uint; 2] = [0; 2];
        let mut size = libc::socklen_t::try_from(size_of_val(&statistics)).unwrap_or(0);
        // SAFETY: the descriptor is open while `self` lives; both pointers are to values that outlive the call, the first one
        // with its size.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut size,
            )
        };
        if result == 0 { Ok(statistics[1]) } else { Err(io::Error::last_os_error()) }
    }
}

/// Creates the device, up. Returns its index.
fn create() -> io::Result<u32> {
    let mut request = LinkMessage::default();
    request.header.flags = LinkFlags::Up;
    request.header.change_mask = LinkFlags::Up;
    request.attributes.push(LinkAttribute::IfName(DEVICE.to_owned()));
    request.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Other("nlmon".to_owned()))]));
    let mut payload = vec![0; request.buffer_len()];
    request.emit(&mut payload);
    let mut session = Session::open(NETLINK_ROUTE)?;
    session.request(RTM_NEWLINK, flag::CREATE | flag::EXCL, |writer| writer.raw(&payload))?;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(netdevice::name_to_index(&socket, DEVICE)?)
}
