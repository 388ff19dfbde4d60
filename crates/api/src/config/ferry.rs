//! Decodes a FerryConfiguration: Ferry's own settings, a later document of the configuration file, which upstream doesn't read.
//!
//! No other program reads it, so it is decoded strictly: an unknown or repeated field is an error, not a warning.

use std::collections::BTreeSet;

use super::fields::FieldError;
use super::tree::{Node, YamlValue};
use super::types::{FerryConfiguration, Userspace};
use super::{DurationError, GoDuration};

/// The kind of the document.
pub(super) const KIND: &str = "FerryConfiguration";
/// Its only version.
pub(super) const API_VERSION: &str = "ferry.io/v1alpha1";
/// The API group.
pub(super) const API_GROUP: &str = "ferry.io";
/// Begins every version.
const GROUP: &str = "ferry.io/";

const FALLBACK: &str = "proxyModeFallback";
const GRACE_PERIOD: &str = "ipvsTerminationGracePeriod";
const PING: &str = "ipvsPingOnlyWithEndpoints";
const FORWARD: &str = "acceptForward";
const SNAPSHOT: &str = "snapshot";
const MAX_AGE: &str = "snapshotMaxAge";
const CONTROL: &str = "controlSocket";
const PAGE: &str = "statusPage";
const TEST_PERIOD: &str = "selfTestPeriod";
const TEST_RANGES: &str = "selfTestRanges";
const WAY: &str = "userspaceWay";
const INTERFACE: &str = "userspaceInterface";
const UDP_TIMEOUT: &str = "userspaceUDPTimeout";
const MAX_CONNECTIONS: &str = "userspaceMaxConnections";
const MAX_OF_PORT: &str = "userspaceMaxConnectionsPerPort";
const MAX_ASSOCIATIONS: &str = "userspaceMaxAssociations";
const RELAY_GRACE: &str = "userspaceTerminationGracePeriod";
const DRAIN: &str = "userspaceDrainTimeout";

/// All fields, in the order of messages.
const FIELDS: [&str; 18] = [
    FALLBACK,
    GRACE_PERIOD,
    PING,
    FORWARD,
    SNAPSHOT,
    MAX_AGE,
    CONTROL,
    PAGE,
    TEST_PERIOD,
    TEST_RANGES,
    WAY,
    INTERFACE,
    UDP_TIMEOUT,
    MAX_CONNECTIONS,
    MAX_OF_PORT,
    MAX_ASSOCIATIONS,
    RELAY_GRACE,
    DRAIN,
];

/// True if a document is meant to hold Ferry's own settings, with the right kind and version or not.
pub(super) fn is_own(document: &YamlValue) -> bool {
    let begins = |field: &str, with: &str| {
        document.get(field).is_some_and(|node| matches!(&node.value, YamlValue::Text(text) if text.starts_with(with)))
    };
    begins("kind", KIND) || begins("apiVersion", GROUP)
}

/// The same for the text of a document that is no YAML.
pub(super) fn is_mentioned(text: &str) -> bool {
    text.contains(KIND) || text.contains(GROUP)
}

/// Reads a document.
pub(super) fn read(root: &Node) -> Result<FerryConfiguration, FieldError> {
    let mut config = FerryConfiguration::default();
    let YamlValue::Map(entries) = &root.value else { return Err(wrong(root, None, "a map of fields")) };
    for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if !root.value.get(name).is_some_and(|node| node.value == YamlValue::Text(wanted.to_owned())) {
            let location = root.value.get(name).unwrap_or(root).referenced;
            return Err(FieldError { location, message: format!("{KIND}.{name}: must be {wanted}") });
        }
    }
    let mut seen = BTreeSet::new();
    for (key, node) in entries {
        let name = key.value.as_str();
        let fault = |why: String| FieldError { location: key.referenced, message: format!("{KIND}.{name}: {why}") };
        if !seen.insert(name) {
            return Err(fault("repeated field: keep one of them".to_owned()));
        }
        match name {
            "apiVersion" | "kind" => {}
            FALLBACK => read_texts(
                node,
                FALLBACK,
                "a list of modes such as [nftables, iptables]",
                &mut config.proxy_mode_fallback,
            )?,
            GRACE_PERIOD => read_duration(node, GRACE_PERIOD, "15m", &mut config.ipvs_termination_grace_period)?,
            PING => read_boolean(node, PING, &mut config.ipvs_ping_only_with_endpoints)?,
            FORWARD => read_boolean(node, FORWARD, &mut config.accept_forward)?,
            SNAPSHOT => read_text(node, SNAPSHOT, &mut config.snapshot)?,
            MAX_AGE => read_duration(node, MAX_AGE, "24h", &mut config.snapshot_max_age)?,
            CONTROL => read_text(node, CONTROL, &mut config.control_socket)?,
            PAGE => read_text(node, PAGE, &mut config.status_page)?,
            TEST_PERIOD => read_duration(node, TEST_PERIOD, "30s", &mut config.self_test.period)?,
            TEST_RANGES => {
                read_texts(node, TEST_RANGES, "a list of ranges such as [10.99.0.0/29]", &mut config.self_test.ranges)?
            }
            _ if read_userspace(name, node, &mut config.userspace)? => {}
            _ => {
                let known = FIELDS.join(", ");
                return Err(fault(format!("unknown field: remove or correct it, the fields are {known}")));
            }
        }
    }
    Ok(config)
}

