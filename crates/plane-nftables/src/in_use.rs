//! Detects rules of an earlier run that still serve, before anything is read back or changed.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::NftSocket;

use crate::names::{FixedSet, SetName, TABLE, TABLE_MAKER};

/// True if the family's table is one of Ferry's, of any layout, and serves some frontend. Changes nothing.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`; any other error of the socket.
pub fn in_use(family: Family) -> io::Result<bool> {
    let mut socket = NftSocket::open()?;
    match socket.table(family, TABLE)? {
        Some(table) if table.comment.as_deref().is_some_and(|comment| comment.starts_with(TABLE_MAKER)) => {}
        Some(_) | None => return Ok(false),
    }
    let mut services = false;
    for set in [FixedSet::ServiceIps, FixedSet::ServiceNodePorts] {
        let name = SetName::Fixed(set).to_string();
        match socket.elements(family, TABLE, &name, &mut |_| services = true) {
            // The map was deleted and the table was not.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            listed => listed?,
        }
    }
    Ok(services)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ferry_kernel::netns::Namespace;

    use super::*;

    fn nft(command: &str) {
        let output = Command::new("nft").arg(command).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }

    #[test]
    fn a_table_serves_when_it_is_ours_and_knows_a_service() {
        let namespace = Namespace::new().unwrap();
        let says = |command: &str| {
            let run = || {
                nft(command);
                Family::ALL.map(|family| in_use(family).unwrap())
            };
            namespace.run(run).unwrap()
        };
        assert_eq!(says("list ruleset"), [false, false]);
        let (maps, element) = (
            "map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; };",
            "{ 10.96.0.1 . tcp . 80 : drop }",
        );
        // Of another program.
        assert_eq!(says(&format!("table ip {TABLE} {{ {maps} }}")), [false, false]);
        assert_eq!(says(&format!("add element ip {TABLE} service-ips {element}")), [false, false]);
        assert_eq!(says(&format!("delete table ip {TABLE}")), [false, false]);
        // Of an earlier release.
        let ours = format!("comment \"{TABLE_MAKER}1\"");
        assert_eq!(says(&format!("table ip {TABLE} {{ {ours}; }}")), [false, false]);
        assert_eq!(says(&format!("table ip {TABLE} {{ {maps} }}")), [false, false]);
        assert_eq!(says(&format!("add element ip {TABLE} service-ips {element}")), [true, false]);
    }
}
