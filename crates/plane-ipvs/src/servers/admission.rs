//! Decides whether a virtual server that exists where one is to be created may be taken over. This is checked before anything of a batch is
//! written: otherwise the table would list another program's server, which a restart would then take for ours.

use std::collections::HashSet;
use std::io;

use ferry_api::object::Protocol;
use ferry_kernel::ipvs::IpvsDestination;
use ferry_plane::{Batch, CommitError, Op, Refusal};
use ferry_ruleset::table::TableObject;

use super::convert::{endpoint_of, id_of, kernel_id, settings_of, virtual_server};
use super::ledger::{Traces, masquerades};
use super::plan::Found;
use super::{ServersKernel, of_ipvs};
use crate::element::ElementKey;
use crate::object::IpvsObject;
use crate::server::{ServerId, ServerSettings, VirtualServer};

/// Servers that are looked up one by one; for more all are listed.
const SINGLE_READS: usize = 64;

/// A batch that makes the table, before which nothing lists our servers.
#[derive(Debug)]
struct FirstTable<'a> {
    traces: &'a Traces,
    /// the node ports that it is to list
    node_ports: HashSet<(Protocol, u16)>,
    /// it replaces another mode's table, and so comes after the servers: a run that was killed in between may have left some
    comes_last: bool,
}

/// Checks the servers that the batch creates. Those that may be taken over are noted as ours.
///
/// # Errors
/// `Refused` for those that are another program's; otherwise `Drifted` if some exist, since they are to be read back first.
pub(super) fn admit(kernel: &mut ServersKernel, batch: &Batch<IpvsObject>) -> Result<(), CommitError> {
    let makes_table = batch.create.iter().chain(&batch.replace).any(is_table);
    if !makes_table {
        kernel.traces = None;
    }
    let created: Vec<(usize, ServerId, &VirtualServer)> = created(batch).collect();
    let existing = existing(kernel, &created)?;
    let (mut refused, mut found_own): (Vec<Refusal>, _) = (Vec::new(), None);
    for (index, id, wanted) in created.into_iter().filter(|(_, id, _)| existing.contains(id)) {
        // Deleted meanwhile, if there is none.
        let Some(found) = kernel.find(id)? else { continue };
        let is_own = kernel.own.contains_key(&id) || kernel.confirm(id, &found) || {
            let first = kernel.traces.as_ref().map(|traces| FirstTable::new(traces, batch));
            leads_to_service_only(wanted, &found) || first.is_some_and(|first| first.may_be_ours(id, wanted, &found))
        };
        if is_own {
            kernel.note(id, &as_found(&found));
            found_own.get_or_insert(id);
        } else {
            refused.push((Op::Create, index, io::Error::other(of_another_program(id))));
        }
    }
    match found_own {
        _ if !refused.is_empty() => Err(CommitError::Refused(refused)),
        Some(id) => Err(CommitError::Drifted { object: format!("virtual server {id}") }),
        None => Ok(()),
    }
}

/// The reason for which a Service waits.
pub(super) fn of_another_program(id: ServerId) -> String {
    format!("virtual server {id} is another program's (ipvsadm -ln shows it): delete it there, or change the Service")
}

/// True if a server leads nowhere but to endpoints of the Service, as that of another proxy of this node. One without endpoints
/// may wait for another program's.
pub(super) fn leads_to_service_only(wanted: &VirtualServer, found: &Found) -> bool {
    // Another version, and upstream's proxy, may set other flags.
    let settings = ServerSettings { altered: false, ..settings_of(&found.server) };
    let there = virtual_server(settings, &found.destinations);
    let all = there.endpoints.iter().all(|one| wanted.endpoints.iter().any(|other| other.endpoint == one.endpoint));
    !there.settings.altered && all && there.endpoints.is_empty() == wanted.endpoints.is_empty()
}

/// The server as the kernel has it.
pub(super) fn as_found(found: &Found) -> VirtualServer {
    virtual_server(settings_of(&found.server), &found.destinations)
}

fn created(batch: &Batch<IpvsObject>) -> impl Iterator<Item = (usize, ServerId, &VirtualServer)> {
    batch.create.iter().enumerate().filter_map(|(index, object)| match object {
        IpvsObject::Server(id, server) => Some((index, *id, server)),
        IpvsObject::Table(_) | IpvsObject::Address(..) => None,
    })
}

/// Those of the created servers that exist.
fn existing(
    kernel: &mut ServersKernel,
    created: &[(usize, ServerId, &VirtualServer)],
) -> Result<HashSet<ServerId>, CommitError> {
    if created.len() > SINGLE_READS {
        let listed = kernel.list_completely()?;
        return Ok(listed.into_iter().map(|server| id_of(server.id)).collect());
    }
    let mut existing = HashSet::new();
    for (_, id, _) in created {
        if kernel.director.server(&kernel_id(*id)).map_err(of_ipvs)?.is_some() {
            existing.insert(*id);
        }
    }
    Ok(existing)
}

fn is_table(object: &IpvsObject) -> bool {
    matches!(object, IpvsObject::Table(TableObject::Table(_)))
}

// === impl FirstTable ===

impl<'a> FirstTable<'a> {
    fn new(traces: &'a Traces, batch: &Batch<IpvsObject>) -> Self {
        let node_port = |object: &IpvsObject| match object {
            IpvsObject::Table(TableObject::Element(ElementKey::NodePort { protocol, port }, _)) => {
                Some((*protocol, *port))
            }
            _ => None,
        };
        let comes_last = batch.replace.iter().any(is_table);
        Self { traces, node_ports: batch.create.iter().filter_map(node_port).collect(), comes_last }
    }

    /// True for a server that masquerades to all of its endpoints, shares one with the Service or has none, and is one of these:
    ///
    /// - at a local address of a node on which a proxy of this mode has run: its endpoints have changed since. One without
    ///   endpoints is that of a node port
    /// - with the settings that this mode is about to give it, of a run that was killed before it replaced the table
    fn may_be_ours(&self, id: ServerId, wanted: &VirtualServer, found: &Found) -> bool {
        let destinations: Vec<IpvsDestination> = found.destinations.iter().map(|(to, _)| *to).collect();
        let is_empty = destinations.is_empty();
        let is_of_service =
            |to: &IpvsDestination| wanted.endpoints.iter().any(|weighted| weighted.endpoint == endpoint_of(to.address));
        let is_node_port = self.node_ports.contains(&(id.protocol, id.port));
        let is_left = self.traces.local.contains(&id.address) && (is_node_port || !is_empty);
        let is_half_made = self.comes_last && settings_of(&found.server) == wanted.settings;
        !self.traces.excludes(id.address)
            && masquerades(&destinations)
            && (is_empty || destinations.iter().any(is_of_service))
            && (is_left || is_half_made)
    }
}
