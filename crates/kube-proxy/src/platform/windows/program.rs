//! This program as a process: its memory, its profile, and the next run in its place, which is impossible here.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{Ipv6Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::windows::io::OwnedSocket;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ferry_api::object::Family;

/// An open socket.
pub type OpenSocket = OwnedSocket;

/// No new run can take the place of the running one: a changed configuration takes effect at the next start.
pub const IS_REPLACEABLE: bool = false;

/// The content that a run passes to the one that replaces it.
#[derive(Debug, Default)]
pub struct HandedOver {
    /// the configuration
    pub configuration: Option<File>,
    /// the objects that are served
    pub objects: Option<File>,
    /// listening sockets, each with its name
    pub sockets: Vec<(String, OpenSocket)>,
}

/// A recording of stacks, of which there is none here.
#[derive(Debug)]
pub struct Recording(Infallible);

/// The stacks of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// stacks: addresses of instructions, the innermost first
    pub stacks: Vec<Vec<u64>>,
    /// samples that didn't fit
    pub lost: u64,
    /// the processor time that a sample stands for
    pub period: Duration,
}

/// Returns freed heap memory to the system, which the heap does by itself.
pub fn trim_memory() {}

/// Makes all threads allocate from one arena: the process has one heap.
pub fn share_one_arena() {}

/// A start has nothing from a run before.
pub fn handed_over() -> HandedOver {
    HandedOver::default()
}

/// Memory that can be handed over.
///
/// # Errors
/// Always: there is no such memory.
pub fn hand_over_memory() -> io::Result<File> {
    Err(unsupported("memory that another run inherits"))
}

/// Replaces the program by a new run of it.
pub fn replace_program(_arguments: &[OsString], _handed: &HandedOver) -> io::Error {
    unsupported("a program that replaces the running one")
}

/// The file of this program, for a child process that asks it by the control socket.
///
/// # Errors
/// Always: there is no such socket.
pub fn own_program() -> io::Result<PathBuf> {
    Err(unsupported("control socket of kube-proxy"))
}

/// A child process isn't tied to a thread of its parent here.
pub fn end_with_thread(_command: &mut Command) {}

/// The parts of files in this process's memory.
///
/// # Errors
/// Always: the system has no such text.
pub fn memory_maps() -> io::Result<String> {
    Err(unsupported("/proc/PID/maps"))
}

/// True if the system has this family.
pub fn supports(family: Family) -> bool {
    family == Family::V4 || UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

/// True for the error of a request to a subsystem that this system lacks.
pub fn lacks_subsystem(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
}

fn unsupported(thing: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("Windows has no {thing}"))
}

// === impl Recording ===

impl Recording {
    /// Begins to record.
    ///
    /// # Errors
    /// Always: stacks are sampled by signals, which this system lacks.
    pub fn start(_frequency: NonZeroU32) -> io::Result<Self> {
        Err(unsupported("signals that sample stacks"))
    }

    /// Ends the recording.
    pub fn finish(self) -> Samples {
        match self.0 {}
    }
}
