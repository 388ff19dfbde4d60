//! Long-lived connections: opened once, they exchange data until stopped.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::host::Host;
use crate::patience::slowly;

/// An echo server on one machine; ends when dropped.
pub struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Long-lived connections of one machine.
pub struct Held {
    stop: Arc<AtomicBool>,
    broken: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Fate>>,
}

/// Results of long-lived connections.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// number of completed exchanges
    pub exchanges: usize,
    /// broken connections: destination and error
    pub broken: Vec<String>,
}

/// Interval of exchanges per connection.
const PERIOD: Duration = Duration::from_millis(20);
/// Time after which an answer counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);

// === impl Echo ===

impl Echo {
    /// Starts a server that listens on these addresses.
    pub fn start(host: &Host, at: &[SocketAddr]) -> Self {
        let at = at.to_vec();
        let listeners: Vec<TcpListener> = host.run(move || {
            let open = |at: &SocketAddr| TcpListener::bind(at).unwrap_or_else(|error| panic!("{at}: {error}"));
            at.iter().map(open).collect()
        });
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        Self { stop, thread: Some(host.thread(move || serve(&listeners, &flag))) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // its panic was printed already, and this may run during another unwinding
            let _ = thread.join();
        }
    }
}

fn serve(listeners: &[TcpListener], stop: &AtomicBool) {
    let mut streams: Vec<TcpStream> = Vec::new();
    listeners.iter().for_each(|listener| listener.set_nonblocking(true).expect("a listener that doesn't block"));
    while !stop.load(Ordering::Relaxed) {
        for (stream, _) in listeners.iter().filter_map(|listener| listener.accept().ok()) {
            stream.set_nonblocking(true).expect("a stream that doesn't block");
            streams.push(stream);
        }
        streams.retain_mut(|stream| {
            let mut data = [0; 64];
            match stream.read(&mut data) {
                Ok(0) => false,
                Ok(length) => stream.write_all(data.get(..length).unwrap_or_default()).is_ok(),
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        thread::sleep(Duration::from_millis(2));
    }
}

// === impl Held ===

impl Held {
    /// Opens `each` connections to each of these addresses.
    ///
    /// # Panics
    /// If one can't be opened.
    pub fn open(host: &Host, to: &[SocketAddr], each: usize) -> Self {
        let (stop, broken) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let mut threads = Vec::new();
        for to in to {
            let to = *to;
            let connect = move || TcpStream::connect(to).unwrap_or_else(|error| panic!("{to}: {error}"));
            let streams: Vec<TcpStream> = host.run(move || (0..each).map(|_| connect()).collect());
            let (stop, broken) = (Arc::clone(&stop), Arc::clone(&broken));
            threads.push(thread::spawn(move || exchange(to, streams, (&stop, &broken))));
        }
        Self { stop, broken, threads }
    }

    /// True once an exchange has failed.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Closes all connections.
    pub fn finish(self) -> Fate {
        self.stop.store(true, Ordering::Relaxed);
        let mut fate = Fate::default();
        for thread in self.threads {
            let one = thread.join().expect("connections don't panic");
            fate.exchanges += one.exchanges;
            fate.broken.extend(one.broken);
        }
        fate
    }
}

fn exchange(to: SocketAddr, mut streams: Vec<TcpStream>, (stop, broken): (&AtomicBool, &AtomicBool)) -> Fate {
    let mut fate = Fate::default();
    while !stop.load(Ordering::Relaxed) {
        streams.retain_mut(|stream| {
            let (number, mut answer) = (fate.exchanges.to_be_bytes(), [0; 8]);
            let turn = stream
                .set_read_timeout(Some(slowly(PATIENCE)))
                .and_then(|()| stream.write_all(&number))
                .and_then(|()| stream.read_exact(&mut answer));
            match turn {
                Ok(()) if answer == number => fate.exchanges += 1,
                Ok(()) => fate.broken.push(format!("{to}: something else came back")),
                Err(error) => fate.broken.push(format!("{to}: {error}")),
            }
            fate.broken.is_empty()
        });
        if !fate.broken.is_empty() {
            broken.store(true, Ordering::Relaxed);
        }
        thread::sleep(slowly(PERIOD));
    }
    fate
}

// === impl Fate ===

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} exchanges, {} broken: {:?}", self.exchanges, self.broken.len(), self.broken)
    }
}
