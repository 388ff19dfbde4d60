//! Unix socket of the running proxy, for its subcommands.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::sleep;

/// A connection to a running proxy, or from a subcommand.
pub type ControlStream = UnixStream;

/// The listening socket.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
    file: ControlFile,
}

/// The file of a listener.
#[derive(Clone, Debug)]
pub struct ControlFile {
    path: PathBuf,
    /// device and inode
    identity: (u64, u64),
}

/// Permissions of the socket file: connecting needs write permission, which only the owner has.
const MODE: u32 = 0o600;
/// Permissions of the folder, if it has to be created.
const FOLDER_MODE: u32 = 0o755;
const BACKLOG: i32 = 16;
/// Pause before another attempt while the backlog is full.
const FULL: Duration = Duration::from_millis(20);

// === impl ControlListener ===

impl ControlListener {
    /// Listens at a path. A socket of an earlier process is replaced atomically, by a rename.
    ///
    /// # Errors
    /// The system's error, or `AlreadyExists` if the path is a file of another type.
    pub fn bind(path: &Path) -> io::Result<Self> {
        make_folder(path)?;
        if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it is not a socket: remove it, or name another path",
            ));
        }
        let next = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
        remove(&next)?;
        let bound = Self::bind_at(&next).and_then(|listener| {
            let identity = identity(&fs::symlink_metadata(&next)?);
            fs::rename(&next, path)?;
            Ok(Self { listener, file: ControlFile { path: path.to_owned(), identity } })
        });
        bound.inspect_err(|_| {
            // It may not exist.
            let _ = fs::remove_file(&next);
        })
    }

    /// Listens only after the permissions are set: until then connections are refused.
    fn bind_at(path: &Path) -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SockAddr::unix(path)?)?;
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        socket.listen(BACKLOG)?;
        UnixListener::from_std(StdUnixListener::from(socket))
    }

    /// Waits for the next connection. Cancel-safe.
    ///
    /// # Errors
    /// The system's, as for too many open files.
    pub async fn accept(&self) -> io::Result<ControlStream> {
        Ok(self.listener.accept().await?.0)
    }

    /// The socket file. It stays after the end of the process, and the next process replaces it.
    pub fn file(&self) -> ControlFile {
        self.file.clone()
    }
}

// === impl ControlFile ===

impl ControlFile {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the path is another file than this one, or none, and no process listens there.
    pub fn is_lost(&self) -> bool {
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        !is_own && StdUnixStream::connect(&self.path).is_err_and(|error| is_not_listening(&error))
    }
}

fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Connects to the process that listens at a path, waiting while its backlog is full. Returns the inner error if no process listens there.
///
/// # Errors
/// The system's error, such as `PermissionDenied`.
pub async fn connect_control(path: &Path) -> io::Result<Result<ControlStream, io::Error>> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(FULL).await,
            Err(error) if is_not_listening(&error) => return Ok(Err(error)),
            connected => return connected.map(Ok),
        }
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.exists()) else { return Ok(()) };
    match fs::create_dir(folder) {
        // Another process has just created it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn identity(of: &Metadata) -> (u64, u64) {
    (of.dev(), of.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_listener_has_the_path() {
        let folder = tempfile_folder("newest");
        let path = folder.join("run/control.sock");
        let old = ControlListener::bind(&path).unwrap();
        let new = ControlListener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert!(!old.file().is_lost(), "another process listens");
        drop(old);
        let (accepted, connected) = tokio::join!(new.accept(), connect_control(&path));
        assert!(accepted.is_ok() && connected.as_ref().is_ok_and(|one| one.is_ok()), "{accepted:?} {connected:?}");
        assert!(!new.file().is_lost());
        let file = new.file();
        drop(new);
        assert_eq!(until_refused(&path).await, io::ErrorKind::ConnectionRefused);
        assert!(!file.is_lost(), "the file is still its own");
        fs::remove_file(&path).unwrap();
        assert!(file.is_lost());
        assert_eq!(connect_control(&path).await.unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_stays() {
        let folder = tempfile_folder("file");
        let path = folder.join("precious");
        fs::write(&path, "text").unwrap();
        assert_eq!(ControlListener::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Waits until connecting fails, and returns the error's kind: a child process that another test has just forked keeps a dropped
    /// listener open until it executes its program.
    async fn until_refused(path: &Path) -> io::ErrorKind {
        for _ in 0..1000 {
            match connect_control(path).await.unwrap() {
                Ok(_) => sleep(Duration::from_millis(10)).await,
                Err(error) => return error.kind(),
            }
        }
        panic!("a process listens at {}", path.display());
    }

    fn tempfile_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ferry-control-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
