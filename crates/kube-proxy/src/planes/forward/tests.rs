//! Chains written by the tools, in namespaces of a real kernel.

use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};

use ferry_api::config::KubeProxyConfiguration;
use ferry_kernel::netns::Namespace;

use super::super::Established;
use super::*;

/// A watch, and what it reports.
struct Bench {
    watch: ForwardWatch,
    reports: Receiver<Input>,
}

fn tool(line: &str) -> String {
    let (program, arguments) = line.split_once(' ').unwrap();
    let arguments: Vec<&str> = if program == "nft" { vec![arguments] } else { arguments.split(' ').collect() };
    // Every namespace has legacy tables of its own, and needs no lock.
    let output = Command::new(program).args(arguments).env("XTABLES_LOCKFILE", "/dev/null").output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const DROP: &str =
    "nft add table inet fw; add chain inet fw onward { type filter hook forward priority 0; policy drop; }";
const LIST: &str = "nft list chain inet fw onward";
const RULE: &str = "ct status dnat accept comment \"kube-proxy\"";

fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    Namespace::new().unwrap().run(test).unwrap()
}

// === impl Bench ===

impl Bench {
    fn new(writes: bool) -> Self {
        let (inputs, reports) = sync_channel(16);
        let watch = ForwardWatch {
            chains: ForwardChains::open(COMMENT).unwrap(),
            traffic: Traffic::Translated,
            writes,
            families: Family::ALL.to_vec(),
            inputs,
            generation: None,
            nft: ForwardFindings::new("nf_tables"),
            legacy: ForwardFindings::new("legacy tables"),
            reported: BTreeMap::new(),
        };
        Self { watch, reports }
    }

    /// Looks now, and returns the reports, by family.
    fn look(&mut self) -> Vec<(Family, Option<String>)> {
        (self.watch.nft.due, self.watch.legacy.due) = (Instant::now(), Instant::now());
        assert!(self.watch.look().is_some());
        let reports = self.reports.try_iter().map(|input| match input {
            Input::NodeWarning(NodeWarning { family, note, .. }) => (family, note),
            other => panic!("{other:?}"),
        });
        reports.collect()
    }
}

#[test]
fn a_policy_is_reported_when_it_appears_changes_and_ends() {
    in_namespace(|| {
        let mut bench = Bench::new(false);
        assert_eq!(bench.look(), []);
        tool(DROP);
        let text = "chain onward of table inet fw has policy DROP, and no rule there is known to accept connections of Services, \
                    and so they are lost on their way to pods: run `nft add rule inet fw onward ct status dnat accept`, or set \
                    acceptForward: true in the FerryConfiguration and kube-proxy writes this rule";
        assert_eq!(bench.look(), Family::ALL.map(|family| (family, Some(text.to_owned()))));
        assert_eq!(bench.look(), []);
        tool("ip6tables-legacy -P FORWARD DROP");
        let both = format!(
            "{text}; chain FORWARD of ip6tables-legacy has policy DROP, and no rule there is known to accept connections of \
             Services, and so they are lost on their way to pods: run `ip6tables-legacy -A FORWARD -m conntrack --ctstate DNAT \
             -j ACCEPT`"
        );
        assert_eq!(bench.look(), [(Family::V6, Some(both))]);
        tool("nft add rule inet fw onward ct status dnat accept");
        assert_eq!(
            bench.look().into_iter().map(|(family, note)| (family, note.is_none())).collect::<Vec<_>>(),
            [(Family::V4, true), (Family::V6, false)]
        );
        tool("ip6tables-legacy -P FORWARD ACCEPT");
        assert_eq!(bench.look(), [(Family::V6, None)]);
        assert!(!tool(LIST).contains(RULE), "nothing is written unless asked for");
    });
}

