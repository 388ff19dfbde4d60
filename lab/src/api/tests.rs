//! Tests of the API server with a minimal hand-written client, so that they check the bytes on the wire.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Instant;

use serde_json::Value;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const STREAMING: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

struct Client {
    reader: BufReader<TcpStream>,
}

struct Reply {
    code: u16,
    headers: String,
    body: Vec<u8>,
}

impl Client {
    fn connect(server: &ApiServer) -> Self {
        let stream = TcpStream::connect(server.address()).expect("connecting");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { reader: BufReader::new(stream) }
    }

    fn ask(&mut self, path: &str, accept: &str) {
        let head = format!("GET {path} HTTP/1.1\r\nHost: lab\r\nAccept: {accept}\r\n\r\n");
        self.reader.get_mut().write_all(head.as_bytes()).expect("writing a request");
    }

    fn head(&mut self) -> (u16, String) {
        let mut headers = String::new();
        while !headers.ends_with("\r\n\r\n") {
            assert!(self.reader.read_line(&mut headers).expect("a head") > 0, "cut in the head: {headers}");
        }
        (headers[9..12].parse().expect("a status"), headers.to_lowercase())
    }

    /// Reads one chunk; `None` at the end or after a cut.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut size = String::new();
        self.reader.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        assert_eq!(bytes.split_off(size), b"\r\n");
        (size > 0).then_some(bytes)
    }

    fn get(&mut self, path: &str, accept: &str) -> Reply {
        self.ask(path, accept);
        let (code, headers) = self.head();
        let mut body = Vec::new();
        if let Some(length) = header(&headers, "content-length") {
            body = vec![0; length.parse().expect("a number")];
            self.reader.read_exact(&mut body).expect("a body");
        } else {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        }
        Reply { code, headers, body }
    }

    fn json(&mut self, path: &str) -> Value {
        let reply = self.get(path, "application/json");
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    /// Opens a watch in JSON.
    fn watch(server: &ApiServer, path: &str) -> Self {
        let mut client = Self::connect(server);
        client.ask(path, "application/json");
        assert_eq!(client.head().0, 200);
        client
    }

    fn event(&mut self) -> Option<(String, Value)> {
        let event: Value = serde_json::from_slice(&self.chunk()?).expect("one event in each chunk");
        Some((event["type"].as_str().expect("a type").to_owned(), event["object"].clone()))
    }

    /// Reads the type and name of the next event.
    fn event_line(&mut self) -> String {
        let (verb, object) = self.event().expect("an event");
        format!("{verb} {}", object["metadata"]["name"].as_str().unwrap_or_default())
    }
}

fn header<'a>(headers: &'a str, name: &str) -> Option<&'a str> {
    headers.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items").iter();
    items.map(|item| item["metadata"]["name"].as_str().expect("a name")).collect()
}

fn service(name: &str, labels: &str, cluster_ip: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"demo","labels":{{{labels}}}}},"spec":{{"clusterIP":"{cluster_ip}"}}}}"#
    )
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        sleep(Duration::from_millis(5));
    }
}

fn three() -> ApiServer {
    let server = ApiServer::start(ApiServerOptions::default());
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        server.put(&service(name, "", address));
    }
    server
}

