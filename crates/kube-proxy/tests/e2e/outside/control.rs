//! The control socket: subcommands reach the running proxy by it, follow it over changes and restarts, and work without.

use std::fmt;
use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;

use crate::support::{Answer, METRICS, Machine, Running, SERVICE, SLICE};

const QUESTION: [&str; 3] = ["explain", "svc", "shop/web"];
/// Another endpoint.
const CHANGED: (&str, &str) = ("10.244.0.7", "10.244.0.8");

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The path of a control socket. It is short, as such paths must be, so that it isn't in the machine's folder. Its folder ends with it.
pub(crate) struct Socket(String);

// === impl Socket ===

impl Socket {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ferry-control-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name).join("control.sock").display().to_string())
    }
}

impl Deref for Socket {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A proxy that was killed leaves the socket; without one there is no folder.
        let _ = fs::remove_dir_all(Path::new(&self.0).with_file_name(""));
    }
}

/// A machine with one Service, and the path of its control socket.
fn machine() -> (Machine, Socket) {
    let machine = Machine::new();
    let socket = Socket::new();
    put(&machine, SLICE);
    machine.write("manifests/service.json", SERVICE);
    (machine, socket)
}

fn put(machine: &Machine, slice: &str) {
    machine.write("manifests/slice.json", slice);
}

/// Flags that set the configuration.
const FLAGS: [&str; 2] = ["--cluster-cidr=10.244.0.0/24", "--masquerade-all"];

/// Starts the proxy with this control socket.
fn start<'a>(machine: &'a Machine, socket: &str) -> Running<'a> {
    let mut running = machine.start(&[&["--control-socket", socket], &FLAGS[..]].concat());
    running.until_synced();
    running
}

/// Asks by the control socket.
fn ask(machine: &Machine, socket: &str, arguments: &[&str]) -> Output {
    machine.output(&[arguments, &["--control-socket", socket]].concat())
}

#[test]
fn subcommands_have_configuration_and_objects_of_the_running_proxy() {
    let (machine, socket) = machine();
    let _running = start(&machine, &socket);
    assert_eq!(fs::metadata(&*socket).expect("the socket").permissions().mode() & 0o777, 0o600);
    let offline = [&["--mode=nftables", "--hostname-override=node", "--local-addresses=machine"], &FLAGS[..]].concat();
    for arguments in [
        &QUESTION[..],
        &["explain", "10.244.0.9 -> 10.96.0.1:80"],
        &["explain", "pod", "10.244.0.7", "--json"],
        &["render"],
        &["render", "--mode=iptables"],
        &["render", "--mode=ipvs"],
        &["explain", "10.244.0.9 -> 10.96.0.1:80", "--mode=iptables"],
        &["plan"],
        &["verify"],
        &["trace", "10.244.0.9 -> 10.96.0.1:80"],
    ] {
        let online = ask(&machine, &socket, arguments);
        assert!(online.status.success() && !text(&online.stderr).contains("offline"), "{arguments:?} {online:?}");
        // The mode that is asked for comes last, and wins.
        let offline = machine
            .output(&[&arguments[..1], &offline[..], &["--manifests", &machine.manifests()], &arguments[1..]].concat());
        assert!(online.stdout == offline.stdout, "{arguments:?}: {online:?}, and offline {offline:?}");
        assert!(!online.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_answer_is_of_the_present_and_over_reloads() {
    let (machine, socket) = machine();
    let document = |range: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nclusterCIDR: {range}\n---\n\
             apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\ncontrolSocket: {socket}\n"
        )
    };
    let config = machine.write("config.yaml", &document("10.244.0.0/24"));
    let mut running =
        machine.start_bare(&["--config", &config, "--manifests", &machine.manifests(), "--hostname-override=node"]);
    running.until_synced();
    let answer = || text(&ask(&machine, &socket, &QUESTION).stdout).to_owned();
    assert!(answer().contains("from pods of this node (from 10.244.0.0/24)"), "{}", answer());
    put(&machine, &SLICE.replace(CHANGED.0, CHANGED.1));
    running.until("the change", |_| answer().contains(CHANGED.1));
    machine.write("config.yaml", &document("10.245.0.0/24"));
    running.until("the reload", |_| answer().contains("from pods of this node (from 10.245.0.0/24)"));
    assert!(answer().contains(CHANGED.1), "{}", answer());
}

#[test]
fn a_watch_follows_changes_and_restarts() {
    let (machine, socket) = machine();
    let running = start(&machine, &socket);
    let output = machine.path("watched");
    let watch = "exec \"$0\" explain --watch --control-socket \"$1\" svc shop/web >\"$2\"";
    let program = env!("CARGO_BIN_EXE_kube-proxy");
    let mut watching = machine.start_program("sh", &["-c", watch, program, &socket, &output.display().to_string()]);
    let read = || fs::read_to_string(&output).unwrap_or_default();
    watching.until("the first answer", |_| read().contains(CHANGED.0));
    assert!(!read().contains("---"), "{}", read());
    put(&machine, &SLICE.replace(CHANGED.0, CHANGED.1));
    watching.until("the answer after a change", |_| read().contains(CHANGED.1));
    fs::remove_file(machine.path("manifests/service.json")).expect("removing a manifest");
    watching.until("that it is gone", |_| read().contains("Error: no Service shop/web among the objects"));
    drop(running);
    let waiting = format!("Waiting for a running kube-proxy at {socket} (");
    watching.until("that the proxy has ended", |_| read().contains(&waiting));
    machine.write("manifests/service.json", SERVICE);
    let _again = start(&machine, &socket);
    let sections = |text: &str| text.lines().filter(|line| line.starts_with("--- ")).count();
    watching.until("the answer after a restart", |_| {
        read().rsplit_once("Waiting for").is_some_and(|(_, end)| end.contains(CHANGED.1))
    });
    assert!(sections(&read()) >= 4, "{}", read());
}

#[test]
fn without_a_running_proxy_it_is_said() {
    let (machine, socket) = machine();
    let asked = ask(&machine, &socket, &QUESTION);
    let said = format!("Error: no running kube-proxy at {socket}: No such file or directory (os error 2)\n");
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(1), &*said));
    // Killed, it leaves the file.
    drop(start(&machine, &socket));
    let asked = ask(&machine, &socket, &QUESTION);
    assert!(text(&asked.stderr).contains("Connection refused"), "{asked:?}");
    // The default, in a /run that is empty.
    let script = "mount -t tmpfs none /run && exec \"$0\" explain svc shop/web";
    let asked = machine.tool("unshare", &["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_kube-proxy")]);
    let said = "No running kube-proxy at /run/kube-proxy/control.sock (No such file or directory (os error 2)), working offline\nError: ";
    assert!(asked.status.code() == Some(1) && text(&asked.stderr).starts_with(said), "{asked:?}");
    let _running = start(&machine, &socket);
    for (arguments, wanted) in [
        (
            &["explain", "--cluster-cidr=10.0.0.0/8", "svc", "a/b"][..],
            "--cluster-cidr is about a configuration, and a kube-proxy runs",
        ),
        (&["render", "--hostname-override=other"], "--hostname-override is about a configuration"),
        (&["explain", "--watch", "svc", "a"], "\"a\" is not NAMESPACE/NAME"),
        (&["explain", "--watch", "--mode=magic", "svc", "a/b"], "magic"),
        (&["explain", "--manifests=/tmp", "svc", "a/b"], "--control-socket is about the running proxy, --manifests"),
        (&["explain", "--watch", "--dump=x", "svc", "a/b"], "--watch follows the running proxy, --dump"),
    ] {
        let asked = ask(&machine, &socket, arguments);
        assert!(asked.status.code() == Some(1) && text(&asked.stderr).contains(wanted), "{asked:?}");
    }
    let asked = machine.output(&["explain", "--watch", "--control-socket=", "svc", "a/b"]);
    assert!(text(&asked.stderr).contains("name its socket by --control-socket"), "{asked:?}");
}

