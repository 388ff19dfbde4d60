//! Measures, in mode userspace, latency from writing a watch event to the first connection that reaches the new endpoint. The kernel
//! shows nothing there: a changed endpoint is a changed list in the proxy.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::latency::{Latencies, PATIENCE, delivery};
use super::site::Site;
use crate::network::{allow_many_connections, ip};

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
    let lead = |(number, endpoint)| -> anyhow::Result<_> {
        let version = site.lead_last_to(endpoint);
        Ok((reached(to, number)?, delivery(site, version)?))
    };
    let mut endpoints = (0..).zip(ENDPOINTS).cycle();
    // From ten endpoints to one.
    endpoints.next().map(lead).transpose()?;
    for next in endpoints.take(count) {
        let (reached, delivery) = lead(next)?;
        latencies.from_begin.push(reached.saturating_duration_since(delivery.begun));
        latencies.from_end.push(reached.saturating_duration_since(delivery.ended));
        thread::sleep(pause);
    }
    Ok(latencies)
}

/// Starts both endpoints: each tells its number.
fn prepare() -> anyhow::Result<()> {
    for endpoint in ENDPOINTS {
        ip(&["address", "replace", &format!("{endpoint}/32"), "dev", "lo"])?;
    }
    ip(&["route", "replace", "10.96.0.0/12", "dev", "lo"])?;
    allow_many_connections()?;
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
