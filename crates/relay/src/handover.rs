//! Hand-over of listening sockets from one process to the next one: names that travel with them, and the sockets that came.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use crate::protocol::Protocol;
use crate::route::Destination;
use crate::socket::Bind;
use crate::system::OpenSocket;

/// The longest name that systemd's file-descriptor store takes (`FDNAME` in sd_notify(3)).
const MAX_NAME_BYTES: usize = 255;
/// The beginning of a gate's name.
const GATE: &str = "gate-";
/// The address of [`Destination::AnyAddress`].
const ANY: &str = "any";

/// The use of a listening socket, which both processes of a hand-over know, while the port that a socket is bound to may have been
/// chosen by the system.
///
/// As text it suits systemd's file-descriptor store, with neither colons nor spaces, in at most 255 characters: `tcp-10.96.0.1-80`,
/// `udp-2001_db8__1-53` (IPv6 with `_` for each colon), `tcp-any-30001`, `gate-cluster`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SocketName {
    /// A listener for connections or datagrams to this destination.
    Listener(Protocol, Destination),
    /// A gate, by a label that the caller chooses: letters, digits, `.`, `-` and `_`. As text other characters become `_`, and
    /// what is too long is cut off.
    Gate(String),
}

/// The text is not a [`SocketName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidName;

/// Listening sockets of the process before, by name. Those that are not taken are closed when this is dropped: connections that wait in
/// them are then reset, unless the other process still serves them.
#[derive(Debug, Default)]
pub struct Inheritance {
    sockets: Mutex<HashMap<SocketName, OpenSocket>>,
}

// === impl SocketName ===

impl fmt::Display for SocketName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listener(protocol, destination) => {
                let protocol = match protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                match destination {
                    Destination::Address(ip, port) => {
                        write!(formatter, "{protocol}-{}-{port}", ip.to_string().replace(':', "_"))
                    }
                    Destination::AnyAddress(port) => write!(formatter, "{protocol}-{ANY}-{port}"),
                }
            }
            Self::Gate(label) => {
                let printed = |character: char| if is_of_label(character) { character } else { '_' };
                let label: String = label.chars().map(printed).take(MAX_NAME_BYTES - GATE.len()).collect();
                write!(formatter, "{GATE}{label}")
            }
        }
    }
}

fn is_of_label(character: char) -> bool {
    character.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&character)
}

impl FromStr for SocketName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if let Some(label) = text.strip_prefix(GATE) {
            let is_valid = text.len() <= MAX_NAME_BYTES && label.chars().all(is_of_label);
            return if is_valid { Ok(Self::Gate(label.to_owned())) } else { Err(InvalidName) };
        }
        let (protocol, destination) = text.split_once('-').ok_or(InvalidName)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(InvalidName),
        };
        let (address, port) = destination.rsplit_once('-').ok_or(InvalidName)?;
        let port = port.parse().map_err(|_not_a_number| InvalidName)?;
        if address == ANY {
            return Ok(Self::Listener(protocol, Destination::AnyAddress(port)));
        }
        let ip: IpAddr = address.replace('_', ":").parse().map_err(|_not_an_address| InvalidName)?;
        Ok(Self::Listener(protocol, Destination::Address(ip, port)))
    }
}

// === impl InvalidName ===

impl fmt::Display for InvalidName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not the name of a listening socket")
    }
}

impl std::error::Error for InvalidName {}

// === impl Inheritance ===

impl Inheritance {
    /// Adds sockets with their names as text. One whose name can't be read, or occurs a second time, is logged and closed.
    pub fn add(&self, sockets: impl IntoIterator<Item = (String, OpenSocket)>) {
        let mut named = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for (text, socket) in sockets {
            match text.parse() {
                Ok(name) => {
                    if named.insert(name, socket).is_some() {
                        tracing::warn!(name = ?text, "Two inherited sockets have one name, closing one");
                    }
                }
                Err(error) => tracing::warn!(name = ?text, %error, "Closing an inherited socket"),
            }
        }
    }

    /// Where a listener or gate of this name gets its socket from: the inherited one, or, if there is none or it does not suit, one that
    /// is opened. Each socket is given once.
    pub fn bind(&self, name: &SocketName, address: SocketAddr, reuse_port: bool) -> Bind {
        match self.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(name) {
            Some(socket) => Bind::Inherited { socket, address, reuse_port },
            None => Bind::Address { address, reuse_port },
        }
    }

    /// The names of the sockets that have not been taken, in any order.
    pub fn names(&self) -> Vec<SocketName> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> impl Strategy<Value = SocketName> {
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
        let destination = prop_oneof![
            (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| Destination::Address(ip, port)),
            any::<u16>().prop_map(Destination::AnyAddress),
        ];
        prop_oneof![
            (protocol, destination).prop_map(|(protocol, destination)| SocketName::Listener(protocol, destination)),
            "[a-zA-Z0-9._-]{0,250}".prop_map(SocketName::Gate),
        ]
    }

    proptest! {
        #[test]
        fn names_survive_as_text_for_systemd(name in names()) {
            let text = name.to_string();
            prop_assert!(text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{text}");
            prop_assert_eq!(text.parse(), Ok(name));
        }

        #[test]
        fn any_text_is_a_name_or_an_error(text in any::<String>()) {
            if let Ok(name) = text.parse::<SocketName>() {
                prop_assert_eq!(name.to_string().parse(), Ok(name));
            }
        }

        #[test]
        fn any_label_becomes_a_name(label in any::<String>()) {
            let text = SocketName::Gate(label).to_string();
            prop_assert!(text.parse::<SocketName>().is_ok(), "{text}");
        }
    }

    #[test]
    fn texts_are_those_of_the_documentation() {
        for (text, name) in [
            (
                "tcp-10.96.0.1-80",
                SocketName::Listener(Protocol::Tcp, "10.96.0.1:80".parse::<SocketAddr>().unwrap().into()),
            ),
            (
                "udp-2001_db8__1-53",
                SocketName::Listener(Protocol::Udp, "[2001:db8::1]:53".parse::<SocketAddr>().unwrap().into()),
            ),
            ("tcp-any-30001", SocketName::Listener(Protocol::Tcp, Destination::AnyAddress(30001))),
            ("gate-cluster", SocketName::Gate("cluster".to_owned())),
        ] {
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
        }
        for text in [
            "",
            "gate",
            "tcp",
            "tcp-",
            "tcp-10.96.0.1",
            "tcp-10.96.0.1-",
            "tcp-x-80",
            "sctp-10.0.0.1-80",
            "gate-a:b",
            "tcp-any-65536",
        ] {
            assert_eq!(text.parse::<SocketName>(), Err(InvalidName), "{text}");
        }
    }
}
