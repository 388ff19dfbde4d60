//! Diagnostics: problems of an object, addressed to its owner.

use std::fmt;

use ferry_api::object::{Kind, ObjectName};

/// One sort of problem of one object that is not served as written, with the first example. The edges log it once per
/// object until it changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// the kind of object
    pub kind: Kind,
    /// the object
    pub name: ObjectName,
    /// the field of the first, as a path within the object: `spec.ports[1].nodePort`
    pub field: String,
    /// the problem with it, and the substitute behaviour
    pub message: String,
    /// the sort of problem
    pub cause: Cause,
    /// number of fields of the object with this problem
    pub count: usize,
    /// of [`Cause::Contest`]: the Service that owns the address, where known. For the operator's log only: an Event must not
    /// name another tenant's Service
    pub winner: Option<ObjectName>,
}

/// Why something is not served as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// the value is unreadable or not allowed
    Object,
    /// a duplicate
    Twice,
    /// beyond a limit
    Excess,
    /// another Service has the address: this one takes over when that one goes
    Contest,
    /// an address that no Service and no endpoint may have, such as loopback
    Special,
    /// an unreadable source range, which admits no source
    SourceRange,
    /// an annotation about balancing that can't be followed
    Balancing,
    /// a scheduler that the kernel of this node doesn't have
    MissingScheduler,
    /// a protocol that the mode doesn't serve
    Protocol,
}

/// The path of a field, which may lead through one entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldPath {
    before: &'static str,
    index: Option<usize>,
    after: &'static str,
}

/// Callback for problems: the field, the sort, and the message.
pub(crate) type Report<'r> = dyn FnMut(FieldPath, Cause, &dyn fmt::Display) + 'r;

/// Collects the problems of one object: the first of each sort, and how many there are. An object of a megabyte may have a
/// hundred thousand.
#[derive(Debug)]
pub(crate) struct Findings<'a> {
    kind: Kind,
    name: &'a ObjectName,
    found: Vec<(FieldPath, Diagnostic)>,
}

// === impl Diagnostic ===

impl Diagnostic {
    /// The first problem of an object.
    pub(crate) fn new(kind: Kind, name: &ObjectName, field: String, cause: Cause, message: String) -> Self {
        Self { kind, name: name.clone(), field, message, cause, count: 1, winner: None }
    }

    /// Diagnostics with equal topics are logged once. The count is not part of it, since it changes with every edit; for
    /// contests it is: they change with other Services.
    #[must_use]
    pub fn topic(&self) -> Self {
        let count = if self.cause == Cause::Contest { self.count } else { 0 };
        Self { count, ..self.clone() }
    }

    /// The problem, in words for the owner of the object.
    pub fn problem(&self) -> impl fmt::Display {
        let more = self.count.saturating_sub(1);
        let more = if more > 0 { format!(" ({more} more like it)") } else { String::new() };
        format!("{}{more}", self.message)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.name, self.field, self.problem())?;
        self.winner.as_ref().map_or(Ok(()), |winner| write!(f, " [winner {winner}]"))
    }
}

// === impl FieldPath ===

impl FieldPath {
    /// A field that is there once.
    pub(crate) const fn plain(path: &'static str) -> Self {
        Self { before: path, index: None, after: "" }
    }

    /// One of a list: `before[index]after`.
    pub(crate) const fn at(before: &'static str, index: usize, after: &'static str) -> Self {
        Self { before, index: Some(index), after }
    }

    /// True if both differ in the index at most.
    fn is_like(self, other: Self) -> bool {
        (self.before, self.after) == (other.before, other.after)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]{}", self.before, self.after),
            None => f.write_str(self.before),
        }
    }
}

// === impl Findings ===

impl<'a> Findings<'a> {
    /// Nothing so far.
    pub(crate) fn of(kind: Kind, name: &'a ObjectName) -> Self {
        Self { kind, name, found: Vec::new() }
    }

    /// One more problem.
    pub(crate) fn add(&mut self, field: FieldPath, cause: Cause, message: &dyn fmt::Display) {
        self.add_contest(field, cause, message, None);
    }

    /// The same, naming the Service that has the address.
    pub(crate) fn add_contest(
        &mut self,
        field: FieldPath,
        cause: Cause,
        message: &dyn fmt::Display,
        winner: Option<&ObjectName>,
    ) {
        let mut found = self.found.iter_mut();
        if let Some((_, known)) = found.find(|(known, found)| known.is_like(field) && found.cause == cause) {
            known.count += 1;
            return;
        }
        let first = Diagnostic::new(self.kind, self.name, field.to_string(), cause, message.to_string());
        self.found.push((field, Diagnostic { winner: winner.cloned(), ..first }));
    }

    /// One of each sort.
    pub(crate) fn diagnostics(self) -> impl Iterator<Item = Diagnostic> {
        self.found.into_iter().map(|(_, diagnostic)| diagnostic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_sort_with_the_first_example() {
        let name = ObjectName::new("default", "web");
        let mut findings = Findings::of(Kind::Service, &name);
        for index in 3..95_003 {
            findings.add(FieldPath::at("spec.ports", index, ".port"), Cause::Object, &format_args!("{index} is odd"));
        }
        findings.add(FieldPath::at("spec.ports", 5, ".name"), Cause::Object, &"bad");
        findings.add(FieldPath::at("spec.ports", 6, ".name"), Cause::Twice, &"there already");
        findings.add(FieldPath::plain("spec.type"), Cause::Object, &"bad");
        let found: Vec<String> = findings.diagnostics().map(|found| found.to_string()).collect();
        assert_eq!(
            found,
            [
                "Service default/web: spec.ports[3].port: 3 is odd (94999 more like it)",
                "Service default/web: spec.ports[5].name: bad",
                "Service default/web: spec.ports[6].name: there already",
                "Service default/web: spec.type: bad",
            ]
        );
    }

    #[test]
    fn the_topic_is_the_number_of_contests_and_of_nothing_else() {
        let name = ObjectName::new("default", "web");
        let of = |cause, count| {
            let one = Diagnostic::new(Kind::Service, &name, "spec".to_owned(), cause, "a".to_owned());
            Diagnostic { count, ..one }.topic()
        };
        assert_eq!(of(Cause::Object, 1), of(Cause::Object, 2));
        assert_ne!(of(Cause::Contest, 1), of(Cause::Contest, 2));
        assert_ne!(of(Cause::Object, 1), of(Cause::Special, 1));
    }
}
