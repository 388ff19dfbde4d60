//! Runs that end in order or crash, interfaces that change their name, addresses of other programs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const INTERFACE: &str = "vEthernet (HNS Internal NIC)";
const OTHER: &str = "Loopback Pseudo-Interface 1";

fn address(number: u8) -> IpAddr {
    if number.is_multiple_of(2) { [192, 0, 2, number].into() } else { format!("2001:db8::{number:x}").parse().unwrap() }
}

fn addresses(numbers: &[u8]) -> BTreeSet<IpAddr> {
    numbers.iter().map(|&number| address(number)).collect()
}

/// A machine with two interfaces, each with an address of its own, and a folder for the record.
struct Machine {
    interfaces: MemoryInterfaces,
    folder: PathBuf,
}

impl Machine {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ferry-interface-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let interfaces =
            MemoryInterfaces::default().with(INTERFACE, &[address(200)]).with(OTHER, &[[127, 0, 0, 1].into()]);
        Self { interfaces, folder }
    }

    fn record(&self) -> AddressRecord {
        AddressRecord::new(self.folder.join("addresses"))
    }

    /// A run of the program.
    fn starts(&self, interface: &str) -> io::Result<OwnedAddresses<MemoryInterfaces>> {
        OwnedAddresses::open(self.interfaces.clone(), interface, self.record())
    }

    fn has(&self, interface: &str) -> BTreeSet<IpAddr> {
        self.interfaces.clone().list(interface).unwrap().into_iter().map(|local| local.address).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

#[test]
fn addresses_follow_what_is_wanted_and_go_at_the_end() {
    let machine = Machine::new("follow");
    let mut run = machine.starts(INTERFACE).unwrap();
    let replaced = run.replace(&addresses(&[1, 2, 3])).unwrap();
    assert_eq!((replaced.added, replaced.removed, replaced.failed.len()), (3, 0, 0));
    assert_eq!(machine.has(INTERFACE), addresses(&[1, 2, 3, 200]));
    assert!(machine.interfaces.clone().list(INTERFACE).unwrap().iter().filter(|local| local.never_source).count() == 3);
    let replaced = run.replace(&addresses(&[2, 3, 4])).unwrap();
    assert_eq!((replaced.added, replaced.removed), (1, 1));
    assert_eq!(machine.has(INTERFACE), addresses(&[2, 3, 4, 200]));
    let replaced = run.clear().unwrap();
    assert_eq!((replaced.added, replaced.removed), (0, 3));
    assert_eq!(machine.has(INTERFACE), addresses(&[200]));
    assert!(!machine.record().path().exists(), "nothing is left to record");
}

#[test]
fn after_a_crash_the_next_run_keeps_what_it_wants_and_removes_the_rest() {
    let machine = Machine::new("crash");
    machine.starts(INTERFACE).unwrap().replace(&addresses(&[1, 2])).unwrap();
    let mut run = machine.starts(INTERFACE).unwrap();
    assert_eq!(run.owned().map(|(address, _)| address).collect::<BTreeSet<_>>(), addresses(&[1, 2]));
    let replaced = run.replace(&addresses(&[2, 4])).unwrap();
    assert_eq!((replaced.added, replaced.removed), (1, 1), "one is neither removed nor added again");
    assert_eq!(machine.has(INTERFACE), addresses(&[2, 4, 200]));
}

#[test]
fn addresses_of_an_interface_that_is_no_longer_configured_are_removed() {
    let machine = Machine::new("moved");
    machine.starts(OTHER).unwrap().replace(&addresses(&[1, 2])).unwrap();
    machine.starts(INTERFACE).unwrap().replace(&addresses(&[2])).unwrap();
    assert_eq!(machine.has(INTERFACE), addresses(&[2, 200]));
    assert_eq!(machine.has(OTHER), BTreeSet::from([[127, 0, 0, 1].into()]));
}

#[test]
fn an_address_of_another_program_serves_and_is_never_removed() {
    let machine = Machine::new("foreign");
    let mut run = machine.starts(INTERFACE).unwrap();
    let replaced = run.replace(&addresses(&[1, 200])).unwrap();
    assert_eq!(replaced.added, 1);
    assert_eq!(run.owned().count(), 1);
    run.clear().unwrap();
    assert_eq!(machine.has(INTERFACE), addresses(&[200]));
    // A record from before the machine's last start names an address that has another use now.
    fs::write(machine.record().path(), format!("{} {INTERFACE}\n", address(200))).unwrap();
    machine.starts(INTERFACE).unwrap().clear().unwrap();
    assert_eq!(machine.has(INTERFACE), addresses(&[200]));
}

#[test]
fn a_refused_address_is_reported_and_tried_again() {
    let machine = Machine::new("refused");
    let mut run = machine.starts(INTERFACE).unwrap();
    machine.interfaces.refuse([address(1)]);
    let replaced = run.replace(&addresses(&[1, 2])).unwrap();
    assert_eq!(replaced.failed.iter().map(|(address, _)| *address).collect::<Vec<_>>(), [address(1)]);
    assert_eq!(run.owned().count(), 1);
    machine.interfaces.refuse([address(2)]);
    let replaced = run.replace(&addresses(&[1])).unwrap();
    assert_eq!((replaced.added, replaced.failed.len()), (1, 1));
    assert_eq!(machine.has(INTERFACE), addresses(&[1, 2, 200]));
    machine.interfaces.refuse([]);
    assert_eq!(run.replace(&addresses(&[1])).unwrap().removed, 1, "it was still recorded");
}

#[test]
fn a_missing_interface_and_a_foreign_file_are_named() {
    let machine = Machine::new("named");
    let error = machine.starts("no such").unwrap_err();
    assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().contains("no such"), "{error}");
    for text in ["192.0.2.1\n", "192.0.2.1 \n", "x y\n"] {
        fs::write(machine.record().path(), text).unwrap();
        let error = machine.starts(INTERFACE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(machine.record().path().to_str().unwrap()), "{error}");
    }
}

proptest! {
    /// Any history of wanted addresses, refusals, crashes and changed interfaces leaves no address behind once a run has ended in order.
    #[test]
    fn nothing_is_left_behind(
        steps in prop::collection::vec(
            (prop::collection::vec(0u8..6, 0..5), prop::collection::vec(0u8..6, 0..2), any::<bool>(), any::<bool>()),
            0..8,
        ),
    ) {
        let machine = Machine::new("history");
        let mut run = machine.starts(INTERFACE).unwrap();
        for (wanted, refused, crashes, moves) in steps {
            machine.interfaces.refuse(refused.iter().map(|&number| address(number)));
            let replaced = run.replace(&addresses(&wanted)).unwrap();
            let recorded: BTreeSet<IpAddr> = run.owned().map(|(address, _)| address).collect();
            for interface in [INTERFACE, OTHER] {
                let listed = machine.interfaces.clone().list(interface).unwrap();
                for local in listed.iter().filter(|local| local.never_source) {
                    prop_assert!(recorded.contains(&local.address), "{} is not recorded", local.address);
                }
            }
            prop_assert!(replaced.failed.iter().all(|(failed, _)| refused.iter().any(|&number| address(number) == *failed)));
            if crashes {
                run = machine.starts(if moves { OTHER } else { INTERFACE }).unwrap();
            }
        }
        machine.interfaces.refuse([]);
        run.clear().unwrap();
        prop_assert_eq!(machine.has(INTERFACE), addresses(&[200]));
        prop_assert_eq!(machine.has(OTHER), BTreeSet::from([[127, 0, 0, 1].into()]));
        prop_assert!(!machine.record().path().exists());
    }
}
