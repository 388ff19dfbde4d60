//! Mode iptables: opens its engines with the variant of the tool that this node uses, and removes its rules from either variant.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use ferry_api::config::MODE_IPTABLES;
use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Table, Tool, ToolFailure};
use ferry_kernel::{nfacct, sysctl};
use ferry_model::{NodePortSelection, Profile, Settings};
use ferry_plane::{CommitError, Delta, Inspector, Kernel as _, Served, SyncEngine, Unit};
use ferry_plane_iptables::{
    Counters, Features, Iptables, IptablesCommitLock, IptablesEngine, backend, names, render, why_no_sets,
};
use ipnet::IpNet;

use super::{
    Engines, LISTENER, Leftovers, Offline, Opened, OpenedInspector, Opening, Plane, RenderedPart, Rendering,
    RetireError, Retirement, RuleDomain,
};
use crate::metrics::mode::{self, IptablesCounts, IptablesFamilyCounts, IptablesMetrics};
use crate::platform::TCP_BE_LIBERAL;
use crate::threads::STACK_BYTES;

pub(super) const PLANE: Plane = Plane {
    mode: MODE_IPTABLES,
    profile: Profile::IPTABLES,
    paced: true,
    domains: &[OF_IPVS, NFT, LEGACY, SETS],
    metrics: mode::IPTABLES_TABLE,
    devices: &[],
    open,
    initialize,
    remove_leftovers,
    in_use: ferry_plane_iptables::in_use,
    needs_net_admin: true,
    offline: |_| Offline { profile: Profile::IPTABLES, render },
    inspect: Some(inspectors),
};

/// The chains of upstream's mode ipvs that no other mode has, in both variants: its other chains can't go before them.
const OF_IPVS: RuleDomain =
    RuleDomain { mode: MODE_IPTABLES, name: "iptables chains of mode ipvs", retire: retire_of_ipvs };
/// The tables of the nft variant of the tool.
const NFT: RuleDomain = RuleDomain { mode: MODE_IPTABLES, name: "iptables-nft", retire: retire_nft };
/// Those of the legacy variant.
const LEGACY: RuleDomain = RuleDomain { mode: MODE_IPTABLES, name: "iptables-legacy", retire: retire_legacy };
/// The ipsets of many source ranges, which rules of either variant may name: they can't go before these.
const SETS: RuleDomain = RuleDomain { mode: MODE_IPTABLES, name: "ipsets of mode iptables", retire: retire_sets };
/// The sysctl that allows routing of packets from and to 127.0.0.1.
const ROUTE_LOCALNET: &str = "net.ipv4.conf.all.route_localnet";

/// The variant, the features of the machine and the commit lock, which all engines of this process share.
struct EngineOptions {
    backend: Backend,
    features: Features,
    commit_lock: IptablesCommitLock,
}

fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let families = opening.families;
    let localhost = families.contains(&Family::V4) && serves_localhost(opening.settings);
    if localhost {
        may_route_localhost()?;
    }
    let options = EngineOptions::choose(localhost, counts)?;
    let (backend, features) = (options.backend, options.features);
    let mut counters = Vec::new();
    let opened = families.iter().map(|family| {
        let own = Arc::new(Counters::default());
        counters.push((*family, Arc::clone(&own)));
        let opened = options.open(*family, own).and_then(|mut engine| {
            engine.kernel_mut().prepare()?;
            Ok(Box::new(engine) as Box<dyn SyncEngine>)
        });
        (*family, opened)
    });
    let families: Vec<Opened> = opened.collect();
    let metrics = Box::new(move |registry: &_| {
        IptablesMetrics::register(MODE_IPTABLES, move || read(&counters, features), registry)
    });
    let domains: &[RuleDomain] = match backend {
        Backend::Nft => &[NFT, SETS],
        Backend::Legacy => &[LEGACY, SETS],
    };
    if backend == Backend::Nft && families.iter().any(|(_, opened)| opened.is_ok()) {
        let (listen, failed) = (ferry_plane_iptables::listener(options.commit_lock)?, opening.threads.clone());
        opening.threads.spawn(LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen()).context("waiting for nf_tables notifications"));
        })?;
    }
    Ok(Engines { families, metrics, domains, serving: None, way: None })
}