#[test]
fn pages_are_of_one_moment_and_expire() {
    let server = three();
    let mut client = Client::connect(&server);
    let first = client.json("/api/v1/services?limit=2&resourceVersion=0");
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &1.into()));
    server.put(&service("d", "", "10.0.0.4"));
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let next = format!("/api/v1/services?limit=2&continue={token}");
    let second = client.json(&next);
    assert_eq!(names(&second), ["c"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(second["metadata"]["continue"].is_null());
    server.compact();
    let reply = client.get(&next, "application/json");
    assert_eq!(reply.code, 410);
    assert!(String::from_utf8_lossy(&reply.body).contains("Expired"));
    assert_eq!(server.connections(), 1, "all on one connection");
    let seen = server.requests();
    assert_eq!((seen.len(), seen[0].parameter("limit"), seen[2].form), (3, Some("2"), RequestForm::List));
}

#[test]
fn a_streaming_list_ends_with_its_bookmark_and_goes_on() {
    let server = three();
    let mut watch = Client::watch(&server, &format!("/api/v1/services?{STREAMING}"));
    assert_eq!([watch.event_line(), watch.event_line(), watch.event_line()], ["ADDED a", "ADDED b", "ADDED c"]);
    let (verb, object) = watch.event().expect("the bookmark");
    assert_eq!(verb, "BOOKMARK");
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(object["metadata"]["resourceVersion"], server.version().to_string());
    let version = server.put(&service("a", "", "10.0.0.9"));
    let (verb, object) = watch.event().expect("a change");
    assert_eq!((verb.as_str(), &object["kind"]), ("MODIFIED", &"Service".into()));
    assert_eq!(object["metadata"]["resourceVersion"], version.to_string());
    let version = server.delete(Kind::Service, "demo/b").expect("it was there");
    let (verb, object) = watch.event().expect("a deletion");
    assert_eq!((verb.as_str(), &object["metadata"]["name"]), ("DELETED", &"b".into()));
    assert_eq!(object["metadata"]["resourceVersion"], version.to_string());
    server.bookmark();
    assert_eq!(watch.event_line(), "BOOKMARK ");
    assert_eq!(server.watches(), 1);
    drop(watch);
    eventually("the watch is closed", || server.watches() == 0);
}

#[test]
fn what_leaves_a_selector_is_deleted() {
    let server = ApiServer::start(ApiServerOptions::default());
    let path = format!(
        "/api/v1/services?{STREAMING}&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone"
    );
    let foreign = r#""service.kubernetes.io/service-proxy-name":"other""#;
    server.put(&service("headless", "", "None"));
    server.put(&service("foreign", foreign, "10.0.0.1"));
    server.put(&service("own", "", "10.0.0.2"));
    let mut watch = Client::watch(&server, &path);
    assert_eq!([watch.event_line(), watch.event_line()], ["ADDED own", "BOOKMARK "]);
    let version = server.put(&service("own", foreign, "10.0.0.2"));
    let (verb, object) = watch.event().expect("it leaves");
    assert_eq!((verb.as_str(), &object["metadata"]["resourceVersion"]), ("DELETED", &version.to_string().into()));
    server.put(&service("own", foreign, "10.0.0.3"));
    server.put(&service("headless", "", "10.0.0.4"));
    assert_eq!(watch.event_line(), "ADDED headless");
    server.put(&service("foreign", "", "None"));
    server.put(&service("headless", "", "None"));
    assert_eq!(watch.event_line(), "DELETED headless");
}

#[test]
fn nodes_are_selected_by_name() {
    let server = ApiServer::start(ApiServerOptions::default());
    server.load([
        objects::node("node-a", Ipv4Addr::LOCALHOST, "zone-0"),
        objects::node("node-b", Ipv4Addr::LOCALHOST, "zone-0"),
    ]);
    let mut client = Client::connect(&server);
    assert_eq!(names(&client.json("/api/v1/nodes?fieldSelector=metadata.name%3Dnode-b")), ["node-b"]);
    assert_eq!(client.get("/api/v1/nodes?fieldSelector=spec.podCIDR%3D1", "*/*").code, 400);
    assert_eq!(client.json("/api/v1/nodes/node-a")["metadata"]["name"], "node-a");
}

#[test]
fn a_watch_begins_after_its_version_or_gets_410_gone() {
    for gone_as_status in [false, true] {
        let server = ApiServer::start(ApiServerOptions { gone_as_status, ..ApiServerOptions::default() });
        let version = server.put(&service("a", "", "10.0.0.1"));
        server.put(&service("b", "", "10.0.0.2"));
        let path = format!("/api/v1/services?watch=true&resourceVersion={version}&timeoutSeconds=1");
        let mut watch = Client::watch(&server, &path);
        assert_eq!(watch.event_line(), "ADDED b");
        assert!(watch.event().is_none(), "the time is over");
        server.compact();
        let reply = Client::connect(&server).get(&path, "application/json");
        let body: Value = serde_json::from_slice(&reply.body).expect("one event, or a Status");
        let (code, status) = if gone_as_status { (410, &body) } else { (200, &body["object"]) };
        assert_eq!((reply.code, &status["code"], &status["reason"]), (code, &410.into(), &"Expired".into()));
    }
}

#[test]
fn both_encodings_say_the_same() {
    let server = three();
    let mut client = Client::connect(&server);
    let accept = "application/vnd.kubernetes.protobuf, */*";
    let reply = client.get("/api/v1/services", accept);
    assert_eq!(header(&reply.headers, "content-type"), Some("application/vnd.kubernetes.protobuf"));
    assert!(reply.body.starts_with(b"k8s\0\x0a\x11\x0a\x02v1\x12\x0bServiceList\x12"), "{:?}", &reply.body[..40]);
    client.ask(&format!("/api/v1/services?{STREAMING}"), "application/vnd.kubernetes.protobuf;stream=watch");
    let (_, headers) = client.head();
    assert_eq!(header(&headers, "content-type"), Some("application/vnd.kubernetes.protobuf;stream=watch"));
    for _ in 0..4 {
        let chunk = client.chunk().expect("a frame");
        assert_eq!(chunk[..4], u32::try_from(chunk.len() - 4).expect("short").to_be_bytes());
    }
    let reply = Client::connect(&server).get("/apis/none.example/v1/things", accept);
    assert_eq!((reply.code, &reply.body[..4]), (404, &b"k8s\0"[..]));
    assert_eq!(Client::connect(&server).get("/api/v1/services", "text/html").code, 406);
    let server = ApiServer::start(ApiServerOptions { protobuf: false, ..ApiServerOptions::default() });
    let reply = Client::connect(&server).get("/api/v1/services", accept);
    assert_eq!(header(&reply.headers, "content-type"), Some("application/json"));
}

#[test]
fn an_event_posted_comes_back() {
    let server = three();
    let mut client = Client::connect(&server);
    let head = "POST /apis/events.k8s.io/v1/namespaces/default/events HTTP/1.1\r\nContent-Type: x/y\r\nContent-Length: 3\r\n\r\nabc";
    client.reader.get_mut().write_all(head.as_bytes()).expect("writing");
    let (code, headers) = client.head();
    assert_eq!((code, header(&headers, "content-type")), (201, Some("x/y")));
}

#[test]
fn events_in_json_are_kept_and_patched() {
    let server = three();
    let mut client = Client::connect(&server);
    let mut send = |method: &str, name: &str, content_type: &str, body: &str| {
        let head = format!(
            "{method} /apis/events.k8s.io/v1/namespaces/shop/events{name} HTTP/1.1\r\nContent-Type: {content_type}\r\nAccept: \
             application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        client.reader.get_mut().write_all(head.as_bytes()).expect("writing");
        let (code, headers) = client.head();
        let length = header(&headers, "content-length").expect("a length").parse().expect("a number");
        let mut body = vec![0; length];
        client.reader.read_exact(&mut body).expect("a body");
        code
    };
    let event = r#"{"metadata":{"name":"a.1","namespace":"shop"},"note":"n"}"#;
    let merge = "application/strategic-merge-patch+json";
    assert_eq!(send("PATCH", "/a.1", merge, "{}"), 404);
    assert_eq!(send("POST", "", "application/json", event), 201);
    assert_eq!(send("POST", "", "application/json", event), 409);
    assert_eq!(send("PATCH", "/a.1", merge, r#"{"series":{"count":2}}"#), 200);
    assert_eq!(send("PATCH", "/a.1", "text/plain", "{}"), 415);
    assert_eq!(send("POST", "", "application/json", "{"), 400);
    server.script(FaultRule::new(1, FaultAction::status(503)));
    server.script(FaultRule { form: RequestForm::Event, ..FaultRule::new(1, FaultAction::status(403)) });
    assert_eq!(send("POST", "", "application/json", event), 403, "the other rule is of objects");
    let kept = server.events();
    assert_eq!(kept.len(), 1);
    assert_eq!((&kept[0]["note"], &kept[0]["series"]["count"]), (&"n".into(), &2.into()));
}

#[test]
fn a_list_is_cut_at_every_byte() {
    let server = three();
    let whole = Client::connect(&server).get("/api/v1/services", "application/json").body;
    for bytes in (0..whole.len()).step_by(7) {
        server.script(FaultRule::new(1, FaultAction::CutAfter { bytes }));
        let mut client = Client::connect(&server);
        client.ask("/api/v1/services", "application/json");
        client.head();
        let mut rest = Vec::new();
        client.reader.read_to_end(&mut rest).expect("an end");
        assert_eq!(rest.len(), bytes);
    }
    server.script(FaultRule::new(1, FaultAction::ResetAfter { bytes: 5 }));
    let mut client = Client::connect(&server);
    client.ask("/api/v1/services", "application/json");
    let mut rest = Vec::new();
    assert!(client.reader.read_to_end(&mut rest).is_err(), "a reset");
}

#[test]
fn rules_are_used_up_in_order() {
    let server = three();
    server.script(FaultRule::new(1, FaultAction::status(503)).kind(Kind::Node));
    server.script(FaultRule::new(2, FaultAction::Throttle { header: Some(7), details: None }).form(RequestForm::List));
    server.script(FaultRule::new(1, FaultAction::ErrorEvent { code: 500, after: 1 }));
    let mut client = Client::connect(&server);
    for _ in 0..2 {
        let reply = client.get("/api/v1/services", "*/*");
        assert_eq!((reply.code, header(&reply.headers, "retry-after")), (429, Some("7")));
        assert!(!String::from_utf8_lossy(&reply.body).contains("retryAfterSeconds"));
    }
    let mut watch = Client::watch(&server, &format!("/api/v1/services?{STREAMING}"));
    assert_eq!(watch.event_line(), "ADDED a");
    let (verb, status) = watch.event().expect("an error");
    assert_eq!((verb.as_str(), &status["code"]), ("ERROR", &500.into()));
    assert!(watch.event().is_none());
    assert_eq!(client.get("/api/v1/services", "*/*").code, 200);
    assert_eq!(client.get("/api/v1/nodes", "*/*").code, 503);
}

#[test]
fn silences() {
    let server = three();
    for (action, code) in [
        (FaultAction::NoAnswer, None),
        (FaultAction::Silence, Some(200)),
        (FaultAction::StallAfter { bytes: 9 }, Some(200)),
    ] {
        server.script(FaultRule::new(1, action));
        let mut client = Client::connect(&server);
        client.reader.get_ref().set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        client.ask("/api/v1/services", "*/*");
        if let Some(code) = code {
            assert_eq!(client.head().0, code);
        }
        let error = client.reader.read_to_end(&mut Vec::new()).expect_err("nothing, and no end");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed() < PATIENCE, "its threads end");
}

#[test]
fn compressed_bodies_unpack_to_the_same() {
    let server = three();
    let mut client = Client::connect(&server);
    let plain = client.get("/api/v1/services", "*/*").body;
    for action in [FaultAction::Gzip, FaultAction::GzipMembers] {
        server.script(FaultRule::new(1, action));
        let reply = client.get("/api/v1/services", "*/*");
        assert_eq!(header(&reply.headers, "content-encoding"), Some("gzip"));
        let mut unpacked = Vec::new();
        flate2::read::MultiGzDecoder::new(&*reply.body).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!(unpacked, plain);
    }
}

#[test]
fn bodies_are_what_the_script_says() {
    let server = three();
    let whole = Client::connect(&server).get("/api/v1/services", "*/*").body;
    let body = |action: FaultAction| {
        server.script(FaultRule::new(1, action));
        let reply = Client::connect(&server).get("/api/v1/services", "*/*");
        assert_eq!(reply.code, 200);
        (reply.headers, reply.body)
    };
    assert_eq!(body(FaultAction::Raw(b"any bytes".to_vec())).1, b"any bytes");
    assert_eq!(body(FaultAction::EndAfter { bytes: 300 }).1, whole[..300]);
    assert_eq!(body(FaultAction::Slow { bytes: 100, pause: Duration::from_millis(1) }).1, whole);
    assert_eq!(body(FaultAction::Delay(Duration::from_millis(1))).1, whole);
    let (headers, bytes) = body(FaultAction::ContentType("text/html".to_owned()));
    assert_eq!((header(&headers, "content-type"), bytes), (Some("text/html"), whole.clone()));
    let garbage = body(FaultAction::BrokenFrame { after: 1 }).1;
    assert!(serde_json::from_slice::<Value>(&garbage).is_err());
    let bomb = body(FaultAction::GzipBomb { bytes: 3_000_000 }).1;
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*bomb).read_to_end(&mut unpacked).expect("gzip");
    assert!(unpacked.len() == 3_000_000 && bomb.len() < 30_000, "{} of {}", bomb.len(), unpacked.len());
    server.script(FaultRule::new(1, FaultAction::CutHead { bytes: 20 }));
    let mut client = Client::connect(&server);
    client.ask("/api/v1/services", "*/*");
    let mut rest = Vec::new();
    client.reader.read_to_end(&mut rest).expect("an end");
    assert_eq!(rest, b"HTTP/1.1 200 OK\r\nCac");
}

#[test]
fn random_cuts_differ_and_come_again_with_their_seed() {
    let server = three();
    let lengths = || {
        server.script(FaultRule::new(4, FaultAction::CutRandom { seed: 7, below: 200 }));
        let lengths = std::array::from_fn::<_, 4, _>(|_| {
            let mut client = Client::connect(&server);
            client.ask("/api/v1/services", "*/*");
            client.head();
            client.reader.read_to_end(&mut Vec::new()).expect("an end")
        });
        assert!(lengths.iter().all(|length| *length < 200));
        lengths
    };
    let first = lengths();
    assert_ne!(first[0], first[1]);
    assert_eq!(first, lengths());
}

#[test]
fn damage_stays_within_its_object() {
    let server = three();
    server.script(FaultRule::new(1, FaultAction::BrokenObject));
    let list = Client::connect(&server).json("/api/v1/services");
    assert_eq!((names(&list), &list["items"][0]["spec"]), (vec!["a", "b", "c"], &"damaged".into()));
    server.put_damaged(&service("b", "", "10.0.0.2"), Damage::Everything);
    let list = Client::connect(&server).json("/api/v1/services");
    assert_eq!(
        (&list["items"][1]["metadata"], &list["items"][2]["metadata"]["name"]),
        (&"damaged".into(), &"c".into())
    );
    let mut watch =
        Client::watch(&server, &format!("/api/v1/services?watch=true&resourceVersion={}", server.version()));
    server.delete(Kind::Service, "demo/b");
    assert_eq!(watch.event_line(), "DELETED b");
}

#[test]
fn what_never_ends_goes_on() {
    let server = three();
    server.script(FaultRule::new(1, FaultAction::Endless));
    let mut client = Client::connect(&server);
    client.ask("/api/v1/services", "application/vnd.kubernetes.protobuf");
    client.head();
    let last = std::iter::from_fn(|| client.chunk()).nth(5000).expect("many");
    assert!(String::from_utf8_lossy(&last).contains("endless-00004999"));
    server.script(FaultRule::new(3, FaultAction::EndlessPages { items: 1 }));
    let mut client = Client::connect(&server);
    let mut token = String::new();
    for number in 0..3 {
        let page = client.json(&format!("/api/v1/services?limit=500&continue={token}"));
        assert_eq!(names(&page), [format!("endless-{number:08}")]);
        token = page["metadata"]["continue"].as_str().expect("a token").to_owned();
    }
}

#[test]
fn a_stopped_server_refuses_and_comes_back() {
    let server = three();
    let mut watch = Client::watch(&server, "/api/v1/services?watch=true&resourceVersion=0");
    assert_eq!(watch.event_line(), "ADDED a");
    server.stop();
    let mut rest = Vec::new();
    // An end or a reset.
    let _ = watch.reader.read_to_end(&mut rest);
    let error = TcpStream::connect(server.address()).expect_err("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    server.resume();
    assert_eq!(names(&Client::connect(&server).json("/api/v1/services")).len(), 3);
    server.welcome(1, Welcome::Close);
    server.welcome(1, Welcome::Garbage);
    let mut closed = Vec::new();
    assert_eq!(Client::connect(&server).reader.read_to_end(&mut closed).expect("an end"), 0);
    assert!(Client::connect(&server).reader.read_to_end(&mut closed).expect("an end") > 10);
}

#[test]
fn tls_and_credentials() {
    let authority = Authority::new("servers");
    let server = ApiServer::start(ApiServerOptions {
        tls: Some(authority.server(&["127.0.0.1"], Validity::Now)),
        clients: Some(Authority::new("clients")),
        token: Some("good".to_owned()),
        ..ApiServerOptions::default()
    });
    server.put(&service("a", "", "10.0.0.1"));
    let status = |trusted: &Authority, token: &str, identity: Option<Identity>| {
        tls_status(&server, trusted.der(), token, identity)
    };
    assert_eq!(status(&authority, "good", None), Ok(200));
    assert_eq!(status(&authority, "bad", None), Ok(401));
    let clients = server.shared.options.clients.as_ref().expect("it has one");
    assert_eq!(status(&authority, "bad", Some(clients.client("me", &["us"], Validity::Now))), Ok(200));
    let stranger = Authority::new("clients").client("me", &[], Validity::Now);
    assert!(status(&authority, "good", Some(stranger)).is_err());
    assert!(status(&Authority::new("servers"), "good", None).is_err(), "another authority of the same name");
    server.present(authority.server(&["127.0.0.1"], Validity::Expired));
    let error = status(&authority, "good", None).expect_err("expired");
    assert!(error.contains("expired"), "{error}");
    let kubeconfig = server.kubeconfig_text();
    assert!(kubeconfig.contains("client-certificate-data") && kubeconfig.contains(&server.url()), "{kubeconfig}");
}

/// The status of one request over TLS.
fn tls_status(server: &ApiServer, root: &[u8], token: &str, identity: Option<Identity>) -> Result<u16, String> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(root.to_vec())).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key_der));
            let chain = vec![CertificateDer::from(identity.certificate_der)];
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let session = rustls::ClientConnection::new(Arc::new(config), name).expect("a session");
    let socket = TcpStream::connect(server.address()).expect("connecting");
    let mut stream = rustls::StreamOwned::new(session, socket);
    let head = format!("GET /api/v1/services HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    let mut start = [0; 12];
    stream.read_exact(&mut start).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&start[9..]).parse().expect("a status"))
}

