//! The frame of all pages: head, navigation, search, style.

use maud::{DOCTYPE, Markup, html};

use super::{PageSetup, ROOT};
use crate::serve::http::HttpResponse;
use crate::version;

/// Content-Security-Policy: only the style sheet and forms of this server; no scripts, no frames.
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; sandbox allow-forms";

/// A page with this title and content.
pub(super) fn page(setup: &PageSetup, title: &str, content: &Markup) -> HttpResponse {
    page_with(setup, title, "", content)
}

/// A page with a question in the search box.
pub(super) fn page_with(setup: &PageSetup, title: &str, asked: &str, content: &Markup) -> HttpResponse {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · " (setup.node) " · kube-proxy" }
                link rel="stylesheet" href={ (ROOT) "/style.css" };
            }
            body {
                header {
                    h1 { a href=(ROOT) { "kube-proxy" } " on " (setup.node) }
                    p { "mode " b { (setup.mode) } ", " (version::full()) }
                    nav { a href=(ROOT) { "Overview" } a href={ (ROOT) "/services" } { "Services" } }
                    form action={ (ROOT) "/explain" } {
                        input name="q" value=(asked) aria-label="Question" size="40"
                            placeholder="svc shop/web, 10.96.0.10:80, pod 10.244.1.2, or 10.244.1.7 -> 10.96.0.10:53/UDP";
                        button { "Explain" }
                    }
                }
                main { h2 { (title) } (content) }
            }
        }
    };
    with_headers(HttpResponse::of("text/html; charset=utf-8", markup.into_string()))
}

/// The style of all pages.
pub(super) fn style() -> HttpResponse {
    with_headers(HttpResponse::of("text/css; charset=utf-8", include_str!("style.css")))
}

fn with_headers(mut answer: HttpResponse) -> HttpResponse {
    for (name, value) in
        [("content-security-policy", POLICY), ("referrer-policy", "no-referrer"), ("cache-control", "no-store")]
    {
        answer.headers.push((name, value.to_owned()));
    }
    answer
}
