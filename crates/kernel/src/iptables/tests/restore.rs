//! The input of the tool.

use super::*;

#[test]
fn every_line_has_its_number() {
    let mut restore = Restore::new(Family::V6);
    assert_eq!((restore.text(), restore.lines()), ("", 0));
    let rule = Rule { matches: [Match::comment("a b")].into(), target: Target::Reject, ..Rule::default() };
    let chain = name("KUBE-X");
    let numbers = [
        restore.table(Table::Filter),
        restore.declare(chain),
        restore.create(name("KUBE-Y")),
        restore.append(chain, &rule),
        restore.append_uncommented(chain, &rule),
        restore.append_text(chain, "-j ACCEPT"),
        restore.insert_text(chain, "-j DROP"),
        restore.delete_text(chain, "-j ACCEPT"),
        restore.append(chain, &Rule::default()),
        restore.remove(chain),
        restore.commit(),
    ];
    assert!(numbers.into_iter().eq(1..=11));
    assert_eq!(restore.lines(), 11);
    assert_eq!(
        restore.text(),
        "*filter\n:KUBE-X - [0:0]\n-N KUBE-Y\n\
        -A KUBE-X -m comment --comment \"a b\" -j REJECT --reject-with icmp6-port-unreachable\n\
        -A KUBE-X -j REJECT --reject-with icmp6-port-unreachable\n-A KUBE-X -j ACCEPT\n\
        -I KUBE-X -j DROP\n\
        -D KUBE-X -j ACCEPT\n-A KUBE-X \n-X KUBE-X\nCOMMIT\n"
    );
    restore.clear();
    assert_eq!((restore.text(), restore.lines()), ("", 0));
    assert_eq!(restore.commit(), 1);
}