#[test]
fn another_user_is_refused_and_told() {
    let (machine, socket) = machine();
    let _running = start(&machine, &socket);
    let arguments = ["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_kube-proxy"), "explain"];
    let asked = machine.tool("setpriv", &[&arguments[..], &["svc", "shop/web", "--control-socket", &socket]].concat());
    let said = "only its user and root may ask it: run as root, or name another source of objects";
    assert!(asked.status.code() != Some(0) && text(&asked.stderr).contains(said), "{asked:?}");
}

#[test]
fn the_default_is_reached_without_a_flag() {
    let (machine, _) = machine();
    let script = "mount -t tmpfs none /run
        \"$0\" --proxy-mode=nftables --hostname-override=node --manifests \"$1\" 2>/dev/null &
        for _ in $(seq 1000); do \"$0\" explain svc shop/web 2>/dev/null && break; sleep 0.02; done
        kill $!";
    let program = env!("CARGO_BIN_EXE_kube-proxy");
    let asked = machine.tool("unshare", &["--mount", "sh", "-c", script, program, &machine.manifests()]);
    assert!(text(&asked.stdout).contains("Service shop/web in IPv4\n"), "{asked:?}");
}

#[test]
fn a_path_that_cannot_be_had_is_named_and_services_are_served() {
    let (machine, socket) = machine();
    let file = machine.write("precious", "text");
    let mut running = start(&machine, &file);
    assert!(running.log().contains("\"Creating the control socket failed"), "{}", running.log());
    assert!(running.log().contains("it is not a socket: remove it, or name another path"), "{}", running.log());
    assert_eq!(fs::read_to_string(&file).expect("the file"), "text");
    assert!(machine.serves("ip", "10.96.0.1"));
    running.signal(Signal::TERM);
    let log = start(&machine, "").log();
    assert!(!log.contains("control"), "{log}");
    let log = start(&machine, &socket).log();
    assert!(!log.contains("control socket"), "{log}");
}

#[test]
fn what_is_no_proxy_is_named() {
    let (machine, socket) = machine();
    fs::create_dir(Path::new(&*socket).with_file_name("")).expect("making a folder");
    let listener = UnixListener::bind(&*socket).expect("listening");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.write_all(b"220 mail ESMTP\r\n").expect("writing");
    });
    let asked = ask(&machine, &socket, &QUESTION);
    other.join().expect("it ends");
    let said = format!("Error: asking the process at {socket}: ");
    assert!(asked.status.code() == Some(1) && text(&asked.stderr).starts_with(&said), "{asked:?}");
}

#[test]
fn silent_clients_hold_up_nobody() {
    let (machine, socket) = machine();
    let mut running = start(&machine, &socket);
    let mut silent: Vec<UnixStream> = (0..50).map(|_| UnixStream::connect(&*socket).expect("connecting")).collect();
    for stream in &mut silent {
        // Those whose connection is ended already can't be written to.
        let _ = stream.write_all(b"GET /v1/objects HTTP/1.1\r\nhost: a\r\n");
    }
    let asked = ask(&machine, &socket, &QUESTION);
    assert!(asked.status.success(), "{asked:?}");
    let Answer { body, .. } = running.get(METRICS, "/metrics");
    assert!(body.contains("kubeproxy_sync_proxy_rules"), "{body}");
    assert!(running.is_running());
}
