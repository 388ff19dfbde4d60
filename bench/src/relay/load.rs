//! The loads of the relay's benchmark. They run in the client's namespace.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Written at a time.
const BLOCK_BYTES: usize = 256 << 10;
/// A request, and its answer.
const REQUEST_BYTES: usize = 64;
/// Clients that connect at the same time.
const CLIENTS: usize = 16;
/// Round trips that are measured.
const ROUND_TRIPS: usize = 20_000;
/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection over which one byte has come back, so it reaches the endpoint.
pub(super) fn established(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut byte = [0];
    stream.write_all(&byte)?;
    stream.read_exact(&mut byte)?;
    Ok(stream)
}

/// Makes a few connections before anything is measured.
pub(super) fn warm_up(address: SocketAddr) -> anyhow::Result<()> {
    for _ in 0..100 {
        drop(established(address)?);
    }
    Ok(())
}

/// Writes as fast as one connection takes it, and returns the gigabits written.
pub(super) fn stream(address: SocketAddr, time: Duration) -> anyhow::Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    let block = vec![0; BLOCK_BYTES];
    let end = Instant::now() + time;
    let mut bytes = 0.0;
    while Instant::now() < end {
        stream.write_all(&block)?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2 to the 52")]
        {
            bytes += BLOCK_BYTES as f64;
        }
    }
    Ok(bytes * 8e-9)
}

/// Connects, sends a request, reads the answer and closes, with several clients at once, each to one of the addresses; returns the
/// number of connections.
pub(super) fn connections(addresses: &[SocketAddr], time: Duration) -> anyhow::Result<usize> {
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (stop, count) = (&stop, &count);
    let one = |address: SocketAddr| -> std::io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut bytes = [7; REQUEST_BYTES];
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = addresses
            .iter()
            .cycle()
            .take(CLIENTS)
            .map(|&address| {
                scope.spawn(move || -> std::io::Result<()> {
                    while !stop.load(Ordering::Relaxed) {
                        one(address)?;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_panic| anyhow::anyhow!("a client has panicked"))??;
        }
        Ok(count.load(Ordering::Relaxed))
    })
}

/// The times of single bytes there and back.
pub(super) fn round_trips(address: SocketAddr) -> anyhow::Result<Vec<Duration>> {
    let mut stream = established(address)?;
    let mut byte = [0];
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let start = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Sends two datagrams from each of many clients, and returns the number of answers. Few are under way at a time, so that no
/// buffer overflows.
pub(super) fn datagrams(address: SocketAddr, clients: usize) -> anyhow::Result<usize> {
    const AT_A_TIME: usize = 100;
    let mut sockets = Vec::with_capacity(clients);
    for _ in 0..clients {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(address)?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        sockets.push(socket);
    }
    let mut answers = 0;
    for _ in 0..2 {
        for group in sockets.chunks(AT_A_TIME) {
            for socket in group {
                socket.send(&[7; REQUEST_BYTES])?;
            }
            for socket in group {
                answers += usize::from(socket.recv(&mut [0; REQUEST_BYTES]).is_ok());
            }
        }
    }
    Ok(answers)
}
