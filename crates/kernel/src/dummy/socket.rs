//! Requests about the device and its addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferry_family::Family;
use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::address::{encode_filter, encode_reference, encode_service};
use super::device::{encode_dummy, encode_index, encode_name};
use super::rescope::RescopeStep;
use super::wire::msg;
use super::{Device, DeviceAddress, decode_address, decode_device};
use crate::errno;
use crate::netlink::{AnswerEnd, AnswerMessage, AnswerObjects, Malformed, MessageWriter, Session, flag};

/// Maximum number of addresses that are added, changed or removed with one `send`.
pub const ADDRESSES_PER_SEND: usize = 256;

/// Receive buffer, for the errors of all messages of a `send`: about 1 KiB each, overhead included.
const RECEIVE_BYTES: usize = 1 << 20;
/// Maximum number of attempts at a list of addresses that change meanwhile.
const LIST_ATTEMPTS: u32 = 8;

/// A route netlink socket in the network namespace in which it was opened. No method waits for anything but the kernel's own
/// work.
#[derive(Debug)]
pub struct DeviceSocket {
    session: Session,
    sent: Sent,
}

/// Causes of failed requests about the device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// the name is that of a device of another kind, which is never changed
    #[error("device {name} is of {}, not dummy", .kind.as_ref().map_or("no kind".to_owned(), |kind| format!("kind {kind}")))]
    AnotherKind {
        /// name of the device
        name: String,
        /// as [`Device::kind`]
        kind: Option<String>,
    },
    /// the system's error; `EEXIST` if a device of this name was created meanwhile; `EOPNOTSUPP` if this kernel lacks the kind
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A change of a batch that the kernel refused.
#[derive(Debug)]
pub struct Refused {
    /// position in the batch
    pub position: usize,
    /// the kernel's error, with the text of its extended acknowledgement; [`errno::number`] is its number
    pub error: io::Error,
}

/// Number of requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// netlink messages
    pub messages: u64,
    /// calls of `send`, each with one or more messages
    pub sends: u64,
}

// === impl DeviceSocket ===

impl DeviceSocket {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's error.
    pub fn open() -> io::Result<Self> {
        let session = Session::open(NETLINK_ROUTE)?;
        session.set_receive_buffer(RECEIVE_BYTES)?;
        // Linux before 4.20 lists the addresses of all devices; they are filtered here, too.
        let _ = session.set_strict();
        Ok(Self { session, sent: Sent::default() })
    }

    /// The socket's port id, which is [`super::DeviceEvent::port_id`] of its own changes where the kernel reports it.
    pub fn port_id(&self) -> u32 {
        self.session.port_id()
    }

