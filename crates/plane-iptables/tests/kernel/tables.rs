//! Kernels that lack a table, simulated by the tool's error.

use std::time::{Duration, Instant};

use ferry_conformance::good;
use ferry_conformance::states::everything;
use ferry_kernel::iptables::{Table, ToolFailure};
use ferry_plane::SyncEngine;
use ferry_plane_iptables::Features;

use crate::machine::{FEATURES, assert_same, wanted};
use crate::wrapper::with_wrapper;

/// Only the canary is in mangle.
#[test]
fn a_kernel_without_mangle_is_served_all_the_same() {
    with_wrapper("-restore", Duration::from_secs(60), |machine, wrapper| {
        wrapper.fault(
            "text >$FOLDER/input\n\
             if grep -q '^[*]mangle' $FOLDER/input; then\n\
             echo \"iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'mangle'\" >&2\n\
             echo 'Error occurred at line: 1' >&2\nexit 2\nfi\nexec $REAL \"$@\" <$FOLDER/input\n",
        );
        let tool = machine.tool();
        match tool.try_table(Table::Mangle) {
            Err(ToolFailure::NoTable { table, .. }) => assert_eq!(table, "table mangle"),
            other => panic!("{other:?}"),
        }
        for table in [Table::Nat, Table::Filter] {
            tool.try_table(table).unwrap();
        }
        let mut engine = machine.engine();
        engine.offer(everything(machine.family));
        let error = engine.sync(Instant::now()).error.expect("with the canary in mangle").to_string();
        assert!(error.contains("table mangle"), "{error}");
        let lacking = Features { lacks_mangle: true, ..FEATURES };
        let mut engine = machine.engine_of(lacking);
        engine.offer(everything(machine.family));
        good(engine.sync(Instant::now()));
        let wanted = wanted(&engine);
        assert!(wanted.len() > 30);
        assert_same(&machine.read_back(), &wanted, "without mangle");
        assert!(!machine.saved().iter().any(|line| line.contains("mangle :KUBE-")));
        let mut engine = machine.engine_of(lacking);
        engine.offer(everything(machine.family));
        assert_eq!(good(engine.sync(Instant::now())).ops, 0, "a restart");
        Box::new(engine).retire(&mut Vec::new()).unwrap();
    });
}
