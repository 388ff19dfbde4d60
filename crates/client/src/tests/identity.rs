use std::time::Duration;

use ferry_lab::api::{ApiServerOptions as Server, Authority, FaultAction, FaultRule, Identity, RequestForm, Validity};
use tokio::time::timeout;

use super::*;

/// A server with this certificate that accepts any client.
fn with_certificate(identity: &Identity) -> ApiServer {
    filled(Server { tls: Some(identity.clone()), ..Server::default() }, 1)
}

async fn asked(cluster: &str) -> Result<u16, CallError> {
    Setup::new(Folder::new().access(cluster, "").unwrap()).status().await
}

fn connect_error(result: Result<u16, CallError>) -> String {
    match result {
        Err(CallError::Connect(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn servers_that_cannot_be_trusted() {
    let authority = Authority::new("lab");
    let good = authority.server(&["127.0.0.1", "kubernetes"], Validity::Now);
    let server = with_certificate(&good);
    let url = server.url();
    assert_eq!(asked(&cluster_of(&server, &good)).await, Ok(200));
    let other = Authority::new("other").server(&["x"], Validity::Now);
    let error = connect_error(asked(&cluster_of(&server, &other)).await);
    assert!(error.contains("invalid peer certificate: UnknownIssuer"), "{error}");
    // The system's authorities don't include the cluster's either.
    let error = connect_error(asked(&format!("server: '{url}'")).await);
    assert!(error.contains("UnknownIssuer"), "{error}");
    assert_eq!(asked(&format!("server: '{url}', insecure-skip-tls-verify: true")).await, Ok(200));

    assert_eq!(asked(&format!("{}, tls-server-name: kubernetes", cluster_of(&server, &good))).await, Ok(200));
    let error = connect_error(asked(&format!("{}, tls-server-name: else", cluster_of(&server, &good))).await);
    assert!(error.starts_with("TLS with else: ") && error.contains("not valid for name"), "{error}");
    let error = connect_error(asked(&format!("{}, tls-server-name: 'a b'", cluster_of(&server, &good))).await);
    assert!(error.contains("is not a valid TLS server name"), "{error}");
    // Another name of the machine, which the certificate lacks.
    let local = url.replace("127.0.0.1", "localhost");
    let error = connect_error(asked(&format!("server: '{local}', {}", authority_field(&good))).await);
    assert!(error.contains("not valid for name"), "{error}");

    for (validity, word) in [(Validity::Expired, "expired"), (Validity::NotYet, "not valid yet")] {
        server.present(authority.server(&["127.0.0.1"], validity));
        let error = connect_error(asked(&cluster_of(&server, &good)).await);
        assert!(error.contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_name_that_is_an_address() {
    let authority = Authority::new("lab");
    let identity = authority.server(&["10.1.2.3", "fd00::1"], Validity::Now);
    let server = with_certificate(&identity);
    for name in ["10.1.2.3", "'fd00::1'"] {
        assert_eq!(asked(&format!("{}, tls-server-name: {name}", cluster_of(&server, &identity))).await, Ok(200));
    }
    let error = connect_error(asked(&cluster_of(&server, &identity)).await);
    assert!(error.contains("not valid for name"), "{error}");
}

/// A server that requires client certificates, and a client whose files can be replaced.
struct Bench {
    server: ApiServer,
    folder: Folder,
    setup: Setup,
}

const RECHECK: Duration = Duration::from_millis(50);

impl Bench {
    fn new(clients: &Authority, accepted: Authority, first: Identity) -> Self {
        Self::over(true, clients, accepted, first)
    }

    fn over(http2: bool, clients: &Authority, accepted: Authority, first: Identity) -> Self {
        let identity = clients.server(&["127.0.0.1"], Validity::Now);
        let server = filled(Server { tls: Some(identity), clients: Some(accepted), http2, ..Server::default() }, 1);
        let folder = Folder::new();
        folder.write("ca", &clients.certificate());
        folder.write("certificate", &first.certificate);
        folder.write("key", &first.key);
        let cluster = format!("server: '{}', certificate-authority: ca", server.url());
        let access = folder.access(&cluster, "client-certificate: certificate, client-key: key").unwrap();
        let setup = Setup::with(access, |options| options.timing.recheck = RECHECK);
        Self { server, folder, setup }
    }

    async fn recheck(&self) {
        tokio::time::sleep(RECHECK + Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_certificate_that_is_refused_and_replaced() {
    let (lab, users) = (Authority::new("lab"), Authority::new("users"));
    let [expired, good] = [Validity::Expired, Validity::Now].map(|validity| users.client("a", &[], validity));
    let bench = Bench::new(&lab, users, expired);
    let error = connect_error(bench.setup.status().await);
    assert!(error.starts_with("the server refused the TLS connection: "), "{error}");
    bench.folder.write("certificate", &good.certificate);
    bench.recheck().await;
    // Half of a new pair: the old one stays.
    let error = connect_error(bench.setup.status().await);
    assert!(error.starts_with("the server refused the TLS connection: "), "{error}");
    bench.folder.write("key", &good.key);
    bench.recheck().await;
    assert_eq!(bench.setup.status().await, Ok(200));
    assert_eq!(bench.setup.count("transport"), Some(2));
}

#[tokio::test]
async fn a_new_certificate_gets_new_connections_and_ends_watches() {
    let (lab, users) = (Authority::new("lab"), Authority::new("users"));
    let [first, second] = ["a", "b"].map(|name| users.client(name, &[], Validity::Now));
    let bench = Bench::new(&lab, users, first);
    assert_eq!(bench.setup.status().await, Ok(200));
    let mut watch = bench.setup.client.send(&call(Verb::Watch)).await.unwrap();
    while let Ok(chunk) = timeout(RECHECK * 4, watch.body.chunk()).await {
        assert!(chunk.unwrap().is_some());
    }
    let before = bench.server.connections();
    bench.folder.write("key", &second.key);
    bench.recheck().await;
    assert!(timeout(RECHECK * 4, watch.body.chunk()).await.is_err(), "half a pair ends nothing");
    bench.folder.write("certificate", &second.certificate);
    assert_eq!(timeout(Duration::from_secs(5), watch.body.chunk()).await.unwrap(), Ok(None));
    assert_eq!(bench.setup.status().await, Ok(200));
    assert_eq!(bench.server.connections(), before + 1);
    assert_eq!(bench.setup.status().await, Ok(200));
    assert_eq!(bench.server.connections(), before + 1);
}

#[tokio::test]
async fn a_watch_that_is_never_idle_ends_too() {
    let (lab, users) = (Authority::new("lab"), Authority::new("users"));
    let [first, second] = ["a", "b"].map(|name| users.client(name, &[], Validity::Now));
    let bench = Bench::new(&lab, users, first);
    bench.server.script(FaultRule::new(1, FaultAction::Endless).form(RequestForm::Watch));
    let mut watch = bench.setup.client.send(&call(Verb::Watch)).await.unwrap();
    bench.folder.write("key", &second.key);
    bench.folder.write("certificate", &second.certificate);
    let end = async {
        let mut pieces = 0;
        while watch.body.chunk().await.unwrap().is_some() {
            pieces += 1;
        }
        pieces
    };
    assert!(timeout(Duration::from_secs(10), end).await.unwrap() > 1);
}

#[tokio::test]
async fn new_authorities_are_trusted_and_watches_go_on() {
    for http2 in [false, true] {
        let (lab, users) = (Authority::new("lab"), Authority::new("users"));
        let client = users.client("a", &[], Validity::Now);
        let bench = Bench::over(http2, &lab, users, client);
        let mut watch = bench.setup.client.send(&call(Verb::Watch)).await.unwrap();
        let next = Authority::new("next");
        bench.server.present(next.server(&["127.0.0.1"], Validity::Now));
        // Requests over the established HTTP/2 connection don't verify the server again.
        let distrusts = |result| http2 && result == Ok(200) || connect_error(result).contains("UnknownIssuer");
        assert!(distrusts(bench.setup.status().await));
        bench.folder.write("ca", "no authority");
        bench.recheck().await;
        assert!(distrusts(bench.setup.status().await));
        assert_eq!(bench.setup.client.authorities(), Some(lab.certificate().into_bytes()));
        bench.folder.write("ca", &next.certificate());
        bench.recheck().await;
        let before = bench.server.connections();
        assert_eq!(bench.setup.status().await, Ok(200));
        assert_eq!(bench.setup.client.authorities(), Some(next.certificate().into_bytes()));
        assert_eq!(bench.server.connections(), before + 1, "a new connection, by what is trusted now");
        while let Ok(chunk) = timeout(RECHECK * 4, watch.body.chunk()).await {
            assert!(chunk.unwrap().is_some());
        }
    }
}
