//! Removes the virtual servers and addresses of an earlier run, or of upstream's proxy in mode ipvs, once another mode serves.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;

use ferry_api::object::{Family, IpNet};
use ferry_kernel::dummy::{DeviceError, DeviceSocket};
use ferry_kernel::ipset;
use ferry_kernel::ipvs::{self, Command, IpvsError, IpvsSocket, RefusalCause};
use ferry_model::FrontendAddr;
use ferry_plane::Served;

use crate::names::DEVICE;
use crate::server::ServerId;
use crate::servers::completely;
use crate::servers::convert::{id_of, kernel_id};
use crate::servers::ledger::{self, Ledger};

/// The most active connections that are checked one by one.
const FEW: usize = 100;
/// The beginning of the names of all of upstream's ipsets.
const UPSTREAMS: &str = "KUBE-";
/// The beginning of those of IPv6.
const UPSTREAMS_V6: &str = "KUBE-6-";

/// Causes for which something is left.
#[derive(Debug, thiserror::Error)]
pub enum Left {
    /// established connections through virtual servers, which end with these
    #[error("{0} established connections through virtual servers")]
    Connections(usize),
    /// sets that rules or other sets refer to
    #[error("rules refer to ipset {0}")]
    Referred(String),
    /// the kernel's error
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Removes the family's virtual servers and the addresses of the device; the device, too, once it has none of either family: as
/// the last of all, since without the table it tells whose the servers are. Returns the number of objects. The frontends that they
/// served are added to `served` before. Without a table of this mode, servers in the `excluded` ranges (ipvs.excludeCIDRs) stay.
///
/// `served` may hold the frontends of an attempt before: then their servers are removed, and no others. While servers wait for connections,
/// the table and the ipsets that list node ports go with the other rules, so nothing else tells later which servers are ours.
///
/// # Errors
/// [`Left::Connections`] if `spares_connections`, and any are established. Of servers without one, only those of node ports are removed then: after
/// a restart, without the table, nothing would tell whose the ones without endpoints are. The rules of the mode that serves now translate new
/// connections before they come here.
pub fn retire(
    family: Family,
    excluded: &[IpNet],
    spares_connections: bool,
    served: &mut Vec<Served>,
) -> Result<usize, Left> {
    let servers = servers(family, excluded, served)?;
    if let Some((socket, ids)) = servers {
        let mut socket = socket;
        served.extend(ids.iter().map(frontend));
        if spares_connections {
            let busy = established(&mut socket, &ids)?;
            if !busy.is_empty() {
                let bound = ledger::bound(family)?;
                let is_idle = |id: &&ServerId| !bound.contains(&id.address) && !busy.contains_key(*id);
                delete(&mut socket, ids.iter().filter(is_idle))?;
                return Err(Left::Connections(busy.values().sum()));
            }
        }
        delete(&mut socket, &ids)?;
        return Ok(ids.len() + remove_addresses(family)?);
    }
    Ok(remove_addresses(family)?)
}

/// True if virtual servers of an earlier proxy serve in this family, in excluded ranges, too.
///
/// # Errors
/// The kernel's error.
pub fn in_use(family: Family) -> io::Result<bool> {
    let Some((mut socket, ids)) = servers(family, &[], &[])? else { return Ok(false) };
    for id in ids {
        let mut serves = false;
        socket.dump_destinations(&kernel_id(id), &mut |_, _| serves = true).map_err(of_ipvs)?;
        if serves {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Destroys upstream's ipsets of this family. Returns their number.
///
/// # Errors
/// [`Left::Referred`] while rules refer to one; the kernel's error.
pub fn retire_sets(family: Family) -> Result<usize, Left> {
    let destroyed = ipset::destroy_all(sets(family)?)?;
    destroyed.referred.map_or(Ok(destroyed.count), |name| Err(Left::Referred(name)))
}

/// The names of upstream's ipsets of this family, which only its mode ipvs makes.
///
/// # Errors
/// The kernel's error.
pub fn sets(family: Family) -> io::Result<Vec<String>> {
    let is_own = |name: &str| name.starts_with(UPSTREAMS) && name.starts_with(UPSTREAMS_V6) == (family == Family::V6);
    Ok(ipset::sets_if_any()?.into_iter().map(|set| set.name).filter(|name| is_own(name)).collect())
}

fn frontend(id: &ServerId) -> Served {
    Served::Frontend(id.protocol, FrontendAddr::Vip(id.address, id.port))
}

/// The servers of an earlier proxy, or those of the frontends that were found `before`; `None` without IPVS, or without a trace of either.
fn servers(family: Family, excluded: &[IpNet], before: &[Served]) -> io::Result<Option<(IpvsSocket, Vec<ServerId>)>> {
    // Opening the socket loads the module. It isn't needed to find out that there is nothing.
    if !ferry_kernel::module::find("ip_vs").is_present() {
        return Ok(None);
    }
    let ledger = Ledger::read(family, excluded)?;
    if ledger.is_empty() && before.is_empty() {
        return Ok(None);
    }
    let mut socket = match IpvsSocket::open() {
        Err(IpvsError::Absent) => return Ok(None),
        Err(error) => return Err(of_ipvs(error)),
        Ok(socket) => socket,
    };
    // The other family's are deleted at the same time.
    let servers = completely(|| {
        let mut servers = Vec::new();
        socket.dump_servers(Some(family), &mut |server| servers.push(server))?;
        Ok(servers)
    })
    .map_err(of_ipvs)?;
    let before: HashSet<&Served> = before.iter().collect();
    let mut ids: Vec<ServerId> = servers.iter().map(|server| id_of(server.id)).collect();
    if before.is_empty() {
        let own = ledger.own(&servers, |id| {
            let mut found = Vec::new();
            socket.dump_destinations(&kernel_id(id), &mut |to, _| found.push(to)).map_err(of_ipvs)?;
            Ok::<_, io::Error>(found)
        })?;
        ids.retain(|id| own.contains(id));
    } else {
        ids.retain(|id| before.contains(&frontend(id)));
    }
    Ok(Some((socket, ids)))
}

fn delete<'i>(socket: &mut IpvsSocket, ids: impl IntoIterator<Item = &'i ServerId>) -> Result<(), Left> {
    let commands: Vec<Command> = ids.into_iter().map(|id| Command::DeleteServer(kernel_id(*id))).collect();
    let failures = socket.commit(&commands).map_err(|lost| of_ipvs(lost.error))?;
    let failure = failures.into_iter().find(|failure| failure.cause != RefusalCause::NoServer);
    failure.map_or(Ok(()), |failure| Err(Left::Io(failure.error.into())))
}

/// Those of the servers with established connections, and the number of these. Few active ones may be ended ones that are counted
/// all the same ([`ipvs::one_sided`]), which is worth a look at each.
fn established(socket: &mut IpvsSocket, ids: &[ServerId]) -> io::Result<HashMap<ServerId, usize>> {
    let mut active = HashMap::new();
    for id in ids {
        let mut of_server = 0;
        let mut count = |_, connections: ipvs::Connections| {
            of_server += usize::try_from(connections.active).unwrap_or(usize::MAX);
        };
        socket.dump_destinations(&kernel_id(*id), &mut count).map_err(of_ipvs)?;
        if of_server > 0 {
            active.insert(*id, of_server);
        }
    }
    if (1..=FEW).contains(&active.values().sum()) {
        ipvs::one_sided(&mut |server| {
            if let Some(count) = active.get_mut(&id_of(server)) {
                *count = count.saturating_sub(1);
            }
        })?;
        active.retain(|_, count| *count > 0);
    }
    Ok(active)
}

/// Removes the family's addresses from the device, and the device if it has no others.
fn remove_addresses(family: Family) -> io::Result<usize> {
    let mut socket = DeviceSocket::open()?;
    let device = match socket.find(DEVICE) {
        Ok(Some(device)) => device,
        Ok(None) | Err(DeviceError::AnotherKind { .. }) => return Ok(0),
        Err(DeviceError::Io(error)) => return Err(error),
    };
    let of_family = socket.addresses(device.index, family)?;
    let networks: Vec<IpNet> = of_family.iter().map(|address| address.network).collect();
    let refused = socket.remove(device.index, &networks)?;
    let mut left: HashSet<IpAddr> = HashSet::new();
    for other in Family::ALL {
        left.extend(socket.addresses(device.index, other)?.iter().map(|address| address.network.addr()));
    }
    if let Some(refused) = refused.into_iter().find(|refused| left.contains(&addr(&networks, refused.position))) {
        return Err(refused.error);
    }
    if left.is_empty() {
        socket.delete(DEVICE).map_err(|error| match error {
            DeviceError::Io(error) => error,
            other @ DeviceError::AnotherKind { .. } => io::Error::other(other.to_string()),
        })?;
    }
    Ok(networks.len() + usize::from(left.is_empty()))
}

fn addr(networks: &[IpNet], position: usize) -> IpAddr {
    networks.get(position).map_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), IpNet::addr)
}

fn of_ipvs(error: IpvsError) -> io::Error {
    match error {
        IpvsError::Io(error) => error,
        IpvsError::Absent => io::ErrorKind::NotFound.into(),
    }
}