/// Reads a field of mode userspace; false if this is none.
fn read_userspace(name: &str, node: &Node, to: &mut Userspace) -> Result<bool, FieldError> {
    match name {
        WAY => read_text(node, WAY, &mut to.way)?,
        INTERFACE => read_text(node, INTERFACE, &mut to.interface)?,
        UDP_TIMEOUT => read_duration(node, UDP_TIMEOUT, "250ms", &mut to.udp_timeout)?,
        MAX_CONNECTIONS => read_number(node, MAX_CONNECTIONS, &mut to.max_connections)?,
        MAX_OF_PORT => read_number(node, MAX_OF_PORT, &mut to.max_connections_per_port)?,
        MAX_ASSOCIATIONS => read_number(node, MAX_ASSOCIATIONS, &mut to.max_associations)?,
        RELAY_GRACE => read_duration(node, RELAY_GRACE, "15m", &mut to.termination_grace_period)?,
        DRAIN => read_duration(node, DRAIN, "2s", &mut to.drain_timeout)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A list of texts; null leaves the default, as in the other readers.
fn read_texts(node: &Node, field: &str, what: &str, to: &mut Vec<String>) -> Result<(), FieldError> {
    match &node.value {
        YamlValue::Null => {}
        YamlValue::List(items) => {
            to.clear();
            for item in items {
                let YamlValue::Text(text) = &item.value else { return Err(wrong(item, Some(field), what)) };
                to.push(text.clone());
            }
        }
        _ => return Err(wrong(node, Some(field), what)),
    }
    Ok(())
}

fn read_text(node: &Node, field: &str, to: &mut String) -> Result<(), FieldError> {
    match &node.value {
        YamlValue::Null => {}
        YamlValue::Text(text) => to.clone_from(text),
        _ => return Err(wrong(node, Some(field), "a text")),
    }
    Ok(())
}

fn read_duration(node: &Node, field: &str, example: &str, to: &mut GoDuration) -> Result<(), FieldError> {
    match &node.value {
        YamlValue::Null => {}
        YamlValue::Text(text) => {
            *to = text.parse().map_err(|error: DurationError| FieldError {
                location: node.referenced,
                message: format!("{KIND}.{field}: {error}: write it like {example} or 1h30m"),
            })?;
        }
        _ => return Err(wrong(node, Some(field), &format!("a duration such as {example}"))),
    }
    Ok(())
}

fn read_number(node: &Node, field: &str, to: &mut i32) -> Result<(), FieldError> {
    match node.value {
        YamlValue::Null => {}
        YamlValue::Integer(value) => {
            *to = i32::try_from(value).map_err(|_error| FieldError {
                location: node.referenced,
                message: format!("{KIND}.{field}: {value} is too large: it must fit into 32 bits"),
            })?;
        }
        _ => return Err(wrong(node, Some(field), "a whole number")),
    }
    Ok(())
}

fn read_boolean(node: &Node, field: &str, to: &mut bool) -> Result<(), FieldError> {
    match node.value {
        YamlValue::Null => {}
        YamlValue::Bool(value) => *to = value,
        _ => return Err(wrong(node, Some(field), "true or false")),
    }
    Ok(())
}

/// A value of the wrong type; `field` is `None` for the document itself.
fn wrong(node: &Node, field: Option<&str>, wanted: &str) -> FieldError {
    let field = field.map(|field| format!(".{field}")).unwrap_or_default();
    let message = format!("{KIND}{field}: must be {wanted}, and is of type {}", node.value.json_kind());
    FieldError { location: node.referenced, message }
}

#[cfg(test)]
mod tests;
