//! What `iptables-restore --noflush` is given.

use ferry_family::Family;

use super::{ChainName, Rule, Table};

/// A text for `iptables-restore --noflush`, line by line. Each method that adds a line returns its number, from 1: errors
/// of the tool name it.
#[derive(Clone, Debug)]
pub struct Restore {
    family: Family,
    text: String,
    lines: usize,
}

// === impl Restore ===

impl Restore {
    /// An empty text, for the tool of this family.
    pub fn new(family: Family) -> Self {
        Self { family, text: String::new(), lines: 0 }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How many lines it has.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Forgets all lines, and keeps the room.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines = 0;
    }

    /// Begins a table's section, which [`Self::commit`] ends.
    pub fn table(&mut self, table: Table) -> usize {
        self.text.push('*');
        self.text.push_str(table.name());
        self.end()
    }

    /// The chain is there, and empty. Not for chains with a policy.
    pub fn declare(&mut self, chain: ChainName) -> usize {
        self.text.push(':');
        self.text.push_str(chain.as_str());
        self.text.push_str(" - [0:0]");
        self.end()
    }

    /// Makes a chain; one that is there is an error.
    pub fn create(&mut self, chain: ChainName) -> usize {
        self.command("-N", chain);
        self.end()
    }

    /// Adds a rule as the last one.
    pub fn append(&mut self, chain: ChainName, rule: &Rule) -> usize {
        self.rule("-A", chain, |family, text| rule.print(family, text))
    }

    /// Adds a rule as the last one, without its comment.
    pub fn append_uncommented(&mut self, chain: ChainName, rule: &Rule) -> usize {
        self.rule("-A", chain, |family, text| rule.print_uncommented(family, text))
    }

    /// Adds a rule as the last one; it must be one line, as the tool prints it.
    pub fn append_text(&mut self, chain: ChainName, rule: &str) -> usize {
        self.rule("-A", chain, |_, text| text.push_str(rule))
    }

    /// Adds a rule as the first one; it must be one line, as the tool prints it.
    pub fn insert_text(&mut self, chain: ChainName, rule: &str) -> usize {
        self.rule("-I", chain, |_, text| text.push_str(rule))
    }

    /// Removes the first rule that is equal; it must be one line, as the tool prints it. That there is none is an error.
    pub fn delete_text(&mut self, chain: ChainName, rule: &str) -> usize {
        self.rule("-D", chain, |_, text| text.push_str(rule))
    }

    /// Adds a rule before the one at this position, counted from 1; it must be one line, as the tool prints it.
    pub fn insert_text_at(&mut self, chain: ChainName, position: usize, rule: &str) -> usize {
        self.rule("-I", chain, |_, text| text.push_str(&format!("{position} {rule}")))
    }

    /// Replaces the rule at this position, counted from 1, by one that must be one line, as the tool prints it.
    pub fn replace_text_at(&mut self, chain: ChainName, position: usize, rule: &str) -> usize {
        self.rule("-R", chain, |_, text| text.push_str(&format!("{position} {rule}")))
    }

    /// Removes the rule at this position, counted from 1.
    pub fn delete_at(&mut self, chain: ChainName, position: usize) -> usize {
        self.rule("-D", chain, |_, text| text.push_str(&position.to_string()))
    }

    /// Removes a chain, which must be empty and not be led to.
    pub fn remove(&mut self, chain: ChainName) -> usize {
        self.command("-X", chain);
        self.end()
    }

    /// Ends the section: the kernel takes all of it or nothing.
    pub fn commit(&mut self) -> usize {
        self.text.push_str("COMMIT");
        self.end()
    }

    fn command(&mut self, command: &str, chain: ChainName) {
        self.text.push_str(command);
        self.text.push(' ');
        self.text.push_str(chain.as_str());
    }

    fn rule(&mut self, command: &str, chain: ChainName, print: impl FnOnce(Family, &mut String)) -> usize {
        self.command(command, chain);
        self.text.push(' ');
        print(self.family, &mut self.text);
        self.end()
    }

    fn end(&mut self) -> usize {
        self.text.push('\n');
        self.lines += 1;
        self.lines
    }
}
