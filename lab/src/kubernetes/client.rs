//! A minimal API client for creating many objects fast: one persistent connection, one request at a time.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::ApiRequest;
use crate::host::Host;

/// Time limit of one attempt's response.
const PATIENCE: Duration = Duration::from_secs(30);

type Connection = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// A connection to the API server as cluster-admin; opened again after it broke between two requests.
pub struct AdminClient<'a> {
    host: &'a Host,
    address: String,
    config: Arc<ClientConfig>,
    connection: Option<Connection>,
}

/// The API server's response.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// HTTP status
    pub status: u16,
    /// body, in JSON
    pub body: Vec<u8>,
}

impl<'a> AdminClient<'a> {
    /// A client in a namespace, with the certificates in the script's folder.
    pub(super) fn new(host: &'a Host, folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file("ca.crt")).expect("the script wrote it") {
            roots.add(certificate.expect("a certificate")).expect("a certificate");
        }
        let own = CertificateDer::pem_file_iter(file("admin.crt")).expect("the script wrote it");
        let own = own.map(|certificate| certificate.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_file(file("admin.key")).expect("the script wrote it");
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("a provider of both versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(own, key)
            .expect("a certificate with its key");
        let url = std::fs::read_to_string(file("url")).expect("the script wrote it");
        let address = url.trim().trim_start_matches("https://").to_owned();
        Self { host, address, config: Arc::new(config), connection: None }
    }

    fn connect(&self) -> io::Result<Connection> {
        let address = self.address.clone();
        let stream = self.host.run(move || TcpStream::connect(address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        Ok(BufReader::new(StreamOwned::new(session, stream)))
    }

    /// Sends a request and waits for the whole response. Makes up to 20 attempts, 100 ms apart.
    ///
    /// # Panics
    /// If all attempts fail, with their errors.
    pub fn ask(&mut self, request: &ApiRequest) -> ApiResponse {
        let mut failures = Vec::new();
        for _ in 0..20 {
            match self.attempt(request) {
                Ok(answer) => return answer,
                Err(error) => {
                    failures.push(error.to_string());
                    self.connection = None;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        panic!("{} {}: no answer: {failures:?}", request.method, request.path);
    }

    fn attempt(&mut self, request: &ApiRequest) -> io::Result<ApiResponse> {
        if self.connection.is_none() {
            self.connection = Some(self.connect()?);
        }
        let connection = self.connection.as_mut().expect("it was just made");
        let ApiRequest { method, path, content_type, body } = request;
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n");
        if !content_type.is_empty() {
            head.push_str(&format!("Content-Type: {content_type}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        connection.get_mut().write_all(head.as_bytes())?;
        connection.get_mut().flush()?;
        read_answer(connection)
    }
}

fn read_answer(connection: &mut Connection) -> io::Result<ApiResponse> {
    let malformed = || io::Error::other("malformed answer");
    let status = line(connection)?.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(malformed)?;
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let header = line(connection)?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| malformed())?;
        }
        is_chunked |= header.strip_prefix("transfer-encoding:").is_some_and(|value| value.trim() == "chunked");
    }
    let mut body = Vec::new();
    if !is_chunked {
        append(connection, length, &mut body)?;
        return Ok(ApiResponse { status, body });
    }
    loop {
        let size = usize::from_str_radix(&line(connection)?, 16).map_err(|_| malformed())?;
        append(connection, size, &mut body)?;
        line(connection)?;
        if size == 0 {
            return Ok(ApiResponse { status, body });
        }
    }
}

fn line(connection: &mut Connection) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn append(connection: &mut Connection, bytes: usize, to: &mut Vec<u8>) -> io::Result<()> {
    let before = to.len();
    to.resize(before + bytes, 0);
    let (_, space) = to.split_at_mut(before);
    connection.read_exact(space)
}