fn inspectors(opening: &Opening<'_>) -> anyhow::Result<Vec<OpenedInspector>> {
    let localhost = opening.families.contains(&Family::V4) && serves_localhost(opening.settings);
    // A run makes one that isn't there, if the kernel can.
    let options = EngineOptions::choose(localhost, |name| nfacct::packets(name).is_ok())?;
    let open = |family| Ok(Box::new(options.open(family, Arc::default())?) as Box<dyn Inspector>);
    Ok(opening.families.iter().map(|family| (*family, open(*family))).collect())
}

/// As on a machine with all features: its accounting objects are there, it has ipset, and no table is missing.
fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let mut sets = String::new();
    let mut part = |(family, desired): &(Family, Delta)| {
        let features = Features {
            counts_invalid: true,
            counts_localhost: desired.units.values().flatten().any(|unit| serves_loopback(unit)),
            drops_invalid: !rendering.config.conntrack.tcp_be_liberal,
            guards_loopback: false,
            has_sets: true,
            lacks_mangle: false,
        };
        let objects = desired.compiled(&Iptables::new(*family, features));
        sets += &render::sets(*family, &objects);
        let text = render::ruleset(*family, &objects);
        match family {
            Family::V4 => RenderedPart { name: "iptables", loader: Some("iptables-restore --noflush"), text },
            Family::V6 => RenderedPart { name: "ip6tables", loader: Some("ip6tables-restore --noflush"), text },
        }
    };
    let mut parts: Vec<RenderedPart> = rendering.families.iter().map(&mut part).collect();
    if !sets.is_empty() {
        parts.insert(0, RenderedPart { name: "ipset", loader: Some("ipset restore"), text: sets });
    }
    parts
}

fn serves_loopback(unit: &Unit) -> bool {
    matches!(unit, Unit::Base(base) if base.localhost)
}

/// Opens loopback to node ports, if they are served there.
fn initialize(settings: &Settings) -> anyhow::Result<()> {
    if !serves_localhost(settings) || sysctl::read(ROUTE_LOCALNET).is_ok_and(|value| value == "1") {
        return Ok(());
    }
    let choice = backend::choose().context("mode iptables can't be used on this machine")?;
    let tool = find(Family::V4, choice.backend)?;
    ferry_plane_iptables::open_loopback(tool).map_err(|error| anyhow!("setting {ROUTE_LOCALNET}: {error}"))
}

fn retire_of_ipvs(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    ferry_plane_iptables::retire_of_ipvs(family)
        .map_err(|error| failed(error, "removing chains of upstream's mode ipvs"))
}

/// Without the tool, its rules go by netlink. Which frontends they served is unknown then: flows of those that no Service has any more end
/// with their timeout. After upstream's mode ipvs they go in the same way with the tool, too: they served none.
fn retire_nft(family: Family, _: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
    if !holds(Backend::Nft, family)? {
        return Ok(0);
    }
    match find(family, Backend::Nft) {
        Err(ToolFailure::Missing { .. } | ToolFailure::TooOld { .. }) => retire_without_tool(family),
        Ok(_) if is_of_ipvs(family)? => retire_without_tool(family),
        Err(error) => Err(failed(error, "kube-proxy chains exist, and the tool that removes them can't be used")),
        Ok(tool) => retire(tool, served),
    }
}

fn retire_without_tool(family: Family) -> Result<usize, RetireError> {
    ferry_plane_iptables::retire_without_tool(family)
        .map_err(|error| failed(error, "removing chains of kube-proxy without the tool"))
}

/// True if upstream's mode ipvs has been here: its ipsets stay until no rule refers to them.
fn is_of_ipvs(family: Family) -> Result<bool, RetireError> {
    let sets = ferry_plane_ipvs::retire::sets(family);
    sets.map(|sets| !sets.is_empty()).map_err(|error| failed(error, "listing ipsets"))
}

fn retire_legacy(family: Family, _: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
    if !holds(Backend::Legacy, family)? {
        return Ok(0);
    }
    let tool = find(family, Backend::Legacy);
    retire(tool.map_err(|error| failed(error, "legacy rules exist, and only the tool can list them"))?, served)
}

