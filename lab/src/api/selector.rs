//! Label and field selectors, with the API server's syntax.

use std::collections::BTreeMap;

use ferry_api::object::Kind;

/// The labels and fields of an object that selectors match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits {
    pub(super) labels: BTreeMap<String, String>,
    /// fields that a field selector may name, by path
    pub(super) fields: BTreeMap<&'static str, String>,
}

/// Both selectors of a request; an object must match all terms.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    labels: Vec<Term>,
    fields: Vec<Term>,
}

#[derive(Clone, Debug)]
enum Term {
    Has(String),
    HasNot(String),
    Is(String, String),
    IsNot(String, String),
}

/// The fields that a field selector may name.
pub(super) fn selectable(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Service => &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"],
        Kind::EndpointSlice => &["metadata.name", "metadata.namespace"],
        Kind::Node => &["metadata.name", "metadata.namespace", "spec.unschedulable"],
        Kind::ServiceCidr => &["metadata.name"],
    }
}

// === impl Selector ===

impl Selector {
    /// Parses both selectors; the error is the message of a 400.
    pub(super) fn parse(kind: Kind, labels: &str, fields: &str) -> Result<Self, String> {
        let selector = Self { labels: terms(labels)?, fields: terms(fields)? };
        for term in &selector.fields {
            let (Term::Is(name, _) | Term::IsNot(name, _)) = term else {
                return Err(format!("invalid selector: '{fields}'; can't understand it"));
            };
            if !selectable(kind).contains(&name.as_str()) {
                return Err(format!("field label not supported: {name}"));
            }
        }
        Ok(selector)
    }

    pub(super) fn fits(&self, object: &Traits) -> bool {
        let label = |name: &str| object.labels.get(name).map(String::as_str);
        // A field that is absent is empty.
        let field = |name: &str| Some(object.fields.get(name).map_or("", String::as_str));
        self.labels.iter().all(|term| term.fits(label)) && self.fields.iter().all(|term| term.fits(field))
    }
}

// === impl Term ===

impl Term {
    fn fits<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Has(name) => value_of(name).is_some(),
            Self::HasNot(name) => value_of(name).is_none(),
            Self::Is(name, value) => value_of(name) == Some(value),
            Self::IsNot(name, value) => value_of(name) != Some(value),
        }
    }
}

fn terms(text: &str) -> Result<Vec<Term>, String> {
    text.split(',').map(str::trim).filter(|term| !term.is_empty()).map(term).collect()
}

fn term(text: &str) -> Result<Term, String> {
    let own = |text: &str| text.trim().to_owned();
    let term = if let Some((name, value)) = text.split_once("!=") {
        Term::IsNot(own(name), own(value))
    } else if let Some((name, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        Term::Is(own(name), own(value))
    } else if let Some(name) = text.strip_prefix('!') {
        Term::HasNot(own(name))
    } else {
        Term::Has(own(text))
    };
    let (Term::Has(name) | Term::HasNot(name) | Term::Is(name, _) | Term::IsNot(name, _)) = &term;
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if name.is_empty() || !name.chars().all(fine) {
        // in, notin and comparisons of numbers are not supported here
        return Err(format!("unable to parse requirement: found '{text}'"));
    }
    Ok(term)
}
