//! Long-lived connections: opened at the beginning, they exchange data until the end.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferry_lab::lab::POD_PORTS;
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::slowly;
use ferry_lab::{Family, Lab, LabMachine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use crate::services::{CARRIERS, HELD_PORTS, PODS, Role};

/// Interval of each connection's messages.
const PERIOD: Duration = Duration::from_millis(400);
/// First port of a place's clients, none of which has the port of another: IPVS finds the connection of an answer by the endpoint and the
/// client's port alone, so of two from one port to one endpoint, over two frontends, only the younger would get answers.
const CLIENT_PORTS: u16 = 6000;
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The connections, and their servers.
pub(crate) struct Established {
    clients: Vec<JoinHandle<Fate>>,
    servers: Vec<JoinHandle<()>>,
    ended: Arc<AtomicBool>,
}

/// Their result.
#[derive(Default)]
pub(crate) struct Fate {
    connections: usize,
    exchanges: u64,
    broken: Vec<String>,
}

// === impl Established ===

impl Established {
    /// Starts servers in all pods, and `number` connections: half from a pod, half from outside, over all frontends.
    pub(crate) fn open(lab: &Lab, number: usize, stop: &Arc<AtomicBool>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let servers = PODS.map(|place| {
            let (ended, (start, is_started)) = (Arc::clone(&ended), std::sync::mpsc::channel());
            let server = lab.host(place).thread(move || {
                let listeners = listeners(place);
                start.send(()).expect("somebody waits");
                serve(&listeners, &ended);
            });
            is_started.recv().expect("servers listen");
            server
        });
        let clients = [LabMachine::PodB, LabMachine::Client].map(|place| {
            let stop = Arc::clone(stop);
            let (open, is_open) = std::sync::mpsc::channel();
            let client = lab.host(place).thread(move || {
                let streams = connect(place, number / 2);
                open.send(()).expect("somebody waits");
                exchange(streams, &stop)
            });
            is_open.recv().expect("connections are open");
            client
        });
        Self { clients: clients.into(), servers: servers.into(), ended }
    }

    /// Waits for the end of the last exchange.
    pub(crate) fn finish(self) -> Fate {
        let mut fate = Fate::default();
        for client in self.clients {
            let one = client.join().expect("clients don't panic");
            fate.connections += one.connections;
            fate.exchanges += one.exchanges;
            fate.broken.extend(one.broken);
        }
        self.ended.store(true, Ordering::Relaxed);
        for server in self.servers {
            server.join().expect("servers don't panic");
        }
        fate
    }
}

fn listeners(place: LabMachine) -> Vec<TcpListener> {
    let addresses = Family::ALL.map(|family| place.address(family));
    let at =
        addresses.iter().flat_map(|ip| POD_PORTS.map(|port| SocketAddr::new(*ip, HELD_PORTS + port - POD_PORTS[0])));
    at.map(|at| {
        let listener = TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
        listener.set_nonblocking(true).expect("a listener that doesn't block");
        listener
    })
    .collect()
}

/// Echoes all data.
fn serve(listeners: &[TcpListener], ended: &AtomicBool) {
    let mut streams: Vec<TcpStream> = Vec::new();
    let timeout = Timespec::try_from(Duration::from_millis(50)).expect("it fits");
    while !ended.load(Ordering::Relaxed) {
        let mut waiting: Vec<_> = listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
        waiting.extend(streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)));
        let _ = poll(&mut waiting, Some(&timeout));
        let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (of_listeners, of_streams) = ready.split_at(listeners.len());
        let mut index = 0;
        streams.retain_mut(|stream| {
            index += 1;
            !of_streams[index - 1] || give_back(stream)
        });
        for (listener, _) in listeners.iter().zip(of_listeners).filter(|(_, ready)| **ready) {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).expect("a stream that doesn't block");
                streams.push(stream);
            }
        }
        std::thread::sleep(slowly(Duration::from_millis(2)));
    }
}

fn give_back(stream: &mut TcpStream) -> bool {
    let mut data = [0; 512];
    match stream.read(&mut data) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&data[..length]).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

fn connect(place: LabMachine, number: usize) -> Vec<TcpStream> {
    let held = u8::try_from(CARRIERS.iter().position(|role| *role == Role::Held).expect("it is there")).expect("few");
    let at: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let cluster_ip = at_cluster_ip(family, u16::from(held) + 1);
            let external = [at_external_ip(family, held + 1), at_node_port(family, 30000 + u16::from(held))];
            if place == LabMachine::Client { external.to_vec() } else { vec![cluster_ip] }
        })
        .collect();
    let open = |(port, at): (u16, &SocketAddr)| {
        let from = SocketAddr::new(place.address(Family::of(at.ip())), port);
        connect_from(from, *at).unwrap_or_else(|error| panic!("{from} to {at}: {error}"))
    };
    (CLIENT_PORTS..).zip(at.iter().cycle()).take(number).map(open).collect()
}

fn connect_from(from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&from.into())?;
    socket.connect(&to.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Each connection sends a number, awaits it, and sends the next after a while.
fn exchange(mut streams: Vec<TcpStream>, stop: &AtomicBool) -> Fate {
    let mut fate = Fate { connections: streams.len(), ..Fate::default() };
    let mut sent: HashMap<usize, (u64, Instant)> = HashMap::new();
    let mut round = 0_u64;
    loop {
        let start = Instant::now();
        for (index, stream) in streams.iter_mut().enumerate() {
            if let Err(error) = stream.write_all(&round.to_be_bytes()) {
                fate.broken.push(format!("sending to {:?}: {error}", stream.peer_addr()));
            }
            sent.insert(index, (round, start));
        }
        while !sent.is_empty() {
            std::thread::sleep(slowly(Duration::from_millis(5)));
            sent.retain(|index, (round, since)| match receive(&mut streams[*index], *round) {
                Ok(true) => {
                    fate.exchanges += 1;
                    false
                }
                Ok(false) if since.elapsed() < slowly(PATIENCE) => true,
                Ok(false) => {
                    fate.broken.push(format!("{:?}: no answer", streams[*index].peer_addr()));
                    false
                }
                Err(why) => {
                    fate.broken.push(format!("{:?}: {why}", streams[*index].peer_addr()));
                    false
                }
            });
        }
        if stop.load(Ordering::Relaxed) || !fate.broken.is_empty() {
            return fate;
        }
        round += 1;
        std::thread::sleep(PERIOD.saturating_sub(start.elapsed()));
    }
}

/// Receives an echo; false if the connection ended.
fn receive(stream: &mut TcpStream, round: u64) -> Result<bool, String> {
    let mut data = [0; 8];
    match stream.read(&mut data) {
        Ok(8) if u64::from_be_bytes(data) == round => Ok(true),
        Ok(length) => Err(format!("{length} bytes in answer to {round}: {data:?}")),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

// === impl Fate ===

impl Fate {
    /// # Panics
    /// If a connection broke.
    pub(crate) fn judge(&self) {
        assert!(self.broken.is_empty(), "{self}:\n{}", self.broken.join("\n"));
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, exchanges, broken } = self;
        write!(f, "{connections} established connections, {exchanges} exchanges, {} broken", broken.len())
    }
}
