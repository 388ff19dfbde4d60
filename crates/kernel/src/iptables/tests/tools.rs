//! Comparison with the real tools of both variants, in network namespaces.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::*;
use crate::ipset;
use crate::netns::Namespace;
use crate::nfacct;

const VARIANTS: [&str; 2] = ["nft", "legacy"];

/// The tools of a variant and a family, with a namespace and a lock file of their own.
pub(super) struct Tools {
    namespace: Namespace,
    /// the kernel has ipset, and the samples' set is there
    has_sets: bool,
    lock: PathBuf,
    prefix: String,
}

impl Tools {
    pub(super) fn new(family: Family, variant: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let lock = std::env::temp_dir().join(format!("ferry-xtables-{}-{number}", std::process::id()));
        let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
        let namespace = Namespace::new().unwrap();
        let has_sets = namespace.run(|| {
            let has = ipset::has_nets(family).unwrap();
            has.then(|| ipset::create_nets(samples::SET, family, &[]).unwrap()).is_some()
        });
        let tool = Tool::find(family, Backend::ALL.into_iter().find(|backend| backend.to_string() == variant));
        let has_match = tool.and_then(|tool| tool.has_match("set")).expect("the iptables tools must be installed");
        Self { namespace, has_sets: has_sets.unwrap() && has_match, lock, prefix: format!("{program}-{variant}") }
    }