    /// The number of requests so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// Finds the dummy of this name; `None` if there is no device of this name.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn find(&mut self, name: &str) -> Result<Option<Device>, DeviceError> {
        match self.device(name)? {
            Some(found) if !found.is_dummy() => Err(DeviceError::AnotherKind { name: found.name, kind: found.kind }),
            found => Ok(found),
        }
    }

    /// Creates a dummy, which is down and has no address.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn create(&mut self, name: &str) -> Result<Device, DeviceError> {
        self.request(msg::NEW_LINK, flag::CREATE | flag::EXCL, |writer| encode_dummy(writer, name))?;
        self.find(name)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound).into())
    }

    /// Deletes the dummy of this name with its addresses. False if there is no device of this name.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn delete(&mut self, name: &str) -> Result<bool, DeviceError> {
        let Some(device) = self.find(name)? else { return Ok(false) };
        // By its index: another device may have got the name.
        let deleted = self.request(msg::DELETE_LINK, 0, |writer| encode_index(writer, device.index));
        Ok(unless_missing(deleted)?.is_some())
    }

    /// Adds service addresses to a device, IPv4 and IPv6 in any order: /32 with scope `host`, /128 with preferred lifetime 0
    /// and without duplicate address detection. Each is refused on its own, `EEXIST` if the device has it; the others are added.
    ///
    /// # Errors
    /// The system's error if an answer was lost: then an unknown part was added.
    pub fn add(&mut self, device: u32, addresses: &[IpAddr]) -> io::Result<Vec<Refused>> {
        let flags = flag::CREATE | flag::EXCL;
        self.batch(msg::NEW_ADDRESS, flags, addresses, &|writer, ip| encode_service(writer, device, *ip))
    }

    /// Sets the preferred lifetime of addresses of a device to 0, and the valid one to infinite. The kernel adds those that the
    /// device doesn't have.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn deprecate(&mut self, device: u32, addresses: &[Ipv6Addr]) -> io::Result<Vec<Refused>> {
        self.batch(msg::NEW_ADDRESS, flag::REPLACE, addresses, &|writer, ip| {
            encode_service(writer, device, (*ip).into());
        })
    }

    /// Sets the scope of IPv4 service addresses of a device to `host`. The kernel can't change it in place, so each is removed and
    /// added again; meanwhile the same address with another prefix stands in for it, so that it is local all the time.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn rescope(&mut self, device: u32, addresses: &[Ipv4Addr]) -> io::Result<Vec<Refused>> {
        const TOGETHER: usize = ADDRESSES_PER_SEND / RescopeStep::ALL.len();
        let mut refused = Vec::new();
        for (number, some) in addresses.chunks(TOGETHER).enumerate() {
            let mut requests = self.session.requests();
            let steps: Vec<(Ipv4Addr, RescopeStep)> =
                some.iter().flat_map(|ip| RescopeStep::ALL.map(|step| (*ip, step))).collect();
            for (n, (ip, step)) in steps.iter().enumerate() {
                let (kind, flags) = step.message();
                let acknowledge = if n + 1 == steps.len() { flag::ACK } else { 0 };
                requests.add(kind, flags | acknowledge, |writer| step.encode(writer, device, *ip));
            }
            self.sent.note(steps.len());
            self.session.exchange::<io::Error>(&requests, AnswerEnd::Reply, &mut |answer| {
                if let AnswerMessage::Refused(refusal) = answer {
                    let n = requests.position(refusal.sequence).ok_or(Malformed("sequence number"))?;
                    // Refusals of other steps are harmless, or this one is refused, too.
                    if steps.get(n).is_some_and(|(_, step)| *step == RescopeStep::Add) {
                        refused.push(Refused {
                            position: number * TOGETHER + n / RescopeStep::ALL.len(),
                            error: refusal.into(),
                        });
                    }
                }
                Ok(())
            })?;
        }
        Ok(refused)
    }

    /// Removes addresses of a device, IPv4 and IPv6 in any order; `IpNet::from` an address is the one that [`Self::add`] adds.
    /// Each is refused on its own, `EADDRNOTAVAIL` if the device doesn't have it with this prefix; the others are removed.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn remove(&mut self, device: u32, addresses: &[IpNet]) -> io::Result<Vec<Refused>> {
        self.batch(msg::DELETE_ADDRESS, 0, addresses, &|writer, net| encode_reference(writer, device, *net))
    }

    /// Lists the addresses of a device.
    ///
    /// # Errors
    /// The system's error; `ENODEV` if there is no such device, or an empty list before Linux 4.20; `Interrupted` if addresses
    /// kept changing while the kernel listed them.
    pub fn addresses(&mut self, device: u32, family: Family) -> io::Result<Vec<DeviceAddress>> {
        let (session, sent) = (&mut self.session, &mut self.sent);
        let fill = |writer: &mut MessageWriter| encode_filter(writer, device, family);
        let listed = session.dump(msg::GET_ADDRESS, LIST_ATTEMPTS, &fill, &mut |attempt| {
            sent.note(1);
            Ok(!attempt.interrupted)
        })?;
        let decoded = listed.of(msg::NEW_ADDRESS).map(decode_address);
        let of_device = decoded.filter_map(|address| address.transpose()).filter(|address| match address {
            Ok(address) => address.device == device && Family::of_net(address.network) == family,
            Err(_) => true,
        });
        Ok(of_device.collect::<Result<_, Malformed>>()?)
    }

    /// The device of this name, of any kind.
    pub(super) fn device(&mut self, name: &str) -> io::Result<Option<Device>> {
        let answer = self.request(msg::GET_LINK, 0, |writer| encode_name(writer, name));
        let Some(answer) = unless_missing(answer)? else { return Ok(None) };
        let found = answer.of(msg::NEW_LINK).next().ok_or(Malformed("no device"))?;
        Ok(decode_device(found)?)
    }

    fn request(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut MessageWriter)) -> io::Result<AnswerObjects> {
        self.sent.note(1);
        self.session.request(kind, flags, fill)
    }

    /// Sends one message for each item, many with one `send`. Only the last message of a `send` requests an acknowledgement;
    /// the others are answered if they fail.
    fn batch<T>(
        &mut self,
        kind: u16,
        flags: u16,
        items: &[T],
        fill: &dyn Fn(&mut MessageWriter, &T),
    ) -> io::Result<Vec<Refused>> {
        let mut refused = Vec::new();
        for (number, some) in items.chunks(ADDRESSES_PER_SEND).enumerate() {
            let mut requests = self.session.requests();
            for (n, item) in some.iter().enumerate() {
                let acknowledge = if n + 1 == some.len() { flag::ACK } else { 0 };
                requests.add(kind, flags | acknowledge, |writer| fill(writer, item));
            }
            self.sent.note(some.len());
            self.session.exchange::<io::Error>(&requests, AnswerEnd::Reply, &mut |answer| {
                if let AnswerMessage::Refused(refusal) = answer {
                    let position = requests.position(refusal.sequence).ok_or(Malformed("sequence number"))?;
                    refused.push(Refused { position: number * ADDRESSES_PER_SEND + position, error: refusal.into() });
                }
                Ok(())
            })?;
        }
        Ok(refused)
    }
}

// === impl Sent ===

impl Sent {
    fn note(&mut self, messages: usize) {
        self.messages = self.messages.saturating_add(u64::try_from(messages).unwrap_or(u64::MAX));
        self.sends = self.sends.saturating_add(1);
    }
}

/// `None` if there is no such device.
fn unless_missing(answer: io::Result<AnswerObjects>) -> io::Result<Option<AnswerObjects>> {
    match answer {
        Err(error) if errno::number(&error) == Some(libc::ENODEV) => Ok(None),
        answer => answer.map(Some),
    }
}
