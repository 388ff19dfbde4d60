use std::sync::Mutex;

use ferry_lab::api::{ApiServerOptions as Server, Authority, Identity, Validity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;

/// Requests that the proxy received.
type Heard = Arc<Mutex<Vec<String>>>;

fn secured() -> (ApiServer, Identity) {
    let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
    (filled(Server { tls: Some(identity.clone()), ..Server::default() }, 1), identity)
}

trait Both: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// A proxy that tunnels CONNECT and forwards other requests to their URL.
async fn http_proxy(status: &'static str, tls: Option<TlsAcceptor>) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (log, tls) = (Arc::clone(&log), tls.clone());
            tokio::spawn(async move {
                let mut client: Box<dyn Both> = match tls {
                    Some(tls) => Box::new(tls.accept(client).await.unwrap()),
                    None => Box::new(client),
                };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                log.lock().unwrap().push(head.clone());
                let target = head.split(' ').nth(1).unwrap().to_owned();
                let is_tunnel = head.starts_with("CONNECT ");
                let authority = target.trim_start_matches("http://").split('/').next().unwrap().to_owned();
                let mut server = TcpStream::connect(authority).await.unwrap();
                if is_tunnel {
                    client.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await.unwrap();
                } else {
                    let path = format!(" /{} ", target.splitn(4, '/').nth(3).unwrap());
                    let head = head.replacen(&format!(" {target} "), &path, 1);
                    server.write_all(head.as_bytes()).await.unwrap();
                }
                let _ended = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, heard)
}

/// A SOCKS proxy that requires this login; records the requested addresses.
async fn socks_proxy(login: Option<(&'static str, &'static str)>) -> (u16, Heard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut methods = vec![0; 2];
        client.read_exact(&mut methods).await.unwrap();
        let mut offered = vec![0; methods[1].into()];
        client.read_exact(&mut offered).await.unwrap();
        client.write_all(&[5, if login.is_some() { 2 } else { 0 }]).await.unwrap();
        if let Some((user, password)) = login {
            assert_eq!(client.read_u8().await.unwrap(), 1);
            for wanted in [user, password] {
                let mut text = vec![0; client.read_u8().await.unwrap().into()];
                client.read_exact(&mut text).await.unwrap();
                assert_eq!(text, wanted.as_bytes());
            }
            client.write_all(&[1, 0]).await.unwrap();
        }
        let mut head = [0; 4];
        client.read_exact(&mut head).await.unwrap();
        let host = match head[3] {
            1 => std::net::Ipv4Addr::from(client.read_u32().await.unwrap()).to_string(),
            3 => {
                let mut name = vec![0; client.read_u8().await.unwrap().into()];
                client.read_exact(&mut name).await.unwrap();
                String::from_utf8(name).unwrap()
            }
            other => panic!("{other}"),
        };
        let to = format!("{host}:{}", client.read_u16().await.unwrap());
        log.lock().unwrap().push(to.clone());
        let mut server = TcpStream::connect(to).await.unwrap();
        client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        let _ended = copy_bidirectional(&mut client, &mut server).await;
    });
    (port, heard)
}

#[tokio::test]
async fn through_a_tunnel() {
    let (server, identity) = secured();
    let (port, heard) = http_proxy("200 fine", None).await;
    let folder = Folder::new();
    let cluster = format!("{}, proxy-url: 'http://me:word@127.0.0.1:{port}'", cluster_of(&server, &identity));
    let setup = Setup::new(folder.access(&cluster, "token: secret").unwrap());
    assert_eq!(setup.status().await, Ok(200));
    let head = heard.lock().unwrap().remove(0).to_lowercase();
    assert!(head.starts_with(&format!("connect {} http/1.1\r\n", server.address())), "{head}");
    assert!(head.contains("proxy-authorization: basic bwu6d29yza==\r\n") && !head.contains("secret"), "{head}");
    assert_eq!(header(&server.requests()[0], "proxy-authorization"), None);
}

