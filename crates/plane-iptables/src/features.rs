//! What compiling needs to know of the machine and of the configuration, besides the context of services.

/// What rules may ask for. The same as long as the process runs: what differs is another ruleset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// dropped packets of no known connection are counted: the accounting object exists
    pub counts_invalid: bool,
    /// connections to node ports by way of loopback are counted: node ports are served there (IPv4 only), and the
    /// accounting object exists
    pub counts_localhost: bool,
    /// packets of no known connection are dropped instead of forwarded: `net.netfilter.nf_conntrack_tcp_be_liberal` is 0
    pub drops_invalid: bool,
    /// loopback is guarded although no node port is served there: `net.ipv4.conf.all.route_localnet` is 1 (IPv4 only)
    pub guards_loopback: bool,
    /// this kernel has no table mangle: the chain there that shows who flushes tables is done without
    pub lacks_mangle: bool,
}
