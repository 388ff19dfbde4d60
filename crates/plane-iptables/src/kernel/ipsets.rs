//! The ipsets of the network namespace of the calling thread.

use std::io;

use ferry_api::object::{Family, IpNet};
use ferry_kernel::ipset::{self, Destroyed, Member};
use ferry_kernel::iptables::IptablesChainName;

use crate::sets::{self, Ipsets};

/// Deletes the sets of source ranges of a family, once their rules have gone.
///
/// # Errors
/// The system's error.
pub fn retire_sets(family: Family) -> io::Result<Destroyed> {
    sets::retire(&NamespaceIpsets, family, &mut std::thread::sleep)
}

/// The ipsets of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct NamespaceIpsets;

impl Ipsets for NamespaceIpsets {
    fn list(&self) -> io::Result<Vec<ipset::Set>> {
        ipset::sets_if_any()
    }

    fn members(&self, name: &str) -> io::Result<Vec<Member>> {
        ipset::members(name)
    }

    fn create(&self, name: &str, family: Family, nets: &[IpNet]) -> io::Result<()> {
        ipset::create_nets(name, family, nets)
    }

    fn swap(&self, one: &str, other: &str) -> io::Result<()> {
        ipset::swap(one, other)
    }

    fn destroy(&self, name: &str) -> io::Result<()> {
        ipset::destroy(name)
    }

    fn destroy_all(&self, names: &[IptablesChainName]) -> io::Result<Destroyed> {
        ipset::destroy_all(names.iter().map(IptablesChainName::to_string))
    }
}
