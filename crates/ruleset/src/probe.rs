//! Probes the kernel for the features of nf_tables that a table needs: creates one with an object of each kind and deletes it, in one
//! transaction.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, NftBatch, NftSocket};
use ferry_plane::CommitError;

use crate::Rules;
use crate::failure::of_io;

/// The table of the probe. It never outlives its transaction.
const PROBE_TABLE: &str = "kube-proxy-probe";

/// The objects of the probe's table, in the order in which they are created: a chain's rules may refer to every set and chain.
#[derive(Debug)]
pub struct Probe<'a> {
    /// the sets and maps
    pub sets: &'a [nft::Set],
    /// the chains
    pub chains: &'a [nft::Chain],
    /// rules, each with the name of its chain, which may come more than once
    pub rules: &'a [(String, Rules)],
    /// the kernel's modules that a table like this needs, as an enumeration in a sentence
    pub modules: &'a str,
}

// === impl Probe ===

impl Probe<'_> {
    /// Creates the table and deletes it.
    ///
    /// # Errors
    /// [`CommitError::Unusable`] that names the first object that the kernel refuses; otherwise the system's error.
    pub fn run(&self, socket: &mut NftSocket, family: Family) -> Result<(), CommitError> {
        let (batch, steps) = self.transaction(family);
        match socket.commit(batch) {
            Ok(_) => Ok(()),
            Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(of_io(error)),
            Err(CommitFailure::Messages(errors)) => {
                let first = errors.first();
                let at = first.map_or(0, |error| error.position);
                let step =
                    steps.iter().rev().find(|(position, _)| *position <= at).map_or("nf_tables", |(_, step)| step);
                let why = first.map_or_else(String::new, |error| format!(": {}", error.error));
                let text = format!(
                    "the kernel does not support {step} for {family}{why}; required are Linux 5.13 and its modules {}",
                    self.modules
                );
                Err(CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text)))
            }
        }
    }

    /// The transaction, and a description of each step by its position.
    fn transaction(&self, family: Family) -> (NftBatch, Vec<(usize, String)>) {
        let mut batch = NftBatch::new(family, PROBE_TABLE);
        let mut steps = vec![(batch.position(), "a table".to_owned())];
        batch.add_table(None);
        for set in self.sets {
            steps.push((batch.position(), format!("the set or map {}", set.name)));
            batch.add_set(set);
        }
        for chain in self.chains {
            steps.push((batch.position(), format!("the chain {}", chain.name)));
            batch.add_chain(chain);
        }
        for (chain, rules) in self.rules {
            for rule in &*rules.0 {
                steps.push((batch.position(), format!("the rule \"{rule}\"")));
                batch.add_rule(chain, &rule.exprs);
            }
        }
        steps.push((batch.position(), "the deletion of a table".to_owned()));
        batch.delete_table();
        (batch, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RuleWriter;

    #[test]
    fn every_rule_of_a_chain_that_comes_twice_is_tried() {
        let chain = nft::Chain { name: "services".to_owned(), hook: None };
        let rule = |rule| (chain.name.clone(), Rules([rule].into()));
        let rules = [rule(RuleWriter::new(Family::V4).reject()), rule(RuleWriter::new(Family::V4).drop_it())];
        let probe = Probe { sets: &[], chains: std::slice::from_ref(&chain), rules: &rules, modules: "none" };
        let (_, steps) = probe.transaction(Family::V4);
        let steps: Vec<&str> = steps.iter().map(|(_, step)| step.as_str()).collect();
        let wanted =
            ["a table", "the chain services", "the rule \"reject\"", "the rule \"drop\"", "the deletion of a table"];
        assert_eq!(steps, wanted);
    }
}