#[test]
fn the_rule_is_written_where_it_is_asked_for_and_as_long_as_it_is_needed() {
    in_namespace(|| {
        tool(DROP);
        let mut bench = Bench::new(true);
        for writes in 1..4 {
            assert_eq!(bench.look(), []);
            assert_eq!((tool(LIST).matches(RULE).count(), bench.watch.nft.writes), (1, writes));
            let waits = bench.watch.nft.due.saturating_duration_since(Instant::now());
            assert!(
                waits > PERIOD * 2_u32.pow(writes - 1) / 2,
                "{waits:?}: another program that removes it is no endless loop"
            );
            tool("nft flush chain inet fw onward");
        }
        bench.look();
        // A new process finds it.
        let mut bench = Bench::new(true);
        assert_eq!((bench.look(), bench.watch.nft.writes), (vec![], 0));
        assert_eq!(tool(LIST).matches(RULE).count(), 1);
        // an operator's rule makes it superfluous
        tool("nft insert rule inet fw onward accept");
        assert_eq!(bench.look(), []);
        assert!(!tool(LIST).contains(RULE));
        tool("nft flush chain inet fw onward");
        bench.look();
        assert!(tool(LIST).contains(RULE));
        // it isn't asked for any more
        assert_eq!(Bench::new(false).look().len(), 2);
        assert!(!tool(LIST).contains(RULE));
    });
}

#[test]
fn a_rule_that_cant_be_written_is_reported() {
    in_namespace(|| {
        tool("iptables-legacy -P FORWARD DROP");
        let reports = Bench::new(true).look();
        let [(Family::V4, Some(text))] = &reports[..] else { panic!("{reports:?}") };
        assert!(
            text.ends_with("-j ACCEPT`; acceptForward has no effect here: only this tool can write the table"),
            "{text}"
        );
    });
}

#[test]
fn rules_are_removed_by_family() {
    in_namespace(|| {
        tool(DROP);
        for program in ["iptables-nft", "ip6tables-nft"] {
            tool(&format!("{program} -P FORWARD DROP"));
        }
        Bench::new(true).look();
        let rules =
            || ["iptables-nft -S FORWARD", "ip6tables-nft -S FORWARD", LIST].map(|list| tool(list).contains(COMMENT));
        let config = KubeProxyConfiguration::default();
        let retirement = Retirement { established: Established::Ended, config: &config };
        let retired = |family| retire(family, retirement, &mut Vec::new()).unwrap();
        assert_eq!(rules(), [true; 3]);
        assert_eq!((retired(Family::V6), rules()), (1, [true, false, true]));
        assert_eq!((retired(Family::V4), rules()), (2, [false; 3]));
        assert_eq!((retired(Family::V4), retired(Family::V6)), (0, 0));
    });
}

#[test]
fn readings_take_a_ten_thousandth_of_the_time_in_the_long_run() {
    // after the first, second and third reading of this length, in seconds
    for (took, least, pauses) in [
        (Duration::from_micros(30), PERIOD, [1, 1, 1]),
        (Duration::from_millis(2), PERIOD, [1, 1, 1]),
        (Duration::from_millis(5), PERIOD, [1, 40, 60]),
        (Duration::from_secs(1), PERIOD, [60, 60, 60]),
        (Duration::ZERO, PERIOD * 1000, [60, 60, 60]),
    ] {
        let mut findings = ForwardFindings::new("nf_tables");
        let pauses_now = pauses.map(|_| {
            findings.pause(took, least);
            findings.due.saturating_duration_since(Instant::now()).as_secs_f64().round()
        });
        assert_eq!(pauses_now, pauses.map(f64::from), "{took:?}");
    }
}

#[test]
fn failures_are_logged_once() {
    let mut findings = ForwardFindings::new("legacy tables");
    let mut log = |error: Option<&'static str>| {
        let read = error.map_or(Ok(()), |text| Err(io::Error::other(text)));
        let text = crate::logging::logged(0, || assert_eq!(findings.log_failure(read), error.is_none()));
        text.lines().count()
    };
    assert_eq!([Some("a"), Some("a"), Some("b"), None, Some("b")].map(&mut log), [1, 0, 1, 0, 1]);
}
