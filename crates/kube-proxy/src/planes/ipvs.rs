//! Mode ipvs: opens its engines (a table, virtual servers and addresses per family), and removes virtual servers, addresses and
//! upstream's ipsets.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use ferry_api::config::{GoDuration, KubeProxyConfiguration, MODE_IPVS};
use ferry_api::object::{Family, IpNet};
use ferry_api::wire::address::parse_cidr;
use ferry_kernel::forward::Traffic;
use ferry_kernel::ipvs::Timeouts;
use ferry_model::{Profile, Scheduler};
use ferry_plane::{CommitError, Inspector, Served, SyncEngine};
use ferry_plane_ipvs::retire::{self, Left};
use ferry_plane_ipvs::{
    ForwardingReports, Ipvs, IpvsOptions, Pings, SchedulerReports, ServerOptions, Shared, names, render,
};

use super::forward;
use super::nftables::TABLE;
use super::{
    Engines, Established, LISTENER, Leftovers, Offline, Opened, OpenedInspector, Opening, Plane, RenderedPart,
    Rendering, RetireError, Retirement, RuleDomain,
};
use crate::input::{Input, NodeProblem, NodeWarning};
use crate::metrics::mode::{self, IpvsMetrics};
use crate::threads::STACK_BYTES;

pub(super) const PLANE: Plane = Plane {
    mode: MODE_IPVS,
    profile: Profile::IPVS,
    paced: false,
    domains: &[SERVERS, SETS],
    metrics: mode::IPVS_TABLE,
    devices: &[names::DEVICE],
    open,
    // Opening its engines sets all of them.
    initialize: |_| Ok(()),
    remove_leftovers,
    in_use: retire::in_use,
    needs_net_admin: true,
    offline: |_| Offline { profile: Profile::IPVS, render },
    inspect: Some(inspectors),
};

/// The virtual servers, and the addresses of the device.
const SERVERS: RuleDomain = RuleDomain { mode: MODE_IPVS, name: "ipvs", retire: retire_servers };
/// Upstream's ipsets, which its iptables rules refer to. This mode has none.
const SETS: RuleDomain = RuleDomain { mode: MODE_IPVS, name: "ipset", retire: retire_sets };
/// The table replaces that of mode nftables; the rule in forward chains, too.
const OWN: &[RuleDomain] = &[SERVERS, TABLE, forward::RULES];

/// The name of the thread that waits for foreign changes of the device.
const DEVICE_LISTENER: &str = "device";

fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let config = opening.config;
    let scheduler = configured_scheduler(config)?;
    let shared = Shared::default();
    let open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let options = options(opening, scheduler, family);
        let mut engine = ferry_plane_ipvs::engine(family, &shared, options)?;
        // What the kernel lacks is reported at the start.
        ferry_plane::Kernel::prepare(engine.kernel_mut())?;
        Ok(Box::new(engine))
    };
    let families: Vec<Opened> = opening.families.iter().map(|family| (*family, open(*family))).collect();
    if families.iter().any(|(_, opened)| opened.is_ok()) {
        // All that can fail comes before the first thread: a mode that can't be opened must not leave one.
        let forward = forward::ForwardWatch::open(opening, Traffic::Established)?;
        let listen_to_table = ferry_plane_ipvs::listener(shared.commit_lock.clone())?;
        let listen_to_device = shared.device.listener()?;
        let failed = opening.threads.clone();
        opening.threads.spawn(LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen_to_table()).context("waiting for nf_tables notifications"));
        })?;
        let failed = opening.threads.clone();
        opening.threads.spawn(DEVICE_LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen_to_device()).context("waiting for notifications of addresses"));
        })?;
        forward.start(opening.threads, |waker| shared.commit_lock.take().wake_for_other_tables(waker))?;
    }
    Ok(Engines { families, metrics: Box::new(IpvsMetrics::register), domains: OWN, serving: None, way: None })
}

fn inspectors(opening: &Opening<'_>) -> anyhow::Result<Vec<OpenedInspector>> {
    let (scheduler, shared) = (configured_scheduler(opening.config)?, Shared::default());
    let open = |family| -> Result<Box<dyn Inspector>, CommitError> {
        let engine = ferry_plane_ipvs::engine(family, &shared, options(opening, scheduler, family));
        Ok(Box::new(engine?))
    };
    Ok(opening.families.iter().map(|family| (*family, open(*family))).collect())
}

fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let (mut tables, mut servers) = (Vec::new(), String::new());
    let mut addresses = format!("link add {} type dummy\n", names::DEVICE);
    for (family, desired) in rendering.families {
        let objects = desired.compiled(&Ipvs::new(*family, pings(rendering.config)));
        tables.push(render::table(*family, &objects));
        servers += &render::servers(&objects);
        addresses += &render::addresses(&objects);
    }
    vec![
        RenderedPart { name: "nft", loader: Some("nft -f -"), text: tables.join("\n") },
        RenderedPart { name: "ipvsadm", loader: Some("ipvsadm-restore"), text: servers },
        RenderedPart { name: "addresses", loader: Some("ip -batch -"), text: addresses },
    ]
}

