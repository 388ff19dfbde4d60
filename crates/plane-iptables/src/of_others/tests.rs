use std::collections::BTreeMap;

use ferry_kernel::iptables::nft::IptablesChain;
use ferry_kernel::iptables::{Version, read_lines};

use super::*;

/// Both variants' tables in memory: the names of chains of the nft variant, the output of the legacy variant's tool, and what that
/// tool was given.
#[derive(Default)]
struct MemoryTables {
    nft: BTreeMap<Table, Vec<&'static str>>,
    entries: BTreeMap<Table, u32>,
    saved: BTreeMap<Table, &'static str>,
    save_fails: Option<ToolFailure>,
    restore_fails: Option<ToolFailure>,
    saves: Vec<Table>,
    restored: String,
}

impl BothVariants for MemoryTables {
    fn family(&self) -> Family {
        Family::V4
    }

    fn remove_of_nft(&mut self, table: Table, removal: &Removal<'_>) -> io::Result<usize> {
        let chains = self.nft.get_mut(&table).ok_or(io::ErrorKind::PermissionDenied)?;
        let before = chains.len();
        chains.retain(|name| !(removal.chains)(name));
        let from = IptablesChain { table, name: "OTHER".to_owned(), builtin: false };
        assert!((removal.rules)(&from, "KUBE-NODE-PORT"), "whatever leads there goes, too");
        Ok(before - chains.len())
    }

    fn legacy_entries(&mut self, table: Table) -> io::Result<Option<u32>> {
        Ok(self.entries.get(&table).copied())
    }

