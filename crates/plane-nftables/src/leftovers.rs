//! Removes our sets, maps and chains from a table that upstream's proxy has taken over (a roll-back). Upstream's proxy rewrites
//! the objects whose names it uses too, and leaves the others as they are.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::nft::{CommitFailure, NftBatch, NftSocket};

use crate::names::{ChainName, FixedChain, FixedSet, SetName, TABLE};

/// A base chain that every release of upstream's proxy makes, and we never do.
const UPSTREAMS: &str = "filter-input";

/// Result of the removal for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// there is no table
    NoTable,
    /// upstream's proxy doesn't use this table: it is ours, and in use
    NotTakenOver,
    /// number of deleted sets, maps and chains
    Removed(usize),
}

/// Deletes the leftovers. Objects that upstream's proxy uses are not touched.
///
/// # Errors
/// The kernel's error; `EBUSY` while elements that upstream's proxy has not rewritten yet refer to our chains.
pub fn remove(family: Family) -> io::Result<Leftovers> {
    let read = NftSocket::open().and_then(|mut socket| Ok((found(&mut socket, family)?, socket)));
    let (found, mut socket) = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound || ErrorClass::of(&error).lacks_subsystem() => {
            return Ok(Leftovers::NoTable);
        }
        read => read?,
    };
    let Some((sets, chains)) = found else { return Ok(Leftovers::NotTakenOver) };
    // In two transactions, since kernels before 6.2 keep a chain busy for a moment after its last reference is deleted.
    let mut batch = NftBatch::new(family, TABLE);
    chains.iter().for_each(|chain| batch.flush_chain(chain));
    sets.iter().for_each(|set| batch.delete_set(set));
    commit(&mut socket, batch)?;
    let mut batch = NftBatch::new(family, TABLE);
    chains.iter().for_each(|chain| batch.delete_chain(chain));
    commit(&mut socket, batch)?;
    Ok(Leftovers::Removed(sets.len() + chains.len()))
}

/// Names of the sets and chains that only Ferry uses; `None` without a chain of upstream's proxy.
fn found(socket: &mut NftSocket, family: Family) -> io::Result<Option<(Vec<String>, Vec<String>)>> {
    let chains = socket.chains(family, TABLE)?;
    if !chains.iter().any(|chain| chain.name == UPSTREAMS) {
        return Ok(None);
    }
    let sets = socket.sets(family, TABLE)?;
    let sets = sets.into_iter().map(|set| set.name).filter(|name| SetName::parse(name).is_some_and(only_ours_set));
    let chains =
        chains.into_iter().map(|chain| chain.name).filter(|name| ChainName::parse(name).is_some_and(only_ours_chain));
    Ok(Some((sets.collect(), chains.collect())))
}

fn only_ours_set(name: SetName) -> bool {
    let shared = [FixedSet::ServiceIps, FixedSet::ServiceNodePorts, FixedSet::ClusterIps, FixedSet::NodePortIps];
    !shared.map(SetName::Fixed).contains(&name)
}

fn only_ours_chain(name: ChainName) -> bool {
    let shared = [
        FixedChain::Services,
        FixedChain::Reject,
        FixedChain::NatPrerouting,
        FixedChain::NatOutput,
        FixedChain::NatPostrouting,
    ];
    !shared.map(ChainName::Fixed).contains(&name)
}

fn commit(socket: &mut NftSocket, batch: NftBatch) -> io::Result<()> {
    match socket.commit(batch) {
        Ok(_) => Ok(()),
        Err(CommitFailure::Io(error) | CommitFailure::Lost(error)) => Err(error),
        Err(CommitFailure::Messages(errors)) => {
            let first = errors.into_iter().next();
            Err(first.map_or_else(|| io::Error::other("the kernel refused the transaction"), |error| error.error.error))
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::{ObjectName, Protocol};
    use ferry_model::Scope;
    use ferry_ruleset::sources::SourcesId;

    use super::*;
    use crate::names::{Pick, PortId};

    /// Names that upstream's proxy has too, from its `pkg/proxy/nftables/proxier.go`.
    const UPSTREAMS_SETS: [&str; 4] = ["cluster-ips", "nodeport-ips", "service-ips", "service-nodeports"];
    const UPSTREAMS_CHAINS: [&str; 5] = ["nat-output", "nat-postrouting", "nat-prerouting", "reject-chain", "services"];

    #[test]
    fn what_upstream_has_too_stays() {
        for set in FixedSet::ALL {
            assert_eq!(only_ours_set(SetName::Fixed(*set)), !UPSTREAMS_SETS.contains(&set.name()), "{set:?}");
        }
        for chain in FixedChain::ALL {
            let ours = !UPSTREAMS_CHAINS.contains(&chain.name());
            assert_eq!(only_ours_chain(ChainName::Fixed(*chain)), ours, "{chain:?}");
        }
    }

    #[test]
    fn what_belongs_to_a_service_goes() {
        let id = PortId::new(&ObjectName::new("demo", "web"), Protocol::Tcp, "http");
        let sources = SourcesId::of_digest(&[7; 32]);
        let sets = [
            SetName::Affinity(id, Scope::Cluster),
            SetName::Members(id, Scope::Local),
            SetName::Pool(id),
            SetName::Sources(sources),
        ];
        assert!(sets.into_iter().all(only_ours_set));
        let chains = [
            ChainName::Pick(Pick::Internal, 3),
            ChainName::Pool(Pick::Forward, Scope::Local, id),
            ChainName::Affinity(Pick::Forward, Scope::Local, id),
            ChainName::Record(id),
            ChainName::Restricted(sources),
        ];
        assert!(chains.into_iter().all(only_ours_chain));
    }
}
