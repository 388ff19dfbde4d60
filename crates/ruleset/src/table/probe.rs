//! The objects that the table is probed with: one of each kind.

use ferry_api::object::Family;
use ferry_kernel::nft::{self, NftSocket};
use ferry_plane::CommitError;

use super::{ChainName, SetName, Vocabulary};
use crate::Rules;
use crate::names::Name as _;
use crate::probe::Probe;
use crate::sources::SourcesId;

/// Fails with [`CommitError::Unusable`] that names what the kernel lacks.
pub(super) fn probe<V: Vocabulary>(socket: &mut NftSocket, family: Family) -> Result<(), CommitError> {
    let sources = sources();
    let sets = V::Set::ALL.iter().copied().map(SetName::<V>::Fixed).chain([SetName::Sources(sources)]);
    let sets: Vec<nft::Set> = sets.map(|set| set.shape(family)).collect();
    let chains = V::Chain::ALL.iter().copied().map(ChainName::<V>::Fixed).chain([ChainName::Restricted(sources)]);
    let chains: Vec<nft::Chain> = chains.map(ChainName::chain).collect();
    Probe { sets: &sets, chains: &chains, rules: &rules::<V>(family), modules: V::MODULES }.run(socket, family)
}

/// Rules of every kind, each with its chain.
pub(super) fn rules<V: Vocabulary>(family: Family) -> Vec<(String, Rules)> {
    let restricted = (ChainName::<V>::Restricted(sources()).to_string(), V::restricted(family, sources()));
    let fixed = V::probes(family).into_iter().map(|(chain, rules)| (chain.to_string(), rules));
    fixed.chain([restricted]).collect()
}

fn sources() -> SourcesId {
    SourcesId::of_digest(&[])
}
