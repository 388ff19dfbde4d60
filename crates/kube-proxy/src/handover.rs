//! After a change of mode, or of the variant of iptables: what is elsewhere of a family is removed, once everything of it is in
//! force here. Until then that serves. It happens beside all else, on a thread that ends when nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use ferry_api::object::Family;

use crate::planes::{RetireError, SITES, Site};
use crate::report::Turn;

/// Where else rules may be, and of which families they are no longer needed.
#[derive(Debug)]
pub struct Handover {
    others: Vec<Site>,
    settled: BTreeSet<Family>,
}

/// What is removed, and what has been said about it.
struct Removal {
    family: Family,
    sites: Vec<Site>,
    said: BTreeMap<&'static str, String>,
}

const STACK_BYTES: usize = 1024 * 1024;
/// After a failure, doubling up to the longest.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

// === impl Handover ===

impl Handover {
    /// To these tables, from all others.
    pub fn new(tables: &str) -> Self {
        let others = SITES.iter().filter(|site| site.tables != tables).copied().collect();
        Self { others, settled: BTreeSet::new() }
    }

    /// Takes note of what an engine did.
    pub fn turn(&mut self, turn: &Turn) {
        if turn.settled && self.settled.insert(turn.family) {
            Removal::begin(turn.family, self.others.clone());
        }
    }
}

/// Removes all rules of a family that is switched off, of all modes: nobody would keep them up to date.
pub fn abandon(family: Family) {
    Removal::begin(family, SITES.to_vec());
}

// === impl Removal ===

impl Removal {
    fn begin(family: Family, sites: Vec<Site>) {
        let removal = Self { family, sites, said: BTreeMap::new() };
        let thread = thread::Builder::new().name("handover".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || removal.run()) {
            tracing::warn!(%family, err = %error, "Rules elsewhere are not looked for: no thread could be started");
        }
    }

    fn run(mut self) {
        let mut pause = RETRY;
        loop {
            self.attempt();
            // What was read may have been large.
            ferry_kernel::memory::trim();
            if self.sites.is_empty() {
                return;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    /// Tries once; those that are done are left out from then on.
    fn attempt(&mut self) {
        for site in std::mem::take(&mut self.sites) {
            if !self.tell(&site, site.retire(self.family)) {
                self.sites.push(site);
            }
        }
    }

    /// Whether nothing is left to do there.
    fn tell(&mut self, site: &Site, result: Result<usize, RetireError>) -> bool {
        let (family, Site { mode, tables, .. }) = (self.family, site);
        match result {
            Ok(0) => true,
            Ok(objects) => {
                tracing::info!(%family, mode, tables, objects, "Removed an earlier run's rules");
                true
            }
            Err(RetireError::Absent(error)) => {
                tracing::debug!(%family, mode, tables, err = %error, "The mode has no rules here");
                true
            }
            Err(RetireError::Failed(error)) => {
                let text = format!("{error:#}");
                if self.said.get(tables) != Some(&text) {
                    tracing::warn!(
                        %family,
                        mode,
                        tables,
                        err = text,
                        "Rules of an earlier run may still be there and win over ours, trying again"
                    );
                    self.said.insert(tables, text);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_said_once_and_tried_again() {
        let mut removal = Removal { family: Family::V4, sites: Vec::new(), said: BTreeMap::new() };
        let mut says = |result| {
            let mut done = false;
            let text = crate::logging::logged(4, || done = removal.tell(&SITES[0], result));
            (done, text)
        };
        let failed = |why: &'static str| Err(RetireError::Failed(anyhow::Error::msg(why)));
        let (done, text) = says(failed("no tool"));
        assert!(!done && text.starts_with('W') && text.contains("err=\"no tool\""), "{text}");
        assert_eq!(says(failed("no tool")), (false, String::new()));
        let (done, text) = says(failed("locked"));
        assert!(!done && text.contains("locked"), "{text}");
        let (done, text) = says(Ok(7));
        assert!(done && text.starts_with('I') && text.contains("objects=7"), "{text}");
        assert_eq!(says(Ok(0)), (true, String::new()));
        assert!(says(Err(RetireError::Absent(anyhow::Error::msg("no nf_tables")))).0);
    }
}
