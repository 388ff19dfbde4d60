//! Measures the executable with a directory of manifests: memory, CPU time, idle, a noisy neighbour, a restart.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ferry_kernel::nft::NftSocket;
use ferry_lab::Mode;

use crate::neighbour::Neighbour;
use crate::objects;
use crate::stats::{memory_mib, process_cpu, tasks_cpu};

/// Duration of the idle measurement.
const IDLE: Duration = Duration::from_secs(10);
/// The neighbour's commits per second.
const NOISE: u32 = 10;
/// Time limit of a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running proxy; killed when dropped.
pub(crate) struct ProxyChild(Child);

/// A directory; removed when dropped.
pub(crate) struct ScratchDirectory(pub(crate) PathBuf);

pub(crate) fn run(services: usize) -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("kube-proxy");
    anyhow::ensure!(program.exists(), "{} is missing: build the executable beside this program", program.display());
    println!("executable                                   {:8.2} MB", megabytes(&program)?);
    let directory = ScratchDirectory::new(Mode::NFTABLES, objects::files(services))?;
    let mut socket = NftSocket::open()?;
    let proxy = ProxyChild::start(&program, &directory.0)?;
    let took = proxy.wait_for_sync(services)?;
    println!(
        "start to first sync                          {:8.1} ms wall, {:.0} ms cpu in total",
        took.as_secs_f64() * 1e3,
        proxy.cpu()?.as_secs_f64() * 1e3
    );
    std::thread::sleep(Duration::from_secs(2));
    let id = proxy.0.id().to_string();
    println!(
        "kube-proxy                                   {:8.1} MiB resident, {:.1} peak",
        memory_mib(&id, "VmRSS")?,
        memory_mib(&id, "VmHWM")?
    );
    println!("idle                                         {:8.3} % of a core", proxy.share(IDLE, || Ok(()))?);
    let mut neighbour = Neighbour::open()?;
    let noisy = proxy.share(IDLE, || neighbour.commit())?;
    println!("idle, with {NOISE} foreign commits a second         {noisy:8.3} % of a core");
    drop(proxy);
    let before = socket.generation()?;
    let proxy = ProxyChild::start(&program, &directory.0)?;
    let took = proxy.wait_for_sync(services)?;
    println!(
        "restart                                      {:8.1} ms wall, {:.0} ms cpu, {} kernel writes",
        took.as_secs_f64() * 1e3,
        proxy.cpu()?.as_secs_f64() * 1e3,
        socket.generation()?.wrapping_sub(before)
    );
    println!("(CPU time of the benchmark itself: {:.1} s)", process_cpu().as_secs_f64());
    Ok(())
}

pub(crate) fn megabytes(path: &Path) -> anyhow::Result<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a size to print")]
    let bytes = fs::metadata(path)?.len() as f64;
    Ok(bytes / 1e6)
}

// === impl ScratchDirectory ===

impl ScratchDirectory {
    /// Creates a temporary directory with the configuration of a mode and with these manifests, by name and content.
    pub(crate) fn new(mode: Mode, files: Vec<(String, String)>) -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("ferry-bench-{}", std::process::id()));
        fs::create_dir_all(path.join("manifests"))?;
        let directory = Self(path);
        for (name, text) in files {
            fs::write(directory.0.join("manifests").join(name), text)?;
        }
        let mut config = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {}\n\
             clusterCIDR: 10.244.0.0/16\nhealthzBindAddress: 127.0.0.1:10256\n",
            mode.name
        );
        if let Some(way) = mode.way {
            config += &format!("---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceWay: {way}\n");
        }
        fs::write(directory.0.join("config.yaml"), config)?;
        Ok(directory)
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        // A leftover in the temporary directory is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

// === impl ProxyChild ===

impl ProxyChild {
    pub(crate) fn start(program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let log = fs::File::create(directory.join("log"))?;
        let child = Command::new(program)
            .arg(format!("--config={}", directory.join("config.yaml").display()))
            .arg(format!("--manifests={}", directory.join("manifests").display()))
            .arg("--hostname-override=bench")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting the executable")?;
        Ok(Self(child))
    }

    /// Waits until the metrics report a completed sync; returns the time it took.
    pub(crate) fn wait_for_sync(&self, services: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";
        let last = objects::vip(services.saturating_sub(1));
        while started.elapsed() < PATIENCE {
            if metrics().is_ok_and(|text| text.lines().any(|line| line.starts_with(synced) && !line.ends_with(" 0"))) {
                return Ok(started.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("no sync of {last} within {PATIENCE:?}")
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        tasks_cpu(self.0.id())
    }

    /// CPU time over a period, in percent of one core, while `work` runs ten times a second.
    fn share(&self, time: Duration, mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let (started, before) = (Instant::now(), self.cpu()?);
        while started.elapsed() < time {
            work()?;
            std::thread::sleep(Duration::from_secs(1) / NOISE);
        }
        Ok((self.cpu()? - before).as_secs_f64() / started.elapsed().as_secs_f64() * 100.0)
    }
}

impl Drop for ProxyChild {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn metrics() -> anyhow::Result<String> {
    get("/metrics")
}

/// The answer, with its head, to a request for this path of the metrics address.
pub(crate) fn get(path: &str) -> anyhow::Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], 10249));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