/// The configured scheduler; blank is `rr`, as upstream's default.
fn configured_scheduler(config: &KubeProxyConfiguration) -> anyhow::Result<Scheduler> {
    let name = config.ipvs.scheduler.as_str();
    if name.is_empty() {
        return Ok(Scheduler::default());
    }
    let known = || Scheduler::ALL.iter().map(|scheduler| scheduler.name()).collect::<Vec<_>>().join(", ");
    name.parse().with_context(|| format!("ipvs.scheduler {name:?} is unknown: use one of {}", known()))
}

fn options(opening: &Opening<'_>, scheduler: Scheduler, family: Family) -> IpvsOptions {
    let (ipvs, ferry) = (&opening.config.ipvs, &opening.config.ferry);
    let inputs = opening.inputs.clone();
    let report = move |missing| {
        // Without a receiver the program is ending.
        let _ = inputs.send(Input::MissingSchedulers { family, missing });
    };
    let inputs = opening.inputs.clone();
    let report_forwarding = move |note: Option<&str>| {
        let problem = NodeProblem::Ipv6ForwardingDisabled;
        let warning = NodeWarning { problem, family, note: note.map(str::to_owned) };
        // As above.
        let _ = inputs.send(Input::NodeWarning(warning));
    };
    let timeouts = Timeouts {
        tcp_seconds: seconds(ipvs.tcp_timeout),
        tcp_fin_seconds: seconds(ipvs.tcp_fin_timeout),
        udp_seconds: seconds(ipvs.udp_timeout),
    };
    let any_timeout = [timeouts.tcp_seconds, timeouts.tcp_fin_seconds, timeouts.udp_seconds].iter().any(|s| *s > 0);
    IpvsOptions {
        servers: ServerOptions {
            scheduler,
            excluded: excluded(opening.config),
            timeouts: any_timeout.then_some(timeouts),
            grace: ferry.ipvs_termination_grace_period.to_std(),
            reports: Some(SchedulerReports(Arc::new(report))),
            forwarding_reports: Some(ForwardingReports(Arc::new(report_forwarding))),
        },
        strict_arp: ipvs.strict_arp,
        pings: pings(opening.config),
    }
}

fn pings(config: &KubeProxyConfiguration) -> Pings {
    if config.ferry.ipvs_ping_only_with_endpoints { Pings::OnlyWithEndpoints } else { Pings::Answered }
}

/// Whole seconds, as IPVS counts.
fn seconds(duration: GoDuration) -> u32 {
    u32::try_from(duration.whole_seconds()).unwrap_or(u32::MAX)
}

/// The ranges in which another program's virtual servers are expected.
fn excluded(config: &KubeProxyConfiguration) -> Vec<IpNet> {
    config.ipvs.exclude_cidrs.iter().filter_map(|text| parse_cidr(text)).collect()
}

fn retire_servers(family: Family, retirement: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
    let Retirement { established, config } = retirement;
    retire::retire(family, &excluded(config), established == Established::Spared, served).map_err(of_left)
}

fn retire_sets(family: Family, _: Retirement<'_>, _: &mut Vec<Served>) -> Result<usize, RetireError> {
    retire::retire_sets(family).map_err(of_left)
}

fn of_left(left: Left) -> RetireError {
    match left {
        Left::Connections(_) => RetireError::Waits(left.into()),
        Left::Referred(_) | Left::Io(_) => RetireError::Failed(left.into()),
    }
}

/// Upstream's proxy in mode ipvs adopts the servers and the addresses, and deletes the table at its start.
fn remove_leftovers(family: Family) -> io::Result<Leftovers> {
    Ok(if retire::in_use(family)? { Leftovers::InUse } else { Leftovers::None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_whole_seconds() {
        let of = |nanos| seconds(GoDuration::from_nanos(nanos));
        assert_eq!([0, 1, 1_000_000_000, 1_500_000_000].map(of), [0, 1, 1, 2]);
    }

    #[test]
    fn an_unknown_scheduler_is_named_with_those_that_exist() {
        let mut config = KubeProxyConfiguration::default();
        assert_eq!(configured_scheduler(&config).unwrap(), Scheduler::Rr);
        config.ipvs.scheduler = "wlc".to_owned();
        assert_eq!(configured_scheduler(&config).unwrap(), Scheduler::Wlc);
        config.ipvs.scheduler = "fastest".to_owned();
        let error = configured_scheduler(&config).unwrap_err().to_string();
        assert!(error.contains("\"fastest\"") && error.contains("rr, wrr, lc"), "{error}");
    }
}
