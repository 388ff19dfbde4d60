//! Runs the executable in a network namespace.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferry_kernel::netns::Namespace;
use ferry_kernel::sysctl;
use ferry_lab::patience::{self, slowly};
use ferry_lab::seccomp::SeccompProfile;
use rustix::process::{Pid, Signal, kill_process};

/// The program under test.
const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");
/// The default address of health.
pub(crate) const HEALTHZ: &str = "127.0.0.1:10256";
/// The default address of metrics.
pub(crate) const METRICS: &str = "127.0.0.1:10249";
/// A Service of an API server.
pub(crate) const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"},
    "spec":{"clusterIP":"10.96.0.1","clusterIPs":["10.96.0.1"],"ipFamilies":["IPv4"],
    "ports":[{"name":"http","port":80,"protocol":"TCP"}]}}"#;
/// Its endpoints.
pub(crate) const SLICE: &str = r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
    "metadata":{"name":"web-1","namespace":"shop","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
    "ports":[{"name":"http","port":8080,"protocol":"TCP"}],
    "endpoints":[{"addresses":["10.244.0.7"],"conditions":{"ready":true}}]}"#;
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace with loopback up, and a folder with a directory of manifests; both end with it.
pub(crate) struct Machine {
    namespace: Namespace,
    folder: PathBuf,
}

/// The executable, running; killed when dropped.
pub(crate) struct Running<'a> {
    machine: &'a Machine,
    child: Child,
    log: PathBuf,
}

/// An HTTP answer.
pub(crate) struct Answer {
    /// the status line and the headers, in lower case
    pub(crate) head: String,
    pub(crate) body: String,
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("outside-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(folder.join("manifests")).expect("making a folder");
        fs::create_dir_all(folder.join("tools")).expect("making a folder");
        let namespace = Namespace::new().expect("making a network namespace needs root");
        namespace.raise_loopback().expect("raising loopback");
        Self { namespace, folder }
    }

