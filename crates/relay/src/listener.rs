//! One listener: opens its socket, serves it, and opens it again after a failure.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::config::Keepalive;
use crate::gate::ServedPorts;
use crate::port::Port;
use crate::protocol::Protocol;
use crate::socket::{self, Bind};
use crate::system::{self, Acceptor, OpenSocket};
use crate::worker::WorkerHandle;
use crate::{tcp, udp};

/// Pauses before a listener is opened again: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(10)];

/// A listener as it is wanted.
#[derive(Debug)]
pub struct Listener {
    /// The transport protocol.
    pub protocol: Protocol,
    /// Where its socket comes from. With port 0 the system chooses one, which the state reports and which it keeps.
    pub bind: Bind,
    /// The port that it serves.
    pub port: Arc<Port>,
}

/// The state of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerState {
    /// It serves this address.
    Open(SocketAddr),
    /// It could not be opened, or has failed, and is tried again.
    Failed(ListenerError),
    /// It was given as an open socket, which can't be used or has failed; there is nothing to try again.
    Lost(ListenerError),
}

/// Why a listener is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerError {
    /// The address and the error.
    pub text: String,
    /// Descriptors or memory are used up: whatever else is opened now fails, too.
    pub is_exhaustion: bool,
}

/// The state that the task of a listener shares with its owner.
#[derive(Debug)]
pub(crate) struct ListenerStatus {
    target: RwLock<ServedPorts>,
    state: Mutex<SocketState>,
}

#[derive(Debug)]
enum SocketState {
    Open(Serving),
    Failed(ListenerError),
    Lost(ListenerError),
}

/// The socket of a listener.
#[derive(Clone, Debug)]
pub(crate) enum Serving {
    Tcp(Arc<Acceptor>),
    Udp(Arc<UdpSocket>),
}

// === impl ListenerError ===

impl ListenerError {
    fn new(text: String, error: &io::Error) -> Self {
        Self { text, is_exhaustion: system::lacks_resources(error) }
    }

    /// For a listener that is gone for another reason than an error of its socket.
    pub(crate) fn gone(text: &str) -> Self {
        Self { text: text.to_owned(), is_exhaustion: false }
    }

    /// For a socket that can't be opened at this address.
    fn of_address(protocol: Protocol, address: SocketAddr, error: &io::Error) -> Self {
        Self::new(format!("listening on {address} over {protocol}: {error}"), error)
    }
}

impl fmt::Display for ListenerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for ListenerError {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string(), &error)
    }
}

// === impl ListenerStatus ===

impl ListenerStatus {
    /// A listener that is open or not; `is_tried_again`: it is opened again after a failure.
    pub(crate) fn new(target: ServedPorts, opened: Result<&Serving, &ListenerError>, is_tried_again: bool) -> Self {
        let state = match opened {
            Ok(serving) => SocketState::Open(serving.clone()),
            Err(error) if is_tried_again => SocketState::Failed(error.clone()),
            Err(error) => SocketState::Lost(error.clone()),
        };
        Self { target: RwLock::new(target), state: Mutex::new(state) }
    }

    pub(crate) fn target(&self) -> ServedPorts {
        self.target.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// New connections are of this target.
    pub(crate) fn serve(&self, target: ServedPorts) {
        *self.target.write().unwrap_or_else(PoisonError::into_inner) = target;
    }

    pub(crate) fn state(&self) -> ListenerState {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            SocketState::Open(serving) => match serving.address() {
                Ok(address) => ListenerState::Open(address),
                Err(error) => ListenerState::Failed(error.into()),
            },
            SocketState::Failed(error) => ListenerState::Failed(error.clone()),
            SocketState::Lost(error) => ListenerState::Lost(error.clone()),
        }
    }

