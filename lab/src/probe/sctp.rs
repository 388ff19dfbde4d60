//! SCTP's first two packets (INIT, INIT ACK) over raw sockets: enough to test translation without SCTP sockets in the kernel.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{RecvFlags, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;
const COMMON_HEADER_LEN: usize = 12;
const INIT_LEN: u16 = 20;

/// The relevant fields of an INIT chunk.
pub(crate) struct Init {
    /// source port
    pub(crate) source: u16,
    /// destination port
    pub(crate) destination: u16,
    /// initiate tag, which the answer must carry
    tag: u32,
}

// === impl Init ===

impl Init {
    /// Decodes an SCTP packet that begins with an INIT chunk.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let (&kind, tag) = (packet.get(COMMON_HEADER_LEN)?, packet.get(16..20)?);
        let tag = u32::from_be_bytes(tag.try_into().ok()?);
        (kind == INIT).then_some(Self { source: port(packet, 0)?, destination: port(packet, 2)?, tag })
    }

    /// The INIT ACK, with a text as its cookie.
    pub(crate) fn acknowledge(&self, text: &str) -> Vec<u8> {
        packet((self.destination, self.source), self.tag, INIT_ACK, text.as_bytes())
    }
}

/// A raw socket that sends and receives SCTP packets of an address.
pub(crate) fn socket(address: IpAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::SCTP))?;
    socket.bind(&SocketAddr::new(address, 0).into())?;
    Ok(socket)
}

/// Receives the next SCTP packet and its source address.
pub(crate) fn receive(socket: &Socket) -> io::Result<(Vec<u8>, IpAddr)> {
    let mut buffer = vec![0; 2048];
    let (length, _, from) = recvfrom(socket, &mut buffer[..], RecvFlags::empty())?;
    buffer.truncate(length);
    let from = from.and_then(|from| SocketAddr::try_from(from).ok()).ok_or(io::ErrorKind::InvalidData)?.ip();
    if from.is_ipv4() {
        // raw IPv4 sockets deliver the IP header too; its length is in 32-bit words
        let header = buffer.first().map_or(0, |byte| usize::from(byte & 0xf) * 4);
        buffer.drain(..header.min(buffer.len()));
    }
    Ok((buffer, from))
}

/// An SCTP packet with an INIT chunk between two ports.
pub(crate) fn init(source: u16, destination: u16) -> Vec<u8> {
    packet((source, destination), 0, INIT, &[])
}

/// The cookie of an INIT ACK to this port.
pub(crate) fn cookie(packet: &[u8], to: u16) -> Option<&[u8]> {
    let ours = port(packet, 2)? == to && *packet.get(COMMON_HEADER_LEN)? == INIT_ACK;
    let length = usize::from(port(packet, 34)?);
    packet.get(36..32 + length).filter(|_| ours)
}

fn port(packet: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?))
}

fn packet((source, destination): (u16, u16), tag: u32, kind: u8, text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend(source.to_be_bytes());
    bytes.extend(destination.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    let text_len = u16::try_from(text.len()).expect("a short text");
    let length = if text.is_empty() { INIT_LEN } else { INIT_LEN + 4 + text_len };
    bytes.extend([kind, 0]);
    bytes.extend(length.to_be_bytes());
    // initiate tag, receive window, outbound and inbound streams, initial TSN
    bytes.extend(u32::from(source).to_be_bytes());
    bytes.extend(65536_u32.to_be_bytes());
    bytes.extend([0, 1, 0, 1]);
    bytes.extend(1_u32.to_be_bytes());
    if !text.is_empty() {
        bytes.extend(STATE_COOKIE.to_be_bytes());
        bytes.extend((4 + text_len).to_be_bytes());
        bytes.extend(text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let sum = crc32c(&bytes).to_le_bytes();
    bytes.splice(8..12, sum);
    bytes
}

/// The checksum of SCTP (RFC 9260, appendix A), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_usual_test_text() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn an_answer_carries_its_text() {
        let init = Init::decode(&init(2000, 80)).expect("an INIT");
        assert_eq!((init.source, init.destination), (2000, 80));
        let answer = init.acknowledge("hello");
        assert_eq!(cookie(&answer, 2000), Some(&b"hello"[..]));
        assert_eq!(cookie(&answer, 2001), None);
        assert_eq!(answer.len() % 4, 0);
    }
}