#[tokio::test]
async fn through_a_tunnel_within_tls() {
    let (server, identity) = secured();
    let authority = Authority::new("of the system");
    let own = authority.server(&["127.0.0.1"], Validity::Now);
    let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let (port, heard) = http_proxy("200 fine", Some(TlsAcceptor::from(Arc::new(config)))).await;
    let folder = Folder::new();
    let cluster = format!("{}, proxy-url: 'https://127.0.0.1:{port}'", cluster_of(&server, &identity));
    let access = folder.access(&cluster, "").unwrap();
    access.settings.authorities.preset(authority.certificate().as_bytes());
    assert_eq!(Setup::new(access).status().await, Ok(200));
    assert!(heard.lock().unwrap()[0].starts_with("CONNECT "));
    // A proxy that no system authority vouches for gets no request.
    let access = folder.access(&cluster, "").unwrap();
    access.settings.authorities.preset(identity.authority.as_bytes());
    let result = Setup::new(access).status().await;
    assert!(matches!(&result, Err(CallError::Connect(text)) if text.contains("UnknownIssuer")), "{result:?}");
}

#[tokio::test]
async fn a_proxy_that_refuses_or_is_dead_ends_nothing() {
    let (server, identity) = secured();
    let (port, _heard) = http_proxy("403 no", None).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let folder = Folder::new();
    for port in [port, dead] {
        let cluster = format!("{}, proxy-url: 'http://127.0.0.1:{port}'", cluster_of(&server, &identity));
        let result = Setup::new(folder.access(&cluster, "").unwrap()).status().await;
        let Err(CallError::Connect(text)) = result else { panic!("{result:?}") };
        assert!(text.starts_with(&format!("proxy 127.0.0.1:{port}: ")), "{text}");
    }
}

#[tokio::test]
async fn plain_requests_are_forwarded() {
    let server = filled(Server::default(), 1);
    let (port, heard) = http_proxy("", None).await;
    let folder = Folder::new();
    let cluster = format!("server: '{}', proxy-url: 'http://me:word@127.0.0.1:{port}'", server.url());
    assert_eq!(Setup::new(folder.access(&cluster, "").unwrap()).status().await, Ok(200));
    let head = heard.lock().unwrap().remove(0);
    assert!(head.starts_with(&format!("GET {}/api/v1/services?limit=500 HTTP/1.1\r\n", server.url())), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic bwu6d29yza==\r\n"), "{head}");
}

#[tokio::test]
async fn through_socks() {
    let identity = Authority::new("lab").server(&["127.0.0.1", "localhost"], Validity::Now);
    let server = filled(Server { tls: Some(identity.clone()), ..Server::default() }, 1);
    let folder = Folder::new();
    let named = server.url().replace("127.0.0.1", "localhost");
    for (login, user, url) in [(None, "", server.url()), (Some(("me", "word")), "me:word@", named)] {
        let (port, heard) = socks_proxy(login).await;
        let ca = authority_field(&identity);
        let cluster = format!("server: '{url}', {ca}, proxy-url: 'socks5://{user}127.0.0.1:{port}'");
        assert_eq!(Setup::new(folder.access(&cluster, "").unwrap()).status().await, Ok(200));
        // The proxy resolves names.
        assert_eq!(format!("https://{}", heard.lock().unwrap()[0]), url);
    }
}

#[test]
fn what_the_environment_says() {
    let proxy = |server: &str, pairs: &[(&str, &str)]| {
        let env = |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let found = super::super::proxy::ForwardProxy::of_environment(&server.parse().unwrap(), &env);
        found.map(|proxy| proxy.uri.authority().unwrap().to_string())
    };
    let both = [("HTTPS_PROXY", "http://s:1"), ("HTTP_PROXY", "p:2"), ("NO_PROXY", "10.0.0.0/8, .corp")];
    assert_eq!(proxy("https://api", &both).as_deref(), Some("s:1"));
    assert_eq!(proxy("http://api", &both).as_deref(), Some("p:2"));
    for near in ["https://10.1.2.3", "https://api.corp", "https://localhost", "https://127.0.0.1", "https://[::1]:1"] {
        assert_eq!(proxy(near, &both), None, "{near}");
    }
    assert_eq!(proxy("https://api", &[("https_proxy", "socks5://s")]).as_deref(), Some("s:1080"));
    assert_eq!(proxy("https://api", &[("HTTP_PROXY", "http://p"), ("ALL_PROXY", "http://a")]), None);
    assert_eq!(proxy("https://api", &[]), None);
}
