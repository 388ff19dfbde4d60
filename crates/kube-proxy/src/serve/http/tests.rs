//! The server over real sockets.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::{LocalSet, spawn_local};

use super::*;
use tokio::net::TcpStream;

struct Paths;

impl Routes for Paths {
    fn answer(&self, received: &HttpRequest) -> HttpResponse {
        let body = received.body.as_deref().unwrap_or_default();
        HttpResponse { gzip: received.accepts_gzip, ..HttpResponse::text(format!("{}{body}", received.path)) }
    }

    fn reads_body(&self, path: &str) -> bool {
        path == "/body"
    }
}

fn listener() -> (SocketAddr, TcpListener) {
    let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into(), true).unwrap();
    (listener.local_addr().unwrap(), listener)
}

async fn ask(stream: &mut TcpStream, method: &str) -> io::Result<String> {
    stream.write_all(format!("{method} /a HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await?;
    let mut buffer = [0; 1024];
    let length = stream.read(&mut buffer).await?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// A connection from an address of 127.0.0.0/8.
async fn connect_from(last: u8, at: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    socket.connect(at).await.unwrap()
}

async fn is_alive(stream: &mut TcpStream) -> bool {
    ask(stream, "GET").await.is_ok_and(|text| !text.is_empty())
}

#[test]
fn a_client_with_many_connections_ends_only_its_own() {
    run(async {
        let (at, listener) = listener();
        let share = Share { connections: 8, spared_reserves: 0 };
        spawn_local(answer(listener, share, Rc::new(Paths)));
        let mut probe = connect_from(1, at).await;
        assert!(is_alive(&mut probe).await);
        let mut held = Vec::new();
        for round in 0..40 {
            let mut stream = connect_from(9, at).await;
            // Idle, busy, and stuck in the middle of a request.
            match round % 3 {
                0 => {}
                1 => assert!(is_alive(&mut stream).await),
                _ => stream.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap(),
            }
            held.push(stream);
            let mut fresh = connect_from(2, at).await;
            assert!(is_alive(&mut fresh).await, "round {round}");
        }
        assert!(is_alive(&mut probe).await, "the oldest connection, idle since its first request");
    });
}

#[test]
fn of_one_clients_connections_the_idlest_ends() {
    run(async {
        let (at, listener) = listener();
        let share = Share { connections: 3, spared_reserves: 0 };
        spawn_local(answer(listener, share, Rc::new(Paths)));
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(TcpStream::connect(at).await.unwrap());
        }
        // The oldest is in use, the second was never.
        assert!(is_alive(&mut streams[2]).await && is_alive(&mut streams[0]).await);
        streams.push(TcpStream::connect(at).await.unwrap());
        let mut alive = Vec::new();
        for stream in &mut streams {
            alive.push(is_alive(stream).await);
        }
        assert_eq!(alive, [true, false, true, true]);
    });
}

#[test]
fn a_body_is_read_and_has_limits() {
    run(async {
        let (at, listener) = listener();
        spawn_local(answer(listener, SHARE, Rc::new(Paths)));
        for (length, wanted) in [(3, "/bodyxxx"), (2000, "/body")] {
            let mut stream = TcpStream::connect(at).await.unwrap();
            let head = format!("PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(format!("{head}{}", "x".repeat(length)).as_bytes()).await.unwrap();
            let mut buffer = [0; 1024];
            let read = stream.read(&mut buffer).await.unwrap();
            let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
            assert!(text.ends_with(&format!("\r\n\r\n{wanted}")), "{text}");
        }
    });
}

#[test]
fn compressed_bodies_decode() {
    use std::io::Read as _;
    run(async {
        let (at, listener) = listener();
        spawn_local(answer(listener, SHARE, Rc::new(Paths)));
        let mut stream = TcpStream::connect(at).await.unwrap();
        let request = "GET /a HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        assert!(head.contains("\r\nContent-Encoding: gzip"), "{head}");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[end + 4..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "/a");
    });
}

#[test]
fn a_closed_connection_makes_room_and_one_too_many_ends_the_idlest() {
    run(async {
        let (at, listener) = listener();
        let server = spawn_local(answer(listener, Share { connections: 2, spared_reserves: 0 }, Rc::new(Paths)));
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            assert!(ask(&mut stream, "GET").await.unwrap().ends_with("\r\n\r\n/a"));
            streams.push(stream);
        }
        // A closed connection frees capacity.
        drop(streams.pop());
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..2 {
            let mut stream = TcpStream::connect(at).await.unwrap();
            assert!(ask(&mut stream, "HEAD").await.unwrap().contains("\r\nContent-Length: 2\r\n"));
            streams.push(stream);
        }
        let mut alive = Vec::new();
        for stream in &mut streams {
            alive.push(ask(stream, "POST").await.is_ok_and(|text| !text.is_empty()));
        }
        assert_eq!(alive, [false, true, true]);
        server.abort();
        assert!(server.await.unwrap_err().is_cancelled());
        assert!(TcpStream::connect(at).await.is_err());
        for stream in &mut streams {
            assert!(ask(stream, "GET").await.is_ok_and(|text| text.is_empty()) || ask(stream, "GET").await.is_err());
        }
    });
}
