//! Features: facts of the machine and the configuration that the compiler needs besides the context.

use std::io;

use ferry_kernel::capability;
use ferry_kernel::ipset;
use ferry_kernel::iptables::{Tool, ToolFailure};

/// Features that rules depend on. Constant for the life of the process: other features give another ruleset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// dropped packets in conntrack state INVALID are counted: the accounting object exists
    pub counts_invalid: bool,
    /// connections to node ports over loopback are counted: node ports are served there (IPv4 only), and the accounting object
    /// exists
    pub counts_localhost: bool,
    /// packets in conntrack state INVALID are dropped instead of forwarded: `net.netfilter.nf_conntrack_tcp_be_liberal` is 0
    pub drops_invalid: bool,
    /// the loopback guard is set although no node port is served there: `net.ipv4.conf.all.route_localnet` is 1 (IPv4 only)
    pub guards_loopback: bool,
    /// many source ranges of a Service are an ipset instead of rules: the kernel and the tool have sets of networks
    pub has_sets: bool,
    /// the kernel lacks table mangle: its canary chain, which reveals flushed tables, is left out
    pub lacks_mangle: bool,
}

/// The reason why [`Features::has_sets`] is false on this machine, for this thread; `None` if it is true. Changes nothing; may load modules of
/// the kernel.
pub fn why_no_sets(tool: &Tool) -> Option<String> {
    why_no_sets_with(capability::net_raw().unwrap_or(true), || ipset::has_nets(tool.family()), || tool.has_match("set"))
}

fn why_no_sets_with(
    has_net_raw: bool,
    has_nets: impl FnOnce() -> io::Result<bool>,
    has_match: impl FnOnce() -> Result<bool, ToolFailure>,
) -> Option<String> {
    // Both variants of the tool look up a set through a raw socket whenever they read or write a rule that names it.
    if !has_net_raw {
        return Some("iptables needs CAP_NET_RAW for match set".to_owned());
    }
    match has_nets() {
        Ok(true) => {}
        Ok(false) => return Some("the kernel lacks ipset type hash:net (module ip_set_hash_net)".to_owned()),
        Err(error) => return Some(error.to_string()),
    }
    match has_match() {
        Ok(true) => None,
        Ok(false) => Some("iptables or the kernel lacks match set (module xt_set)".to_owned()),
        Err(failure) => Some(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_need_the_right_the_type_and_the_match() {
        let refused = || Err(io::Error::other("no netlink"));
        let killed = || Err(ToolFailure::Killed { tool: "iptables".to_owned(), signal: 9 });
        let why = why_no_sets_with(false, || Ok(true), || Ok(true));
        assert_eq!(why.as_deref(), Some("iptables needs CAP_NET_RAW for match set"));
        let why = why_no_sets_with(true, || Ok(false), killed);
        assert_eq!(why.as_deref(), Some("the kernel lacks ipset type hash:net (module ip_set_hash_net)"));
        assert_eq!(why_no_sets_with(true, refused, killed).as_deref(), Some("no netlink"));
        let why = why_no_sets_with(true, || Ok(true), || Ok(false));
        assert_eq!(why.as_deref(), Some("iptables or the kernel lacks match set (module xt_set)"));
        let why = why_no_sets_with(true, || Ok(true), killed);
        assert_eq!(why.as_deref(), Some("iptables was killed by signal 9"));
        assert_eq!(why_no_sets_with(true, || Ok(true), || Ok(true)), None);
    }
}