#[test]
fn objects_come_as_builders_make_them() {
    let server = ApiServer::start(ApiServerOptions::default());
    server.load(objects::services(3));
    server.load([objects::service_cidr("kubernetes", &["10.96.0.0/12"])]);
    let manifests = crate::Manifests::new().with(crate::TestService::new("web", 7), &[crate::LabMachine::PodA]);
    server.put(&manifests.to_string());
    let mut client = Client::connect(&server);
    assert_eq!(names(&client.json("/api/v1/services")), ["service-0", "service-1", "service-2", "web"]);
    let slices = client.get("/apis/discovery.k8s.io/v1/endpointslices", "application/vnd.kubernetes.protobuf");
    assert!(slices.body.len() > 3 * 1500, "{}", slices.body.len());
    let slices = client.json("/apis/discovery.k8s.io/v1/endpointslices");
    assert_eq!(slices["items"].as_array().expect("items").len(), 5);
    let size = slices["items"][0].to_string().len();
    assert!((3000..5000).contains(&size), "{size} bytes of JSON are not like a real slice");
    let last = |round| objects::replaced(1, round).json().contains(&objects::endpoint(1, 9).to_string());
    assert!(last(0) && !last(1));
    server.load([objects::padded(&objects::service(1), 1_000_000)]);
    let service = client.json("/api/v1/namespaces/bench/services/service-1");
    assert_eq!(service["metadata"]["annotations"]["padding"].as_str().map(str::len), Some(1_000_000));
    let cidrs = client.json("/apis/networking.k8s.io/v1/servicecidrs?labelSelector=a%3Db");
    assert_eq!(cidrs["items"].as_array().map(Vec::len), Some(0));
}
