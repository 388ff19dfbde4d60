//! Windows: there is no control socket.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use tokio::net::TcpStream;

/// No connection is ever made.
pub type ControlStream = TcpStream;

/// No listener is ever made.
#[derive(Debug)]
pub struct ControlListener(Infallible);

/// No file is ever made.
#[derive(Clone, Debug)]
pub struct ControlFile(Infallible);

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

    /// Its file.
    pub fn file(&self) -> ControlFile {
        match self.0 {}
    }
}

// === impl ControlFile ===

impl ControlFile {
    /// The path.
    pub fn path(&self) -> &Path {
        match self.0 {}
    }

    /// True if no process listens at the path.
    pub fn is_lost(&self) -> bool {
        match self.0 {}
    }
}

/// Fails, since no process listens on this system.
///
/// # Errors
/// None but the inner error, `Unsupported`.
pub async fn connect_control(_path: &Path) -> io::Result<Result<ControlStream, io::Error>> {
    Ok(Err(io::ErrorKind::Unsupported.into()))
}
