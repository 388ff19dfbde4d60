//! The kernel half of the mode: three layers under one engine. Creations go from the table to the virtual servers and the
//! addresses, deletions come back.

use ferry_api::object::Family;
use ferry_plane::CommitError;
use ferry_plane::layered::Layered;
use ferry_ruleset::failure::of_io;
use ferry_ruleset::table::{TableCommitLock, TableLayer};

use crate::base::Pings;
use crate::device::DeviceKernel;
use crate::element::IpvsTable;
use crate::object::IpvsObject;
use crate::servers::{ServerOptions, ServersKernel, ServersLock};
use crate::watch::DeviceWatch;

/// Engines of one process commit to their tables one after another.
pub type IpvsCommitLock = TableCommitLock<IpvsTable, IpvsObject>;

/// The kernel half of one family.
pub type IpvsKernel = Layered<IpvsObject>;

/// State that the engines of a process share: the locks of their commits, and the monitor of the device.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// serialises the commits to the tables
    pub commit_lock: IpvsCommitLock,
    /// keeps lists of servers complete
    pub servers_lock: ServersLock,
    /// detects foreign changes of the device
    pub device: DeviceWatch,
}

/// The settings of the mode.
#[derive(Clone, Debug)]
pub struct IpvsOptions {
    /// of virtual servers
    pub servers: ServerOptions,
    /// service addresses are never announced on other interfaces (ipvs.strictARP)
    pub strict_arp: bool,
    /// the service addresses that answer pings
    pub pings: Pings,
}

/// Opens the layers of a family, in the network namespace of this thread.
///
/// # Errors
/// [`CommitError::Unusable`] with advice if the kernel lacks nf_tables or IPVS, and without `CAP_NET_ADMIN`; otherwise by the class of
/// the system's error.
pub(crate) fn open(family: Family, shared: &Shared, options: IpvsOptions) -> Result<IpvsKernel, CommitError> {
    let table = TableLayer::<IpvsTable, IpvsObject>::open(family, (), shared.commit_lock.clone())?;
    let servers =
        ServersKernel::open(family, shared.servers_lock.clone(), options.servers, options.strict_arp).map_err(of_io)?;
    let device = DeviceKernel::open(family, shared.device.clone()).map_err(of_io)?;
    Ok(Layered::new(vec![Box::new(table), Box::new(servers), Box::new(device)]))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ferry_api::object::Protocol;
    use ferry_kernel::netns::Namespace;
    use ferry_model::FrontendAddr;
    use ferry_plane::{Kernel as _, Served};

    use super::*;

    /// Mode nftables, and upstream's proxy in it, have a table of the same name. What only that served is not in any unit.
    #[test]
    fn the_table_of_mode_nftables_serves_what_its_maps_hold() {
        let table = "table ip kube-proxy {
            map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . udp . 53 : drop }; };
            map service-nodeports { type inet_proto . inet_service : verdict; elements = { udp . 30053 : drop }; };
        }";
        let read = || {
            let output = Command::new("nft").arg(table).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let lock = IpvsCommitLock::default();
            TableLayer::<IpvsTable, IpvsObject>::open(Family::V4, (), lock).unwrap().foreign_serves()
        };
        let served = Namespace::new().unwrap().run(read).unwrap();
        let of = |at| Served::Frontend(Protocol::Udp, at);
        let vip = FrontendAddr::Vip([10, 96, 0, 1].into(), 53);
        assert_eq!(served, [of(vip), of(FrontendAddr::NodePort(30053)), Served::NodePortsEverywhere]);
    }
}
