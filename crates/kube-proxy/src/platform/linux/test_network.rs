//! Two network namespaces beside this one, a client's and an endpoint's, for tests of the data path.

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
/// Interval of the looks for a connection that is on its way.
const STEP: Duration = Duration::from_millis(1);

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
        let namespace = || Namespace::new().context("a namespace: this needs CAP_SYS_ADMIN beside CAP_NET_ADMIN");
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
        for addresses in families {
            let assign = |pair: &mut VethPair, address, hardware, namespace| {
                let far = (VethEnd { name: FAR, hardware }, namespace);
                pair.assign(address, far).with_context(|| format!("the address {address}"))
            };
            assign(&mut of_client, addresses.client, far_client, &client)?;
            assign(&mut of_endpoint, addresses.endpoint, far_endpoint, &endpoint)?;
        }
        let listen = |addresses: &TestAddresses| {
            let listener = TcpListener::bind((addresses.endpoint, TEST_PORT))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners = endpoint.run(|| families.iter().map(listen).collect::<io::Result<_>>())??;
        Ok(Self { client, listeners, _pairs: [of_client, of_endpoint], _endpoint: endpoint })
    }

    /// Connects from the client to the Service, and sends a word each way. Returns the time that this took.
    ///
    /// # Errors
    /// Where it failed: there was no answer within `limit`, or another process answered than the endpoint.
    pub fn connect(&self, addresses: &TestAddresses, limit: Duration) -> anyhow::Result<Duration> {
        let is_its = |listener: &&TcpListener| listener.local_addr().is_ok_and(|at| at.ip() == addresses.endpoint);
        let listener = self.listeners.iter().find(is_its).context("no listener of this family")?;
        // Connections that came after the end of an attempt.
        while listener.accept().is_ok() {}
        let start = Instant::now();
        let mut stream = self
            .client
            .run(|| TcpStream::connect_timeout(&addresses.destination(), limit))
            .context("entering the client's namespace")?
            .map_err(|error| no_connection(&error, addresses, limit))?;
        let mut accepted = accept(listener, start + limit)
            .with_context(|| format!("another process than the endpoint answers at {}", addresses.destination()))?;
        let word = unique_word();
        exchange((&mut stream, &mut accepted), &word, limit).context("its request doesn't reach the endpoint")?;
        exchange((&mut accepted, &mut stream), &word, limit).context("its answer doesn't come back")?;
        Ok(start.elapsed())
    }
}

/// What kept a connection from being opened, and how to find more.
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

/// The connection that the listener gets until then. In mode userspace it comes after the client's own.
fn accept(listener: &TcpListener, until: Instant) -> io::Result<TcpStream> {
    loop {
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => sleep(STEP),
            accepted => return Ok(accepted?.0),
        }
    }
}

/// Sends a word from one end to the other.
fn exchange((from, to): (&mut TcpStream, &mut TcpStream), word: &[u8; 16], limit: Duration) -> anyhow::Result<()> {
    to.set_nonblocking(false)?;
    to.set_read_timeout(Some(limit))?;
    from.write_all(word)?;
    let mut received = [0; 16];
    to.read_exact(&mut received)?;
    if received != *word {
        bail!("other bytes have arrived than were sent");
    }
    Ok(())
}

/// A word that no connection before had.
fn unique_word() -> [u8; 16] {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos().to_ne_bytes()
}
