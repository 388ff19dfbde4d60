//! Opens loopback to node ports before the first sync: the guard of loopback, and then the parameter that routes its packets.

use ferry_api::object::Family;
use ferry_kernel::iptables::{Table, Tool};
use ferry_plane::{Batch, CommitError, Extent, Kernel, Object as _};

use crate::base::{self, JUMPS};
use crate::counters::Counters;
use crate::kernel::IptablesKernel;
use crate::names;
use crate::object::{ChainId, IptObject};
use crate::watch::IptablesCommitLock;

/// Sets `net.ipv4.conf.all.route_localnet` once the rule is there that keeps neighbours from listeners on 127.0.0.1
/// (CVE-2020-8558), which the kubelet may have made. What is there already is not written.
///
/// # Errors
/// The tool's, or the kernel's.
pub fn open_loopback(tool: Tool) -> Result<(), CommitError> {
    debug_assert_eq!(tool.family(), Family::V4, "IPv6 has no such parameter");
    open(&mut IptablesKernel::new(tool, IptablesCommitLock::default(), Counters::default().into()))
}

fn open(kernel: &mut dyn Kernel<IptObject>) -> Result<(), CommitError> {
    let wanted = objects();
    let keys = wanted.iter().map(IptObject::key).collect();
    // A read of single chains is only possible after one of everything.
    let _ = kernel.read_back(&Extent::All)?;
    let found = kernel.read_back(&Extent::Keys(keys))?;
    let missing = wanted.into_iter().filter(|object| !found.contains(object));
    let batch = Batch { create: missing.collect(), ..Batch::default() };
    if batch.create.is_empty() {
        return Ok(());
    }
    kernel.commit(&batch).map_err(|failure| failure.error)
}

/// The guard's chain, its rule, the jumps to it, and the parameter: in this order.
fn objects() -> Vec<IptObject> {
    let chain = IptObject::SharedChain(ChainId { table: Table::Filter, name: names::FIREWALL });
    let jumps = JUMPS.iter().filter(|jump| jump.to == names::FIREWALL);
    let jumps = jumps.map(|jump| IptObject::OwnedRules(jump.key(), [jump.rule()].into()));
    let mut objects: Vec<IptObject> = [chain, base::guard()].into_iter().chain(jumps).collect();
    objects.push(IptObject::RouteLocalnet);
    objects
}

#[cfg(test)]
mod tests {
    use ferry_plane::memory::MemoryKernel;

    use super::*;
    use crate::object::{IptKey, OwnedRulesKey, RuleOwner};

    #[test]
    fn what_is_missing_is_made_the_parameter_last() {
        let input = ChainId { table: Table::Filter, name: base::INPUT };
        let output = ChainId { table: Table::Filter, name: base::OUTPUT };
        let firewall = ChainId { table: Table::Filter, name: names::FIREWALL };
        let rules = |chain, owner| IptKey::OwnedRules(OwnedRulesKey { chain, owner });
        let keys = [
            IptKey::SharedChain(firewall),
            rules(firewall, RuleOwner::Guard),
            rules(input, RuleOwner::Jump(names::FIREWALL)),
            rules(output, RuleOwner::Jump(names::FIREWALL)),
            IptKey::RouteLocalnet,
        ];
        let wanted = objects();
        assert_eq!(wanted.iter().map(IptObject::key).collect::<Vec<_>>(), keys);
        for there in 0..=keys.len() {
            let mut kernel = MemoryKernel::default();
            wanted.iter().take(there).for_each(|object| kernel.foreign(object.clone()));
            open(&mut kernel).unwrap();
            assert!(kernel.objects.keys().eq(keys.iter().collect::<std::collections::BTreeSet<_>>()));
            assert_eq!((kernel.attempts, kernel.violations), (usize::from(there < keys.len()), Vec::<String>::new()));
        }
    }

    #[test]
    fn what_cannot_be_made_is_an_error() {
        let mut kernel = MemoryKernel { refused: vec![IptKey::RouteLocalnet], ..MemoryKernel::default() };
        assert!(matches!(open(&mut kernel), Err(CommitError::Refused(operations)) if operations.len() == 1));
    }
}
