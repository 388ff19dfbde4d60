//! Explains the treatment of connections: of a Service, of a pod, to an address, or from a client to an address.
//!
//! `question` parses what is asked. `service` explains a Service with its ports and frontends,
//! `endpoints` the choice among its endpoints, `address` who serves an address and what happens to a connection there, `pod` where a pod
//! is an endpoint. `tree` prints.
//!
//! The model decides: states are those that the core has resolved, reasons those of [`ferry_model::reasons()`], and the verdict on a
//! connection that of [`ferry_model::decide()`].

mod address;
mod endpoints;
mod known;
mod pod;
mod question;
mod service;
mod tree;

use ferry_api::object::Family;

use self::known::KnownState;
pub use self::question::{Question, service_name};
pub use self::tree::{Explanation, Fact};
use super::desired::{InspectedNode, desired};
use super::objects::ListedObjects;
use crate::control::Quarantined;
use crate::core::View;
use crate::planes::Plane;

/// The inputs of an explanation.
#[derive(Clone, Debug)]
pub struct ExplainRequest<'a> {
    /// the node, and the mode
    pub node: InspectedNode<'a>,
    /// what is asked
    pub question: Question,
    /// the units in quarantine, from the running proxy
    pub quarantined: &'a [Quarantined],
    /// as JSON, whose schema is that of docs/cli.md
    pub json: bool,
    /// with colours of a terminal
    pub colours: bool,
}

/// The text of the answer: problems first, then a tree.
///
/// # Errors
/// If this build lacks the mode, the objects a Service that is asked about, or what [`desired`] needs.
pub fn explain(objects: ListedObjects, request: &ExplainRequest<'_>) -> anyhow::Result<String> {
    let ExplainRequest { node, question, quarantined, json, colours } = request;
    let profile = Plane::named(node.config.configured_mode())?.offline(node.config).profile;
    let desired = desired(objects, node, profile)?;
    let answer = explanation(desired.view(), question, quarantined)?;
    Ok(if *json { answer.json() } else { answer.text(*colours) })
}

/// Explains from a core's state.
///
/// # Errors
/// If the objects lack the Service or the port of the question.
pub fn explanation(view: View<'_>, question: &Question, quarantined: &[Quarantined]) -> anyhow::Result<Explanation> {
    let known = &KnownState::new(view, quarantined);
    let mut answer = Explanation::new(question.to_string());
    known.quarantined_base().for_each(|one| answer.problem(refused_text("what all Services share", one)));
    match question {
        Question::Service(name, port) => service::explain(known, name, port.as_deref(), &mut answer)?,
        Question::Pod(address) => pod::explain(known, *address, &mut answer),
        Question::Address(to) => address::explain(known, to, &mut answer),
        Question::Connection(connection) => address::explain_connection(known, connection, &mut answer),
    }
    Ok(answer)
}

/// The problem text of a unit in quarantine.
fn refused_text(what: &str, one: &Quarantined) -> String {
    format!(
        "the kernel refuses {what} in {}: {}; what it accepted last stays in force (quarantined), and is tried again",
        one.family, one.error
    )
}

/// The problem text of a question about a family that isn't served.
fn unserved(family: Family) -> String {
    format!("{family} is not served: this machine's kernel has it switched off")
}

#[cfg(test)]
mod tests {
    use ferry_api::config::KubeProxyConfiguration;
    use ferry_api::wire::decode_object;
    use ferry_model::{PerFamily, Settings};

    use super::*;
    use crate::inspect::LocalAddresses;

