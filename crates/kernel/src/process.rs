//! Replaces the running program by a new run of it (`execve(2)`).
//!
//! The caller can pass a configuration to the new run, which would otherwise read it from a file that may have changed again, and
//! the objects that it serves. The process keeps its number, its environment, its standard streams and what a service manager
//! knows of it; threads end, and sockets are closed. Handlers of signals are lost, too: until the new run has its own, signals
//! whose default would end it are blocked.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::profile;

/// The program of this process, also if its file was replaced or deleted since.
const RUNNING: &str = "/proc/self/exe";
/// Signals that log rotation, timers and operators send to a running program.
const PASSING: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM];
/// Signals that end it. The kernel drops them for the first process of a container as long as it has no handlers.
const ENDING: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// The content that a run passes to the one that replaces it.
#[derive(Debug, Default)]
pub struct HandedOver {
    /// the configuration
    pub configuration: Option<File>,
    /// the objects that are served
    pub objects: Option<File>,
    /// open listening sockets, each with its name, which has no line break
    pub sockets: Vec<(String, OwnedFd)>,
}

/// The variables of the new run's environment with the numbers of the descriptors of what is handed over.
const CONFIGURATION: &str = "FERRY_CONFIGURATION";
const OBJECTS: &str = "FERRY_OBJECTS";
/// The memory with the list of sockets: a line for each, its number and its name.
const SOCKETS: &str = "FERRY_SOCKETS";
/// The variables by which a service manager passes sockets (`sd_listen_fds(3)`), from this number on.
const LISTEN: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
const FIRST_PASSED: RawFd = 3;
/// The name of the memory that has it.
const MEMORY: &str = "ferry-handed-over";

/// Replaces the program by a new run of it with these arguments, the first of which is its name, and hands over what is in
/// [`memory`]. Returns only an error: then the program has to end, since some of its signals are blocked and SIGPIPE may end it.
#[expect(unsafe_code, reason = "blocks signals between the standard library's preparations and execve(2)")]
pub fn replace(arguments: &[OsString], handed: &HandedOver) -> io::Error {
    let mut command = Command::new(program());
    let sockets = match list(&handed.sockets) {
        Ok(sockets) => sockets,
        Err(error) => return error,
    };
    for name in LISTEN {
        command.env_remove(name);
    }
    for (name, memory) in [(CONFIGURATION, &handed.configuration), (OBJECTS, &handed.objects), (SOCKETS, &sockets)] {
        match memory {
            Some(memory) => command.env(name, memory.as_raw_fd().to_string()),
            None => command.env_remove(name),
        };
    }
    if let Some((name, rest)) = arguments.split_first() {
        command.arg0(name).args(rest);
    }
    // SAFETY: the closure calls only functions that are safe between fork and exec; here there is no fork.
    unsafe {
        command.pre_exec(|| {
            mask(libc::SIG_BLOCK, &PASSING)?;
            mask(libc::SIG_BLOCK, &ENDING)?;
            ignore_broken_pipes();
            profile::stop_before_exec();
            Ok(())
        })
    };
    command.exec()
}

/// Returns what the former run passed to [`replace`], each to be read from its beginning. The descriptors are consumed: a
/// second call returns nothing.
#[must_use]
pub fn handed_over() -> HandedOver {
    HandedOver { configuration: inherited(CONFIGURATION), objects: inherited(OBJECTS), sockets: inherited_sockets() }
}

/// Has the next program inherit these sockets; returns their list in memory, if there are any.
fn list(sockets: &[(String, OwnedFd)]) -> io::Result<Option<File>> {
    if sockets.is_empty() {
        return Ok(None);
    }
    let mut text = String::new();
    for (name, socket) in sockets {
        fcntl_setfd(socket, FdFlags::empty())?;
        text += &format!("{} {name}\n", socket.as_raw_fd());
    }
    let mut memory = memory()?;
    memory.write_all(text.as_bytes())?;
    Ok(Some(memory))
}

/// The sockets of the former run, and those that a service manager has kept for this program. Whatever is no socket is left alone.
fn inherited_sockets() -> Vec<(String, OwnedFd)> {
    let mut list = String::new();
    let read = inherited(SOCKETS).map(|mut memory| memory.read_to_string(&mut list));
    if matches!(read, Some(Err(_))) {
        list.clear();
    }
    let of_former =
        list.lines().filter_map(|line| line.split_once(' ')).map(|(number, name)| (number.parse().ok(), name));
    let of_former = of_former.filter_map(|(number, name)| Some((name.to_owned(), socket(number?)?)));
    of_former.chain(passed()).collect()
}

