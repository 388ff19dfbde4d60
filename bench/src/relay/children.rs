//! The processes of the relay's benchmark: the endpoint, and the relay.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ferry_relay::{
    Balancer, Bind, DEFAULT_PENALTY, Listener, ListenerId, ListenerState, Port, Protocol, Relay, RelayConfig,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};

use super::site::{ECHO, ENDPOINT, SINK};

/// Discarded at a time.
const BLOCK_BYTES: usize = 256 << 10;

/// The endpoint: echoes on one port, discards on the other, until it is killed.
///
/// # Errors
/// If a port is taken.
pub(crate) fn server() -> anyhow::Result<()> {
    ferry_relay::raise_limit(500_000);
    let sink = TcpListener::bind((ENDPOINT, SINK))?;
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = sink.accept() {
            std::thread::spawn(move || {
                let mut block = vec![0; BLOCK_BYTES];
                while stream.read(&mut block).is_ok_and(|count| count > 0) {}
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // The standard library's backlog is too short for thousands of connections at once.
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::new(ENDPOINT.parse()?, ECHO))?;
        let listener = socket.listen(4096)?;
        let datagrams = UdpSocket::bind((ENDPOINT, ECHO)).await?;
        println!("ready");
        tokio::spawn(echo_datagrams(datagrams));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream));
        }
    })
}

/// Echoes what one read returns, without a buffer while it waits.
async fn echo(mut stream: TcpStream) {
    while stream.readable().await.is_ok() {
        let mut block = [0; 4096];
        match stream.try_read(&mut block) {
            Ok(0) => return,
            Ok(count) => {
                let answer = block.get(..count).unwrap_or_default().to_vec();
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_reset) => return,
        }
    }
    // The peer's last bytes, if any, are of no interest.
    drop(stream.read(&mut [0]).await);
}

async fn echo_datagrams(socket: UdpSocket) {
    let mut block = vec![0; 65_536];
    while let Ok((count, client)) = socket.recv_from(&mut block).await {
        // A client that is gone costs its own answer only.
        drop(socket.send_to(block.get(..count).unwrap_or_default(), client).await);
    }
}

/// The relay between the client and the endpoint, until it is killed.
///
/// # Errors
/// If a port is taken.
pub(crate) fn relay_process(address: &str) -> anyhow::Result<()> {
    ferry_relay::raise_limit(500_000);
    // Associations last as long as the measurement of their memory.
    let config = RelayConfig { udp_idle: Duration::from_secs(60), ..RelayConfig::default() };
    let (relay, workers) = Relay::new(config)?;
    let threads: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(|| worker.run())).collect();
    let listeners = [(ECHO, Protocol::Tcp), (SINK, Protocol::Tcp), (ECHO, Protocol::Udp)];
    for (id, (number, protocol)) in (0..).zip(listeners) {
        let balancer = Arc::new(Balancer::new(None, DEFAULT_PENALTY));
        relay.replace_endpoints(&balancer, &[SocketAddr::new(ENDPOINT.parse()?, number)], []);
        let port = Arc::new(Port::new(format!("{number}"), balancer, usize::MAX));
        let bind = Bind::Address { address: SocketAddr::new(address.parse()?, number), reuse_port: false };
        let state = relay.add(ListenerId(id), Listener { protocol, bind, port });
        ensure!(matches!(state, ListenerState::Open(_)), "{state:?}");
    }
    println!("ready");
    for thread in threads {
        thread.join().ok().context("a thread of the relay has panicked")?;
    }
    Ok(())
}