/// Without rules in a variant, no tool is required, and none creates tables.
fn holds(backend: Backend, family: Family) -> Result<bool, RetireError> {
    backend::holds(backend, family).map_err(|error| failed(error, "checking for rules of mode iptables"))
}

fn retire(tool: Tool, served: &mut Vec<Served>) -> Result<usize, RetireError> {
    SyncEngine::retire(Box::new(ferry_plane_iptables::retiring(tool)), served)
        .map_err(|error| RetireError::Failed(anyhow::Error::msg(error)))
}

fn retire_sets(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    let sets = ferry_plane_iptables::retire_sets(family).map_err(|error| failed(error, "deleting ipsets"))?;
    let left = |set| RetireError::Failed(anyhow!("rules of another program refer to ipset {set}: delete them"));
    sets.referred.map_or(Ok(sets.count), |set| Err(left(set)))
}

fn failed(error: impl std::error::Error + Send + Sync + 'static, context: &'static str) -> RetireError {
    RetireError::Failed(anyhow::Error::new(error).context(context))
}

/// Upstream's proxy uses the same names and manages all of them. Only ipsets that no rule names any more are left over.
fn remove_leftovers(family: Family) -> io::Result<Leftovers> {
    let sets = ferry_plane_iptables::retire_sets(family)?.count;
    if sets > 0 {
        return Ok(Leftovers::Removed(sets));
    }
    for backend in Backend::ALL {
        if backend::holds(backend, family)? {
            return Ok(Leftovers::Adopted);
        }
    }
    Ok(Leftovers::None)
}

// === impl EngineOptions ===

impl EngineOptions {
    /// Chooses the variant and finds the features of the machine; `counts`: an accounting object of this name is there.
    fn choose(localhost: bool, counts: fn(&str) -> bool) -> anyhow::Result<Self> {
        let choice = backend::choose().context("mode iptables can't be used on this machine")?;
        tracing::info!(variant = %choice.backend, why = choice.why, "Chose iptables variant");
        if let Some(warning) = &choice.warning {
            tracing::warn!(variant = %choice.backend, warning, "Conflicting iptables variants");
        }
        let features = Features {
            counts_invalid: counts(names::INVALID_DROPPED),
            counts_localhost: localhost && counts(names::LOCALHOST_ACCEPTED),
            drops_invalid: !is_liberal(),
            // An earlier run may have set it.
            guards_loopback: sysctl::read(ROUTE_LOCALNET).is_ok_and(|value| value == "1"),
            // Each family has tables and sets of its own.
            has_sets: false,
            lacks_mangle: false,
        };
        Ok(Self { backend: choice.backend, features, commit_lock: IptablesCommitLock::default() })
    }

    /// An engine that isn't prepared.
    fn open(&self, family: Family, counters: Arc<Counters>) -> Result<IptablesEngine, CommitError> {
        let unusable = |failure| CommitError::Unusable(io::Error::other(failure));
        let tool = find(family, self.backend).map_err(unusable)?;
        let features =
            Features { lacks_mangle: lacks(&tool, Table::Mangle), has_sets: has_sets(&tool), ..self.features };
        Ok(ferry_plane_iptables::engine(features, tool, self.commit_lock.clone(), counters))
    }
}

fn find(family: Family, backend: Backend) -> Result<Tool, ToolFailure> {
    let tool = Tool::find(family, Some(backend))?;
    tracing::debug!(%family, variant = %tool.backend(), version = %tool.version(), "Found iptables");
    Ok(tool)
}

/// True if the kernel has no such table. A table that can't be checked for a temporary reason counts as present.
fn lacks(tool: &Tool, table: Table) -> bool {
    match tool.try_table(table) {
        Err(error @ ToolFailure::NoTable { .. }) => {
            tracing::warn!(%table, err = %error, "Kernel lacks this table, skipping its canary chain");
            true
        }
        Err(_) | Ok(()) => false,
    }
}

/// True if many source ranges can be an ipset.
fn has_sets(tool: &Tool) -> bool {
    let why = why_no_sets(tool);
    if let Some(why) = &why {
        tracing::info!(family = %tool.family(), why, "Can't use ipset, each source range is a rule: mend what why names if Services have many");
    }
    why.is_none()
}

