//! Probes the kernel for the features of nf_tables that a table needs: creates one with an object of each kind and deletes it, in one
//! transaction.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, Socket};
use ferry_plane::CommitError;

use super::{ChainName, SetName, Vocabulary};
use crate::failure::of_io;
use crate::names::Name as _;
use crate::sources::SourcesId;

/// The table of the probe. It never outlives its transaction.
const PROBE_TABLE: &str = "kube-proxy-probe";

/// Fails with [`CommitError::Unusable`] that names what the kernel lacks.
pub(super) fn probe<V: Vocabulary>(socket: &mut Socket, family: Family) -> Result<(), CommitError> {
    let (batch, steps) = transaction::<V>(family);
    match socket.commit(batch) {
        Ok(_) => Ok(()),
        Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(of_io(error)),
        Err(CommitFailure::Messages(errors)) => {
            let first = errors.first();
            let at = first.map_or(0, |error| error.position);
            let step = steps.iter().rev().find(|(position, _)| *position <= at).map_or("nf_tables", |(_, step)| step);
            let why = first.map_or_else(String::new, |error| format!(": {}", error.error));
            let text = format!(
                "the kernel does not support {step} for {family}{why}; required are Linux 5.13 and its modules {}",
                V::MODULES
            );
            Err(CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text)))
        }
    }
}

/// The transaction, and a description of each step by its position.
fn transaction<V: Vocabulary>(family: Family) -> (nft::Batch, Vec<(usize, String)>) {
    let mut batch = nft::Batch::new(family, PROBE_TABLE);
    let mut steps = vec![(batch.position(), "a table".to_owned())];
    batch.add_table(None);
    let sources = SourcesId::of_digest(&[]);
    let fixed = V::Set::ALL.iter().copied().map(SetName::<V>::Fixed);
    for set in fixed.chain([SetName::Sources(sources)]) {
        steps.push((batch.position(), format!("the set or map {set}")));
        batch.add_set(&set.shape(family));
    }
    let restricted = (ChainName::<V>::Restricted(sources), V::restricted(family, sources));
    let chains: Vec<_> = V::probes(family).into_iter().map(|(chain, rules)| (ChainName::Fixed(chain), rules)).collect();
    for name in V::Chain::ALL.iter().copied().map(ChainName::<V>::Fixed).chain([restricted.0]) {
        steps.push((batch.position(), format!("the chain {name}")));
        batch.add_chain(&name.chain());
    }
    for (name, rules) in chains.iter().chain([&restricted]) {
        for rule in &*rules.0 {
            steps.push((batch.position(), format!("the rule \"{rule}\"")));
            batch.add_rule(&name.to_string(), &rule.exprs);
        }
    }
    steps.push((batch.position(), "the deletion of a table".to_owned()));
    batch.delete_table();
    (batch, steps)
}
