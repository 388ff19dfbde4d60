//! Explanations in the browser: the search box takes the questions of `kube-proxy explain`.

use std::str::FromStr;

use anyhow::bail;
use hyper::StatusCode;
use maud::{Markup, html};

use super::PageSetup;
use super::json::{self, JsonForm};
use super::layout::{page, page_with};
use crate::control::Quarantined;
use crate::core::Desk;
use crate::inspect::{Explanation, Fact, Question, explanation};
use crate::serve::http::HttpResponse;

/// Longest question, in bytes.
const LONGEST: usize = 300;

/// The answer to a question, as a page or, in a form for programs, as JSON.
pub(super) fn answer(
    desk: &Desk,
    setup: &PageSetup,
    (asked, form): (&str, Option<JsonForm>),
    quarantined: &[Quarantined],
) -> HttpResponse {
    let explained =
        parsed(asked).and_then(|question: Question| desk.with_view(|view| explanation(view, &question, quarantined)));
    match (explained, form) {
        (Ok(explained), Some(_)) => json::text(explained.json()),
        (Ok(explained), None) => page_with(setup, asked, asked, &markup(&explained)),
        (Err(error), Some(form)) => form.failure(StatusCode::BAD_REQUEST, &format!("{error:#}")),
        (Err(_), None) if asked.is_empty() => page(setup, "Ask", &help()),
        (Err(error), None) => {
            page_with(setup, asked, asked, &html! { p class="problem" { (format!("{error:#}")) } (help()) })
        }
    }
}

/// Parses a question of limited length.
///
/// # Errors
/// If it is too long, or no question.
pub(super) fn parsed<Q: FromStr<Err = anyhow::Error>>(asked: &str) -> anyhow::Result<Q> {
    if asked.len() > LONGEST {
        bail!("the question is longer than {LONGEST} bytes");
    }
    asked.parse()
}

fn markup(explained: &Explanation) -> Markup {
    html! {
        @for problem in &explained.problems { p class="problem" { (problem) } }
        div class="tree" { ul { @for fact in &explained.facts { (tree(fact)) } } }
    }
}

fn tree(fact: &Fact) -> Markup {
    html! {
        li {
            (fact.text)
            @if !fact.children.is_empty() { ul { @for child in &fact.children { (tree(child)) } } }
        }
    }
}

fn help() -> Markup {
    html! {
        p { "Questions:" }
        ul {
            li { code { "svc NAMESPACE/NAME" } ": a Service, its addresses and each of its endpoints" }
            li { code { "10.96.0.10:80" } ", " code { "10.96.0.10:53/UDP" } ": who serves an address" }
            li { code { "10.244.1.7 -> 10.96.0.10:80" } ": what happens to a connection" }
            li { code { "pod 10.244.1.2" } ": where a pod is an endpoint" }
        }
    }
}
