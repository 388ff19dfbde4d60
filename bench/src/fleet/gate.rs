//! The proxy in front of the API server: passes connections on and counts them and their bytes, is closed while the server
//! is, or answers 503 in its place.

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
use ferry_testkit::Host;
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
const LOOK: Duration = Duration::from_millis(20);

/// Handling of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// passes it on, from when the server listens
    Pass,
    /// doesn't listen; connections that are there go on
    Close,
    /// answers 503 to every request; connections that are there end
    Unavailable,
    /// ends
    End,
}

/// Cumulative counters of the gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Passed {
    pub(super) connections: u64,
    /// from the proxies
    pub(super) sent: u64,
    /// to the proxies
    pub(super) received: u64,
    /// that the gate answered itself
    pub(super) refused: Requests,
}

#[derive(Default)]
struct Counters {
    connections: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    refused: Mutex<Requests>,
}

/// A gate; closed with the value.
pub(super) struct Gate {
    orders: watch::Sender<Order>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Shared by all connections.
#[derive(Clone)]
struct Context {
    server: SocketAddr,
    tls: TlsAcceptor,
    counters: Arc<Counters>,
    orders: watch::Receiver<Order>,
}

// === impl Gate ===

impl Gate {
    /// Starts it in front of a server, whose certificate and key are in the folder.
    pub(super) fn start(hub: &Host, server: SocketAddr, folder: &Path) -> anyhow::Result<Self> {
        let (orders, inbox) = watch::channel(Order::Pass);
        let counters = Arc::new(Counters::default());
        let tls = unavailable::acceptor(&folder.join("server.crt"), &folder.join("server.key"))?;
        let context = Context { server, tls, counters: Arc::clone(&counters), orders: inbox };
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = hub.thread(move || runtime.block_on(serve(context)));
        Ok(Self { orders, counters, thread: Some(thread) })
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.send_replace(order);
    }

    /// The counters until now.
    pub(super) fn passed(&self) -> anyhow::Result<Passed> {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        anyhow::ensure!(!ended, "the gate before the API server has ended");
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = self.counters.refused.lock().ok().context("the gate has panicked")?.clone();
        let Counters { connections, sent, received, .. } = &*self.counters;
        Ok(Passed { connections: load(connections), sent: load(sent), received: load(received), refused })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

/// Obeys the orders until the last one.
async fn serve(context: Context) -> io::Result<()> {
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

/// Connects clients with the server.
async fn pass(context: &Context, connections: &mut JoinSet<()>) -> io::Result<Infallible> {
    while TcpStream::connect(context.server).await.is_err() {
        tokio::time::sleep(LOOK).await;
    }
    let listener = TcpListener::bind((HUB, PORT)).await?;
    loop {
        let client = accept(&listener, context).await?;
        let server = context.server;
        connections.spawn(async move {
            // A connection that breaks is the peers' affair; they connect anew, which is counted.
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

/// Ends all connections, and answers 503 to what comes.
async fn refuse(context: &Context, connections: &mut JoinSet<()>) -> io::Result<Infallible> {
    connections.abort_all();
    let listener = TcpListener::bind((HUB, PORT)).await?;
    loop {
        let client = accept(&listener, context).await?;
        // Each ends itself with the next order.
        tokio::spawn(unavailable::answer(client, context.clone()));
    }
}

async fn accept(listener: &TcpListener, context: &Context) -> io::Result<Counted> {
    let (client, _) = listener.accept().await?;
    client.set_nodelay(true)?;
    context.counters.connections.fetch_add(1, Ordering::Relaxed);
    Ok(Counted::new(client, Arc::clone(&context.counters)))
}
