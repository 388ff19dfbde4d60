//! The desired state of all objects, by the core of a run with mailboxes instead of engines.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::{MissingSchedulers, PerFamily, Profile, ServiceState, Settings};
use ferry_plane::mailbox::{Mailbox, Receiver};
use ferry_plane::{CommitError, Delta, Unit};

use super::objects::ListedObjects;
use crate::core::{Core, CoreSetup, EngineHandle, FamilyView, View};
use crate::events::Recorder;
use crate::health::Pulse;
use crate::input::Input;
use crate::metrics::Metrics;
use crate::report::{ChangeReporter, Reports};
use crate::{planes, platform};

/// Nodes that an error names.
const NAMED: usize = 10;

/// The node that a subcommand is about: its configuration and its addresses.
#[derive(Clone, Debug)]
pub struct InspectedNode<'a> {
    /// valid, with all defaults; its mode is inspected
    pub config: &'a KubeProxyConfiguration,
    /// the settings of this configuration that affect traffic
    pub settings: &'a Settings,
    /// the addresses of the node's interfaces
    pub addresses: LocalAddresses,
    /// the schedulers of IPVS that its kernel is known to lack
    pub missing_schedulers: PerFamily<MissingSchedulers>,
}

/// The addresses of a node's interfaces, on which the addresses of node ports depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddresses {
    /// those of its Node object and loopback, so that the result is the same on every machine; without a Node those of this machine
    OfNode,
    /// those of this machine
    OfMachine,
    /// these
    These(Vec<IpAddr>),
}

/// The desired state of both families, and the objects of which it is made.
#[derive(Debug)]
pub struct Desired {
    /// of each family everything as one change
    pub families: Vec<(Family, Delta)>,
    /// the addresses of the node's interfaces, sorted
    pub addresses: Vec<IpAddr>,
    core: Core,
}

/// The desired state of both families on a node, in a mode with these capabilities.
///
/// # Errors
/// If the objects lack what the start of a run would wait for, or it would fail.
pub fn desired(objects: ListedObjects, inspected: &InspectedNode<'_>, profile: Profile) -> anyhow::Result<Desired> {
    let InspectedNode { config, settings, addresses, missing_schedulers } = inspected;
    let addresses = self::addresses(&objects, &settings.node_name, addresses)?;
    let missing = missing_node(&objects, &settings.node_name);
    let (node, events) = objects.into_parts();
    let (engines, mailboxes): (Vec<_>, Vec<(Family, Receiver)>) = Family::ALL.into_iter().map(mailbox).unzip();
    let mut core = Core::new(CoreSetup {
        settings: (*settings).clone(),
        config: (*config).clone(),
        profile,
        addresses: addresses.clone(),
        node,
        engines,
        changes: ChangeReporter::new(Arc::new(Metrics::new()?), Reports::default(), Family::ALL.to_vec()),
        eligible: Arc::default(),
        recorder: Recorder::nobody(),
        in_use: |_| Ok(false),
        changed: None,
    });
    for family in Family::ALL {
        core.take(Input::MissingSchedulers { family, missing: missing_schedulers.of(family).clone() });
    }
    core.take(Input::Events(events));
    if core.decide()?.is_some() {
        bail!("{missing}");
    }
    let families = mailboxes.into_iter().map(|(family, mailbox)| Some((family, mailbox.take()?)));
    let families = families.collect::<Option<Vec<_>>>().context("the lists of objects are not complete")?;
    Ok(Desired { families, addresses, core })
}

// === impl Desired ===

impl Desired {
    /// The core's state.
    pub fn view(&self) -> View<'_> {
        self.core.view()
    }

    /// The core's state of one family.
    ///
    /// # Errors
    /// If there is none, which [`desired`] excludes.
    pub(super) fn in_family(&self, family: Family) -> Result<FamilyView<'_>, CommitError> {
        let missing = || CommitError::Unusable(io::Error::other(format!("no desired state of {family}")));
        self.view().family(family).ok_or_else(missing)
    }

    /// The served Services of a family.
    pub(super) fn services(&self, wanted: Family) -> Vec<&ServiceState> {
        let of_family = self.families.iter().filter(|(family, _)| *family == wanted);
        let units = of_family.flat_map(|(_, delta)| delta.units.values().flatten());
        units
            .filter_map(|unit| match &**unit {
                Unit::Service(state) => Some(state),
                Unit::Base(_) => None,
            })
            .collect()
    }

    /// The desired state of a family as one change.
    pub fn of_family(&self, wanted: Family) -> Delta {
        self.families.iter().find(|(family, _)| *family == wanted).map(|(_, delta)| delta.clone()).unwrap_or_default()
    }
}

/// An engine's ends for the core and for its thread.
fn mailbox(family: Family) -> (EngineHandle, (Family, Receiver)) {
    let (sender, receiver) = Mailbox::new();
    (EngineHandle::new(family, sender, Arc::new(Pulse::new(Instant::now()))), (family, receiver))
}

fn addresses(objects: &ListedObjects, node_name: &str, wanted: &LocalAddresses) -> anyhow::Result<Vec<IpAddr>> {
    let mut addresses = match (wanted, objects.node(node_name)) {
        (LocalAddresses::OfMachine, _) | (LocalAddresses::OfNode, None) => {
            return platform::addresses(&planes::devices()).context("listing local addresses");
        }
        (LocalAddresses::These(addresses), _) => addresses.clone(),
        (LocalAddresses::OfNode, Some(node)) => {
            let of_node = node.addresses.iter().filter_map(|address| address.address.as_ref().ok().copied());
            [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].into_iter().chain(of_node).collect()
        }
    };
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// The error text for objects without the facts about the Node that a start waits for.
fn missing_node(objects: &ListedObjects, node_name: &str) -> String {
    if objects.node(node_name).is_some() {
        return format!("Node {node_name} has no address, or not the pod range that detectLocalMode NodeCIDR needs");
    }
    let names = objects.node_names();
    let others = names.len().saturating_sub(NAMED);
    let more = if others == 0 { String::new() } else { format!(" and {others} more") };
    let known = if names.is_empty() {
        "no Node at all".to_owned()
    } else {
        names.get(..NAMED.min(names.len())).unwrap_or_default().join(", ") + &more
    };
    format!("no Node {node_name} among the objects: name the node by --hostname-override; there is {known}")
}
