//! The objects that the table is probed with: one of each kind.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Socket};
use ferry_plane::CommitError;

use super::{ChainName, SetName, Vocabulary};
use crate::Rules;
use crate::names::Name as _;
use crate::probe::Probe;
use crate::sources::SourcesId;

/// Fails with [`CommitError::Unusable`] that names what the kernel lacks.
pub(super) fn probe<V: Vocabulary>(socket: &mut Socket, family: Family) -> Result<(), CommitError> {
    let sources = SourcesId::of_digest(&[]);
    let fixed = V::Set::ALL.iter().copied().map(SetName::<V>::Fixed);
    let sets: Vec<nft::Set> = fixed.chain([SetName::Sources(sources)]).map(|set| set.shape(family)).collect();
    let mut rules: BTreeMap<V::Chain, Rules> = V::probes(family).into_iter().collect();
    let mut chains: Vec<(nft::Chain, Rules)> = Vec::new();
    for chain in V::Chain::ALL.iter().copied() {
        let rules = rules.remove(&chain).unwrap_or_else(|| Rules([].into()));
        chains.push((ChainName::<V>::Fixed(chain).chain(), rules));
    }
    chains.push((ChainName::<V>::Restricted(sources).chain(), V::restricted(family, sources)));
    Probe { sets: &sets, chains: &chains, modules: V::MODULES }.run(socket, family)
}