/// True if node ports on 127.0.0.1 are configured.
fn serves_localhost(settings: &Settings) -> bool {
    settings.localhost_node_ports
        && match &settings.node_port_addresses {
            NodePortSelection::Primary => false,
            NodePortSelection::Cidrs(cidrs) => {
                let mut of_family = cidrs.iter().filter(|cidr| cidr.addr().is_ipv4()).peekable();
                of_family.peek().is_none() || of_family.any(|cidr| cidr.prefix_len() == 0 || contains_localhost(cidr))
            }
        }
}

fn contains_localhost(cidr: &IpNet) -> bool {
    cidr.contains(&IpAddr::from(Ipv4Addr::LOCALHOST))
}

/// Fails unless the required sysctl is set, or can be set once the loopback guard is in force.
fn may_route_localhost() -> anyhow::Result<()> {
    let there = sysctl::read(ROUTE_LOCALNET).with_context(|| format!("reading {ROUTE_LOCALNET}"))?;
    if there == "1" {
        return Ok(());
    }
    // Writes the same value, to detect at the start that the sysctl is read-only.
    sysctl::write(ROUTE_LOCALNET, &there).with_context(|| {
        format!(
            "node ports on 127.0.0.1 need {ROUTE_LOCALNET}=1, which can't be set here: set it beforehand, or \
             iptables.localhostNodePorts (--iptables-localhost-nodeports) to false"
        )
    })
}

/// True if this counter exists in the kernel, created if need be.
fn counts(name: &str) -> bool {
    match nfacct::create(name) {
        Ok(()) => true,
        Err(error) => {
            tracing::info!(counter = name, err = %error, "Kernel can't create this nfacct counter, omitting it from the rules");
            false
        }
    }
}

fn is_liberal() -> bool {
    let liberal = sysctl::read(TCP_BE_LIBERAL).is_ok_and(|value| value != "0");
    if liberal {
        tracing::info!("{TCP_BE_LIBERAL} is set, so invalid packets are not dropped");
    }
    liberal
}

/// Reads the values of the metrics.
fn read(counters: &[(Family, Arc<Counters>)], features: Features) -> IptablesCounts {
    let of_family = |(family, counters): &(Family, Arc<Counters>)| {
        let tables = [Table::Filter, Table::Nat];
        let counts = IptablesFamilyCounts {
            rules: tables.map(|table| (table.name(), counters.rules(table), counters.written(table))).into(),
            failures: counters.failures(),
            partial_failures: counters.partial_failures(),
            lock_waits: counters.lock_waits(),
            lock_wait: counters.lock_wait(),
            runs: counters.runs(),
            bytes: counters.bytes(),
        };
        (*family, counts)
    };
    // A counter that another program has deleted has no value.
    let packets = |counts: bool, name| counts.then(|| nfacct::packets(name).ok().flatten()).flatten();
    IptablesCounts {
        families: counters.iter().map(of_family).collect(),
        invalid_dropped: packets(features.counts_invalid && features.drops_invalid, names::INVALID_DROPPED),
        localhost_accepted: packets(features.counts_localhost, names::LOCALHOST_ACCEPTED),
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::config::{IpTables, KubeProxyConfiguration};

    use super::*;

    #[test]
    fn loopback_serves_node_ports_where_the_ranges_hold_it() {
        for (wanted, ranges, serves) in [
            (true, &[][..], true),
            (false, &[], false),
            (true, &["127.0.0.0/8"], true),
            (true, &["127.0.0.1/32", "10.0.0.0/8"], true),
            (true, &["10.0.0.0/8"], false),
            (true, &["10.0.0.0/8", "0.0.0.0/0"], true),
            (true, &["2001:db8::/32"], true),
            (true, &["primary"], false),
        ] {
            let config = KubeProxyConfiguration {
                node_port_addresses: ranges.iter().map(ToString::to_string).collect(),
                iptables: IpTables { localhost_node_ports: wanted, ..IpTables::default() },
                ..KubeProxyConfiguration::default()
            };
            assert_eq!(serves_localhost(&Settings::from_config(&config, "node")), serves, "{wanted} {ranges:?}");
        }
    }
}
