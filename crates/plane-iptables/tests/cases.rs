//! The case folders in this mode: golden rulesets, and for each case and each packet of the matrix the rules do what the
//! model decides.
//!
//! `FERRY_ACCEPT=1 cargo test -p ferry-plane-iptables --test cases` writes the rulesets; read the difference like code.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../../model/tests/case/mod.rs"]
mod case;
mod decided;
#[path = "../../plane-nftables/tests/matrix/mod.rs"]
mod matrix;
mod well_made;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use decided::{Decided, cases};
use ferry_api::object::Family;
use ferry_model::decide::decide;
use ferry_model::{Profile, Verdict};
use ferry_plane::Trace;
use ferry_plane_iptables::{Features, Iptables, Tracer, render};
use well_made::well_made;

#[test]
fn the_rulesets_are_what_each_case_wants() {
    let accept = std::env::var_os("FERRY_ACCEPT").is_some_and(|value| value == "1");
    let mut differing = String::new();
    for case in cases() {
        let text = Family::ALL.map(|family| {
            let ruleset = render::ruleset(family, &Decided::new(&case, family).compiled());
            format!("# {family}\n{}", without_what_is_always_there(&ruleset))
        });
        let text = text.join("\n");
        let file = case.folder.join("want.iptables");
        let wanted = fs::read_to_string(&file).unwrap_or_default();
        if accept && text != wanted {
            fs::write(&file, &text).unwrap();
        } else if text != wanted {
            let first = text.lines().zip(wanted.lines()).find(|(got, wanted)| got != wanted);
            writeln!(differing, "{}: first difference {first:?}", case.name).unwrap();
        }
    }
    assert!(differing.is_empty(), "FERRY_ACCEPT=1 writes what is new:\n{differing}");
}

/// Chains without rules, and what leads from built-in chains to ours, are the same in every case, and stand in the tests of
/// this crate's base.
fn without_what_is_always_there(ruleset: &str) -> String {
    let built_in = ["INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING"];
    let kept = ruleset.lines().filter(|line| match line.strip_prefix("-A ") {
        Some(rule) => !built_in.iter().any(|chain| rule.starts_with(&format!("{chain} "))),
        None => !line.starts_with(':') && *line != "COMMIT" && *line != "*mangle",
    });
    kept.fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_rules_do_what_the_model_decides() {
    let mut packets = 0;
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases() {
        for family in Family::ALL {
            let decided = Decided::new(&case, family);
            let objects = decided.compiled();
            let tracer = Tracer::new(&objects);
            for packet in matrix::packets(family, &case, &decided.states, &decided.base) {
                let Decided { states, base, context, .. } = &decided;
                let wanted = decide(states, base, &packet, context, &Profile::IPTABLES);
                assert_eq!(tracer.trace(&packet), wanted, "{} {family}: {packet:?}", case.name);
                packets += 1;
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
    assert!(packets > 10_000, "only {packets} packets");
    assert!(met.len() == 4 && met.values().all(|count| *count > 400), "{met:?}");
}

/// One way to ask a compiler, and one to ask many times, say the same.
#[test]
fn the_trace_of_the_mode_is_the_tracers() {
    let case = cases().into_iter().find(|case| case.name == "load-balancer").unwrap();
    let decided = Decided::new(&case, Family::V4);
    let objects = decided.compiled();
    let iptables = Iptables::new(Family::V4, Features::default());
    for packet in matrix::packets(Family::V4, &case, &decided.states, &decided.base) {
        assert_eq!(iptables.trace(&objects, &packet, &decided.context), Tracer::new(&objects).trace(&packet));
    }
}

#[test]
fn objects_are_well_made() {
    for case in cases() {
        for family in Family::ALL {
            let objects = Decided::new(&case, family).compiled();
            well_made(&objects, &format!("{} {family}", case.name));
        }
    }
}
