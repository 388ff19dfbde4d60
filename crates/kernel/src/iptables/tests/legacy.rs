//! What the kernel says of legacy tables.

use super::tools::Tools;
use super::*;
use crate::iptables::legacy::{info, tables};

#[test]
fn a_table_is_there_when_it_was_asked_for_and_changes_show() {
    for family in Family::ALL {
        let tools = Tools::new(family, "legacy");
        let look = |table| tools.run(move || info(family, table)).unwrap();
        assert_eq!((look(Table::Nat), look(Table::Filter)), (None, None));
        assert_eq!(tools.run(move || tables(family)).unwrap(), Vec::<String>::new(), "and asking has made none");
        tools.restore("*nat\nCOMMIT\n");
        assert_eq!(tools.run(move || tables(family)).unwrap(), ["nat"]);
        assert_eq!(look(Table::Filter), None);
        let empty = look(Table::Nat).unwrap();
        assert!(empty.entries >= 4 && empty.bytes > 0, "{empty:?}");
        tools.restore("*nat\n-A OUTPUT -j ACCEPT\nCOMMIT\n");
        let one = look(Table::Nat).unwrap();
        assert_eq!(one.entries, empty.entries + 1);
        assert!(one.bytes > empty.bytes);
        assert_eq!(look(Table::Nat), Some(one), "looking changes nothing");
        tools.restore("*nat\n-D OUTPUT -j ACCEPT\nCOMMIT\n");
        assert_eq!(look(Table::Nat), Some(empty));
    }
}

#[test]
fn the_nft_variant_makes_no_legacy_tables() {
    let tools = Tools::new(Family::V4, "nft");
    tools.restore("*nat\n:KUBE-X - [0:0]\nCOMMIT\n");
    assert_eq!(tools.run(|| info(Family::V4, Table::Nat)).unwrap(), None);
}
