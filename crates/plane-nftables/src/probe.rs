//! Probes the kernel for the features that this mode needs: creates a table with one object of each kind and deletes it, in one
//! transaction.

use std::io;
use std::num::NonZeroU32;

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_kernel::nft::{self, CommitFailure, Socket};
use ferry_model::{
    Affinity, BaseState, Context, LocalDetector, MissingSchedulers, NodePortAddresses, Scheduler, Scope,
};
use ferry_plane::CommitError;
use ferry_ruleset::Rules;
use ferry_ruleset::failure::of_io;
use ferry_ruleset::sources::SourcesId;

use crate::base;
use crate::chains::Chains;
use crate::layout;
use crate::names::{ChainName, FixedSet, Pick, PortId, SetName};
use crate::object::NftObject;

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
                 nft_chain_nat, nft_numgen, nft_fib, nft_ct, nft_nat, nft_masq and nft_reject"
            );
            Err(CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text)))
        }
    }
}

/// The transaction, and a description of each step by its position.
fn transaction(family: Family) -> (nft::Batch, Vec<(usize, String)>) {
    let mut batch = nft::Batch::new(family, PROBE_TABLE);
    let mut steps = Vec::new();
    steps.push((batch.position(), "a table".to_owned()));
    batch.add_table(None);
    let id = PortId::new(&ObjectName::new("", "probe"), Protocol::Tcp, "");
    let sources = SourcesId::of_digest(&[]);
    let (affinity_map, members) = (SetName::Affinity(id, Scope::Cluster), SetName::Members(id, Scope::Cluster));
    let own = [affinity_map, members, SetName::Pool(id), SetName::Sources(sources)];
    for set in FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain(own) {
        steps.push((batch.position(), format!("the set or map {set}")));
        batch.add_set(&layout::shape(set, family));
    }
    let chains = chains(family, id, sources);
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
fn chains(family: Family, id: PortId, sources: SourcesId) -> Vec<(ChainName, Rules)> {
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
    let state =
        BaseState { node_ports: NodePortAddresses::All, localhost: false, service_cidrs: Vec::new(), affinity: true };
    let mut objects = Vec::new();
    base::compile(family, &context, &state, &mut objects);
    let mut all: Vec<(ChainName, Rules)> = objects
        .into_iter()
        .filter_map(|object| match object {
            NftObject::Chain(name, rules) => Some((name, rules)),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Ranges(..) | NftObject::Element(..) => None,
        })
        .collect();
    let chains = Chains::new(family);
    for pick in [Pick::Internal, Pick::Local, Pick::NodePort] {
        all.push((ChainName::Pick(pick, 1), chains.pick(&context, pick, 1)));
    }
    let pool = ChainName::Pool(Pick::Forward, Scope::Local, id);
    all.push((pool, chains.pool(&context, Protocol::Tcp, Pick::Forward, (id, Scope::Local), 1)));
    let map = (id, Scope::Cluster);
    let affinity = chains.affinity(&context, Protocol::Tcp, Pick::Internal, map, None);
    all.push((ChainName::Affinity(Pick::Internal, Scope::Cluster, id), affinity));
    let record = chains.record(id, &[Scope::Cluster], Affinity { timeout_seconds: NonZeroU32::MIN });
    all.push((ChainName::Record(id), record));
    all.push((ChainName::Restricted(sources), chains.restricted(sources)));
    all
}
