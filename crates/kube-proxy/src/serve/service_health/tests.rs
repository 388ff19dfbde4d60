//! Health check servers with real listeners on loopback.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ferry_model::{BaseState, HealthCheck, NodePortAddresses, ServiceState};
use ferry_plane::{Acknowledged, Outcome, Unit, UnitId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::*;
use crate::health::Pulse;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Records failures instead of Events.
#[derive(Default)]
struct Notes(RefCell<Vec<String>>);

/// A proxy of one family.
struct Bench {
    health: ServiceHealth,
    notes: Rc<Notes>,
    pulse: Arc<Pulse>,
}

impl HealthEvents for Notes {
    fn failed_to_start(&self, service: &ObjectName, note: String) {
        self.0.borrow_mut().push(format!("{service}: {note}"));
    }
}

impl Bench {
    fn new() -> Self {
        let (notes, pulse) = (Rc::new(Notes::default()), Arc::new(Pulse::new(Instant::now())));
        let pulses = Pulses { families: vec![(Family::V4, Arc::clone(&pulse))], limit: Duration::ZERO };
        let events: Rc<dyn HealthEvents> = Rc::clone(&notes) as _;
        Self { health: ServiceHealth::new("node-a", (pulses, None), events), notes, pulse }
    }

    async fn acknowledged(&mut self, acked: Vec<Acknowledged>) {
        let outcome = Outcome { acked, ..Outcome::default() };
        let ended = SystemTime::UNIX_EPOCH;
        self.health
            .sync_pass(&SyncPass { family: Family::V4, outcome, pending: 0, synced: true, settled: false, ended })
            .await;
    }

    async fn base(&mut self, addresses: &[IpAddr]) {
        let node_ports = NodePortAddresses::Only(addresses.to_vec());
        let base = BaseState { node_ports, localhost: false, service_cidrs: Vec::new(), affinity: false };
        self.acknowledged(vec![Acknowledged {
            id: UnitId::Base,
            before: None,
            after: Some(Arc::new(Unit::Base(base))),
        }])
        .await;
    }

    /// Acknowledges a service with a port and a number of endpoints, or without a health check.
    async fn service(&mut self, name: &str, check: Option<(u16, u32)>) {
        let name = ObjectName::new("default", name);
        let after = check.map(|(port, local_endpoints)| {
            let health_check = HealthCheck::new(port, local_endpoints);
            Arc::new(Unit::Service(ServiceState { name: name.clone(), ports: Vec::new(), health_check }))
        });
        self.acknowledged(vec![Acknowledged { id: UnitId::Service(name), before: None, after }]).await;
    }

    fn notes(&self) -> Vec<String> {
        self.notes.0.take()
    }
}

/// Runs on one thread, as the program does.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A port, and the listener that occupies it.
fn taken() -> (u16, TcpListener) {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    (listener.local_addr().unwrap().port(), listener)
}

fn free() -> u16 {
    taken().0
}

/// Status and weight of the response; `None` without a listener.
async fn ask(port: u16) -> Option<(u16, u32)> {
    let mut stream = TcpStream::connect((LOOPBACK, port)).await.ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    let weight = text.lines().find_map(|line| line.strip_prefix("X-Load-Balancing-Endpoint-Weight: ")).unwrap();
    Some((status, weight.parse().unwrap()))
}

#[test]
fn counts_and_health_decide_the_answer() {
    run(async {
        let (mut bench, port) = (Bench::new(), free());
        bench.base(&[LOOPBACK]).await;
        bench.service("web", Some((port, 0))).await;
        assert_eq!(ask(port).await, Some((503, 0)));
        bench.service("web", Some((port, 2))).await;
        assert_eq!(ask(port).await, Some((200, 2)));
        // A pending change, which exceeds the limit at once here.
        bench.pulse.queue(Instant::now());
        assert_eq!(ask(port).await, Some((503, 2)));
        bench.pulse.take(Instant::now());
        bench.pulse.update(Instant::now());
        assert_eq!(ask(port).await, Some((200, 2)));
        bench.service("web", None).await;
        assert_eq!(ask(port).await, None);
        assert_eq!(bench.notes(), [""; 0]);
    });
}

#[test]
fn a_port_that_changes_is_closed_and_opened() {
    run(async {
        let (mut bench, first) = (Bench::new(), free());
        bench.base(&[LOOPBACK]).await;
        bench.service("web", Some((first, 1))).await;
        let second = free();
        bench.service("web", Some((second, 1))).await;
        assert_eq!((ask(first).await, ask(second).await), (None, Some((200, 1))));
        bench.base(&[]).await;
        assert_eq!(ask(second).await, None);
        bench.base(&[LOOPBACK]).await;
        assert_eq!(ask(second).await, Some((200, 1)));
    });
}

#[test]
fn an_open_connection_ends_with_its_service() {
    run(async {
        let (mut bench, port) = (Bench::new(), free());
        bench.base(&[LOOPBACK]).await;
        bench.service("web", Some((port, 1))).await;
        let mut idle = TcpStream::connect((LOOPBACK, port)).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut buffer = [0; 1024];
        for endpoints in [1, 2] {
            bench.service("web", Some((port, endpoints))).await;
            idle.write_all(request).await.unwrap();
            let length = idle.read(&mut buffer).await.unwrap();
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            assert!(text.contains(&format!("\t\"localEndpoints\": {endpoints},\n")), "{text}");
        }
        bench.service("web", None).await;
        // The request may or may not arrive before the end: there is no response.
        let _ = idle.write_all(request).await;
        assert!(matches!(idle.read(&mut buffer).await, Ok(0) | Err(_)));
    });
}

#[test]
fn who_waits_for_a_port_gets_it_at_once() {
    run(async {
        let (mut bench, port) = (Bench::new(), free());
        bench.base(&[LOOPBACK]).await;
        bench.service("first", Some((port, 1))).await;
        bench.service("second", Some((port, 7))).await;
        assert_eq!(ask(port).await, Some((200, 1)));
        let note = format!(
            "default/second: node node-a failed to start healthcheck \"default/second\" on port {port}: the port is \
             owned by default/first"
        );
        assert_eq!(bench.notes(), [note]);
        // Logged once.
        bench.service("third", Some((free(), 1))).await;
        assert_eq!(bench.notes(), [""; 0]);
        bench.service("first", Some((port, 2))).await;
        assert_eq!(ask(port).await, Some((200, 2)));
        bench.service("first", None).await;
        assert_eq!(ask(port).await, Some((200, 7)));
    });
}

#[test]
fn a_foreign_listener_is_told_once_and_outlived() {
    run(async {
        let (mut bench, (port, foreign)) = (Bench::new(), taken());
        let other = free();
        bench.base(&[LOOPBACK]).await;
        bench.service("web", Some((port, 1))).await;
        bench.service("other", Some((other, 1))).await;
        let notes = bench.notes();
        let start = format!(
            "default/web: node node-a failed to start healthcheck \"default/web\" on port {port}: listen on \
             127.0.0.1:{port}: Address already in use"
        );
        assert!(notes.len() == 1 && notes[0].starts_with(&start), "{notes:?}");
        assert_eq!(ask(other).await, Some((200, 1)));
        let due = bench.health.again.unwrap() - tokio::time::Instant::now();
        assert!(due <= RETRY && due > RETRY / 2, "{due:?}");
        bench.health.retry().await;
        assert_eq!(bench.notes(), [""; 0]);
        drop(foreign);
        bench.health.retry().await;
        assert_eq!(ask(port).await, Some((200, 1)));
        assert!(bench.health.again.is_none());
    });
}

#[test]
fn an_address_that_is_about_to_come_is_no_failure_yet() {
    run(async {
        let (mut bench, port) = (Bench::new(), free());
        bench.base(&["192.0.2.77".parse().unwrap(), LOOPBACK]).await;
        bench.service("web", Some((port, 1))).await;
        assert_eq!(bench.notes(), [""; 0]);
        assert_eq!(ask(port).await, Some((200, 1)));
        bench.health.retry().await;
        let notes = bench.notes();
        assert!(notes.len() == 1 && notes[0].contains("listen on 192.0.2.77:"), "{notes:?}");
        bench.health.retry().await;
        assert_eq!(bench.notes(), [""; 0]);
        bench.service("web", None).await;
        assert!(bench.health.again.is_none());
    });
}
