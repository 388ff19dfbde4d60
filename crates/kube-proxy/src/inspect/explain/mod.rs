//! Says what happens to connections, and why: of a Service, of a pod, to an address, or from a client to an address.
//!
//! `question` parses what is asked. `service` explains a Service with its ports and frontends,
//! `endpoints` the choice among its endpoints, `address` who serves an address and what happens to a connection there, `pod` where a pod
//! is an endpoint. `tree` prints.
//!
//! The model decides: states are those that the core has resolved, reasons those of [`ferry_model::reasons()`], and the verdict on a
//! connection that of [`ferry_model::decide()`].

mod address;
mod endpoints;
mod pod;
mod question;
mod service;
mod tree;

pub use self::question::{Question, service_name};
use self::tree::Answer;
use super::desired::{InspectedNode, desired};
use super::known::Known;
use super::objects::Objects;
use crate::planes::Plane;

/// The inputs of an explanation.
#[derive(Clone, Debug)]
pub struct ExplainRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// what is asked
    pub question: Question,
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
    /// with colours of a terminal
    pub colours: bool,
}

/// The text of the answer: problems first, then a tree.
///
/// # Errors
/// If this build lacks the mode, the objects a Service that is asked about, or what [`desired`] needs.
pub fn explain(objects: Objects, request: &ExplainRequest<'_>) -> anyhow::Result<String> {
    let ExplainRequest { node, question, json, colours } = request;
    let profile = Plane::named(node.config.configured_mode())?.offline(node.config).profile;
    let desired = desired(objects, node, profile)?;
    let known = Known::of(&desired, profile)?;
    let mut answer = Answer::new(question.to_string());
    match question {
        Question::Service(name, port) => service::explain(&known, name, port.as_deref(), &mut answer)?,
        Question::Pod(address) => pod::explain(&known, *address, &mut answer),
        Question::Address(to) => address::explain(&known, to, &mut answer),
        Question::Connection(connection) => address::explain_connection(&known, connection, &mut answer),
    }
    Ok(if *json { answer.json() } else { answer.text(*colours) })
}
