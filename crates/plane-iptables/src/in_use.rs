//! Detects rules that already serve, of an earlier run or of another proxy in this mode, before anything is read back or changed.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::iptables::{
    self, Backend, Environment, IptablesChainName, OutputLine, Table, Tool, ToolFailure, legacy,
};

use crate::names::{self, Class};

/// True if rules of some service exist, in either variant. Changes nothing, and runs no tool if the kernel reports no rules.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN`; any other error of the kernel or the tool.
pub fn in_use(family: Family) -> io::Result<bool> {
    Ok(in_use_nft(family)? || in_use_legacy(family)?)
}

fn in_use_nft(family: Family) -> io::Result<bool> {
    let chains = iptables::nft::chains(family)?;
    let mut nat = chains.iter().filter(|chain| chain.table == Table::Nat);
    if !nat.clone().any(|chain| is_of_service(&chain.name)) {
        return Ok(false);
    }
    let Some(services) = nat.find(|chain| chain.name == names::SERVICES.as_str()) else { return Ok(false) };
    match iptables::nft::has_rules(family, services) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        has => has,
    }
}

fn in_use_legacy(family: Family) -> io::Result<bool> {
    if legacy::info(family, Table::Nat)?.is_none_or(|info| info.entries <= legacy::empty(Table::Nat)) {
        return Ok(false);
    }
    let tool = match Tool::find_in(&Environment::of_process(), family, Some(Backend::Legacy)) {
        // The table's maker uses another tool; its rules can't be read.
        Err(ToolFailure::Missing { .. } | ToolFailure::TooOld { .. }) => return Ok(false),
        tool => tool.map_err(io::Error::other)?,
    };
    let mut serves = false;
    let each = &mut |line: OutputLine<'_>| {
        if let OutputLine::Rule { text, .. } = line {
            serves |= text.rsplit_once(" -j ").is_some_and(|(_, target)| is_of_service(target));
        }
    };
    tool.list(Table::Nat, names::SERVICES, each).map_err(io::Error::other)?;
    Ok(serves)
}

fn is_of_service(chain: &str) -> bool {
    IptablesChainName::new(chain).and_then(Class::of).is_some_and(Class::is_of_service)
}
