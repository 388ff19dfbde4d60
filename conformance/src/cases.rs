//! Tests of the case folders in a mode: compares golden rulesets, and the rules' verdict with the model's for each case and
//! each packet of the matrix.

use std::collections::BTreeMap;
use std::fs;

use ferry_api::object::Family;
use ferry_model::Verdict;
use ferry_plane::{Compile, Trace as _};

use crate::case::Case;
use crate::decided::Decided;
use crate::golden;
use crate::matrix::packets;
use crate::mode::Mode;

/// All cases, with their configuration adapted to this mode.
pub fn all<M: Mode>() -> Vec<Case> {
    let in_this_mode = |case: Case| {
        let config = fs::read_to_string(case.folder.join("config.yaml")).unwrap();
        let settings = Case::of(&case.name, &of_this_mode::<M>(&config), &[]).settings;
        Case { settings, ..case }
    };
    Case::all().into_iter().map(in_this_mode).collect()
}

/// Replaces the mode in a configuration and moves the settings of the previous mode's section to this one's.
pub fn of_this_mode<M: Mode>(config: &str) -> String {
    assert!(config.contains("mode: nftables") && !(config.contains("\nnftables:") && config.contains("\niptables:")));
    let (mode, section) = (format!("mode: {}", M::NAME), format!("\n{}:", M::NAME));
    config.replace("mode: nftables", &mode).replace("\nnftables:", &section)
}

/// Compares the golden rulesets. `FERRY_ACCEPT=1` writes them; review the difference like code.
pub fn the_rulesets_are_what_each_case_wants<M: Mode>() {
    golden::compare(&all::<M>(), M::GOLDEN, |case| {
        let text = Family::ALL.map(|family| M::text(family, &Decided::of::<M>(case, family).compiled::<M>()));
        text.join("\n")
    });
}

/// Tries every packet of the matrix; each of the four verdicts occurs as often as a mode has it.
pub fn the_rules_do_what_the_model_decides<M: Mode>() {
    let mut packets_met = 0;
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for case in all::<M>() {
        for family in Family::ALL {
            let decided = Decided::of::<M>(&case, family);
            let objects = decided.compiled::<M>();
            let compiler = M::compiler(family, decided.base.localhost);
            let tracer = compiler.tracer(&objects);
            for packet in packets(&case, &decided) {
                let wanted = decided.decide(&packet, &M::Compiler::PROFILE);
                assert_eq!(tracer.verdict(&packet), wanted, "{} {family}: {packet:?}", case.name);
                packets_met += 1;
                *met.entry(match wanted {
                    Verdict::Forward(_) => "forward",
                    Verdict::Drop => "drop",
                    Verdict::Reject => "reject",
                    Verdict::Pass => "pass",
                })
                .or_default() += 1;
            }
        }
    }
    assert!(packets_met > 10_000, "only {packets_met} packets");
    assert!(met.len() == 4 && met.values().all(|count| *count > M::LEAST), "{met:?}");
}

/// Checks every case by [`Mode::well_made`].
pub fn objects_are_well_made<M: Mode>() {
    for case in all::<M>() {
        for family in Family::ALL {
            let objects = Decided::of::<M>(&case, family).compiled::<M>();
            M::well_made(&objects, &format!("{} {family}", case.name));
        }
    }
}
