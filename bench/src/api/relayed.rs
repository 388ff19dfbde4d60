//! Measures, in mode userspace, latency from writing a watch event to the first connection that reaches the new endpoint. The kernel
//! shows nothing there: a changed endpoint is a changed list in the proxy.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::latency::{Latencies, PATIENCE, delivery};
use super::site::Site;

/// The endpoints between which the last Service changes, addresses of the loopback device.
const ENDPOINTS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 244, 255, 1), Ipv4Addr::new(10, 244, 255, 2)];
/// Ports of the Service and its endpoints.
const SERVICE: u16 = 80;
const ENDPOINT: u16 = 8080;

/// Makes `count` changes with pauses between them. A change is in force at the begin of the first connection to the cluster IP that
/// reaches the new endpoint; the connections follow one another without a pause, so that is late by one of them at most.
pub(super) fn measure(site: &Site, count: usize, pause: Duration) -> anyhow::Result<Latencies> {
    prepare()?;
    let to = SocketAddr::from((site.last_vip(), SERVICE));
    let mut latencies = Latencies { from_begin: Vec::new(), from_end: Vec::new() };
    let endpoints = ENDPOINTS.into_iter().enumerate().cycle().take(count + 1);
    for (number, endpoint) in endpoints {
        let version = site.lead_last_to(endpoint);
        let reached = reached(to, u8::try_from(number)?)?;
        let delivery = delivery(site, version)?;
        latencies.from_begin.push(reached.saturating_duration_since(delivery.begun));
        latencies.from_end.push(reached.saturating_duration_since(delivery.ended));
        thread::sleep(pause);
    }
    // The first one changes ten endpoints to one.
    latencies.from_begin.remove(0);
    latencies.from_end.remove(0);
    Ok(latencies)
}

/// Starts both endpoints: each tells its number.
fn prepare() -> anyhow::Result<()> {
    for endpoint in ENDPOINTS {
        ip(&["address", "replace", &format!("{endpoint}/32"), "dev", "lo"])?;
    }
    ip(&["route", "replace", "10.96.0.0/12", "dev", "lo"])?;
    // Connections that ended keep their ports for a minute, or for a second if they may be used again.
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000")?;
    std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1")?;
    for (number, endpoint) in (0_u8..).zip(ENDPOINTS) {
        let listener = TcpListener::bind((endpoint, ENDPOINT))?;
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                // A client that has gone doesn't count.
                let _ = client.write_all(&[number]);
            }
        });
    }
    Ok(())
}

/// The begin of the first connection that reaches this endpoint.
fn reached(to: SocketAddr, endpoint: u8) -> anyhow::Result<Instant> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let begin = Instant::now();
        let mut answer = [u8::MAX];
        let asked = TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut client| {
            client.set_read_timeout(Some(PATIENCE))?;
            client.read(&mut answer)
        });
        if asked.is_ok() && answer == [endpoint] {
            return Ok(begin);
        }
    }
    anyhow::bail!("no connection has reached the new endpoint after {PATIENCE:?}")
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    ensure!(status.success(), "ip {}: {status}", arguments.join(" "));
    Ok(())
}