    pub(super) fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(action).unwrap()
    }

    fn command(&self, suffix: &str) -> Command {
        let mut command = Command::new(format!("{}{suffix}", self.prefix));
        command.env("XTABLES_LOCKFILE", &self.lock);
        command
    }

    pub(super) fn restore(&self, text: &str) {
        let mut command = self.command("-restore");
        command.args(["--noflush", "-w", "5"]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let output = self.run(|| {
            let mut child = command.spawn().expect("the iptables tools must be installed");
            child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        });
        let errors = String::from_utf8_lossy(&output.stderr);
        let line = errors
            .rsplit(' ')
            .filter_map(|word| word.trim_end().parse::<usize>().ok())
            .find_map(|line| text.lines().nth(line - 1));
        assert!(output.status.success(), "{}: {errors}\n{line:?}", self.prefix);
    }

    fn output(&self, suffix: &str, arguments: &[&str]) -> String {
        let mut command = self.command(suffix);
        let output = self.run(|| command.args(arguments).output().unwrap());
        assert!(output.status.success(), "{}: {}", self.prefix, String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The rules of each non-empty chain, by table and chain name.
    fn rules(&self, text: &str) -> BTreeMap<String, Vec<String>> {
        let (mut rules, mut table) = (BTreeMap::<_, Vec<_>>::new(), String::new());
        read_lines(text.as_bytes(), &mut |line| match line {
            OutputLine::Table(name) => name.clone_into(&mut table),
            OutputLine::Rule { chain, text } => {
                rules.entry(format!("{table} {chain}")).or_default().push(text.to_owned())
            }
            OutputLine::Chain { .. } | OutputLine::Commit | OutputLine::Other => {}
        })
        .unwrap();
        rules
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.lock); // the nft variant creates none
    }
}

/// Runs a test with the tools of each family and variant.
fn each(mut test: impl FnMut(Family, &Tools)) {
    for family in Family::ALL {
        for variant in VARIANTS {
            test(family, &Tools::new(family, variant));
        }
    }
}

/// The samples of a table that the kernel can have.
fn samples_of(tools: &Tools, family: Family, table: Table) -> Vec<(Rule, String)> {
    let names_set = |rule: &Rule| rule.matches.iter().any(|each| matches!(each, Match::InSet { .. }));
    let is_possible = |rule: &Rule| samples::belongs(table, rule) && (tools.has_sets || !names_set(rule));
    samples::rules(family).into_iter().filter(|(rule, _)| is_possible(rule)).collect()
}

/// Normalizes the blanks of tools up to 1.8.9.
fn normal(text: &str) -> String {
    text.replace("--nfacct-name  ", "--nfacct-name ")
}

#[test]
fn every_sample_is_printed_as_we_print_it() {
    each(|family, tools| {
        tools.run(|| samples::COUNTERS.iter().for_each(|counter| nfacct::create(counter).unwrap()));
        let mut restore = Restore::new(family);
        let mut wanted = BTreeMap::new();
        for table in Table::ALL {
            let chain = name("KUBE-TEST");
            restore.table(table);
            restore.declare(chain);
            restore.declare(name("KUBE-SVC-7AEEELSGPX43WHBU"));
            let samples = samples_of(tools, family, table);
            for (rule, _) in &samples {
                restore.append(chain, rule);
            }
            wanted.insert(format!("{table} {chain}"), samples);
            restore.commit();
        }
        tools.restore(restore.text());
        let found = tools.rules(&tools.output("-save", &[]));
        assert_eq!(found.len(), wanted.len());
        for (chain, samples) in wanted {
            let texts: Vec<_> = found[&chain].iter().map(|text| normal(text)).collect();
            assert_eq!(texts, samples.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>());
            let rules: Vec<_> = found[&chain].iter().map(|text| parsed(family, text)).collect();
            assert_eq!(rules, samples.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>());
        }
    });
}

/// Each rule is found by its text, among all others.
#[test]
fn every_sample_is_deleted_by_its_text() {
    each(|family, tools| {
        tools.run(|| samples::COUNTERS.iter().for_each(|counter| nfacct::create(counter).unwrap()));
        let chain = name("KUBE-TEST");
        let samples = samples_of(tools, family, Table::Nat);
        let mut restore = Restore::new(family);
        restore.table(Table::Nat);
        restore.declare(chain);
        restore.declare(name("KUBE-SVC-7AEEELSGPX43WHBU"));
        for (rule, _) in &samples {
            restore.insert_text(chain, &printed(family, rule));
        }
        restore.commit();
        tools.restore(restore.text());
        for (_, text) in samples {
            restore.clear();
            restore.table(Table::Nat);
            restore.delete_text(chain, &text);
            restore.commit();
            tools.restore(restore.text());
        }
        let listed = tools.output("", &["-t", "nat", "-S", "KUBE-TEST"]);
        let mut chains = Vec::new();
        read_lines(listed.as_bytes(), &mut |line| chains.push(format!("{line:?}"))).unwrap();
        assert_eq!(chains, [r#"Chain { name: "KUBE-TEST", builtin: false }"#], "and no rule");
    });
}

/// Probabilities written with ten decimals, as by upstream.
#[test]
fn probabilities_are_rounded_as_by_the_tools() {
    each(|family, tools| {
        let chain = name("KUBE-TEST");
        let mut restore = Restore::new(family);
        restore.table(Table::Nat);
        restore.declare(chain);
        let counts = || (1..=2000_u32).chain([2048, 4096, 10_000, 10_240, 51_200]);
        for n in counts() {
            let probability = format!("{:.10}", 1.0 / f64::from(n));
            restore.append_text(chain, &format!("-m statistic --mode random --probability {probability}"));
        }
        restore.commit();
        tools.restore(restore.text());
        let found = tools.rules(&tools.output("-save", &["-t", "nat"])).remove("nat KUBE-TEST").unwrap();
        assert_eq!(found.len(), counts().count());
        for (n, text) in counts().zip(found) {
            let rule = Rule { matches: [Match::one_of(n)].into(), ..Rule::default() };
            assert_eq!(printed(family, &rule), text, "1/{n}");
            assert_eq!(parsed(family, &text), rule, "1/{n}");
        }
    });
}

/// Addresses that the C library prints differently from Rust.
#[test]
fn addresses_with_dots_are_printed_as_we_print_them() {
    for variant in VARIANTS {
        let tools = Tools::new(Family::V6, variant);
        let chain = name("KUBE-TEST");
        let mut restore = Restore::new(Family::V6);
        restore.table(Table::Nat);
        restore.declare(chain);
        let addresses = ["::102:304", "::1:0", "::ffff", "::ffff:1.2.3.4", "64:ff9b::102:304", "1:0:2:0:0:3:0:0"];
        let rules: Vec<_> = addresses
            .iter()
            .map(|address| Rule {
                source: AddressMatch::only(ipnet::IpNet::from(address.parse::<std::net::IpAddr>().unwrap())),
                protocol: Some(PortProtocol::Tcp),
                matches: [Match::Port(None)].into(),
                target: Target::Dnat(format!("[{address}]:1").parse().unwrap()),
                ..Rule::default()
            })
            .collect();
        for rule in &rules {
            restore.append(chain, rule);
        }
        restore.commit();
        tools.restore(restore.text());
        let found = tools.rules(&tools.output("-save", &["-t", "nat"])).remove("nat KUBE-TEST").unwrap();
        assert_eq!(found, rules.iter().map(|rule| printed(Family::V6, rule)).collect::<Vec<_>>());
    }
}

/// Restricts an arbitrary rule to one that the tools accept.
fn acceptable(rule: Rule) -> Rule {
    let fit = |each: Match| match each {
        Match::Account(_) => Match::Account(samples::COUNTERS[0].into()),
        Match::RecentlySeen { seconds, list } => Match::RecentlySeen { seconds: seconds >> 1 | 1, list },
        other => other,
    };
    let target = match rule.target {
        Target::Dnat(_) if rule.protocol.is_none() => Target::None,
        Target::Jump(_) => Target::Jump(name("KUBE-LED-TO")),
        target => target,
    };
    let mut ports = 0;
    let only_one = |each: &Match| {
        // A set would have to be there, as that of the samples is.
        if matches!(each, Match::InSet { .. }) {
            return false;
        }
        ports += usize::from(matches!(each, Match::Port(_)));
        ports < 2 || !matches!(each, Match::Port(_))
    };
    Rule { matches: rule.matches.into_iter().filter(only_one).map(fit).collect(), target, ..rule }
}

#[test]
fn any_rule_is_printed_as_we_print_it() {
    each(|family, tools| {
        tools.run(|| nfacct::create(samples::COUNTERS[0]).unwrap());
        let mut runner = TestRunner::deterministic();
        let rules: Vec<_> =
            std::iter::repeat_with(|| properties::rule(family).new_tree(&mut runner).unwrap().current())
                .map(acceptable)
                .take(1000)
                .collect();
        let mut restore = Restore::new(family);
        let mut wanted = BTreeMap::<_, Vec<_>>::new();
        for table in Table::ALL {
            restore.table(table);
            restore.declare(name("KUBE-TEST"));
            restore.declare(name("KUBE-LED-TO"));
            for rule in rules.iter().filter(|rule| samples::belongs(table, rule)) {
                restore.append(name("KUBE-TEST"), rule);
                wanted.entry(format!("{table} KUBE-TEST")).or_default().push(printed(family, rule));
            }
            restore.commit();
        }
        tools.restore(restore.text());
        let found = tools.rules(&tools.output("-save", &[]));
        assert!(found.keys().eq(wanted.keys()));
        for (chain, texts) in wanted {
            texts.iter().zip(&found[&chain]).for_each(|(wanted, found)| assert_eq!(&normal(found), wanted));
            assert_eq!(texts.len(), found[&chain].len());
        }
    });
}
