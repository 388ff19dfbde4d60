//! Queries to the kernel about the tables of the legacy variant (`ip_tables`, `ip6_tables`).

use std::io;
use std::os::fd::AsRawFd;

use ferry_family::Family;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Table;

/// `IPT_SO_GET_INFO` in linux/netfilter_ipv4/ip_tables.h, `IP6T_SO_GET_INFO` in linux/netfilter_ipv6/ip6_tables.h
const GET_INFO: libc::c_int = 64;

/// `IPT_SO_GET_ENTRIES`, `IP6T_SO_GET_ENTRIES`
const GET_ENTRIES: libc::c_int = 65;
/// `NF_INET_FORWARD`
const FORWARD: usize = 2;
/// Offset of the entries in `struct ipt_get_entries`, behind a name and a size. Entries have 64-bit counters.
const ENTRIES_AT: usize = (NAME_BYTES + size_of::<u32>()).next_multiple_of(align_of::<u64>());
/// `XT_TABLE_MAXNAMELEN`
const NAME_BYTES: usize = 32;
/// A larger table is not read: seventy thousand rules.
const MAX_ENTRIES_BYTES: u32 = 16 << 20;

/// The size of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// number of entries: rules, and the heads and ends of chains
    pub entries: u32,
    /// size of the entries in bytes
    pub bytes: u32,
}

/// The entries of a table, and where those of its built-in chain `FORWARD` are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// `struct ipt_entry` or `struct ip6t_entry` one after another
    pub bytes: Vec<u8>,
    /// offset of the first entry of `FORWARD`
    pub forward: usize,
    /// offset of the entry that is the policy of `FORWARD`
    pub forward_policy: usize,
}

/// The part that is read of `struct ipt_getinfo` and `struct ip6t_getinfo`: behind the name, in this order.
struct GetInfo {
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    entries: u32,
    bytes: u32,
}

/// Size of these structs: a name and thirteen numbers.
const INFO_BYTES: usize = NAME_BYTES + 13 * size_of::<u32>();

/// Lists the names of the tables in the calling thread's network namespace: the kernel creates a table when a legacy tool first
/// requests it. Empty if this kernel has no legacy tables.
///
/// # Errors
/// The system's error; `PermissionDenied`, with the file and the remedy, if only others may read the list.
pub fn tables(family: Family) -> io::Result<Vec<String>> {
    // `/proc/net` shows the namespace of the process's main thread
    let path = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match std::fs::read_to_string(path) {
        Ok(names) => Ok(names.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // Only user 0 may read the file; the kernel doesn't ask for `CAP_NET_ADMIN`.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(io::Error::new(error.kind(), format!("reading {path} needs user 0 or CAP_DAC_READ_SEARCH: {error}")))
        }
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

/// Reads the entries of table `filter` in the calling thread's network namespace; `None` if it does not exist.
///
/// # Errors
/// The system's error; `PermissionDenied` without `CAP_NET_ADMIN`, `WouldBlock` if the table has just been replaced, and
/// `FileTooLarge` beyond 16 MiB.
pub fn filter_entries(family: Family) -> io::Result<Option<Entries>> {
    let table = Table::Filter;
    if !tables(family)?.iter().any(|name| name == table.name()) {
        return Ok(None);
    }
    let info = match get_info(family, table) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        info => info?,
    };
    if info.bytes > MAX_ENTRIES_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let size = info.bytes as usize;
    let mut buffer = vec![0; ENTRIES_AT + size];
    let head = name_of(table).into_iter().chain(info.bytes.to_ne_bytes());
    buffer.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
    get_option(family, GET_ENTRIES, &mut buffer)?;
    let offset = |offsets: [u32; 5]| offsets.get(FORWARD).map_or(0, |offset| *offset as usize);
    Ok(Some(Entries {
        bytes: buffer.split_off(ENTRIES_AT),
        forward: offset(info.hook_entry),
        forward_policy: offset(info.underflow),
    }))
}

fn name_of(table: Table) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    name.iter_mut().zip(table.name().bytes()).for_each(|(place, byte)| *place = byte);
    name
}

fn get_info(family: Family, table: Table) -> io::Result<GetInfo> {
    let mut buffer = [0; INFO_BYTES];
    buffer.iter_mut().zip(name_of(table)).for_each(|(place, byte)| *place = byte);
    get_option(family, GET_INFO, &mut buffer)?;
    let (_, numbers) = buffer.split_at(NAME_BYTES);
    let mut numbers = numbers.as_chunks().0.iter().map(|bytes| u32::from_ne_bytes(*bytes));
    let mut next = || numbers.next().unwrap_or(0);
    let _valid_hooks = next();
    Ok(GetInfo {
        hook_entry: [next(), next(), next(), next(), next()],
        underflow: [next(), next(), next(), next(), next()],
        entries: next(),
        bytes: next(),
    })
}

/// Reads an option of the socket layer of `ip_tables` into a buffer, which holds the request.
#[expect(unsafe_code, reason = "no safe wrapper has these options")]
fn get_option(family: Family, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let (address_family, level) = match family {
        Family::V4 => (AddressFamily::INET, libc::SOL_IP),
        Family::V6 => (AddressFamily::INET6, libc::SOL_IPV6),
    };
    let socket = rustix::net::socket_with(address_family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the descriptor is open while `socket` lives; the pointers are to `length` bytes, all of which may have any value,
    // and to that length; both outlive the call. The kernel writes no more than `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &raw mut length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
