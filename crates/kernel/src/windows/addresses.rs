//! Unicast addresses of network interfaces, by the IP Helper API (`netioapi.h`).
//!
//! Creating and deleting an address are looked up when they are called: Wine 8 lacks both, and a program that is linked with a
//! missing function is ended by its call. The look-up makes that an error.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR, WIN32_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToAlias, FreeMibTable, GetUnicastIpAddressTable,
    MIB_UNICASTIPADDRESS_ROW, MIB_UNICASTIPADDRESS_TABLE,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6, AF_UNSPEC, IpDadStatePreferred, SOCKADDR_INET};
use windows_sys::Win32::System::LibraryLoader::{GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW};

use crate::interface::{AddressEffect, InterfaceAddresses, LocalAddress};

/// The most characters of an interface's alias (`NDIS_IF_MAX_STRING_SIZE`), and the terminating zero.
const ALIAS_CHARACTERS: usize = 257;
/// An address without an end (`INFINITE`).
const FOREVER: u32 = u32::MAX;

/// The addresses of this machine's interfaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct IpHelper;

/// The locally unique identifier of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Luid(u64);

/// A function that takes one row: `CreateUnicastIpAddressEntry` or `DeleteUnicastIpAddressEntry`.
type RowFunction = unsafe extern "system" fn(*const MIB_UNICASTIPADDRESS_ROW) -> WIN32_ERROR;
/// `InitializeUnicastIpAddressEntry`.
type RowInitializer = unsafe extern "system" fn(*mut MIB_UNICASTIPADDRESS_ROW);

// === impl IpHelper ===