/// The sockets that a service manager has passed, by `sd_listen_fds(3)`.
fn passed() -> Vec<(String, OwnedFd)> {
    let [pid, count, names] = LISTEN.map(|name| std::env::var(name).unwrap_or_default());
    if pid.parse() != Ok(std::process::id()) {
        return Vec::new();
    }
    let count: RawFd = count.parse().unwrap_or_default();
    let numbers = FIRST_PASSED..FIRST_PASSED.saturating_add(count);
    numbers.zip(names.split(':')).filter_map(|(number, name)| Some((name.to_owned(), socket(number)?))).collect()
}

/// Takes an inherited descriptor, if it is a socket that nothing in this process has closed.
#[expect(unsafe_code, reason = "takes an inherited descriptor")]
fn socket(number: RawFd) -> Option<OwnedFd> {
    let target = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    if !target.to_string_lossy().starts_with("socket:") {
        return None;
    }
    // SAFETY: the descriptor is open, and whoever has started the program says that it is for it.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
    Some(socket)
}

/// The memory whose descriptor this variable has.
#[expect(unsafe_code, reason = "takes an inherited descriptor")]
fn inherited(variable: &str) -> Option<File> {
    let number: RawFd = std::env::var(variable).ok()?.parse().ok()?;
    let target = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    if !target.to_string_lossy().starts_with(&format!("/memfd:{MEMORY}")) {
        return None;
    }
    // SAFETY: the descriptor is open, and is the one of that memory, which nothing else in this process has.
    let mut memory = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    // Children of this run must not have it.
    fcntl_setfd(&memory, FdFlags::CLOEXEC).ok()?;
    memory.rewind().ok().map(|()| memory)
}

/// Has the kernel kill the program of this command once the thread that starts it has ended, for whatever reason.
#[expect(unsafe_code, reason = "the kernel forgets the signal in a new process, so that it has to set it itself")]
pub fn end_with_thread(command: &mut Command) {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?);
    // SAFETY: the closure makes one system call between fork and exec; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(ask) };
}

/// Empty memory that can be handed over: an executed program inherits it.
///
/// # Errors
/// The system's.
pub fn memory() -> io::Result<File> {
    Ok(File::from(memfd_create(MEMORY, MemfdFlags::empty())?))
}

/// Accepts SIGHUP, SIGUSR1, SIGUSR2 and SIGALRM again, which [`replace`] has blocked; to be called by the main thread once they
/// have handlers.
///
/// # Errors
/// The system's.
pub fn accept_passing_signals() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, &PASSING)
}

/// The same for SIGTERM and SIGINT, which may have no handler where the kernel's own action is wanted.
///
/// # Errors
/// The system's.
pub fn accept_ending_signals() -> io::Result<()> {
    mask(libc::SIG_UNBLOCK, &ENDING)
}

/// The path of the program's file, by which tools name the process; `/proc/self/exe`, which they show as `exe`, if another file is
/// there.
#[must_use]
pub fn program() -> PathBuf {
    let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let running = PathBuf::from(RUNNING);
    match fs::read_link(&running) {
        Ok(path) if identity(&path).is_ok_and(|found| identity(&running).is_ok_and(|own| own == found)) => path,
        _ => running,
    }
}

/// Ignores SIGPIPE, as the standard library does at a start: before execve(2) it restores the kernel's action, which other
/// threads that still run would be subject to.
#[expect(unsafe_code, reason = "the C library's function")]
fn ignore_broken_pipes() {
    // SAFETY: the disposition is one of the constants.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

#[expect(unsafe_code, reason = "the C library's functions")]
fn mask(how: libc::c_int, signals: &[libc::c_int]) -> io::Result<()> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set before it is used, and all pointers are valid for the calls.
    let error = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_program_is_found_by_its_name() {
        assert_eq!(program(), std::env::current_exe().unwrap());
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            end_with_thread(command.arg("600"));
            command.spawn().unwrap()
        });
        let status = child.join().unwrap().wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }

    #[test]
    fn nothing_is_handed_over_to_a_run_that_was_started() {
        let HandedOver { configuration, objects, sockets } = handed_over();
        assert!(configuration.is_none() && objects.is_none() && sockets.is_empty());
    }

    #[test]
    fn a_list_of_sockets_names_each_and_has_them_inherited() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.as_raw_fd();
        let sockets = vec![("gate-v4-cluster".to_owned(), OwnedFd::from(socket))];
        let mut memory = list(&sockets).unwrap().unwrap();
        let mut text = String::new();
        memory.rewind().unwrap();
        memory.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("{number} gate-v4-cluster\n"));
        assert!(!rustix::io::fcntl_getfd(&sockets[0].1).unwrap().contains(FdFlags::CLOEXEC));
        assert!(list(&[]).unwrap().is_none());
    }
}
