//! The module that a mutated package gets: the switch of each mutant, set by the environment of its tests.
//!
//! It is no module of this program: [`crate::tree`] copies its text.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Number of the mutant that is on; 0: none.
const MUTANT: &str = "FERRY_MUTANT";

/// A file that gets a line with its number for each mutant whose place is reached.
const REACHED: &str = "FERRY_MUTANTS_REACHED";

const UNREAD: u32 = u32::MAX;

static ON: AtomicU32 = AtomicU32::new(UNREAD);
static RECORDS: AtomicBool = AtomicBool::new(false);
static RECORDED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// True if this mutant is on.
#[inline]
pub fn is_on(mutant: u32) -> bool {
    let on = match ON.load(Relaxed) {
        UNREAD => read(),
        on => on,
    };
    if RECORDS.load(Relaxed) {
        record(mutant);
    }
    on == mutant
}

#[cold]
fn read() -> u32 {
    RECORDS.store(std::env::var_os(REACHED).is_some(), Relaxed);
    let on = std::env::var(MUTANT).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    ON.store(on, Relaxed);
    on
}

/// Writes the number the first time. Ends the process if it can't: a test that seems to reach nothing would be left out.
#[cold]
fn record(mutant: u32) {
    if !RECORDED.lock().is_ok_and(|mut recorded| recorded.insert(mutant)) {
        return;
    }
    let file = std::env::var_os(REACHED).and_then(|file| OpenOptions::new().append(true).create(true).open(file).ok());
    if file.is_none_or(|mut file| file.write_all(format!("{mutant}\n").as_bytes()).is_err()) {
        std::process::abort();
    }
}
