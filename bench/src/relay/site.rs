//! The network of the relay's benchmark and its processes.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use ferry_kernel::netns::Namespace;

use super::Way;
use crate::network::{allow_many_connections, ip};

/// The endpoint's address; what relays has [`RELAY`] towards the client.
pub(super) const ENDPOINT: &str = "10.78.2.2";
pub(super) const RELAY: &str = "10.78.1.1";
/// Ports of the endpoint: one that echoes (TCP and UDP), one that discards.
pub(super) const ECHO: u16 = 7000;
pub(super) const SINK: u16 = 7001;
/// Time limit until a process listens.
const START: Duration = Duration::from_secs(10);

/// Client, router and endpoint.
pub(super) struct Site {
    client: Namespace,
    router: Namespace,
    endpoint: Namespace,
}

/// A child that ends with this.
pub(super) struct Process(Child);

/// Starts one way.
type Start = fn(&Site, &'static str) -> anyhow::Result<Way>;

/// All ways that are compared.
pub(super) fn ways() -> [(&'static str, Start); 4] {
    [("direct", direct), ("relay", relayed), ("haproxy", haproxy), ("haproxy splice", haproxy)]
}

// === impl Site ===

impl Site {
    pub(super) fn new() -> anyhow::Result<Self> {
        let site = Self { client: Namespace::new()?, router: Namespace::new()?, endpoint: Namespace::new()? };
        for namespace in [&site.client, &site.router, &site.endpoint] {
            namespace.raise_loopback()?;
            namespace.run(|| {
                allow_many_connections()?;
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            })??;
        }
        site.join(&site.client, "client", "10.78.1.1/24", "10.78.1.2/24")?;
        site.join(&site.endpoint, "endpoint", "10.78.2.1/24", "10.78.2.2/24")?;
        for (namespace, gateway) in [(&site.client, "10.78.1.1"), (&site.endpoint, "10.78.2.1")] {
            namespace.run(|| ip(&["route", "add", "default", "via", gateway]))??;
        }
        Ok(site)
    }

    /// A veth pair between the router and another namespace.
    fn join(&self, other: &Namespace, name: &str, here: &str, there: &str) -> anyhow::Result<()> {
        let target = format!("/proc/{}/fd/{}", std::process::id(), other.as_fd().as_raw_fd());
        self.router.run(|| {
            ip(&["link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", &target])?;
            ip(&["address", "add", here, "dev", name])?;
            ip(&["link", "set", name, "up"])
        })??;
        other.run(|| {
            ip(&["address", "add", there, "dev", "uplink"])?;
            ip(&["link", "set", "uplink", "up"])
        })?
    }

    /// Runs a load in the client's namespace.
    pub(super) fn as_client<T: Send>(&self, load: impl FnOnce() -> T + Send) -> std::io::Result<T> {
        self.client.run(load)
    }

    /// Starts a relay: this program with these arguments.
    pub(super) fn relay(&self, arguments: &[&str]) -> anyhow::Result<Process> {
        start(&self.router, Command::new(std::env::current_exe()?).args(arguments))
    }

    /// Starts the endpoint.
    pub(super) fn serve(&self) -> anyhow::Result<Process> {
        start(&self.endpoint, Command::new(std::env::current_exe()?).arg("--relay-server"))
    }
}

/// Starts a child in a namespace, waits for the line that it prints when it listens, and prints the figures in it.
fn start(namespace: &Namespace, command: &mut Command) -> anyhow::Result<Process> {
    let mut child = namespace.run(|| command.stdout(Stdio::piped()).spawn())??;
    let output = child.stdout.take().context("the child's output")?;
    let process = Process(child);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let figures = line.trim().strip_prefix("ready").with_context(|| format!("the child printed {line:?}"))?;
    if !figures.is_empty() {
        println!("{}", figures.trim_start());
    }
    Ok(process)
}

fn at(address: &str, port: u16) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

fn direct(_site: &Site, name: &'static str) -> anyhow::Result<Way> {
    Ok(Way { name, process: None, echo: at(ENDPOINT, ECHO)?, sink: at(ENDPOINT, SINK)? })
}

/// The relay.
pub(super) fn relayed(site: &Site, name: &'static str) -> anyhow::Result<Way> {
    let process = site.relay(&["--relay-process", RELAY])?;
    Ok(Way { name, process: Some(process), echo: at(RELAY, ECHO)?, sink: at(RELAY, SINK)? })
}

/// HAProxy with as many threads as the relay, with `option splice-auto` if the name says so.
fn haproxy(site: &Site, name: &'static str) -> anyhow::Result<Way> {
    let threads = ferry_relay::RelayConfig::default().workers;
    // It refuses to start with more connections than descriptors allow.
    let maximum = ferry_relay::raise_limit(0).min(80_200).saturating_sub(200) / 2;
    let splice = if name.ends_with("splice") { "    option splice-auto\n" } else { "" };
    let configuration = format!(
        "global\n    maxconn {maximum}\n    maxpipes 64\n    nbthread {threads}\n\
         defaults\n    mode tcp\n    maxconn {maximum}\n{splice}    timeout connect 5s\n    timeout client 10m\n    timeout server 10m\n\
         listen echo\n    bind {RELAY}:{ECHO}\n    server endpoint {ENDPOINT}:{ECHO}\n\
         listen sink\n    bind {RELAY}:{SINK}\n    server endpoint {ENDPOINT}:{SINK}\n"
    );
    let file = std::env::temp_dir().join(format!("ferry-bench-{}.haproxy", std::process::id()));
    std::fs::write(&file, configuration)?;
    let mut command = Command::new("haproxy");
    let child = site.router.run(|| command.arg("-db").arg("-f").arg(&file).spawn())?.context("starting haproxy")?;
    let way = Way { name, process: Some(Process(child)), echo: at(RELAY, ECHO)?, sink: at(RELAY, SINK)? };
    let end = Instant::now() + START;
    while site.as_client(|| super::load::established(way.echo).is_err())? {
        ensure!(Instant::now() < end, "haproxy doesn't listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::remove_file(file)?;
    Ok(way)
}

// === impl Process ===

impl Process {
    pub(super) fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// Processor time of all its threads so far (fields 14 and 15 of `/proc/PID/stat`, in hundredths of a second).
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let fields = text.rsplit_once(") ").context("the name in /proc/PID/stat")?.1;
        let times = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        Ok(Duration::from_millis(10 * times.sum::<Result<u64, _>>()?))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            println!("ending a child: {error}");
        }
    }
}
