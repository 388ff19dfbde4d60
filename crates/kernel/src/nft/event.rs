//! Notifications of changes, from the bytes of a datagram.

use ferry_family::Family;

use super::Element;
use super::decode::{decode_elements, open};
use super::wire::{self, chain, msg, rule, set};
use crate::netlink::{Malformed, Messages};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// whose socket made it, see [`super::Socket::port_id`]
    pub port_id: u32,
    /// `None`: a family other than these
    pub family: Option<Family>,
    /// the table
    pub table: String,
    /// what in it
    pub what: Changed,
}

/// What was made, changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// the table itself
    Table,
    /// a set or map
    Set(String),
    /// a chain
    Chain(String),
    /// a rule
    Rule {
        /// in this chain
        chain: String,
    },
    /// elements
    Elements {
        /// of this set or map
        set: String,
        /// in no order
        elements: Vec<Element>,
    },
    /// something that this crate does not write: a named object, a flow table
    Other,
}

/// Reads the notifications of one datagram. Those of new generations and of packet traces are left out.
///
/// # Errors
/// [`Malformed`] if lengths do not fit or a name is missing; `each` has seen the ones before it.
pub fn decode_events(datagram: &[u8], each: &mut dyn FnMut(Event)) -> Result<(), Malformed> {
    for message in Messages::new(datagram) {
        let message = message?;
        let Some(kind) = wire::message_of(message.kind) else { continue };
        let (family, mut attributes) = open(message.payload)?;
        let Some(what) = decode_change(kind, message.payload)? else { continue };
        // every object but a generation names its table first
        let table = attributes.next_attribute()?.map(|table| table.text().into_owned()).unwrap_or_default();
        each(Event { port_id: message.port_id, family: Family::from_number(family), table, what });
    }
    Ok(())
}

fn decode_change(message: u8, payload: &[u8]) -> Result<Option<Changed>, Malformed> {
    let name = |kind| -> Result<String, Malformed> {
        let (_, attributes) = open(payload)?;
        Ok(attributes.find(kind)?.ok_or(Malformed("object without a name"))?.text().into_owned())
    };
    Ok(Some(match message {
        msg::NEW_TABLE | msg::DEL_TABLE => Changed::Table,
        msg::NEW_SET | msg::DEL_SET => Changed::Set(name(set::NAME)?),
        msg::NEW_CHAIN | msg::DEL_CHAIN => Changed::Chain(name(chain::NAME)?),
        msg::NEW_RULE | msg::DEL_RULE => Changed::Rule { chain: name(rule::CHAIN)? },
        msg::NEW_ELEMENT | msg::DEL_ELEMENT => {
            let mut elements = Vec::new();
            let (_, set) = decode_elements(payload, &mut |element| elements.push(element))?;
            Changed::Elements { set, elements }
        }
        msg::NEW_OBJECT | msg::DEL_OBJECT | msg::NEW_FLOWTABLE | msg::DEL_FLOWTABLE => Changed::Other,
        _ => return Ok(None), // new generations and packet traces
    }))
}
