//! Listening sockets of the HTTP server: TCP, and the control socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use crate::platform::{self, ControlListener, ControlStream};

/// A listening socket.
pub trait HttpListener {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Waits for the next connection; returns it with its client's address. Cancel-safe.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, IpAddr)>>;

    /// True if this connection leaves so many reserves of file descriptors to others.
    fn spares(&self, stream: &Self::Stream, reserves: u64) -> bool;

    /// The address, for messages.
    fn place(&self) -> String;
}

impl HttpListener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, IpAddr)> {
        let (stream, client) = Self::accept(self).await?;
        Ok((stream, client.ip()))
    }

    fn spares(&self, stream: &TcpStream, reserves: u64) -> bool {
        platform::spare_files(stream, reserves).is_ok()
    }

    fn place(&self) -> String {
        self.local_addr().map(|address| address.to_string()).unwrap_or_default()
    }
}

impl HttpListener for ControlListener {
    type Stream = ControlStream;

    async fn accept(&self) -> io::Result<(ControlStream, IpAddr)> {
        // All clients of this machine are one.
        Ok((Self::accept(self).await?, Ipv4Addr::LOCALHOST.into()))
    }

    fn spares(&self, stream: &ControlStream, reserves: u64) -> bool {
        platform::spare_files(stream, reserves).is_ok()
    }

    fn place(&self) -> String {
        self.file().path().display().to_string()
    }
}
