//! Mode nftables: opens its engines, one table per family over netlink, and removes these tables.

use std::io;

use ferry_api::config::MODE_NFTABLES;
use ferry_api::object::Family;
use ferry_kernel::forward::Traffic;
use ferry_model::Profile;
use ferry_plane::{CommitError, Delta, Inspector, Kernel as _, Served, SyncEngine};
use ferry_plane_nftables::{Nftables, NftablesCommitLock, NftablesEngine, leftovers};

use super::forward;
use super::{
    Engines, LISTENER, Leftovers, Offline, Opened, OpenedInspector, Opening, Plane, RenderedPart, Rendering,
    RetireError, Retirement, RuleDomain,
};
use crate::metrics::mode::{self, NftablesMetrics};
use crate::threads::STACK_BYTES;

pub(super) const PLANE: Plane = Plane {
    mode: MODE_NFTABLES,
    profile: Profile::NFTABLES,
    paced: false,
    domains: DOMAINS,
    metrics: mode::NFTABLES_TABLE,
    devices: &[],
    open,
    // It needs none.
    initialize: |_| Ok(()),
    remove_leftovers,
    in_use: ferry_plane_nftables::in_use,
    needs_net_admin: true,
    offline: |_| Offline { profile: Profile::NFTABLES, render },
    inspect: Some(inspectors),
};

/// The table of each family. That of mode ipvs has the same name, and replaces it.
pub(super) const TABLE: RuleDomain = RuleDomain { mode: MODE_NFTABLES, name: "nft table kube-proxy", retire };
const DOMAINS: &[RuleDomain] = &[TABLE, forward::RULES];

fn open(opening: &Opening<'_>) -> anyhow::Result<Engines> {
    let commit_lock = NftablesCommitLock::default();
    let open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let mut engine = engine(family, &commit_lock)?;
        // Missing kernel features are reported at the start.
        engine.kernel_mut().prepare()?;
        Ok(Box::new(engine))
    };
    let families: Vec<Opened> = opening.families.iter().map(|family| (*family, open(*family))).collect();
    if families.iter().any(|(_, opened)| opened.is_ok()) {
        let forward = forward::ForwardWatch::open(opening, Traffic::Translated)?;
        let changes = commit_lock.clone();
        let (listen, failed) = (ferry_plane_nftables::listener(commit_lock)?, opening.threads.clone());
        opening.threads.spawn(LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen()).context("waiting for nf_tables notifications"));
        })?;
        forward.start(opening.threads, move |waker| changes.take().wake_for_other_tables(waker))?;
    }
    Ok(Engines { families, metrics: Box::new(NftablesMetrics::register), domains: DOMAINS, serving: None, way: None })
}

fn engine(family: Family, commit_lock: &NftablesCommitLock) -> Result<NftablesEngine, CommitError> {
    ferry_plane_nftables::engine(family, commit_lock.clone())
}

fn inspectors(opening: &Opening<'_>) -> anyhow::Result<Vec<OpenedInspector>> {
    let commit_lock = NftablesCommitLock::default();
    let open = |family| engine(family, &commit_lock).map(|engine| Box::new(engine) as Box<dyn Inspector>);
    Ok(opening.families.iter().map(|family| (*family, open(*family))).collect())
}

fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let table = |(family, desired): &(Family, Delta)| {
        ferry_plane_nftables::render::ruleset(*family, &desired.compiled(&Nftables::new(*family)))
    };
    let tables: Vec<String> = rendering.families.iter().map(table).collect();
    vec![RenderedPart { name: "nft", loader: Some("nft -f -"), text: tables.join("\n") }]
}

/// Removes the family's table with an engine that isn't prepared, so that it works on any machine.
fn retire(family: Family, _: Retirement<'_>, served: &mut Vec<Served>) -> Result<usize, RetireError> {
    let engine = engine(family, &NftablesCommitLock::default());
    let result = engine.and_then(|engine| SyncEngine::retire(Box::new(engine), served));
    result.map_err(|error| match &error {
        // A missing subsystem holds no rules; without permission they may exist all the same.
        CommitError::Unusable(cause) if cause.kind() != io::ErrorKind::PermissionDenied => {
            RetireError::Absent(anyhow::Error::msg(error))
        }
        _ => RetireError::Failed(anyhow::Error::msg(error)),
    })
}

fn remove_leftovers(family: Family) -> io::Result<Leftovers> {
    Ok(match leftovers::remove(family)? {
        leftovers::Leftovers::NoTable => Leftovers::None,
        leftovers::Leftovers::NotTakenOver => Leftovers::InUse,
        leftovers::Leftovers::Removed(objects) => Leftovers::Removed(objects),
    })
}
