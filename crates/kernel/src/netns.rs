//! Network namespaces.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::link;

/// The switch of the estimation of rates of a namespace's virtual servers (`Documentation/networking/ipvs-sysctl.rst`); absent
/// while the module isn't loaded.
const ESTIMATION: &str = "/proc/sys/net/ipv4/vs/run_estimation";
/// The loopback interface is always the first one of a namespace.
const LOOPBACK_INDEX: u32 = 1;

/// A network namespace, kept alive by a file descriptor. A new one ends when this is dropped and no thread runs in it.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

// === impl Namespace ===

impl Namespace {
    /// Creates a network namespace whose only interface is loopback, down. The calling thread stays in its own.
    ///
    /// Rates of virtual servers are not estimated there, if IPVS is loaded already and its parameters can be set: the thread that does so crashes (Linux 6.12)
    /// if a namespace with 50 servers and destinations ends while it still measures what an estimate costs.
    ///
    /// # Errors
    /// The system's error; `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn new() -> io::Result<Self> {
        on_a_thread(|| {
            unshare_network()?;
            match std::fs::write(ESTIMATION, "0") {
                Err(error) if !is_without(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
            current()
        })?
    }

    /// Runs `action` on a new thread within the namespace and waits for it. Threads and processes started there inherit the
    /// namespace. A panic of the action is resumed on the calling thread.
    ///
    /// # Errors
    /// The system's error if the namespace cannot be entered.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_a_thread(|| {
            self.enter()?;
            Ok(action())
        })?
    }

    /// Moves the calling thread into the namespace, permanently.
    ///
    /// # Errors
    /// The system's error.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Brings the loopback interface up.
    ///
    /// # Errors
    /// The system's error.
    pub fn raise_loopback(&self) -> io::Result<()> {
        self.run(|| link::raise(LOOPBACK_INDEX))?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the network namespace of the calling thread.
///
/// # Errors
/// The system's error.
pub fn current() -> io::Result<Namespace> {
    Ok(Namespace { fd: File::open("/proc/thread-self/ns/net")?.into() })
}

/// True if there is no such parameter, or it can't be set here, as in a container without privileges: namespaces without virtual servers don't
/// need it.
fn is_without(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), NotFound | PermissionDenied | ReadOnlyFilesystem)
}

#[expect(
    unsafe_code,
    reason = "unsharing descriptors or memory would affect other threads; a network namespace does not"
)]
fn unshare_network() -> io::Result<()> {
    // SAFETY: only the network namespace is unshared, which is a property of the calling thread alone; neither file
    // descriptors nor memory are unshared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

fn on_a_thread<T: Send>(action: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, action)?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn name_of_current() -> String {
        std::fs::read_link("/proc/thread-self/ns/net").unwrap().to_string_lossy().into_owned()
    }

    #[test]
    fn a_namespace_is_new_and_the_caller_stays() {
        let before = name_of_current();
        let (first, second) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let names = [first.run(name_of_current).unwrap(), second.run(name_of_current).unwrap()];
        assert_eq!(name_of_current(), before);
        assert_ne!(names[0], names[1]);
        assert!(!names.contains(&before));
        let again = first.run(|| current().unwrap()).unwrap();
        assert_eq!(again.run(name_of_current).unwrap(), names[0]);
    }

    #[test]
    fn child_processes_inherit_it() {
        let namespace = Namespace::new().unwrap();
        let child = || Command::new("readlink").arg("/proc/self/ns/net").output().unwrap().stdout;
        let seen = String::from_utf8(namespace.run(child).unwrap()).unwrap();
        assert_eq!(seen.trim(), namespace.run(name_of_current).unwrap());
    }

    #[test]
    fn loopback_comes_up() {
        let namespace = Namespace::new().unwrap();
        let connects = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().connect("127.0.0.1:9").is_ok();
        assert!(!namespace.run(connects).unwrap());
        namespace.raise_loopback().unwrap();
        assert!(namespace.run(connects).unwrap());
    }
}