    const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"},"spec":{
        "clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ipFamilies":["IPv4"],"ports":[{"port":80,"protocol":"TCP"}]}}"#;

    const SLICE: &str = r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"web-1","namespace":"shop",
        "labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","ports":[{"port":8080,"protocol":"TCP"}],
        "endpoints":[{"addresses":["10.244.0.7"],"conditions":{"ready":true}}]}"#;

    /// The answer of a proxy with one Service, whose kernel refuses these units.
    fn answer(question: &str, quarantined: &[Quarantined]) -> String {
        answer_of(&[SERVICE, SLICE], question, quarantined)
    }

    /// The answer of a proxy with these objects, whose kernel refuses these units.
    fn answer_of(objects: &[&str], question: &str, quarantined: &[Quarantined]) -> String {
        let config =
            &KubeProxyConfiguration { mode: "nftables".to_owned(), ..KubeProxyConfiguration::default_for_linux() };
        let settings = &Settings::from_config(config, "node");
        let node = InspectedNode {
            config,
            settings,
            addresses: LocalAddresses::These(Vec::new()),
            missing_schedulers: PerFamily::default(),
        };
        let objects = objects.iter().map(|text| decode_object(text).unwrap()).collect();
        let objects = ListedObjects::of_running(objects, true);
        let question = question.parse().unwrap();
        explain(objects, &ExplainRequest { node, question, quarantined, json: false, colours: false }).unwrap()
    }

    /// A Service with the address of the first one as an external IP, and another cluster IP.
    fn with_external_ip(name: &str) -> String {
        let service = SERVICE.replace("\"web\"", &format!("\"{name}\"")).replace("10.96.0.1", "10.96.0.2");
        service.replace("\"ports\"", "\"externalIPs\":[\"10.96.0.1\"],\"ports\"")
    }

    #[test]
    fn services_that_lost_an_address_are_named_with_the_field() {
        let same = SERVICE.replace("\"web\"", "\"zzz\"");
        let other_port = SERVICE.replace("\"web\"", "\"www\"").replace("\"port\":80", "\"port\":81");
        let external = with_external_ip("ext");
        let objects = [SERVICE, SLICE, same.as_str(), other_port.as_str(), external.as_str()];
        let first = "problem: 10.96.0.1:80/TCP belongs to Service shop/web, which comes first: not served for shop/ext \
                     (spec.externalIPs[0]), shop/zzz (spec.clusterIP)\n";
        for question in ["10.96.0.1:80", "10.0.0.1 -> 10.96.0.1:80"] {
            let text = answer_of(&objects, question, &[]);
            assert!(text.starts_with(first), "{question}: {text}");
        }
        for question in ["10.96.0.1:81", "10.96.0.2:80", "10.96.0.1:80/udp"] {
            let text = answer_of(&objects, question, &[]);
            assert!(!text.contains("not served for shop/"), "{question}: {text}");
        }
    }

    #[test]
    fn some_of_many_losers_are_named() {
        let losers: Vec<String> = (0..9).map(|number| with_external_ip(&format!("ext-{number}"))).collect();
        let objects: Vec<&str> = [SERVICE, SLICE].into_iter().chain(losers.iter().map(String::as_str)).collect();
        let text = answer_of(&objects, "10.96.0.1:80", &[]);
        let first = text.lines().next().unwrap();
        assert!(first.contains(": not served for shop/ext-0 (spec.externalIPs[0]), "), "{first}");
        assert!(first.ends_with("shop/ext-4 (spec.externalIPs[0]) and 4 more"), "{first}");
    }

    #[test]
    fn what_the_kernel_refuses_comes_first() {
        let refused = |service: Option<&str>, error: &str| Quarantined {
            family: "IPv4".to_owned(),
            service: service.map(Into::into),
            error: error.to_owned(),
        };
        let quarantined = [refused(Some("shop/web"), "in use"), refused(Some("shop/other"), "too large")];
        for question in ["svc shop/web", "10.96.0.1:80", "pod 10.244.0.7", "10.0.0.1 -> 10.96.0.1:80"] {
            let text = answer(question, &quarantined);
            let first = "problem: the kernel refuses the state of Service shop/web in IPv4: in use; what it accepted last stays in force \
                         (quarantined), and is tried again\n";
            assert!(text.starts_with(first) && !text.contains("too large"), "{text}");
        }
        let text = answer("10.96.0.2:80", &[refused(None, "table full")]);
        assert!(
            text.starts_with("problem: the kernel refuses what all Services share in IPv4: table full; "),
            "{text}"
        );
        assert!(!answer("svc shop/web", &[]).contains("refuses"));
    }
}
