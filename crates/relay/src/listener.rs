//! One listener: opens its socket, serves it, and opens it again after a failure.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::{TcpListener, UdpSocket};
use tokio::time::sleep;

use crate::config::Keepalive;
use crate::port::Port;
use crate::socket::{self, Bind, Protocol};
use crate::system::{self, OpenSocket};
use crate::worker::Seat;
use crate::{tcp, udp};

/// Pauses before a listener is opened again: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// A listener as it is wanted.
#[derive(Debug)]
pub struct Listener {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where its socket comes from.
    pub bind: Bind,
    /// The port that it serves.
    pub port: Arc<Port>,
}

/// The state of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerState {
    /// It serves this address.
    Open(SocketAddr),
    /// It could not be opened, or has failed, and is tried again. The text names the address and the error.
    Failed(String),
    /// It was given as an open socket, which can't be used or has failed; there is nothing to try again.
    Lost(String),
}

/// The state that the task of a listener shares with its owner.
#[derive(Debug)]
pub(crate) struct Shared {
    port: RwLock<Arc<Port>>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(Serving),
    Failed(String),
    Lost(String),
}

/// The socket of a listener.
#[derive(Clone, Debug)]
pub(crate) enum Serving {
    Tcp(Arc<TcpListener>),
    Udp(Arc<UdpSocket>),
}

// === impl Shared ===

impl Shared {
    /// A listener that is open or not; `is_tried_again`: it is opened again after a failure.
    pub(crate) fn new(port: Arc<Port>, opened: Result<&Serving, &str>, is_tried_again: bool) -> Self {
        let state = match opened {
            Ok(serving) => State::Open(serving.clone()),
            Err(error) if is_tried_again => State::Failed(error.to_owned()),
            Err(error) => State::Lost(error.to_owned()),
        };
        Self { port: RwLock::new(port), state: Mutex::new(state) }
    }

    pub(crate) fn port(&self) -> Arc<Port> {
        Arc::clone(&self.port.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// New connections are of this port.
    pub(crate) fn serve(&self, port: Arc<Port>) {
        *self.port.write().unwrap_or_else(PoisonError::into_inner) = port;
    }

    pub(crate) fn state(&self) -> ListenerState {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(serving) => match serving.address() {
                Ok(address) => ListenerState::Open(address),
                Err(error) => ListenerState::Failed(error.to_string()),
            },
            State::Failed(error) => ListenerState::Failed(error.clone()),
            State::Lost(error) => ListenerState::Lost(error.clone()),
        }
    }

    /// A duplicate of the socket, if it is open.
    pub(crate) fn socket(&self) -> Option<io::Result<OpenSocket>> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(serving) => Some(serving.duplicate()),
            State::Failed(_) | State::Lost(_) => None,
        }
    }

    /// Closes the socket as soon as its task has ended.
    pub(crate) fn close(&self) {
        self.set(State::Lost("removed".to_owned()));
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

// === impl Serving ===

impl Serving {
    /// Opens a socket at an address. Within a runtime, which it is registered with.
    pub(crate) fn open(
        protocol: Protocol,
        address: SocketAddr,
        reuse_port: bool,
        keepalive: Keepalive,
    ) -> io::Result<Self> {
        Ok(match protocol {
            Protocol::Tcp => {
                Self::Tcp(Arc::new(TcpListener::from_std(socket::listen(address, reuse_port, keepalive)?)?))
            }
            Protocol::Udp => Self::Udp(Arc::new(UdpSocket::from_std(socket::bind_datagrams(address, reuse_port)?)?)),
        })
    }

    /// Uses an open socket. Within a runtime, which it is registered with.
    pub(crate) fn adopt(protocol: Protocol, socket: OpenSocket, keepalive: Keepalive) -> io::Result<Self> {
        Ok(match protocol {
            Protocol::Tcp => {
                let listener = socket::prepare_listener(socket.into(), keepalive)?;
                Self::Tcp(Arc::new(TcpListener::from_std(listener)?))
            }
            Protocol::Udp => Self::Udp(Arc::new(UdpSocket::from_std(socket::prepare_datagrams(socket.into())?)?)),
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    fn duplicate(&self) -> io::Result<OpenSocket> {
        match self {
            Self::Tcp(listener) => system::duplicate(listener),
            Self::Udp(socket) => system::duplicate(socket),
        }
    }
}

/// The facts that open a listener again: its protocol, address and `SO_REUSEPORT`. A socket that was given open has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reopening {
    pub(crate) protocol: Protocol,
    pub(crate) address: SocketAddr,
    pub(crate) reuse_port: bool,
}

/// Serves a listener as long as its task exists; `at` is the position of its thread.
pub(crate) async fn run(
    shared: Arc<Shared>,
    mut serving: Option<Serving>,
    reopening: Option<Reopening>,
    seats: Arc<[Seat]>,
    at: usize,
) {
    let Some(seat) = seats.get(at) else { return };
    let [mut pause, longest] = PAUSES;
    loop {
        if let Some(open) = serving.take() {
            let error = serve(&open, &shared, &seats, at).await;
            seat.context.totals.listener_errors.increment();
            tracing::warn!(%error, port = shared.port().name(), "a listener has failed");
            shared.set(if reopening.is_some() {
                State::Failed(error.to_string())
            } else {
                State::Lost(error.to_string())
            });
            [pause, _] = PAUSES;
        }
        let Some(Reopening { protocol, address, reuse_port }) = reopening else { return };
        sleep(pause).await;
        pause = longest.min(2 * pause);
        match Serving::open(protocol, address, reuse_port, seat.context.config.keepalive) {
            Ok(open) => {
                tracing::info!(%address, port = shared.port().name(), "a listener is open after it had failed");
                shared.set(State::Open(open.clone()));
                serving = Some(open);
            }
            Err(error) => {
                seat.context.totals.listener_errors.increment();
                shared.set(State::Failed(failure(protocol, address, &error)));
            }
        }
    }
}

/// The text for a listener that can't be opened.
pub(crate) fn failure(protocol: Protocol, address: SocketAddr, error: &io::Error) -> String {
    let protocol = match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    format!("listening on {address} over {protocol}: {error}")
}

async fn serve(serving: &Serving, shared: &Arc<Shared>, seats: &Arc<[Seat]>, at: usize) -> io::Error {
    match serving {
        Serving::Tcp(listener) => tcp::accept(listener, || shared.port(), seats, at).await,
        Serving::Udp(socket) => match seats.get(at) {
            Some(seat) => udp::relay(socket, || shared.port(), &seat.context).await,
            None => io::ErrorKind::NotFound.into(),
        },
    }
}
