//! Paged list of Services.

use ferry_api::object::ObjectName;
use ferry_model::{FrontendAddr, ServiceState};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::ROOT;
use crate::control::Quarantined;
use crate::core::{Desk, View, is_own};
use crate::query::encoded;

/// One page of the list.
#[derive(Debug)]
pub(super) struct ServicesPage {
    rows: Vec<ServiceRow>,
    /// what the names have to contain
    find: String,
    /// the last name of the page, if there are more
    next: Option<String>,
    is_first: bool,
}

/// One Service.
#[derive(Debug)]
struct ServiceRow {
    name: String,
    ports: Vec<String>,
    /// usable endpoints of each port
    endpoints: Vec<usize>,
    problems: usize,
}

/// Numbers of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Services
    pub services: usize,
    /// endpoints in EndpointSlices
    pub endpoints: usize,
    /// addresses and node ports of Services
    pub frontends: usize,
}

/// Services of a page.
const PAGE: usize = 50;

// === impl ServicesPage ===

impl ServicesPage {
    /// The page behind this name, of the Services whose name contains a text.
    pub(super) fn of(desk: &Desk, after: &str, find: &str) -> Self {
        let after = after.split_once('/').map(|(namespace, name)| ObjectName::new(namespace, name));
        desk.with_view(|view| {
            let all = view.store.services_after(after.as_ref());
            // The self-test's comes and goes with it, and is none of the cluster's.
            let found = all.filter(|(name, objects)| objects.service.is_some() && !is_own(name)).map(|(name, _)| name);
            let mut names = found.filter(|name| find.is_empty() || name.to_string().contains(find));
            let rows: Vec<ServiceRow> = names.by_ref().take(PAGE).map(|name| ServiceRow::of(&view, name)).collect();
            let next = names.next().and_then(|_| rows.last()).map(|row| row.name.clone());
            Self { rows, find: find.to_owned(), next, is_first: after.is_none() }
        })
    }

    pub(super) fn markup(&self, quarantined: &[Quarantined]) -> Markup {
        let refused = |name: &str| quarantined.iter().any(|one| one.service.as_deref() == Some(name));
        html! {
            form action={ (ROOT) "/services" } {
                input name="find" value=(self.find) aria-label="Part of the name" placeholder="part of the name";
                " " button { "Find" }
            }
            @if self.rows.is_empty() { p { "No Service." } }
            div class="table" { table class="list" {
                tr class="head" { th { "Service" } th { "Ports" } th class="number" { "Endpoints" } th { "State" } }
                @for row in &self.rows {
                    tr {
                        td { (link(&row.name)) }
                        td { @for port in &row.ports { code { (port) } br; } }
                        td class="number" data-name="Endpoints" { @for count in &row.endpoints { (count) " " br; } }
                        td {
                            @if refused(&row.name) { span class="bad" { "refused by the kernel" } br; }
                            @if row.problems > 0 { span class="bad" { (counted(row.problems, "problem")) } br; }
                            @if row.endpoints.contains(&0) { span class="bad" { "no endpoint" } }
                            @else if row.ports.is_empty() { "not served" }
                            @else if row.problems == 0 { span class="good" { "served" } }
                        }
                    }
                }
            } }
            p class="pages" {
                @if !self.is_first { a href={ (ROOT) "/services?find=" (encoded(&self.find)) } { "First page" } }
                @if let Some(next) = &self.next {
                    a href={ (ROOT) "/services?find=" (encoded(&self.find)) "&after=" (encoded(next)) } { "Next page" }
                }
            }
        }
    }
}

// === impl ServiceRow ===

impl ServiceRow {
    fn of(view: &View<'_>, name: &ObjectName) -> Self {
        let mut row = Self { name: name.to_string(), ports: Vec::new(), endpoints: Vec::new(), problems: 0 };
        for family in view.families() {
            let (state, diagnostics) = view.resolved(name, &family);
            row.problems += diagnostics.len();
            row.add(&state);
        }
        row
    }

    fn add(&mut self, state: &ServiceState) {
        for port in &state.ports {
            let at: Vec<String> = port.frontends.iter().map(|frontend| place(frontend.at)).collect();
            let name = if port.name.is_empty() { String::new() } else { format!("{} ", port.name) };
            self.ports.push(format!("{name}{}: {}", port.protocol, at.join(", ")));
            self.endpoints.push(port.cluster.len());
        }
    }
}

// === impl Counts ===

impl Counts {
    pub(super) fn of(desk: &Desk) -> Self {
        desk.with_view(|view| {
            let mut counts = Self { frontends: view.store.claims().len(), ..Self::default() };
            for (name, objects) in view.store.services_after(None) {
                if is_own(name) {
                    let own = objects.service.map_or(0, |service| service.cluster_ips.len() * service.ports.len());
                    counts.frontends = counts.frontends.saturating_sub(own);
                    continue;
                }
                counts.services += usize::from(objects.service.is_some());
                counts.endpoints += objects.slices.iter().map(|slice| slice.endpoints.len()).sum::<usize>();
            }
            counts
        })
    }
}

/// A Service's name, which leads to its explanation.
pub(super) fn link(name: &str) -> Markup {
    html! { a href={ (ROOT) "/explain?q=" (encoded(&format!("svc {name}"))) } { (name) } }
}

fn place(at: FrontendAddr) -> String {
    match at {
        FrontendAddr::Vip(address, port) => std::net::SocketAddr::new(address, port).to_string(),
        FrontendAddr::NodePort(port) => format!("node port {port}"),
    }
}

/// A number of things: `1 problem`, `2 problems`.
pub(super) fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_texts() {
        let name = "a/<script>alert('&\")</script>";
        let text = link(name).into_string();
        assert!(text.contains("&lt;script&gt;alert('&amp;&quot;)&lt;/script&gt;</a>"), "{text}");
        assert!(text.contains("q=svc%20a%2F%3Cscript%3Ealert%28%27%26%22%29%3C%2Fscript%3E\""), "{text}");
        let list =
            ServicesPage { rows: Vec::new(), find: "\"><b>".to_owned(), next: Some(name.to_owned()), is_first: false };
        let text = list.markup(&[]).into_string();
        assert!(!text.contains("<b>") && !text.contains("<script"), "{text}");
    }
}
