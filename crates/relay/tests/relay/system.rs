//! The operating system's part of the tests.

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    add_address, descriptors, ends_by_reset, isolated, many, reports_refused_datagrams, reset, resident, run,
};
#[cfg(windows)]
pub(crate) use windows::{descriptors, ends_by_reset, isolated, many, reports_refused_datagrams, reset, resident};

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::net::TcpStream;
    use std::process::Command;
    use std::sync::{Mutex, PoisonError};

    use ferry_kernel::netns::Namespace;

    use crate::running::{Running, config, eventually};

    /// One test at a time: they count the descriptors of the process.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Runs a test in a network namespace of its own, and checks that it leaves no descriptor open.
    pub(crate) fn isolated(test: impl FnOnce() + Send) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        ferry_relay::raise_limit(200_000);
        let namespace = Namespace::new().expect("a network namespace, which needs root");
        namespace.raise_loopback().unwrap();
        // The first runtime of a process opens a pipe for signals that stays.
        drop(Running::new(config()));
        let before = descriptors();
        namespace.run(test).unwrap();
        eventually("descriptors are as before", || descriptors().is_subset(&before));
    }

    /// The open descriptors of this process, except the one that lists them.
    pub(crate) fn descriptors() -> BTreeSet<String> {
        let open = |name: &String| std::fs::read_link(format!("/proc/self/fd/{name}")).is_ok();
        let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.into_iter().filter(open).collect()
    }

    /// Resident memory of this process, in bytes.
    pub(crate) fn resident() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// Resets a connection, whoever else has the descriptor (tcp_disconnect in the kernel).
    pub(crate) fn reset(stream: TcpStream) {
        rustix::net::connect_unspec(&stream).unwrap();
    }

    /// True if an idle socket is ready with an error once a datagram was refused.
    pub(crate) fn reports_refused_datagrams() -> bool {
        true
    }

    /// True if a reset connection ends by a reset on the other side.
    pub(crate) fn ends_by_reset() -> bool {
        true
    }

    /// The number of clients in a test.
    pub(crate) fn many(number: usize) -> usize {
        number
    }

    /// Gives loopback one more address of IPv6. Of IPv4 it has a whole network.
    pub(crate) fn add_address(address: &str) {
        // Without `nodad` the kernel first looks for a duplicate of the address, and refuses to bind it until then.
        run("ip", &["address", "add", address, "dev", "lo", "nodad"]);
    }

    /// Runs a program, and returns what it prints.
    pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[cfg(windows)]
mod windows {
    use std::net::TcpStream;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use ferry_kernel::windows::process;
    use socket2::SockRef;

    use crate::running::{Running, config, eventually};

    /// One test at a time: they count the handles of the process.
    static ALONE: Mutex<()> = Mutex::new(());
    /// Handles that the system and the test harness open on the side: threads, and what they wait for.
    const ON_THE_SIDE: usize = 16;

    /// Runs a test, and checks that it leaves no handle open; Wine 8 counts none.
    pub(crate) fn isolated(test: impl FnOnce() + Send) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        drop(Running::new(config()));
        let before = process::handles().unwrap() as usize;
        test();
        eventually("handles are as before", || process::handles().unwrap() as usize <= before + ON_THE_SIDE);
    }

    /// The open handles of this process.
    pub(crate) fn descriptors() -> Vec<()> {
        vec![(); process::handles().unwrap() as usize]
    }

    /// Resident memory of this process, in bytes.
    pub(crate) fn resident() -> usize {
        usize::try_from(process::memory().unwrap().resident_bytes).unwrap()
    }

    /// Resets a connection.
    pub(crate) fn reset(stream: TcpStream) {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// True if an idle socket is ready with an error once a datagram was refused. Wine's fails with the next datagram.
    pub(crate) fn reports_refused_datagrams() -> bool {
        !is_wine()
    }

    /// True if a reset connection ends by a reset on the other side. Wine closes the connection in order just before.
    pub(crate) fn ends_by_reset() -> bool {
        !is_wine()
    }

    fn is_wine() -> bool {
        std::path::Path::new(r"C:\windows\system32\winecfg.exe").exists()
    }

    /// The number of clients in a test: each call of a socket is a message to another process under Wine.
    pub(crate) fn many(number: usize) -> usize {
        number / 20
    }
}
