//! The listening socket and the connection threads.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::{Domain, Socket as RawSocket, Type};
use tokio::sync::watch;

use super::connection::{Connection, SharedSocket, drain};
use super::exchange::exchange;
use super::fault::Welcome;
use super::http2::{self, Order};
use super::{ServerState, locked};

/// Accepts connections until stopped, and again after a resume.
pub(super) struct ApiListener {
    control: Arc<Control>,
    acceptor: Option<JoinHandle<()>>,
}

struct Control {
    address: SocketAddr,
    /// the desired and the actual state
    state: Mutex<(ListenState, ListenState)>,
    changed: Condvar,
    waker: OwnedFd,
    accepted: AtomicU64,
    open: Mutex<HashMap<u64, OpenConnection>>,
}

/// An open connection.
struct OpenConnection {
    socket: SharedSocket,
    orders: watch::Sender<Order>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenState {
    Listening,
    Stopped,
    Ended,
}

// === impl ApiListener ===

impl ApiListener {
    pub(super) fn start(address: SocketAddr, shared: Arc<ServerState>) -> Self {
        // Reserves the port without listening while the server is stopped.
        let reserved = RawSocket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        reserved.set_reuse_address(true).expect("an option of the socket");
        reserved.bind(&address.into()).unwrap_or_else(|error| panic!("binding {address}: {error}"));
        let address = reserved.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
        let listener = TcpListener::bind(address).unwrap_or_else(|error| panic!("listening at {address}: {error}"));
        let control = Arc::new(Control {
            address,
            state: Mutex::new((ListenState::Listening, ListenState::Listening)),
            changed: Condvar::new(),
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("making an eventfd"),
            accepted: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let own = Arc::clone(&control);
        // The thread inherits the network namespace, in which it will bind again.
        let acceptor = thread::Builder::new()
            .name("api-server".to_owned())
            .spawn(move || {
                accept_all(&own, &shared, listener);
                drop(reserved);
            })
            .expect("starting a thread");
        Self { control, acceptor: Some(acceptor) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.control.address
    }

    pub(super) fn accepted(&self) -> u64 {
        self.control.accepted.load(Ordering::Relaxed)
    }

    pub(super) fn cut(&self) {
        for open in locked(&self.control.open).values() {
            open.orders.send_replace(Order::End);
            // The connection may have ended already.
            let _ = open.socket.0.shutdown(Shutdown::Both);
        }
    }

    /// Sends a command to all HTTP/2 connections.
    pub(super) fn order(&self, order: Order) {
        for open in locked(&self.control.open).values() {
            open.orders.send_replace(order);
        }
    }

    pub(super) fn stop(&self) {
        self.control.become_state(ListenState::Stopped);
        self.cut();
    }

    pub(super) fn resume(&self) {
        self.control.become_state(ListenState::Listening);
    }
}

impl Drop for ApiListener {
    fn drop(&mut self) {
        self.control.become_state(ListenState::Ended);
        self.cut();
        if let Some(acceptor) = self.acceptor.take() {
            // Its panic was printed already.
            let _ = acceptor.join();
        }
    }
}

// === impl Control ===

impl Control {
    /// Sets the desired state and waits until it is reached.
    fn become_state(&self, wanted: ListenState) {
        let mut state = locked(&self.state);
        state.0 = wanted;
        // The counter can't overflow: it is reset at each wake-up.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
        self.changed.notify_all();
        while state.1 != state.0 && state.1 != ListenState::Ended {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wanted(&self) -> ListenState {
        locked(&self.state).0
    }

    fn is(&self, now: ListenState) {
        locked(&self.state).1 = now;
        self.changed.notify_all();
    }
}

/// Signals the end of accepting, also after a panic, so that no waiter blocks for ever.
struct Over<'a>(&'a Control);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is(ListenState::Ended);
    }
}

fn accept_all(control: &Arc<Control>, shared: &Arc<ServerState>, first: TcpListener) {
    let over = Over(control);
    let mut threads = Vec::new();
    let mut listener = Some(first);
    loop {
        if let Some(listener) = listener.take() {
            control.is(ListenState::Listening);
            accept_while_listening(control, shared, &listener, &mut threads);
        }
        if control.wanted() == ListenState::Ended {
            break;
        }
        control.is(ListenState::Stopped);
        let mut state = locked(&control.state);
        while state.0 == ListenState::Stopped {
            state = control.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.0 == ListenState::Listening {
            listener = Some(TcpListener::bind(control.address).expect("listening again"));
        }
    }
    // `ApiListener::drop` cuts the connections next.
    drop(over);
    for thread in threads {
        // Its panic was printed already.
        let _ = thread.join();
    }
}

fn accept_while_listening(
    control: &Arc<Control>,
    shared: &Arc<ServerState>,
    listener: &TcpListener,
    threads: &mut Vec<JoinHandle<()>>,
) {
    while control.wanted() == ListenState::Listening {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(&control.waker, PollFlags::IN)];
        let Ok(_) = poll(&mut ready, None) else { continue };
        let [connects, wakes] = ready.map(|fd| !fd.revents().is_empty());
        if wakes {
            drain(&control.waker);
            continue;
        }
        if !connects {
            continue;
        }
        // The client may have closed the connection since.
        let Ok((stream, _)) = listener.accept() else { continue };
        let number = control.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let socket = SharedSocket(Arc::new(stream));
        let (orders, ordered) = watch::channel(Order::Serve);
        locked(&control.open).insert(number, OpenConnection { socket: socket.clone(), orders });
        let (control, shared) = (Arc::clone(control), Arc::clone(shared));
        let body = move || {
            // Connections may end in any way: clients close them, scripts cut them.
            let _ = serve(&shared, number, &socket, ordered);
            locked(&control.open).remove(&number);
        };
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread::Builder::new().name(format!("api-{number}")).spawn(body).expect("starting a thread"));
    }
}

fn serve(
    shared: &Arc<ServerState>,
    number: u64,
    socket: &SharedSocket,
    orders: watch::Receiver<Order>,
) -> io::Result<()> {
    socket.0.set_nodelay(true)?;
    let welcome = locked(&shared.script).next_welcome();
    match welcome {
        None => {}
        Some(Welcome::Close) => return socket.0.shutdown(Shutdown::Both),
        Some(Welcome::Reset) => return socket2::SockRef::from(&*socket.0).set_linger(Some(Duration::ZERO)),
        Some(Welcome::Garbage) => {
            (&*socket.0).write_all(b"\x16\x03\x03\xff\xffneither TLS nor HTTP\r\n\r\n")?;
            return farewell(&socket.0);
        }
        Some(Welcome::Silence) => return Connection::open(socket.clone(), None)?.silence(),
    }
    let tls = locked(&shared.tls).as_ref().map(|(_, config)| Arc::clone(config));
    let mut connection = match tls {
        Some(tls) if tls.alpn_protocols.iter().any(|name| name == http2::NAME) => {
            match http2::run(shared, number, socket, tls, orders)? {
                Some(session) => Connection::secured(socket.clone(), session),
                None => return Ok(()),
            }
        }
        tls => Connection::open(socket.clone(), tls)?,
    };
    while let Some((head, body)) = connection.request()? {
        exchange(shared, &mut connection, head, &body, number)?;
    }
    connection.close();
    Ok(())
}

/// Closes the connection without losing written data: unread input would turn the close into a reset.
fn farewell(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    io::copy(&mut stream, &mut io::sink()).map(|_| ())
}
