//! Two network namespaces beside this one, a client's and an endpoint's, for tests of the data path.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use ferry_kernel::netns::Namespace;
use ferry_kernel::veth::{VethEnd, VethPair};

use crate::platform::{TEST_PORT, TestAddresses};

/// Two network namespaces, each connected to this process's by a pair of devices. Dropping it removes everything.
#[derive(Debug)]
pub struct TestNetwork {
    client: Namespace,
    listeners: Vec<TcpListener>,
    /// kept for their lives
    _pairs: [VethPair; 2],
    _endpoint: Namespace,
}

/// The devices at the far ends.
const FAR: &str = "eth0";
/// Hardware addresses of the ends, locally administered: the near and the far one of the client, and those of the endpoint.
const HARDWARE: [[u8; 6]; 4] =
    [[2, 0xfe, 0, 0, 0, 1], [2, 0xfe, 0, 0, 0, 2], [2, 0xfe, 0, 0, 0, 3], [2, 0xfe, 0, 0, 0, 4]];
/// Interval of the checks for a connection that is on its way.
const STEP: Duration = Duration::from_millis(1);
/// Bytes of the token that each connection carries.
const TOKEN: usize = 16;
/// Most connections that are kept open until their tokens have arrived.
const MOST_OPEN: usize = 256;

// === impl TestNetwork ===

impl TestNetwork {
    /// Checks that this system has network namespaces.
    ///
    /// # Errors
    /// Never on Linux.
    pub fn require() -> anyhow::Result<()> {
        Ok(())
    }

    /// Makes the namespaces, with the addresses of these families, and listens at the endpoints.
    ///
    /// # Errors
    /// The system's error, named: without `CAP_SYS_ADMIN` there are no new namespaces.
    pub fn open(families: &[TestAddresses]) -> anyhow::Result<Self> {
        let namespace = || {
            Namespace::new().context("a namespace: this needs CAP_SYS_ADMIN beside CAP_NET_ADMIN, and a seccomp profile or RestrictNamespaces that allows unshare and setns")
        };
        let (client, endpoint) = (namespace()?, namespace()?);
        // Names of their own: those of a process before may not have gone yet.
        let unique = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let unique = unique % 100_000_000;
        let [near_client, far_client, near_endpoint, far_endpoint] = HARDWARE;
        let connect = |letter, near, hardware, namespace: &Namespace| {
            let name = format!("ferry{unique:08}{letter}");
            let near = VethEnd { name: &name, hardware: near };
            let far = VethEnd { name: FAR, hardware };
            VethPair::create(near, far, namespace).with_context(|| format!("the pair of devices {name}"))
        };
        let mut of_client = connect('c', near_client, far_client, &client)?;
        let mut of_endpoint = connect('e', near_endpoint, far_endpoint, &endpoint)?;
        let assign = |pair: &mut VethPair, address, namespace| {
            pair.assign(address, namespace)
                .with_context(|| format!("the address {address}: where it has a route, choose other selfTestRanges"))
        };
        for addresses in families {
            assign(&mut of_client, addresses.client, &client)?;
            assign(&mut of_endpoint, addresses.endpoint, &endpoint)?;
        }
        let listen = |addresses: &TestAddresses| {
            let listener = TcpListener::bind((addresses.endpoint, TEST_PORT))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners = endpoint.run(|| families.iter().map(listen).collect::<io::Result<_>>())??;
        Ok(Self { client, listeners, _pairs: [of_client, of_endpoint], _endpoint: endpoint })
    }

    /// Connects from the client to the Service, and sends a token each way. Returns the time that this took.
    ///
    /// # Errors
    /// Where it failed: there was no answer within `limit`, or another process answered than the endpoint.
    pub fn connect(&self, addresses: &TestAddresses, limit: Duration) -> anyhow::Result<Duration> {
        let is_its = |listener: &&TcpListener| listener.local_addr().is_ok_and(|at| at.ip() == addresses.endpoint);
        let listener = self.listeners.iter().find(is_its).context("no listener of this family")?;
        let start = Instant::now();
        let mut stream = self
            .client
            .run(|| TcpStream::connect_timeout(&addresses.destination(), limit))
            .context("entering the client's namespace")?
            .map_err(|error| no_connection(&error, addresses, limit))?;
        let token = unpredictable();
        stream.write_all(&token)?;
        let mut accepted = accept(listener, &token, start + limit).context(
            "it is accepted, and doesn't reach the endpoint: another process answers, or in mode userspace this one can't connect",
        )?;
        accepted.write_all(&token)?;
        stream.set_read_timeout(Some(limit))?;
        let mut answer = [0; TOKEN];
        stream.read_exact(&mut answer).context("its answer doesn't come back")?;
        if answer != token {
            bail!("its answer is another one than the endpoint's");
        }
        Ok(start.elapsed())
    }
}

/// The error of a connection that could not be opened, with the command that examines it.
fn no_connection(error: &io::Error, addresses: &TestAddresses, limit: Duration) -> anyhow::Error {
    let connection = format!("{} -> {}/TCP", addresses.client, addresses.destination());
    match error.kind() {
        io::ErrorKind::TimedOut => anyhow!(
            "no answer within {} s: a firewall drops its packets, or the kernel doesn't forward them: see kube-proxy trace --live \"{connection}\"",
            limit.as_secs()
        ),
        io::ErrorKind::ConnectionRefused => {
            anyhow!(
                "it is refused: its Service has no rules, or a firewall rejects it: see kube-proxy trace \"{connection}\""
            )
        }
        _ => anyhow!("{error}: see kube-proxy trace \"{connection}\""),
    }
}

/// Accepts the connection that carries this token. Pods of the node can connect to the endpoint, too: their connections carry another token or none,
/// and must not delay the client's.
fn accept(listener: &TcpListener, token: &[u8; TOKEN], until: Instant) -> anyhow::Result<TcpStream> {
    let mut open: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    while Instant::now() < until {
        while open.len() < MOST_OPEN
            && let Ok((stream, _)) = listener.accept()
        {
            stream.set_nonblocking(true)?;
            open.push((stream, Vec::with_capacity(TOKEN)));
        }
        open.retain_mut(|(stream, received)| receives(stream, received));
        if let Some(at) = open.iter().position(|(_, received)| received == token) {
            let (stream, _) = open.swap_remove(at);
            stream.set_nonblocking(false)?;
            return Ok(stream);
        }
        // So many connections without the token are a flood: the client's may be behind them in the queue.
        if open.len() >= MOST_OPEN {
            open.clear();
        }
        sleep(STEP);
    }
    bail!("no connection within the time")
}

/// Reads what has arrived, of a token's length at most; false if the connection has ended.
fn receives(stream: &mut TcpStream, received: &mut Vec<u8>) -> bool {
    let mut buffer = [0; TOKEN];
    let missing = TOKEN.saturating_sub(received.len());
    match stream.read(buffer.get_mut(..missing).unwrap_or_default()) {
        Ok(0) => missing == 0,
        Ok(length) => {
            received.extend(buffer.iter().take(length));
            true
        }
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// A token that no other process can guess: the standard library's hashers have random keys.
fn unpredictable() -> [u8; TOKEN] {
    (u128::from(RandomState::new().hash_one(0)) << 64 | u128::from(RandomState::new().hash_one(1))).to_ne_bytes()
}
