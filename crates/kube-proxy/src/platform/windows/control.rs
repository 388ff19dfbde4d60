//! Windows: the proxy has no control socket.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use tokio::net::TcpStream;

/// No connection is ever made.
pub type ControlStream = TcpStream;

/// No listener is ever made.
#[derive(Debug)]
pub struct ControlListener(Infallible);

// === impl ControlListener ===

impl ControlListener {
    /// # Errors
    /// Always.
    pub fn bind(_path: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// Never: there is none.
    pub async fn accept(&self) -> io::Result<ControlStream> {
        match self.0 {}
    }

    /// The path.
    pub fn path(&self) -> &Path {
        match self.0 {}
    }
}

/// # Errors
/// Always.
pub async fn connect_control(_path: &Path) -> io::Result<ControlStream> {
    Err(io::ErrorKind::Unsupported.into())
}
