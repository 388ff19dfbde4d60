//! The objects that the table is probed with: one of each kind.

use std::num::NonZeroU32;

use ferry_api::object::{Family, ObjectName, Protocol};
use ferry_kernel::nft::{self, NftSocket};
use ferry_model::{
    Affinity, BaseState, Context, LocalDetector, MissingSchedulers, NodePortAddresses, Scheduler, Scope,
};
use ferry_plane::CommitError;
use ferry_ruleset::Rules;
use ferry_ruleset::probe::Probe;
use ferry_ruleset::sources::SourcesId;

use crate::base;
use crate::chains::Chains;
use crate::layout;
use crate::names::{ChainName, FixedSet, Pick, PortId, SetName};
use crate::object::NftObject;

/// The kernel's modules that the table needs.
const MODULES: &str = "nf_tables, nft_chain_nat, nft_numgen, nft_fib, nft_ct, nft_nat, nft_masq and nft_reject";

/// Fails with [`CommitError::Unusable`] that names what the kernel lacks.
pub(crate) fn probe(socket: &mut NftSocket, family: Family) -> Result<(), CommitError> {
    let id = PortId::new(&ObjectName::new("", "probe"), Protocol::Tcp, "");
    let sources = SourcesId::of_digest(&[]);
    let (affinity_map, members) = (SetName::Affinity(id, Scope::Cluster), SetName::Members(id, Scope::Cluster));
    let own = [affinity_map, members, SetName::Pool(id), SetName::Sources(sources)];
    let sets = FixedSet::ALL.iter().map(|set| SetName::Fixed(*set)).chain(own);
    let sets: Vec<nft::Set> = sets.map(|set| layout::shape(set, family)).collect();
    let (chains, rules): (Vec<nft::Chain>, Vec<(String, Rules)>) =
        chains(family, id, sources).into_iter().map(|(name, rules)| (name.chain(), (name.to_string(), rules))).unzip();
    Probe { sets: &sets, chains: &chains, rules: &rules, modules: MODULES }.run(socket, family)
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
