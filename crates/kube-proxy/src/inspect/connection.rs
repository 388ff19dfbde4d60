//! A connection that is asked about, and its first packet.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use ferry_api::object::Protocol;
use ferry_api::wire::address::parse_ip;
use ferry_model::Packet;

/// Where a connection goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportAddress {
    /// address and port
    pub at: SocketAddr,
    /// protocol
    pub protocol: Protocol,
}

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// its source address
    pub client: IpAddr,
    /// where it goes to
    pub to: TransportAddress,
    /// the interface through which it comes in; `None` where that isn't known
    pub interface: Option<String>,
}

/// Interface of packets that come in through one that isn't known.
const SOME_INTERFACE: &str = "";

// === impl Connection ===

impl Connection {
    /// Its first packet on a node with these addresses. Where the client is none of them, it comes in through an interface.
    pub(super) fn packet(&self, addresses: &[IpAddr]) -> Packet {
        let Self { client, to, interface } = self;
        let is_local = |address: IpAddr| address.is_loopback() || addresses.contains(&address);
        let from_here = is_local(*client);
        let came_in = interface.clone().unwrap_or_else(|| SOME_INTERFACE.to_owned());
        Packet {
            source: *client,
            source_local: from_here,
            interface: (!from_here).then_some(came_in),
            destination: to.at.ip(),
            destination_local: is_local(to.at.ip()),
            protocol: to.protocol,
            port: to.at.port(),
        }
    }
}

/// Parses `CLIENT -> IP:PORT[/PROTOCOL]`.
impl FromStr for Connection {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [client, "->", to] = words[..] else { bail!("{text:?} is not CLIENT -> IP:PORT[/PROTOCOL]") };
        let client = parse_ip(client).with_context(|| format!("{client:?} is not an IP address"))?;
        let to: TransportAddress = to.parse()?;
        if client.is_ipv4() != to.at.is_ipv4() {
            bail!("{client} and {} are addresses of two families: no connection has both", to.at.ip());
        }
        Ok(Self { client, to, interface: None })
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, to, .. } = self;
        write!(f, "{client} -> {to}")
    }
}

// === impl TransportAddress ===

impl FromStr for TransportAddress {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (at, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => bail!("{protocol:?} is not TCP, UDP or SCTP"),
        };
        let at = at.parse().ok().with_context(|| format!("{at:?} is not IP:PORT, or [IPv6]:PORT"))?;
        Ok(Self { at, protocol })
    }
}

impl fmt::Display for TransportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, self.protocol)
    }
}
