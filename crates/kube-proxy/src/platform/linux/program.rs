//! This program as a process: its memory, its CPU profile, and its replacement by another run of the executable.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::sysctl;

pub use ferry_kernel::memory::{share_one_arena, trim as trim_memory};
pub use ferry_kernel::process::{
    HandedOver, end_with_thread, handed_over, memory as hand_over_memory, replace as replace_program,
};
pub use ferry_kernel::profile::{Recording, Samples};

/// An open socket that another process can have, too.
pub type OpenSocket = OwnedFd;

/// A new run can take the place of the running one.
pub const IS_REPLACEABLE: bool = true;

/// The file of this program, for a child process that runs it, too.
///
/// # Errors
/// None here.
pub fn own_program() -> io::Result<PathBuf> {
    Ok(ferry_kernel::process::program())
}

/// The parts of files in this process's memory, in the format of `/proc/PID/maps` (`proc(5)`).
///
/// # Errors
/// The system's.
pub fn memory_maps() -> io::Result<String> {
    std::fs::read_to_string("/proc/self/maps")
}

/// True if the kernel has this family.
pub fn supports(family: Family) -> bool {
    family == Family::V4 || sysctl::ipv6_available()
}

/// True for the error of a request to a subsystem that this kernel lacks.
pub fn lacks_subsystem(error: &io::Error) -> bool {
    ErrorClass::of(error).lacks_subsystem()
}