    /// A machine that forwards, with an address of each family on a device, as nodes have.
    pub(crate) fn node() -> Self {
        let machine = Self::new();
        for parameter in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            machine.run(|| sysctl::write(parameter, "1")).expect("setting a parameter");
        }
        for arguments in [
            "link add uplink type bridge",
            "link set uplink up",
            "address add 203.0.113.1/24 dev uplink",
            "address add fd00:203::1/64 dev uplink nodad",
        ] {
            assert!(machine.tool("ip", &arguments.split(' ').collect::<Vec<_>>()).status.success(), "{arguments}");
        }
        machine
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file in the folder by a rename; returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let (new, path) = (self.path("new"), self.path(name));
        fs::write(&new, text).expect("writing a file");
        fs::rename(new, &path).expect("renaming a file");
        path.display().to_string()
    }

    pub(crate) fn manifests(&self) -> String {
        self.path("manifests").display().to_string()
    }

    /// Runs an action in the namespace.
    pub(crate) fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(action).expect("entering the namespace")
    }

    /// Runs a tool in the namespace until it ends.
    pub(crate) fn tool(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(arguments);
        self.prepare(&mut command);
        self.run(|| command.output().unwrap_or_else(|error| panic!("{program}: {error}")))
    }

    /// Sets the environment of every program.
    fn prepare(&self, command: &mut Command) {
        // the tests may themselves run in a pod
        command.env_remove("KUBERNETES_SERVICE_HOST").env("XTABLES_LOCKFILE", self.path("xtables.lock"));
    }

    /// Runs the executable, which finds no tool of iptables, until it ends.
    pub(crate) fn output_without_tools(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(EXECUTABLE);
        command.args(arguments);
        self.prepare(&mut command);
        command.env("PATH", self.path("tools"));
        self.run(|| command.output().expect("running the executable"))
    }

    /// Runs the executable until it ends, where parameters of the kernel can't be written.
    pub(crate) fn output_with_read_only_parameters(&self, arguments: &[&str]) -> Output {
        let script = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" \"$@\"";
        self.tool("unshare", &[&["--mount", "sh", "-c", script, EXECUTABLE], arguments].concat())
    }

    /// Runs the executable until it ends.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.tool(EXECUTABLE, arguments)
    }

    /// Runs the executable without the capability that it needs.
    pub(crate) fn output_without_capability(&self, arguments: &[&str]) -> Output {
        let drop = ["--bounding-set=-net_admin", "--inh-caps=-net_admin", EXECUTABLE];
        self.tool("setpriv", &[&drop, arguments].concat())
    }

    /// Starts the executable, without further privileges, where nothing can be written: not the root file system, nor parameters of
    /// the kernel. The folder is at `/mnt`, so that every user can reach it. It finds only programs that were
    /// [`Machine::install`]ed. `capabilities` begin with `+` and are separated by commas.
    pub(crate) fn start_confined(&self, user: u32, capabilities: &str, arguments: &[&str]) -> Running<'_> {
        fs::write(self.path("kube-proxy"), "").expect("making the file that the executable is mounted on");
        let folder = self.folder.display().to_string();
        let script = format!(
            "set -e; mount --bind '{folder}' /mnt; mount --bind '{EXECUTABLE}' /mnt/kube-proxy; mount --bind /proc/sys /proc/sys
            for place in / /mnt /mnt/kube-proxy /proc/sys /sys; do mount -o remount,bind,ro $place; done
            only=-all,{capabilities}
            exec setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs --bounding-set=$only --inh-caps=$only \
                --ambient-caps=$only -- env PATH=/mnt/tools /mnt/kube-proxy \"$@\""
        );
        let common = ["--hostname-override=node", "--manifests=/mnt/manifests"].as_slice();
        self.spawn(&[&["unshare", "--mount", "sh", "-c", &script, "sh"], common, arguments].concat())
    }

    /// Starts the executable over the manifests, in mode nftables.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running<'_> {
        self.start_by(&[], &[&["--proxy-mode=nftables"], arguments].concat())
    }

    /// Starts it in whatever mode the arguments say.
    pub(crate) fn start_as(&self, arguments: &[&str]) -> Running<'_> {
        self.start_by(&[], arguments)
    }

    /// Starts it where it finds only those programs that were [`Machine::install`]ed.
    pub(crate) fn start_with_installed(&self, arguments: &[&str]) -> Running<'_> {
        let path = format!("PATH={}", self.path("tools").display());
        self.start_by(&["env", &path], arguments)
    }

    /// Starts it in mode nftables with further variables in its environment, each `NAME=VALUE`.
    pub(crate) fn start_with(&self, variables: &[&str], arguments: &[&str]) -> Running<'_> {
        self.start_as_with(variables, &[&["--proxy-mode=nftables"], arguments].concat())
    }

    /// The same, in whatever mode the arguments say.
    pub(crate) fn start_as_with(&self, variables: &[&str], arguments: &[&str]) -> Running<'_> {
        self.start_by(&[&["env"], variables].concat(), arguments)
    }

    /// Makes a program of the machine one that [`Machine::start_with_installed`] finds.
    pub(crate) fn install(&self, program: &str) {
        let found = self.tool("sh", &["-c", "command -v \"$0\"", program]);
        let found = String::from_utf8(found.stdout).expect("text");
        std::os::unix::fs::symlink(found.trim(), self.path("tools").join(program)).expect("making a link");
    }

    /// Starts it as the first process of a namespace of processes, as containers do. The child is who made that.
    pub(crate) fn start_as_first_process(&self) -> Running<'_> {
        self.start_by(&["unshare", "--pid", "--fork", "--kill-child", "--"], &["--proxy-mode=nftables"])
    }

    fn start_by(&self, by: &[&str], arguments: &[&str]) -> Running<'_> {
        let manifests = self.manifests();
        let common = ["--hostname-override=node", "--manifests", &manifests];
        self.spawn(&[by, &[EXECUTABLE], &common, arguments].concat())
    }

    /// Starts it with these arguments alone.
    pub(crate) fn start_bare(&self, arguments: &[&str]) -> Running<'_> {
        self.spawn(&[&[EXECUTABLE], arguments].concat())
    }

    /// The same with another file of the executable.
    pub(crate) fn start_program(&self, program: &str, arguments: &[&str]) -> Running<'_> {
        self.spawn(&[&[program], arguments].concat())
    }

    /// The same through another program, which executes its last arguments.
    pub(crate) fn start_through(&self, by: &[&str], arguments: &[&str]) -> Running<'_> {
        self.spawn(&[by, &[EXECUTABLE], arguments].concat())
    }

    /// Starts it with these arguments alone, under a seccomp profile.
    pub(crate) fn start_under(&self, profile: &SeccompProfile, arguments: &[&str]) -> Running<'_> {
        self.spawn_after(|| profile.apply(), &[&[EXECUTABLE], arguments].concat())
    }

    fn spawn(&self, words: &[&str]) -> Running<'_> {
        self.spawn_after(|| {}, words)
    }

    /// Starts a program by a thread that has done this before.
    fn spawn_after(&self, before: impl FnOnce() + Send, words: &[&str]) -> Running<'_> {
        let log = self.path("log");
        let file = fs::File::create(&log).expect("making the log");
        let child = self.run(move || {
            let (program, arguments) = words.split_first().expect("there is the executable");
            let mut command = Command::new(program);
            command.args(arguments);
            self.prepare(&mut command);
            command.stdin(Stdio::null()).stderr(file);
            before();
            command.spawn()
        });
        Running { machine: self, child: child.expect("starting the executable"), log }
    }

    /// The names of the tables of nftables, sorted.
    pub(crate) fn tables(&self) -> Vec<String> {
        let output = self.tool("nft", &["list", "tables"]);
        assert!(output.status.success(), "{output:?}");
        let mut names: Vec<String> =
            String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// All rules of the namespace.
    pub(crate) fn rules(&self) -> String {
        let output = self.tool("nft", &["list", "ruleset"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Output of a tool of the iptables family: `iptables-nft-save`, `ip6tables-legacy -t nat -S` …
    pub(crate) fn iptables(&self, words: &str) -> String {
        let mut words = words.split(' ');
        let program = words.next().expect("a program");
        let output = self.tool(program, &words.collect::<Vec<_>>());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// True if a Service with this address is in the kernel.
    pub(crate) fn serves(&self, family: &str, address: &str) -> bool {
        let output = self.tool("nft", &["list", "map", family, "kube-proxy", "service-ips"]);
        String::from_utf8(output.stdout).expect("text").contains(address)
    }

    /// Sends an HTTP request; `None` without a listener.
    pub(crate) fn ask(&self, method: &str, at: &str, path: &str) -> Option<Answer> {
        let at: SocketAddr = at.parse().expect("an address");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.run(|| {
            let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1)).ok()?;
            stream.set_read_timeout(Some(slowly(PATIENCE))).ok()?;
            stream.write_all(request.as_bytes()).ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            let (head, body) = text.split_once("\r\n\r\n")?;
            Some(Answer { head: head.to_lowercase(), body: body.to_owned() })
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Leftovers in the target folder are harmless.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

// === impl Running ===

impl Running<'_> {
    /// The number of its process, of the one that was started.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("reading the log")
    }

    /// Traces of child processes: the page faults of those that have ended (`cminflt` of proc(5)), and the numbers of those that
    /// have not.
    pub(crate) fn children(&self) -> (String, Vec<String>) {
        // the eleventh field; the second, the name, may have spaces
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("the process is there");
        let faults = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(8)).expect("it has this field");
        (faults.to_owned(), self.running_children())
    }

    /// The numbers of the running child processes of all threads.
    fn running_children(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        // A thread may end in the meantime.
        let lists = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
        lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    /// Kills its child processes: an iptables-restore that waits for another text isn't searched for in PATH again.
    pub(crate) fn kill_children(&self) {
        for child in self.running_children() {
            // It fails for one that has ended meanwhile.
            Command::new("kill").args(["-9", &child]).status().expect("running kill");
            let runs = || fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
            patience::until("it ends", PATIENCE, || !runs());
        }
    }

    /// Waits for something.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, is_there: impl FnMut(&Self) -> bool) {
        self.until_within(PATIENCE, what, is_there);
    }

    /// The same, with another time limit.
    #[track_caller]
    pub(crate) fn until_within(&mut self, limit: Duration, what: &str, mut is_there: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_there(self) {
            if let Some(status) = self.child.try_wait().expect("asking for a child's state") {
                panic!("ended ({status}) before {what}\n{}", self.log());
            }
            assert!(start.elapsed() < slowly(limit), "no {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the server of metrics answers and both families have been synced.
    #[track_caller]
    pub(crate) fn until_synced(&mut self) {
        self.until_families_synced(&["IPv4", "IPv6"]);
    }

    /// The same, where these families alone are served.
    #[track_caller]
    pub(crate) fn until_families_synced(&mut self, families: &[&str]) {
        self.until("first sync", |running| {
            let page = running.machine.ask("GET", METRICS, "/metrics").map(|page| page.body).unwrap_or_default();
            let synced =
                |family| format!("\nkubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"{family}\"}}");
            families.iter().all(|family| page.contains(&synced(family)))
        });
    }

    /// The answer to a GET; there must be one.
    #[track_caller]
    pub(crate) fn get(&self, at: &str, path: &str) -> Answer {
        self.machine.ask("GET", at, path).unwrap_or_else(|| panic!("no answer at {at}{path}\n{}", self.log()))
    }

    /// Signals the first process of the namespace that was made for it.
    pub(crate) fn signal_first_process(&mut self, signal: Signal) -> ExitStatus {
        let parent = self.child.id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).expect("its children");
        let first = children.trim().parse().ok().and_then(Pid::from_raw).expect("one child");
        kill_process(first, signal).expect("the process is there");
        self.wait()
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> ExitStatus {
        self.send(signal);
        self.wait()
    }

    /// Sends a signal that doesn't end it.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// True while the process runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asking for a child's state").is_none()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("asking for a child's state") {
                return status;
            }
            assert!(start.elapsed() < slowly(PATIENCE), "it doesn't end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // One that has ended already can't be killed, and that is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let prefix = format!("{name}: ");
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .unwrap_or_else(|| panic!("no {name}: {}", self.head))
    }
}

/// The next notification of systemd that has this text, and those before it.
pub(crate) fn notification(socket: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("no {wanted}: {error}: {received:?}"));
        let text = buffer.get(..length).unwrap_or_default().to_vec();
        received.push(String::from_utf8(text).expect("text"));
        if received.last().is_some_and(|last| last.contains(wanted)) {
            return received;
        }
    }
}
