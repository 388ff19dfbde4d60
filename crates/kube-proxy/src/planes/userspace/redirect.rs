//! The way `redirect`: a table of each family leads connections to listeners of the relay.

use ferry_api::object::Family;
use ferry_model::Profile;
use ferry_plane::{CommitError, Delta, Kernel as _, SyncEngine};
use ferry_plane_userspace::redirect::{self, Relaying, UserspaceCommitLock};
use ferry_plane_userspace::{SharedRelay, is_gate};

use super::{Tried, early_demux, serving};
use crate::planes::nftables::TABLE;
use crate::planes::{LISTENER, Opened, Opening, RenderedPart, Rendering, RuleDomain};
use crate::threads::STACK_BYTES;

/// The table replaces that of mode nftables.
const OWN: &[RuleDomain] = &[TABLE];

/// Opens the engines, which need `CAP_NET_ADMIN`, and starts their threads if one can be used.
pub(super) fn open(opening: &Opening<'_>) -> anyhow::Result<Tried> {
    let mark = 1 << opening.config.effective().masquerade_bit;
    let (shared, workers) = serving::relay(opening, Some(mark))?;
    let commit_lock = UserspaceCommitLock::default();
    let open = |family| -> Result<Box<dyn SyncEngine>, CommitError> {
        let reports = serving::listener_reports(opening, family);
        let mut engine = redirect::engine(family, &commit_lock, &shared, reports)?;
        // A kernel without nf_tables, or without one of the expressions, is reported at the start.
        engine.kernel_mut().prepare()?;
        Ok(Box::new(engine))
    };
    let families: Vec<Opened> = opening.families.iter().map(|family| (*family, open(*family))).collect();
    if families.iter().any(|(_, opened)| opened.is_ok()) {
        let (listen, failed) = (redirect::listener(commit_lock)?, opening.threads.clone());
        opening.threads.spawn(LISTENER, STACK_BYTES, move || {
            failed.fail(anyhow::Error::new(listen()).context("waiting for nf_tables notifications"));
        })?;
        early_demux::switch_off();
        serving::start(workers, opening.threads)?;
        inherit(opening, &shared);
    }
    Ok(Tried { families, shared, domains: OWN, profile: Profile::USERSPACE, at_end: Box::new(|| {}) })
}

/// With names of listeners instead of ports, which each run chooses anew.
pub(super) fn render(rendering: &Rendering<'_>) -> Vec<RenderedPart> {
    let table = |(family, desired): &(Family, Delta)| {
        redirect::render::ruleset(*family, &desired.compiled(&Relaying::new(*family)))
    };
    let tables: Vec<String> = rendering.families.iter().map(table).collect();
    vec![RenderedPart { name: "relay", loader: None, text: tables.join("\n") }]
}

/// Takes the sockets of this way. A mode or way that can't start leaves them to the one that does, which passes on what waits there.
fn inherit(opening: &Opening<'_>, shared: &SharedRelay) {
    shared.inheritance.add(opening.sockets.take_where(is_gate));
}
