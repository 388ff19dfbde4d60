//! Decodes notifications of nf_tables changes.

use ferry_family::Family;

use super::Element;
use super::decode::{decode_elements, open};
use super::wire::{self, chain, msg, rule, set};
use crate::netlink::{Malformed, Messages};

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NftNotice {
    /// a change
    Changed(NftEvent),
    /// the end of a transaction: the changes notified before by the same socket were committed by it
    Committed {
        /// port id of the socket that committed it, see [`super::NftSocket::port_id`]
        port_id: u32,
        /// name of the thread that committed it (`comm`, up to 15 bytes), if the kernel names it
        process: Option<String>,
    },
}

/// A notification of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftEvent {
    /// port id of the socket that made the change, see [`super::NftSocket::port_id`]
    pub port_id: u32,
    /// `None` for a family other than IPv4 and IPv6
    pub family: Option<Family>,
    /// name of the table
    pub table: String,
    /// the changed object
    pub what: Changed,
}

/// The object that was created, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// the table itself
    Table,
    /// the set or map of this name
    Set(String),
    /// a chain
    Chain {
        /// its name; its new one if it was renamed
        name: String,
        /// false if it was created, changed or renamed
        deleted: bool,
    },
    /// a rule
    Rule {
        /// name of its chain
        chain: String,
    },
    /// elements
    Elements {
        /// name of their set or map
        set: String,
        /// the elements, in no order
        elements: Vec<Element>,
    },
    /// an object of a kind that this crate does not write: a named object, a flow table
    Other,
}

/// Decodes the notifications of one datagram. Packet traces are left out.
///
/// # Errors
/// [`Malformed`] if a length is invalid or a name is missing; earlier notifications were passed to `each`.
pub fn decode_events(datagram: &[u8], each: &mut dyn FnMut(NftNotice)) -> Result<(), Malformed> {
    for message in Messages::new(datagram) {
        let message = message?;
        let Some(kind) = wire::message_of(message.kind) else { continue };
        if kind == msg::NEW_GENERATION {
            let (_, attributes) = open(message.payload)?;
            let process = attributes.find(wire::GENERATION_PROCESS_NAME)?.map(|name| name.text().into_owned());
            each(NftNotice::Committed { port_id: message.port_id, process });
            continue;
        }
        let (family, mut attributes) = open(message.payload)?;
        let Some(what) = decode_change(kind, message.payload)? else { continue };
        // the table's name is the first attribute of every object but a generation
        let table = attributes.next_attribute()?.map(|table| table.text().into_owned()).unwrap_or_default();
        each(NftNotice::Changed(NftEvent {
            port_id: message.port_id,
            family: Family::from_number(family),
            table,
            what,
        }));
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
        msg::NEW_CHAIN | msg::DEL_CHAIN => {
            Changed::Chain { name: name(chain::NAME)?, deleted: message == msg::DEL_CHAIN }
        }
        msg::NEW_RULE | msg::DEL_RULE => Changed::Rule { chain: name(rule::CHAIN)? },
        msg::NEW_ELEMENT | msg::DEL_ELEMENT => {
            let mut elements = Vec::new();
            let (_, set) = decode_elements(payload, &mut |element| elements.push(element))?;
            Changed::Elements { set, elements }
        }
        msg::NEW_OBJECT | msg::DEL_OBJECT | msg::NEW_FLOWTABLE | msg::DEL_FLOWTABLE => Changed::Other,
        _ => return Ok(None), // packet traces
    }))
}
