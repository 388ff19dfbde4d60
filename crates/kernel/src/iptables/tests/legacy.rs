//! Queries to the kernel about legacy tables.

use super::tools::Tools;
use super::*;
use crate::iptables::legacy::{info, tables};

#[test]
fn a_table_exists_once_requested_and_its_size_changes() {
    for family in Family::ALL {
        let tools = Tools::new(family, "legacy");
        let size = |table| tools.run(move || info(family, table)).unwrap();
        assert_eq!((size(Table::Nat), size(Table::Filter)), (None, None));
        assert_eq!(tools.run(move || tables(family)).unwrap(), Vec::<String>::new(), "and the query has created none");
        tools.restore("*nat\nCOMMIT\n");
        assert_eq!(tools.run(move || tables(family)).unwrap(), ["nat"]);
        assert_eq!(size(Table::Filter), None);
        let empty = size(Table::Nat).unwrap();
        assert!(empty.entries >= 4 && empty.bytes > 0, "{empty:?}");
        tools.restore("*nat\n-A OUTPUT -j ACCEPT\nCOMMIT\n");
        let one = size(Table::Nat).unwrap();
        assert_eq!(one.entries, empty.entries + 1);
        assert!(one.bytes > empty.bytes);
        assert_eq!(size(Table::Nat), Some(one), "the query changes nothing");
        tools.restore("*nat\n-D OUTPUT -j ACCEPT\nCOMMIT\n");
        assert_eq!(size(Table::Nat), Some(empty));
    }
}

#[test]
fn the_nft_variant_creates_no_legacy_tables() {
    let tools = Tools::new(Family::V4, "nft");
    tools.restore("*nat\n:KUBE-X - [0:0]\nCOMMIT\n");
    assert_eq!(tools.run(|| info(Family::V4, Table::Nat)).unwrap(), None);
}
