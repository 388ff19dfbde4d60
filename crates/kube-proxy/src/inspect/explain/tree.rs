//! An answer: problems, and a tree of facts.

use ferry_kernel::text::escaped;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::inspect::terminal::problem_line;

/// The version of the JSON schema.
const VERSION: u32 = 1;
/// Indentation of each level.
const INDENT: &str = "  ";

/// An answer that grows. It can be decoded from its JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Explanation {
    question: String,
    /// what is wrong
    pub problems: Vec<String>,
    /// what holds
    pub facts: Vec<Fact>,
}

/// A fact, with those that belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Fact {
    /// the fact
    pub text: String,
    /// its parts or reasons
    pub children: Vec<Fact>,
}

// === impl Explanation ===

impl Explanation {
    pub(super) fn new(question: String) -> Self {
        Self { question, problems: Vec::new(), facts: Vec::new() }
    }

    /// One more problem; it is printed once.
    pub(super) fn problem(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// The lines for a person: the problems come first.
    pub fn text(&self, colours: bool) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            text += &problem_line(&format!("problem: {}", escaped(problem)), colours);
        }
        self.facts.iter().for_each(|tree| tree.print(0, &mut text));
        text
    }

    /// The same for a program, by the schema of docs/cli.md.
    pub fn json(&self) -> String {
        let facts: Vec<Value> = self.facts.iter().map(Fact::json).collect();
        let answer = json!({"version": VERSION, "question": self.question, "problems": self.problems, "facts": facts});
        format!("{answer:#}\n")
    }
}

// === impl Fact ===

impl Fact {
    pub(super) fn leaf(text: impl Into<String>) -> Self {
        Self { text: text.into(), children: Vec::new() }
    }

    pub(super) fn with(text: impl Into<String>, children: Vec<Self>) -> Self {
        Self { text: text.into(), children }
    }

    fn print(&self, depth: usize, text: &mut String) {
        *text += &format!("{}{}\n", INDENT.repeat(depth), escaped(&self.text));
        self.children.iter().for_each(|child| child.print(depth + 1, text));
    }

    fn json(&self) -> Value {
        let children: Vec<Value> = self.children.iter().map(Self::json).collect();
        json!({"text": self.text, "children": children})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_first_and_once() {
        let mut answer = Explanation::new("svc a/b".to_owned());
        answer.facts.push(Fact::with("one", vec![Fact::leaf("two\x1b[2J")]));
        answer.problem("bad");
        answer.problem("bad");
        assert_eq!(answer.text(false), "problem: bad\none\n  two\\x1b[2J\n");
        assert_eq!(answer.text(true), "\x1b[1;31mproblem: bad\x1b[0m\none\n  two\\x1b[2J\n");
        let json: Value = serde_json::from_str(&answer.json()).unwrap();
        assert_eq!(json["problems"], json!(["bad"]));
        assert_eq!(json["facts"][0]["children"][0]["text"], "two\u{1b}[2J");
        assert_eq!(serde_json::from_value::<Explanation>(json).unwrap(), answer);
    }
}
