//! Upstream's rulesets parse and print unchanged.

use super::*;

const FILES: [(Family, &str); 4] = [
    (Family::V4, include_str!("../../../../../testdata/upstream/iptables/1.30/iptables-save.txt")),
    (Family::V6, include_str!("../../../../../testdata/upstream/iptables/1.30/ip6tables-save.txt")),
    (Family::V4, include_str!("../../../../../testdata/upstream/iptables/1.36/iptables-save.txt")),
    (Family::V6, include_str!("../../../../../testdata/upstream/iptables/1.36/ip6tables-save.txt")),
];

#[test]
fn every_rule_is_one_of_ours() {
    for (family, text) in FILES {
        let (mut rules, mut chains, mut tables) = (0, 0, Vec::new());
        read_lines(text.as_bytes(), &mut |line| match line {
            OutputLine::Rule { chain, text } => {
                rules += 1;
                // the tool's release of that time printed two blanks there
                let normal = text.replace("--nfacct-name  ", "--nfacct-name ");
                assert_eq!(printed(family, &parsed(family, text)), normal, "-A {chain}");
                let mut uncommented = String::new();
                parsed(family, text).print_uncommented(family, &mut uncommented);
                assert!(!uncommented.contains("comment") && uncommented.len() <= normal.len());
            }
            OutputLine::Chain { name, builtin } => {
                chains += 1;
                assert!(IptablesChainName::new(name).is_some() && builtin != name.starts_with("KUBE-"), "{name}");
            }
            OutputLine::Table(name) => tables.push(name.to_owned()),
            OutputLine::Commit | OutputLine::Other => {}
        })
        .unwrap();
        assert_eq!(tables, ["mangle", "filter", "nat"]);
        assert_eq!(rules, text.lines().filter(|line| line.starts_with("-A")).count());
        assert_eq!(chains, text.lines().filter(|line| line.starts_with(':')).count());
    }
}
