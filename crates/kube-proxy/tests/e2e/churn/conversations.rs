//! UDP conversations: clients that keep their source port and never stop sending.

use std::fmt;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::slowly;
use ferry_lab::{Family, Lab, LabMachine};

use crate::services;

/// First port of the clients; new connections have others.
const PORTS: u16 = 4000;
/// Interval of each client's packets.
const PERIOD: Duration = Duration::from_millis(20);
/// Time limit for conversations to reach a serving endpoint: the second sweep of the conntrack table comes a third of a second
/// after the first. The test waits for that state, and reports late ones.
const PATIENCE: Duration = Duration::from_secs(5);

/// The conversations.
pub(crate) struct Conversations {
    stop: Arc<AtomicBool>,
    all: Arc<Mutex<Vec<Conversation>>>,
    threads: Vec<JoinHandle<()>>,
    settled: Vec<Duration>,
    stale: Vec<String>,
}

/// One client, and the endpoint of its last answer.
struct Conversation {
    place: LabMachine,
    port: u16,
    to: SocketAddr,
    last: Option<(usize, Instant)>,
}

// === impl Conversations ===

impl Conversations {
    /// Starts `number` conversations per frontend of the UDP service.
    pub(crate) fn start(lab: &Lab, number: u16) -> Self {
        let mut all = Vec::new();
        for family in Family::ALL {
            for (place, to) in [
                (LabMachine::PodB, at_cluster_ip(family, 1)),
                (LabMachine::Client, at_node_port(family, 30000)),
                (LabMachine::Client, at_external_ip(family, 1)),
            ] {
                all.extend((0..number).map(|_| (place, to)));
            }
        }
        let all = (PORTS..).zip(all).map(|(port, (place, to))| Conversation { place, port, to, last: None }).collect();
        let all = Arc::new(Mutex::new(all));
        let stop = Arc::new(AtomicBool::new(false));
        let threads = [LabMachine::PodB, LabMachine::Client].map(|place| {
            let (all, stop) = (Arc::clone(&all), Arc::clone(&stop));
            lab.host(place).thread(move || converse(place, &all, &stop))
        });
        Self { stop, all, threads: threads.into(), settled: Vec::new(), stale: Vec::new() }
    }

    /// Waits until each reaches a serving endpoint; notes late ones. The rules are in force already.
    pub(crate) fn settle(&mut self, serves: services::Pool) {
        let start = Instant::now();
        let mut strays = strays(&self.all, start, serves);
        while !strays.is_empty() && start.elapsed() < slowly(PATIENCE) {
            std::thread::sleep(Duration::from_millis(1));
            strays = self::strays(&self.all, start, serves);
        }
        self.settled.push(start.elapsed());
        self.stale.extend(strays);
    }

    /// Ends them.
    ///
    /// # Panics
    /// If some stayed with a removed endpoint.
    pub(crate) fn judge(self) {
        self.stop.store(true, Ordering::Relaxed);
        println!("{self}");
        for thread in self.threads {
            thread.join().expect("clients don't panic");
        }
        assert!(self.stale.is_empty(), "stayed where nobody serves:\n{}", self.stale.join("\n"));
    }
}

impl fmt::Display for Conversations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settled = self.settled.clone();
        settled.sort();
        let ms = |index: usize| settled.get(index).copied().unwrap_or_default().as_secs_f64() * 1e3;
        write!(
            f,
            "{} UDP conversations, {} times {} stayed with an endpoint that was gone; all were where they belong {:.0} ms \
             (median; at most {:.0}) after the rules were seen in force",
            self.all.lock().unwrap_or_else(PoisonError::into_inner).len(),
            self.settled.len(),
            self.stale.len(),
            ms(settled.len() / 2),
            ms(settled.len().saturating_sub(1)),
        )
    }
}

/// Conversations without an answer of a serving endpoint since then.
fn strays(all: &Mutex<Vec<Conversation>>, since: Instant, serves: services::Pool) -> Vec<String> {
    let all = all.lock().unwrap_or_else(PoisonError::into_inner);
    let is_right = |one: &&Conversation| one.last.is_some_and(|(endpoint, at)| at > since && serves.has(endpoint));
    let text = |one: &Conversation| {
        let last = one.last.map(|(endpoint, at)| format!("{} {:?} ago", services::Pool(1 << endpoint), at.elapsed()));
        let Conversation { place, port, to, .. } = one;
        format!("{}:{port} to {to}, answered by {}, serving: {serves}", place.name(), last.unwrap_or_default())
    };
    all.iter().filter(|one| !is_right(one)).map(text).collect()
}

fn converse(place: LabMachine, all: &Mutex<Vec<Conversation>>, stop: &AtomicBool) {
    let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
    let open = |(index, one): (usize, &Conversation)| {
        let from = SocketAddr::new(place.address(Family::of(one.to.ip())), one.port);
        let socket = UdpSocket::bind(from).unwrap_or_else(|error| panic!("{from}: {error}"));
        socket.set_nonblocking(true).expect("a socket that doesn't block");
        (index, one.to, socket)
    };
    let sockets: Vec<_> = lock().iter().enumerate().filter(|(_, one)| one.place == place).map(open).collect();
    while !stop.load(Ordering::Relaxed) {
        for (index, to, socket) in &sockets {
            // a refused client sends again
            let _ = socket.send_to(b"?", to);
            let mut text = [0; 128];
            loop {
                match socket.recv(&mut text) {
                    Ok(length) => {
                        let text = String::from_utf8_lossy(&text[..length]);
                        let endpoint = services::endpoint(text.split(' ').next().unwrap_or_default());
                        lock()[*index].last = endpoint.map(|endpoint| (endpoint, Instant::now()));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {} // an error of what was sent before
                }
            }
        }
        std::thread::sleep(slowly(PERIOD));
    }
}