impl InterfaceAddresses for IpHelper {
    #[expect(unsafe_code, reason = "the functions of the IP Helper API take pointers")]
    fn add(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect> {
        let luid = Luid::of(interface)?;
        let (create, initialize) =
            (function(c"CreateUnicastIpAddressEntry")?, function(c"InitializeUnicastIpAddressEntry")?);
        // SAFETY: these are the functions of this name, whose signatures the types state (netioapi.h).
        let (create, initialize): (RowFunction, RowInitializer) =
            unsafe { (std::mem::transmute(create), std::mem::transmute(initialize)) };
        let mut row = MIB_UNICASTIPADDRESS_ROW::default();
        // SAFETY: the function writes one row, which is alive.
        unsafe { initialize(&raw mut row) };
        identify(&mut row, luid, address);
        row.OnLinkPrefixLength = if address.is_ipv4() { 32 } else { 128 };
        row.SkipAsSource = true;
        row.ValidLifetime = FOREVER;
        row.PreferredLifetime = FOREVER;
        // No search for duplicates, which takes seconds: every node has these addresses.
        row.DadState = IpDadStatePreferred;
        // SAFETY: the function reads one initialised row, which is alive.
        match unsafe { create(&raw const row) } {
            NO_ERROR => Ok(AddressEffect::Made),
            ERROR_OBJECT_ALREADY_EXISTS => Ok(AddressEffect::None),
            error => Err(of_code(error)),
        }
    }

    #[expect(unsafe_code, reason = "the functions of the IP Helper API take pointers")]
    fn remove(&mut self, interface: &str, address: IpAddr) -> io::Result<AddressEffect> {
        let luid = Luid::of(interface)?;
        let delete = function(c"DeleteUnicastIpAddressEntry")?;
        // SAFETY: this is the function of this name, whose signature the type states (netioapi.h).
        let delete: RowFunction = unsafe { std::mem::transmute(delete) };
        let mut row = MIB_UNICASTIPADDRESS_ROW::default();
        identify(&mut row, luid, address);
        // SAFETY: the function reads one row, which is alive.
        match unsafe { delete(&raw const row) } {
            NO_ERROR => Ok(AddressEffect::Made),
            ERROR_NOT_FOUND => Ok(AddressEffect::None),
            error => Err(of_code(error)),
        }
    }

    fn list(&mut self, interface: &str) -> io::Result<Vec<LocalAddress>> {
        let luid = Luid::of(interface)?;
        Ok(table()?.into_iter().filter(|(of, _)| *of == luid).map(|(_, address)| address).collect())
    }
}

/// True if the system has the function that adds an address. Wine 8 lacks it.
#[must_use]
pub fn can_add() -> bool {
    function(c"CreateUnicastIpAddressEntry").is_ok()
}

/// The addresses of all interfaces.
///
/// # Errors
/// The system's error.
pub fn all() -> io::Result<Vec<LocalAddress>> {
    Ok(table()?.into_iter().map(|(_, address)| address).collect())
}

/// The aliases of the interfaces that have an address, sorted.
///
/// # Errors
/// The system's error.
pub fn interfaces() -> io::Result<Vec<String>> {
    let mut aliases: Vec<String> = table()?.into_iter().filter_map(|(luid, _)| luid.alias()).collect();
    aliases.sort_unstable();
    aliases.dedup();
    Ok(aliases)
}

/// The system's table of unicast addresses.
#[expect(unsafe_code, reason = "the table is memory of the system, read by a pointer")]
fn table() -> io::Result<Vec<(Luid, LocalAddress)>> {
    let mut table: *mut MIB_UNICASTIPADDRESS_TABLE = ptr::null_mut();
    // SAFETY: the function writes one pointer, which is alive.
    let error = unsafe { GetUnicastIpAddressTable(AF_UNSPEC, &raw mut table) };
    if error != NO_ERROR {
        return Err(of_code(error));
    }
    // SAFETY: after success the pointer leads to a table whose first field is the number of rows that follow; it is read before it
    // is freed, once, as the API wants it. A row's address has one of the families whose structure the union holds.
    unsafe {
        let first = (&raw const (*table).Table).cast::<MIB_UNICASTIPADDRESS_ROW>();
        let count = usize::try_from((*table).NumEntries).unwrap_or(0);
        let rows = (0..count).map(|position| first.add(position).read());
        let found = rows.filter_map(|row| {
            let local = LocalAddress { address: decode(&row.Address)?, never_source: row.SkipAsSource };
            Some((Luid(row.InterfaceLuid.Value), local))
        });
        let found = found.collect();
        FreeMibTable(table.cast());
        Ok(found)
    }
}

/// Sets the key of a row.
fn identify(row: &mut MIB_UNICASTIPADDRESS_ROW, luid: Luid, address: IpAddr) {
    row.InterfaceLuid = NET_LUID_LH { Value: luid.0 };
    row.Address = encode(address);
}

fn encode(address: IpAddr) -> SOCKADDR_INET {
    let mut encoded = SOCKADDR_INET::default();
    match address {
        IpAddr::V4(address) => {
            encoded.Ipv4.sin_family = AF_INET;
            encoded.Ipv4.sin_addr.S_un.S_addr = u32::from_ne_bytes(address.octets());
        }
        IpAddr::V6(address) => {
            encoded.Ipv6.sin6_family = AF_INET6;
            encoded.Ipv6.sin6_addr.u.Byte = address.octets();
        }
    }
    encoded
}

#[expect(unsafe_code, reason = "a union of the structures of both families")]
fn decode(encoded: &SOCKADDR_INET) -> Option<IpAddr> {
    // SAFETY: all structures begin with the family, which says which of them this is; their fields are integers.
    unsafe {
        match encoded.si_family {
            AF_INET => Some(Ipv4Addr::from(encoded.Ipv4.sin_addr.S_un.S_addr.to_ne_bytes()).into()),
            AF_INET6 => Some(Ipv6Addr::from(encoded.Ipv6.sin6_addr.u.Byte).into()),
            _other => None,
        }
    }
}

// === impl Luid ===

impl Luid {
    /// The interface of this alias, the name that the system's settings show.
    #[expect(unsafe_code, reason = "the functions of the IP Helper API take pointers")]
    fn of(alias: &str) -> io::Result<Self> {
        let wide: Vec<u16> = alias.encode_utf16().chain([0]).collect();
        let mut luid = NET_LUID_LH::default();
        // SAFETY: the text ends with a zero, and the function writes one identifier; both are alive.
        let error = unsafe { ConvertInterfaceAliasToLuid(wide.as_ptr(), &raw mut luid) };
        // SAFETY: a union of an integer and its bits.
        let found = unsafe { luid.Value };
        if error == NO_ERROR && !alias.contains('\0') {
            return Ok(Self(found));
        }
        let known = interfaces().unwrap_or_default().join(", ");
        Err(io::Error::new(io::ErrorKind::NotFound, format!("no such interface; those with addresses are: {known}")))
    }

