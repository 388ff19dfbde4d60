//! The parts that the tests share: folders of manifests, a running proxy, requests, and waiting for a state.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// After this a state that is waited for never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The executable.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kube-proxy"))
}

/// Runs a command to its end; returns its exit code and all that it printed.
pub(crate) fn output(command: &mut Command) -> (i32, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&text).into_owned())
}

/// Waits for a state.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks for a path; returns the answer with its head, or `None` if there is none.
pub(crate) fn get(server: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(server).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// An address of loopback that nothing listens at.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// A folder of manifests, removed at the end.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

/// A proxy in a console, ended with the test.
pub(crate) struct Proxy {
    pub(crate) healthz: SocketAddr,
    pub(crate) metrics: SocketAddr,
    child: Child,
}

// === impl Folder ===

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ferry-windows-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }

    /// The flag that has the proxy read it.
    pub(crate) fn flag(&self) -> String {
        format!("--manifests={}", self.path.display())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.path));
    }
}

// === impl Proxy ===

impl Proxy {
    pub(crate) fn start(folder: &Folder, flags: &[&str]) -> Self {
        let (healthz, metrics) = (free_address(), free_address());
        let mut command = program();
        command.args(["--hostname-override=node-1", &folder.flag()]).args(flags);
        command.arg(format!("--healthz-bind-address={healthz}")).arg(format!("--metrics-bind-address={metrics}"));
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        Self { healthz, metrics, child }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
