//! Builds the input of `iptables-restore --noflush`.

use ferry_family::Family;

use super::{IptablesChainName, Rule, Table};

/// Input of `iptables-restore --noflush`, built line by line. Each method that adds a line returns its number, from 1, by which
/// the tool's errors refer to it.
#[derive(Clone, Debug)]
pub struct Restore {
    family: Family,
    text: String,
    lines: usize,
}

// === impl Restore ===

impl Restore {
    /// Creates an empty text, for the tool of this family.
    pub fn new(family: Family) -> Self {
        Self { family, text: String::new(), lines: 0 }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Removes all lines, keeping the capacity.
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

    /// Creates the chain or flushes an existing one. Not for built-in chains, which have a policy.
    pub fn declare(&mut self, chain: IptablesChainName) -> usize {
        self.text.push(':');
        self.text.push_str(chain.as_str());
        self.text.push_str(" - [0:0]");
        self.end()
    }

    /// Creates a chain; it is an error if it exists.
    pub fn create(&mut self, chain: IptablesChainName) -> usize {
        self.command("-N", chain);
        self.end()
    }

    /// Appends a rule to a chain.
    pub fn append(&mut self, chain: IptablesChainName, rule: &Rule) -> usize {
        self.rule("-A", chain, |family, text| rule.print(family, text))
    }

    /// Appends a rule to a chain, without its comment.
    pub fn append_uncommented(&mut self, chain: IptablesChainName, rule: &Rule) -> usize {
        self.rule("-A", chain, |family, text| rule.print_uncommented(family, text))
    }

    /// Appends a rule to a chain; its text must be one line in the tool's format.
    pub fn append_text(&mut self, chain: IptablesChainName, rule: &str) -> usize {
        self.rule("-A", chain, |_, text| text.push_str(rule))
    }

    /// Inserts a rule at the start of a chain; its text must be one line in the tool's format.
    pub fn insert_text(&mut self, chain: IptablesChainName, rule: &str) -> usize {
        self.rule("-I", chain, |_, text| text.push_str(rule))
    }

    /// Deletes the first rule equal to this one; its text must be one line in the tool's format. It is an error if there is none.
    pub fn delete_text(&mut self, chain: IptablesChainName, rule: &str) -> usize {
        self.rule("-D", chain, |_, text| text.push_str(rule))
    }

    /// Inserts a rule before the one at this position, counted from 1; its text must be one line in the tool's format.
    pub fn insert_text_at(&mut self, chain: IptablesChainName, position: usize, rule: &str) -> usize {
        self.rule("-I", chain, |_, text| text.push_str(&format!("{position} {rule}")))
    }

    /// Replaces the rule at this position, counted from 1; the new rule's text must be one line in the tool's format.
    pub fn replace_text_at(&mut self, chain: IptablesChainName, position: usize, rule: &str) -> usize {
        self.rule("-R", chain, |_, text| text.push_str(&format!("{position} {rule}")))
    }

    /// Deletes the rule at this position, counted from 1.
    pub fn delete_at(&mut self, chain: IptablesChainName, position: usize) -> usize {
        self.rule("-D", chain, |_, text| text.push_str(&position.to_string()))
    }

    /// Deletes a chain, which must be empty and not be the target of any rule.
    pub fn remove(&mut self, chain: IptablesChainName) -> usize {
        self.command("-X", chain);
        self.end()
    }

    /// Ends the section, which the kernel commits as a whole or not at all.
    pub fn commit(&mut self) -> usize {
        self.text.push_str("COMMIT");
        self.end()
    }

    fn command(&mut self, command: &str, chain: IptablesChainName) {
        self.text.push_str(command);
        self.text.push(' ');
        self.text.push_str(chain.as_str());
    }

    fn rule(&mut self, command: &str, chain: IptablesChainName, print: impl FnOnce(Family, &mut String)) -> usize {
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
