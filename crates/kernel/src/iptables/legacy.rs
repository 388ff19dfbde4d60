//! Queries to the kernel about the tables of the legacy variant (`ip_tables`, `ip6_tables`).

use std::io;
use std::os::fd::AsRawFd;

use ferry_family::Family;
use rustix::net::{AddressFamily, SocketType};

use super::Table;

/// `IPT_SO_GET_INFO` in linux/netfilter_ipv4/ip_tables.h, `IP6T_SO_GET_INFO` in linux/netfilter_ipv6/ip6_tables.h
const GET_INFO: libc::c_int = 64;

/// The size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// number of entries: rules, and the heads and ends of chains
    pub entries: u32,
    /// size of the entries in bytes
    pub bytes: u32,
}

/// `struct ipt_getinfo`, `struct ip6t_getinfo`
#[repr(C)]
struct GetInfo {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    bytes: u32,
}

/// Lists the names of the tables in the calling thread's network namespace: the kernel creates a table when a legacy tool first
/// requests it. Empty if this kernel has no legacy tables.
///
/// # Errors
/// The system's error.
pub fn tables(family: Family) -> io::Result<Vec<String>> {
    // `/proc/net` shows the namespace of the process's main thread
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match std::fs::read_to_string(path) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Number of entries of a newly created table: the policy of each built-in chain, and the table's end.
pub fn empty(table: Table) -> u32 {
    match table {
        Table::Filter => 4,
        Table::Nat => 5,
        Table::Mangle => 6,
    }
}

/// Reads the size of a table in the calling thread's network namespace; `None` if it does not exist. The kernel would create a
/// missing table on this query, so existence is checked first.
///
/// # Errors
/// The system's error; `PermissionDenied` without `CAP_NET_ADMIN`.
pub fn info(family: Family, table: Table) -> io::Result<Option<TableInfo>> {
    if !tables(family)?.iter().any(|name| name == table.name()) {
        return Ok(None);
    }
    match get_info(family, table) {
        Ok(info) => Ok(Some(TableInfo { entries: info.entries, bytes: info.bytes })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[expect(unsafe_code, reason = "no safe wrapper has this option")]
fn get_info(family: Family, table: Table) -> io::Result<GetInfo> {
    let (address_family, level) = match family {
        Family::V4 => (AddressFamily::INET, libc::SOL_IP),
        Family::V6 => (AddressFamily::INET6, libc::SOL_IPV6),
    };
    let socket = rustix::net::socket(address_family, SocketType::DGRAM, None)?;
    let mut info =
        GetInfo { name: [0; 32], valid_hooks: 0, hook_entry: [0; 5], underflow: [0; 5], entries: 0, bytes: 0 };
    info.name.iter_mut().zip(table.name().bytes()).for_each(|(place, byte)| *place = byte);
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the descriptor is open while `socket` lives; the pointers are to a struct of `length` bytes, all of which may
    // have any value, and to its length; both outlive the call. The kernel writes no more than `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, GET_INFO, (&raw mut info).cast(), &raw mut length) };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}
