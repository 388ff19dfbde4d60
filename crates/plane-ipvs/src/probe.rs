//! Probes the kernel for the features of nf_tables that this mode needs: creates a table with one object of each kind and deletes
//! it, in one transaction.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, CommitFailure, Socket};
use ferry_model::{Context, LocalDetector, MissingSchedulers, Scheduler};
use ferry_plane::CommitError;
use ferry_ruleset::Rules;
use ferry_ruleset::failure::of_io;
use ferry_ruleset::sources::SourcesId;

use crate::base::{self, Pings};
use crate::names::{ChainName, FixedSet, SetName};
use crate::object::IpvsObject;
use crate::{compile, layout};

/// The table of the probe. It never outlives its transaction.
const PROBE_TABLE: &str = "kube-proxy-probe";

/// Fails with [`CommitError::Unusable`] that names what the kernel lacks.
pub(crate) fn probe(socket: &mut Socket, family: Family) -> Result<(), CommitError> {
    let (batch, steps) = transaction(family);
    match socket.commit(batch) {
        Ok(_) => Ok(()),
        Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(of_io(error)),
        Err(CommitFailure::Messages(errors)) => {
            let first = errors.first();
            let at = first.map_or(0, |error| error.position);
            let step = steps.iter().rev().find(|(position, _)| *position <= at).map_or("nf_tables", |(_, step)| step);
            let why = first.map_or_else(String::new, |error| format!(": {}", error.error));
            let text = format!(
                "the kernel does not support {step} for {family}{why}; required are Linux 5.13 and its modules nf_tables, \
                 nft_chain_nat, nft_fib, nft_ct, nft_masq and nft_reject"
            );
            Err(CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text)))
        }
    }
}

/// The transaction, and a description of each step by its position.
fn transaction(family: Family) -> (nft::Batch, Vec<(usize, String)>) {
    let mut batch = nft::Batch::new(family, PROBE_TABLE);
    let mut steps = vec![(batch.position(), "a table".to_owned())];
    batch.add_table(None);
    let sources = SourcesId::of_digest(&[]);
    for set in FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain([SetName::Sources(sources)]) {
        steps.push((batch.position(), format!("the set or map {set}")));
        batch.add_set(&layout::shape(set, family));
    }
    let chains = chains(family, sources);
    for (name, _) in &chains {
        steps.push((batch.position(), format!("the chain {name}")));
        batch.add_chain(&name.chain());
    }
    for (name, rules) in &chains {
        for rule in &*rules.0 {
            steps.push((batch.position(), format!("the rule \"{rule}\"")));
            batch.add_rule(&name.to_string(), &rule.exprs);
        }
    }
    steps.push((batch.position(), "the deletion of a table".to_owned()));
    batch.delete_table();
    (batch, steps)
}

/// Chains that contain every kind of rule.
fn chains(family: Family, sources: SourcesId) -> Vec<(ChainName, Rules)> {
    let context = Context {
        node_name: String::new(),
        zone: None,
        node_ip: None,
        node_addresses: [].into(),
        local_addresses: [].into(),
        relay_address: None,
        local: Some(LocalDetector::InterfacePrefix("veth".to_owned())),
        masquerade_all: false,
        masquerade_mark: 1 << 14,
        scheduler: Scheduler::default(),
        missing_schedulers: MissingSchedulers::new(),
    };
    let mut objects = Vec::new();
    base::compile(family, Pings::Answered, &context, &mut objects);
    base::compile(family, Pings::OnlyWithEndpoints, &Context { local: None, ..context }, &mut objects);
    let chain = |object| match object {
        IpvsObject::Chain(name, rules) => Some((name, rules)),
        IpvsObject::Table(_)
        | IpvsObject::Set(_)
        | IpvsObject::Ranges(..)
        | IpvsObject::Element(..)
        | IpvsObject::Server(..)
        | IpvsObject::Address(..) => None,
    };
    let restricted = (ChainName::Restricted(sources), compile::restricted(family, sources));
    objects.into_iter().filter_map(chain).chain([restricted]).collect()
}
