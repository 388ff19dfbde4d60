//! Parses questions about Services, pods, addresses and connections.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail};
use ferry_api::object::ObjectName;
use ferry_api::wire::address::parse_ip;

use crate::inspect::connection::{Connection, TransportAddress};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// about a Service, or one of its ports, by name or number
    Service(ObjectName, Option<String>),
    /// about a pod, by its address
    Pod(IpAddr),
    /// about an address and port
    Address(TransportAddress),
    /// about a connection
    Connection(Connection),
}

/// The forms of questions, for error texts.
const FORMS: &str = "ask about svc NAMESPACE/NAME[:PORT], pod IP, IP:PORT[/PROTOCOL], or CLIENT -> IP:PORT[/PROTOCOL]";

// === impl Question ===

impl FromStr for Question {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["svc" | "service", service] => service_and_port(service),
            ["pod", address] => Ok(Self::Pod(ip(address)?)),
            [_, "->", _] => text.parse().map(Self::Connection).map_err(with_forms),
            [to] => to.parse().map(Self::Address).map_err(with_forms),
            [] => bail!("nothing is asked: {FORMS}"),
            _ => bail!("{text:?} is no question: {FORMS}"),
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name, None) => write!(f, "svc {name}"),
            Self::Service(name, Some(port)) => write!(f, "svc {name}:{port}"),
            Self::Pod(address) => write!(f, "pod {address}"),
            Self::Address(to) => to.fmt(f),
            Self::Connection(connection) => connection.fmt(f),
        }
    }
}

/// An error about a part of a question, with what can be asked.
#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` wants")]
fn with_forms(error: anyhow::Error) -> anyhow::Error {
    anyhow!("{error}: {FORMS}")
}

fn service_and_port(text: &str) -> anyhow::Result<Question> {
    let (service, port) = text.split_once(':').map_or((text, None), |(service, port)| (service, Some(port)));
    Ok(Question::Service(service_name(service)?, port.map(str::to_owned)))
}

/// Parses the name of a Service on a command line, `NAMESPACE/NAME`.
///
/// # Errors
/// If one of both is missing.
pub fn service_name(text: &str) -> anyhow::Result<ObjectName> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.with_context(|| format!("{text:?} is not NAMESPACE/NAME"))?;
    Ok(ObjectName::new(namespace, name))
}

fn ip(text: &str) -> anyhow::Result<IpAddr> {
    parse_ip(text).with_context(|| format!("{text:?} is not an IP address: {FORMS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_parsed_and_printed_alike() {
        for text in [
            "svc default/web",
            "svc default/web:http",
            "pod 10.244.1.7",
            "10.96.0.10:80/TCP",
            "[fd00::10]:53/UDP",
            "10.244.1.7 -> 10.96.0.10:80/SCTP",
        ] {
            let question: Question = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(question.to_string(), text);
        }
        assert_eq!("10.96.0.10:80".parse::<Question>().unwrap().to_string(), "10.96.0.10:80/TCP");
        assert_eq!("service a/b".parse::<Question>().unwrap().to_string(), "svc a/b");
    }

    #[test]
    fn what_is_no_question_says_what_is() {
        for (text, error) in [
            ("", "nothing is asked: ask about svc "),
            ("svc web", "\"web\" is not NAMESPACE/NAME"),
            ("pod web", "\"web\" is not an IP address: ask about svc "),
            ("10.96.0.10", "\"10.96.0.10\" is not IP:PORT, or [IPv6]:PORT: ask about svc "),
            ("10.96.0.10:80/icmp", "\"icmp\" is not TCP, UDP or SCTP"),
            ("fd00::1 -> 10.96.0.10:80", "fd00::1 and 10.96.0.10 are addresses of two families"),
            ("web is slow", "\"web is slow\" is no question: ask about svc "),
        ] {
            let message = text.parse::<Question>().unwrap_err().to_string();
            assert!(message.starts_with(error), "{text}: {message}");
        }
    }
}