    fn save(&mut self, table: Table, each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure> {
        self.saves.push(table);
        if let Some(failure) = self.save_fails.take() {
            return Err(failure);
        }
        let text = self.saved.get(&table).copied().unwrap_or_default();
        read_lines(text.as_bytes(), each).unwrap();
        Ok(())
    }

    fn restore(&mut self, text: &str) -> Result<(), ToolFailure> {
        self.restored += text;
        self.restore_fails.take().map_or(Ok(()), Err)
    }
}

/// Tables of the nft variant alone.
fn of_nft(filter: &[&'static str], nat: &[&'static str]) -> MemoryTables {
    let nft = BTreeMap::from([(Table::Filter, filter.to_vec()), (Table::Nat, nat.to_vec())]);
    MemoryTables { nft, ..MemoryTables::default() }
}

/// Table filter of the legacy variant, with this output and without any chain of the nft variant.
fn of_legacy(saved: &'static str) -> MemoryTables {
    MemoryTables {
        entries: BTreeMap::from([(Table::Filter, 20)]),
        saved: BTreeMap::from([(Table::Filter, saved)]),
        ..of_nft(&[], &[])
    }
}

#[test]
fn chains_of_the_nft_variant_go_by_mode_and_table() {
    let filter = ["INPUT", "KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-NODEPORT-NON-LOCAL", "KUBE-LOAD-BALANCER"];
    let nat = ["KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-PORTALS-HOST", "KUBE-SERVICES"];
    let mut tables = of_nft(&filter, &nat);
    assert_eq!(retire_of_ipvs(&mut tables).unwrap(), 3);
    assert_eq!(tables.nft[&Table::Filter], ["INPUT", "KUBE-NODEPORT-NON-LOCAL", "KUBE-LOAD-BALANCER"]);
    assert_eq!(tables.nft[&Table::Nat], ["KUBE-IPVS-FILTER", "KUBE-PORTALS-HOST", "KUBE-SERVICES"]);
    assert_eq!(retire_of_ipvs(&mut tables).unwrap(), 0);

    assert_eq!(retire_of_userspace(&mut tables).unwrap(), 2);
    assert_eq!(tables.nft[&Table::Filter], ["INPUT", "KUBE-LOAD-BALANCER"]);
    assert_eq!(tables.nft[&Table::Nat], ["KUBE-IPVS-FILTER", "KUBE-SERVICES"]);
    assert_eq!(retire_of_userspace(&mut tables).unwrap(), 0);
    assert_eq!((tables.saves.len(), tables.restored.as_str()), (0, ""));
}

#[test]
fn chains_of_the_legacy_variant_go_with_the_rules_that_lead_to_them_and_count_too() {
    let mut tables = MemoryTables {
        entries: BTreeMap::from([(Table::Filter, 20), (Table::Nat, 20)]),
        saved: BTreeMap::from([
            (
                Table::Filter,
                "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FORWARD - [0:0]\n:KUBE-IPVS-FILTER - [0:0]\n:KUBE-NODE-PORT - [0:0]\n\
                 -A INPUT -m comment --comment \"goes -j KUBE-FORWARD\" -j KUBE-NODE-PORT\n\
                 -A INPUT -g KUBE-IPVS-FILTER\n\
                 -A INPUT -m comment --comment \"to -j KUBE-NODE-PORT\" -j KUBE-FORWARD\n\
                 -A INPUT -s 192.0.2.1/32\n\
                 -A KUBE-IPVS-FILTER -j KUBE-NODE-PORT\n\
                 -A KUBE-IPVS-FILTER -j RETURN\n\
                 -A KUBE-FORWARD -j ACCEPT\nCOMMIT\n",
            ),
            (Table::Nat, "*nat\n:KUBE-LOAD-BALANCER - [0:0]\nCOMMIT\n"),
        ]),
        ..of_nft(&["KUBE-IPVS-FILTER"], &["KUBE-LOAD-BALANCER", "KUBE-NODE-PORT"])
    };
    assert_eq!(retire_of_ipvs(&mut tables).unwrap(), 6);
    assert_eq!(
        tables.restored,
        "*filter\n:KUBE-IPVS-FILTER - [0:0]\n:KUBE-NODE-PORT - [0:0]\n\
         -D INPUT -m comment --comment \"goes -j KUBE-FORWARD\" -j KUBE-NODE-PORT\n\
         -D INPUT -g KUBE-IPVS-FILTER\n\
         -X KUBE-IPVS-FILTER\n-X KUBE-NODE-PORT\nCOMMIT\n\
         *nat\n:KUBE-LOAD-BALANCER - [0:0]\n-X KUBE-LOAD-BALANCER\nCOMMIT\n"
    );
}

#[test]
fn the_tool_runs_for_legacy_tables_with_chains_or_rules_alone() {
    for (entries, saves) in [
        (BTreeMap::new(), &[][..]),
        (BTreeMap::from([(Table::Filter, legacy::empty(Table::Filter)), (Table::Nat, legacy::empty(Table::Nat))]), &[]),
        (BTreeMap::from([(Table::Filter, legacy::empty(Table::Filter) + 1)]), &[Table::Filter]),
        (BTreeMap::from([(Table::Mangle, 20), (Table::Nat, legacy::empty(Table::Nat) + 2)]), &[Table::Nat]),
    ] {
        let mut tables = MemoryTables { entries, ..of_nft(&[], &[]) };
        assert_eq!(retire_of_userspace(&mut tables).unwrap(), 0);
        assert_eq!((tables.saves.as_slice(), tables.restored.as_str()), (saves, ""));
    }
}

#[test]
fn chains_of_other_programs_and_modes_stay_in_legacy_tables() {
    let mut tables = of_legacy(
        "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-NODEPORT-NON-LOCAL - [0:0]\n:KUBE-LOAD-BALANCER - [0:0]\n\
         -A INPUT -j KUBE-NODEPORT-NON-LOCAL\n-A INPUT -j KUBE-LOAD-BALANCER\nCOMMIT\n",
    );
    assert_eq!(retire_of_ipvs(&mut tables).unwrap(), 0);
    assert_eq!((tables.saves.as_slice(), tables.restored.as_str()), (&[Table::Filter][..], ""));
}

#[test]
fn failures_are_reported_except_that_the_legacy_tool_is_absent() {
    let error = retire_of_ipvs(&mut MemoryTables::default()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);

    let saved = "*filter\n:KUBE-NODE-PORT - [0:0]\nCOMMIT\n";
    let tool = || "iptables-legacy-save".to_owned();
    for absent in [
        ToolFailure::Missing { tool: tool() },
        ToolFailure::TooOld { tool: tool(), version: Version([1, 4, 0]), needs: Version([1, 6, 0]) },
    ] {
        let mut tables = MemoryTables { save_fails: Some(absent), ..of_legacy(saved) };
        tables.nft.insert(Table::Nat, vec!["KUBE-NODE-PORT"]);
        assert_eq!(retire_of_ipvs(&mut tables).unwrap(), 1, "that of the nft variant");
        assert_eq!(tables.restored, "");
    }
    let denied = || Some(ToolFailure::NoPermission { tool: tool() });
    for mut tables in [
        MemoryTables { save_fails: denied(), ..of_legacy(saved) },
        MemoryTables { restore_fails: denied(), ..of_legacy(saved) },
    ] {
        let error = retire_of_ipvs(&mut tables).unwrap_err();
        assert!(error.to_string().contains("iptables-legacy-save: permission denied"), "{error}");
    }
}