    #[expect(unsafe_code, reason = "the functions of the IP Helper API take pointers")]
    fn alias(self) -> Option<String> {
        let mut wide = [0; ALIAS_CHARACTERS];
        let luid = NET_LUID_LH { Value: self.0 };
        // SAFETY: the function writes at most this number of characters, the last a zero.
        let error = unsafe { ConvertInterfaceLuidToAlias(&raw const luid, wide.as_mut_ptr(), wide.len()) };
        let length = wide.iter().position(|&character| character == 0).unwrap_or(wide.len());
        (error == NO_ERROR).then(|| String::from_utf16_lossy(wide.get(..length).unwrap_or_default()))
    }
}

/// A function of the IP Helper API, by its name.
#[expect(unsafe_code, reason = "looks a function up in a library of the system")]
fn function(name: &CStr) -> io::Result<unsafe extern "system" fn() -> isize> {
    let library: Vec<u16> = "iphlpapi.dll\0".encode_utf16().collect();
    // SAFETY: both texts end with a zero. The library, of the system's folder, is never unloaded.
    let found = unsafe {
        let library = LoadLibraryExW(library.as_ptr(), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32);
        if library.is_null() {
            return Err(io::Error::last_os_error());
        }
        GetProcAddress(library, name.as_ptr().cast())
    };
    found.ok_or_else(|| {
        let text = format!("this system has no function {} (iphlpapi.dll)", name.to_string_lossy());
        io::Error::new(io::ErrorKind::Unsupported, text)
    })
}

/// The error of a function that returns its code.
fn of_code(code: WIN32_ERROR) -> io::Error {
    io::Error::from_raw_os_error(code.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address)), Some(address));
        }
    }

    #[test]
    fn loopback_is_listed_by_its_interface() {
        let loopback: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert!(all().unwrap().iter().any(|local| local.address == loopback));
        let has = |alias: &String| IpHelper.list(alias).unwrap().iter().any(|local| local.address == loopback);
        assert!(interfaces().unwrap().iter().any(has));
    }

    #[test]
    fn an_unknown_interface_is_refused_with_the_known_ones() {
        let error = IpHelper.add("no such interface", Ipv4Addr::LOCALHOST.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let known = interfaces().unwrap().join(", ");
        assert!(!known.is_empty() && error.to_string().contains(&known), "{error}");
    }

    /// Changes the machine where the system has the functions, and changes it back; Wine 8 lacks them, which is an error of its own.
    #[test]
    fn an_address_comes_and_goes_or_the_missing_function_is_named() {
        let interface = interfaces().unwrap().into_iter().next().unwrap();
        let address: IpAddr = "198.51.100.201".parse().unwrap();
        let listed = || IpHelper.list(&interface).unwrap().into_iter().find(|local| local.address == address);
        match IpHelper.add(&interface, address) {
            Ok(change) => {
                assert_eq!(change, AddressEffect::Made);
                assert_eq!(listed(), Some(LocalAddress { address, never_source: true }));
                assert_eq!(IpHelper.add(&interface, address).unwrap(), AddressEffect::None);
                assert_eq!(IpHelper.remove(&interface, address).unwrap(), AddressEffect::Made);
                assert_eq!(listed(), None);
                assert_eq!(IpHelper.remove(&interface, address).unwrap(), AddressEffect::None);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("CreateUnicastIpAddressEntry"), "{error}");
                let error = IpHelper.remove(&interface, address).unwrap_err();
                assert!(error.to_string().contains("DeleteUnicastIpAddressEntry"), "{error}");
            }
        }
    }
}