    /// Why it is not open; `None` if it is. Without a system call.
    pub(crate) fn error(&self) -> Option<ListenerError> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            SocketState::Open(_) => None,
            SocketState::Failed(error) | SocketState::Lost(error) => Some(error.clone()),
        }
    }

    /// A duplicate of the socket, if it is open.
    pub(crate) fn socket(&self) -> Option<io::Result<OpenSocket>> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            SocketState::Open(serving) => Some(serving.duplicate()),
            SocketState::Failed(_) | SocketState::Lost(_) => None,
        }
    }

    /// Closes the socket as soon as its task has ended.
    pub(crate) fn close(&self) {
        self.set(SocketState::Lost(ListenerError::gone("removed")));
    }

    fn set(&self, state: SocketState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

// === impl Serving ===

impl Serving {
    /// Opens a socket or uses one that is open. Within a runtime, which it is registered with.
    ///
    /// # Errors
    /// The text names the address and the error.
    pub(crate) fn new(protocol: Protocol, bind: Bind, keepalive: Keepalive) -> Result<Self, ListenerError> {
        let (address, reuse_port) = match bind {
            Bind::Address { address, reuse_port } => (address, reuse_port),
            Bind::Open(socket) => {
                let adopted = Self::adopt(protocol, socket, None, keepalive);
                return adopted.map_err(|error| {
                    ListenerError::new(format!("using an open socket of {protocol}: {error}"), &error)
                });
            }
            Bind::Inherited { socket, address, reuse_port } => {
                match Self::adopt(protocol, socket, Some(address), keepalive) {
                    Ok(adopted) => return Ok(adopted),
                    Err(error) => {
                        tracing::warn!(%error, %address, %protocol, "Inherited socket is unsuitable, opening another one");
                    }
                }
                (address, reuse_port)
            }
        };
        Self::open(protocol, address, reuse_port, keepalive)
            .map_err(|error| ListenerError::of_address(protocol, address, &error))
    }

    fn open(protocol: Protocol, address: SocketAddr, reuse_port: bool, keepalive: Keepalive) -> io::Result<Self> {
        Ok(match protocol {
            Protocol::Tcp => Self::Tcp(Arc::new(Acceptor::new(socket::listen(address, reuse_port, keepalive)?)?)),
            Protocol::Udp => Self::Udp(Arc::new(UdpSocket::from_std(socket::bind_datagrams(address, reuse_port)?)?)),
        })
    }

    /// Uses an open socket, if it is of this protocol and address; otherwise it is closed.
    fn adopt(
        protocol: Protocol,
        socket: OpenSocket,
        address: Option<SocketAddr>,
        keepalive: Keepalive,
    ) -> io::Result<Self> {
        socket::check(&socket, protocol, address)?;
        Ok(match protocol {
            Protocol::Tcp => {
                let listener = socket::prepare_listener(socket.into(), keepalive)?;
                Self::Tcp(Arc::new(Acceptor::new(listener)?))
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
            Self::Tcp(listener) => listener.duplicate(),
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
    status: Arc<ListenerStatus>,
    mut serving: Option<Serving>,
    reopening: Option<Reopening>,
    workers: Arc<[WorkerHandle]>,
    at: usize,
) {
    let Some(worker) = workers.get(at) else { return };
    let [mut pause, longest] = PAUSES;
    let mut reopening = reopening;
    loop {
        if let Some(open) = serving.take() {
            keep_port(&mut reopening, &open);
            let error = serve(&open, &status, &workers, at).await;
            worker.context.totals.listener_errors.increment();
            tracing::warn!(%error, listener = status.target().name(), "Listener failed, opening it again");
            let state = if reopening.is_some() { SocketState::Failed } else { SocketState::Lost };
            status.set(state(error.into()));
            [pause, _] = PAUSES;
        }
        let Some(Reopening { protocol, address, reuse_port }) = reopening else { return };
        sleep(pause).await;
        pause = longest.min(2 * pause);
        match Serving::open(protocol, address, reuse_port, worker.context.config.keepalive) {
            Ok(open) => {
                tracing::info!(%address, listener = status.target().name(), "Listener is open again");
                status.set(SocketState::Open(open.clone()));
                serving = Some(open);
            }
            Err(error) => {
                worker.context.totals.listener_errors.increment();
                status.set(SocketState::Failed(ListenerError::of_address(protocol, address, &error)));
            }
        }
    }
}

/// A port that the system has chosen stays the same when the listener is opened again, since rules refer to it.
fn keep_port(reopening: &mut Option<Reopening>, open: &Serving) {
    if let (Some(reopening), Ok(address)) = (reopening, open.address()) {
        reopening.address.set_port(address.port());
    }
}

async fn serve(serving: &Serving, status: &Arc<ListenerStatus>, workers: &Arc<[WorkerHandle]>, at: usize) -> io::Error {
    match serving {
        Serving::Tcp(listener) => tcp::accept(listener, || status.target(), workers, at).await,
        Serving::Udp(socket) => match workers.get(at) {
            Some(worker) => udp::relay(socket, || status.target().port().cloned(), &worker.context).await,
            None => io::ErrorKind::NotFound.into(),
        },
    }
}
