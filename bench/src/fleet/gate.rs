//! The gate: a TCP proxy in front of the API server that forwards and counts connections and their bytes, refuses connections
//! while the server is down, or answers 503 in its place.

mod counted;
mod unavailable;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use ferry_lab::Host;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use self::counted::Counted;
use super::audit::Requests;
use super::network::{HUB, PORT};

/// Interval at which a closed gate checks that the server listens.
const POLL: Duration = Duration::from_millis(20);

/// Handling of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// forwards them, as soon as the server listens
    Pass,
    /// doesn't listen; open connections go on
    Close,
    /// answers 503 to every request; open connections end
    Unavailable,
    /// ends the gate
    End,
}

/// Cumulative counters of the gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) connections: u64,
    /// bytes from the proxies
    pub(super) sent: u64,
    /// bytes to the proxies
    pub(super) received: u64,
    /// requests that the gate answered itself
    pub(super) refused: Requests,
}

#[derive(Default)]
struct Counters {
    connections: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    refused: Mutex<Requests>,
}

/// A running gate; ended when dropped.
pub(super) struct ServerGate {
    orders: watch::Sender<Order>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Shared by all connections.
#[derive(Clone)]
struct GateContext {
    server: SocketAddr,
    tls: TlsAcceptor,
    counters: Arc<Counters>,
    orders: watch::Receiver<Order>,
}

// === impl ServerGate ===

impl ServerGate {
    /// Starts a gate in front of a server, whose certificate and key are in the folder.
    pub(super) fn start(hub: &Host, server: SocketAddr, folder: &Path) -> anyhow::Result<Self> {
        let (orders, inbox) = watch::channel(Order::Pass);
        let counters = Arc::new(Counters::default());
        let tls = unavailable::acceptor(&folder.join("server.crt"), &folder.join("server.key"))?;
        let context = GateContext { server, tls, counters: Arc::clone(&counters), orders: inbox };
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = hub.thread(move || runtime.block_on(serve(context)));
        Ok(Self { orders, counters, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.send_replace(order);
    }

    /// The counters so far.
    pub(super) fn passed(&self) -> anyhow::Result<Passed> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        anyhow::ensure!(!ended, "the gate before the API server has ended");
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = self.counters.refused.lock().ok().context("the gate panicked")?.clone();
        let Counters { connections, sent, received, .. } = &*self.counters;
        Ok(Passed { connections: load(connections), sent: load(sent), received: load(received), refused })
    }
}

impl Drop for ServerGate {
    fn drop(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // Its panic was printed already.
            let _ = thread.join();
        }
    }
}

/// Executes orders until [`Order::End`].
async fn serve(context: GateContext) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let order = *context.orders.borrow();
        let mut orders = context.orders.clone();
        let work = async {
            match order {
                Order::Pass => pass(&context, &mut connections).await,
                Order::Unavailable => refuse(&context, &mut connections).await,
                Order::Close | Order::End => pending().await,
            }
        };
        tokio::select! {
            result = work => return result.map(|never| match never {}),
            _ = orders.wait_for(|next| *next != order || *next == Order::End) => {}
        }
        if *context.orders.borrow() == Order::End {
            return Ok(());
        }
    }
}

/// Forwards connections to the server.
async fn pass(context: &GateContext, connections: &mut JoinSet<()>) -> io::Result<Infallible> {
    while TcpStream::connect(context.server).await.is_err() {
        tokio::time::sleep(POLL).await;
    }
    let listener = TcpListener::bind((HUB, PORT)).await?;
    loop {
        let client = accept(&listener, context).await?;
        let server = context.server;
        connections.spawn(async move {
            // Broken connections are left to the peers; they reconnect, which is counted.
            let _ = forward(client, server).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(mut client: Counted, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Ends all connections, and answers 503 on new ones.
async fn refuse(context: &GateContext, connections: &mut JoinSet<()>) -> io::Result<Infallible> {
    connections.abort_all();
    let listener = TcpListener::bind((HUB, PORT)).await?;
    loop {
        let client = accept(&listener, context).await?;
        // Each task ends by itself at the next order.
        tokio::spawn(unavailable::answer(client, context.clone()));
    }
}

async fn accept(listener: &TcpListener, context: &GateContext) -> io::Result<Counted> {
    let (client, _) = listener.accept().await?;
    client.set_nodelay(true)?;
    context.counters.connections.fetch_add(1, Ordering::Relaxed);
    Ok(Counted::new(client, Arc::clone(&context.counters)))
}
