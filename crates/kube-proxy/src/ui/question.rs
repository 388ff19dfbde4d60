//! Explanations in the browser: the search box takes the questions of `kube-proxy explain`.

use maud::{Markup, html};

use super::PageSetup;
use super::layout::{page, page_with};
use crate::control::Quarantined;
use crate::core::Desk;
use crate::inspect::{Explanation, Fact, Question, explanation};
use crate::serve::http::Answer;

/// Longest question, in bytes.
const LONGEST: usize = 300;

/// The answer to a question, as a page or as JSON.
pub(super) fn answer(
    desk: &Desk,
    setup: &PageSetup,
    (asked, json): (&str, bool),
    quarantined: &[Quarantined],
) -> Answer {
    let explained = if asked.len() > LONGEST {
        Err(anyhow::anyhow!("the question is longer than {LONGEST} bytes"))
    } else {
        asked.parse().and_then(|question: Question| desk.with_view(|view| explanation(view, &question, quarantined)))
    };
    match (explained, json) {
        (Ok(explained), true) => Answer::of("application/json", explained.json()),
        (Ok(explained), false) => page_with(setup, asked, asked, &markup(&explained)),
        (Err(error), true) => Answer::of(
            "application/json",
            format!("{}\n", serde_json::json!({"version": 1, "error": format!("{error:#}")})),
        )
        .with_status(hyper::StatusCode::BAD_REQUEST),
        (Err(_), false) if asked.is_empty() => page(setup, "Ask", &help()),
        (Err(error), false) => {
            page_with(setup, asked, asked, &html! { p class="problem" { (format!("{error:#}")) } (help()) })
        }
    }
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
