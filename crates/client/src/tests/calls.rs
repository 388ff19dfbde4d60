use std::time::Duration;

use ferry_api::wire::stream::Encoding;
use ferry_lab::api::{ApiServerOptions as Server, Authority, FaultAction, FaultRule, RequestForm, Validity, Welcome};
use tokio::time::timeout;

use super::*;

/// A server with TLS, a token and a few services, and a client for it.
fn pair(change: impl FnOnce(&mut ClientOptions)) -> (ApiServer, Setup, Folder) {
    pair_with(Server::default(), "", change)
}

fn pair_with(server: Server, cluster: &str, change: impl FnOnce(&mut ClientOptions)) -> (ApiServer, Setup, Folder) {
    let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
    let token = Some("sesame".to_owned());
    let server = filled(Server { tls: Some(identity.clone()), token, ..server }, 20);
    let folder = Folder::new();
    let access = folder.access(&format!("{}{cluster}", cluster_of(&server, &identity)), "token: sesame").unwrap();
    (server, Setup::with(access, change), folder)
}

fn once(action: FaultAction) -> FaultRule {
    FaultRule::new(1, action)
}

#[tokio::test]
async fn a_list_as_upstream_asks_for_it() {
    let (server, setup, _folder) = pair_with(Server { prefix: "/k8s/c".to_owned(), ..Server::default() }, "", |_| {});
    let answer = setup.client.send(&call(Verb::List)).await.unwrap();
    assert_eq!((answer.status, answer.encoding, answer.retry_after), (200, Some(Encoding::Protobuf), None));
    let (_, body) = whole(answer).await.unwrap();
    assert_eq!(&body[..4], b"k8s\0");
    let seen = server.requests().remove(0);
    assert_eq!((seen.method.as_str(), seen.path_and_query.as_str()), ("GET", "/k8s/c/api/v1/services?limit=500"));
    assert_eq!(header(&seen, "accept"), Some("application/vnd.kubernetes.protobuf, */*"));
    assert_eq!(header(&seen, "accept-encoding"), Some("gzip"));
    assert_eq!(header(&seen, "authorization"), Some("Bearer sesame"));
    assert_eq!(header(&seen, "host"), Some(server.address().to_string().as_str()));
    let agent = header(&seen, "user-agent").unwrap();
    assert!(agent.starts_with("kube-proxy/v1.36."), "{agent}");

    let host = server.address();
    assert_eq!(setup.count(&format!("received GET {host}")), Some(body.len() as u64));
    for name in ["answered 200", "waited", "ended"] {
        assert_eq!(setup.count(&format!("{name} GET {host}")), Some(1), "{name}");
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let (server, setup, _folder) = pair(|_| {});
    for _ in 0..5 {
        assert_eq!(setup.status().await, Ok(200));
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_watch_is_not_packed_and_not_observed() {
    let (server, setup, _folder) = pair(|options| options.accept_content_types = "application/json".to_owned());
    let mut answer = setup.client.send(&call(Verb::Watch)).await.unwrap();
    assert_eq!((answer.status, answer.encoding), (200, Some(Encoding::Json)));
    assert!(answer.body.chunk().await.unwrap().is_some());
    let seen = server.requests().remove(0);
    assert_eq!(header(&seen, "accept-encoding"), Some("identity"));
    assert_eq!(header(&seen, "accept"), Some("application/json"));
    drop(answer);
    assert_eq!(setup.count(&format!("ended GET {}", server.address())), None);
}

#[tokio::test]
async fn gzip_is_undone_whoever_asked_for_it() {
    let (server, setup, _folder) = pair_with(Server::default(), ", disable-compression: true", |_| {});
    let plain = setup.list().await.unwrap();
    assert_eq!(header(&server.requests()[0], "accept-encoding"), Some("identity"));
    for action in [FaultAction::Gzip, FaultAction::GzipMembers] {
        server.script(once(action));
        assert!(setup.list().await.unwrap() == plain);
    }
    server.script(FaultRule::new(1, FaultAction::GzipMembers).form(RequestForm::Watch));
    let mut answer = setup.client.send(&call(Verb::Watch)).await.unwrap();
    assert!(timeout(Duration::from_secs(5), answer.body.chunk()).await.unwrap().unwrap().is_some());

    server.script(once(FaultAction::GzipBomb { bytes: 50 << 20 }));
    let mut answer = setup.client.send(&call(Verb::List)).await.unwrap();
    let mut total = 0;
    while let Some(bytes) = answer.body.chunk().await.unwrap() {
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
        total += bytes.len();
    }
    assert_eq!(total, 50 << 20);
}

#[tokio::test]
async fn refusals_are_answers() {
    let (server, setup, _folder) = pair(|_| {});
    server.script(once(FaultAction::Throttle { header: Some(7), details: None }));
    let answer = setup.client.send(&call(Verb::List)).await.unwrap();
    assert_eq!((answer.status, answer.retry_after), (429, Some(Duration::from_secs(7))));
    server.script(once(FaultAction::status(410)));
    assert_eq!(setup.status().await, Ok(410));
    server.script(once(FaultAction::ContentType("text/html".to_owned())));
    let answer = setup.client.send(&call(Verb::List)).await.unwrap();
    assert_eq!((answer.encoding, answer.content_type.as_str()), (None, "text/html"));
    server.accept_token(Some("another"));
    assert_eq!(setup.status().await, Ok(401));
    assert_eq!(setup.count("retried"), None);
}

#[tokio::test]
async fn broken_answers_are_interruptions() {
    let (server, setup, _folder) = pair(|_| {});
    let size = setup.list().await.unwrap().1.len();
    for action in [
        FaultAction::CutHead { bytes: 0 },
        FaultAction::CutHead { bytes: 20 },
        FaultAction::CutAfter { bytes: 0 },
        FaultAction::CutAfter { bytes: size / 2 },
        FaultAction::ResetAfter { bytes: size / 2 },
    ] {
        // From a connection of its own: a request that a kept connection loses unsent is sent again.
        server.cut();
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.script(FaultRule::new(1, action.clone()));
        let result = setup.status().await;
        assert!(
            matches!(&result, Err(CallError::Interrupted(text)) if !text.contains("http")),
            "{action:?}: {result:?}"
        );
    }
    assert_eq!(setup.status().await, Ok(200));
}

#[tokio::test]
async fn silence_has_an_end() {
    let (server, setup, _folder) = pair(|options| {
        options.timing.connect = Duration::from_millis(300);
        options.timing.headers = Duration::from_millis(300);
    });
    server.script(once(FaultAction::NoAnswer));
    assert!(matches!(setup.status().await, Err(CallError::Timeout { .. })));
    server.cut();
    server.welcome(1, Welcome::Silence);
    let result = timeout(Duration::from_secs(5), setup.status()).await.unwrap();
    assert!(
        matches!(&result, Err(CallError::Connect(text)) if text.contains("no connection within 0.3 s")),
        "{result:?}"
    );
    assert_eq!(setup.count(&format!("answered <error> GET {}", server.address())), Some(2));
    // A slow response is no timeout.
    server.script(once(FaultAction::Slow { bytes: 2000, pause: Duration::from_millis(20) }));
    assert_eq!(setup.status().await, Ok(200));
}

#[tokio::test]
async fn what_never_reached_the_server() {
    let (server, setup, _folder) = pair(|_| {});
    for welcome in [Welcome::Close, Welcome::Reset, Welcome::Garbage] {
        server.welcome(1, welcome);
        let result = setup.status().await;
        assert!(matches!(result, Err(CallError::Connect(_))), "{welcome:?}: {result:?}");
    }
    server.stop();
    let result = setup.status().await;
    assert!(matches!(&result, Err(CallError::Connect(text)) if text.contains("refused")), "{result:?}");
    server.resume();
    assert_eq!(setup.status().await, Ok(200));

    let folder = Folder::new();
    // The label is too long for a DNS query.
    let nowhere = format!("server: 'https://{}'", "a".repeat(64));
    let setup = Setup::new(folder.access(&nowhere, "").unwrap());
    let result = setup.status().await;
    assert!(matches!(&result, Err(CallError::Connect(_))), "{result:?}");
}

/// A load balancer with a dead backend accepts each connection and closes it.
#[tokio::test]
async fn connections_that_answer_nothing_are_held_back() {
    let first = Duration::from_millis(100);
    let (server, setup, _folder) = pair_with(Server { http2: false, ..Server::default() }, "", |options| {
        options.timing.backoff = first;
    });
    server.script(FaultRule::new(4, FaultAction::CutHead { bytes: 0 }));
    let begun = Instant::now();
    for failures in 1..=4 {
        let result = setup.status().await;
        assert!(matches!(result, Err(CallError::Interrupted(_))), "{result:?}");
        assert_eq!((setup.client.failures(), server.connections()), (failures, failures));
    }
    assert!(begun.elapsed() >= first * (1 + 2 + 4), "{:?}", begun.elapsed());
    assert_eq!(setup.status().await, Ok(200));
    assert!(begun.elapsed() >= first * (1 + 2 + 4 + 8), "{:?}", begun.elapsed());
    // A connection that has served a request doesn't count as a failed attempt.
    server.script(FaultRule::new(1, FaultAction::CutHead { bytes: 0 }));
    assert!(setup.status().await.is_err());
    assert_eq!(setup.client.failures(), 4);
}

#[tokio::test]
async fn connections_of_one_attempt_that_answer_nothing_count_once() {
    let (server, setup, _folder) = pair_with(Server { http2: false, ..Server::default() }, "", |_| {});
    server.script(FaultRule::new(4, FaultAction::NoAnswer));
    let cut = async {
        until("the requests", || server.requests().len() == 4).await;
        server.cut();
    };
    let results = tokio::join!(setup.status(), setup.status(), setup.status(), setup.status(), cut);
    assert!(results.0.is_err() && results.1.is_err() && results.2.is_err() && results.3.is_err());
    assert_eq!((setup.client.failures(), server.connections()), (1, 4));
}

/// A request that creates or patches an Event.
fn event(verb: Verb) -> Call {
    let name = if verb == Verb::Patch { "/n.1" } else { "" };
    let body = r#"{"metadata":{"name":"n.1","namespace":"default"}}"#.into();
    Call {
        verb,
        resource: "events",
        path_and_query: format!("/apis/events.k8s.io/v1/namespaces/default/events{name}"),
        body,
    }
}

#[tokio::test]
async fn what_is_written_is_sent_as_json() {
    let (server, setup, _folder) = pair(|_| {});
    for (verb, method, status, content_type) in [
        (Verb::Create, "POST", 201, "application/json"),
        (Verb::Patch, "PATCH", 200, "application/strategic-merge-patch+json"),
        (Verb::Create, "POST", 409, "application/json"),
    ] {
        let answer = setup.client.send(&event(verb)).await.unwrap();
        assert_eq!(answer.status, status);
        if status == 409 {
            let told = answer.refusal(Duration::from_secs(5)).await;
            assert_eq!((told.code, &*told.reason), (409, "AlreadyExists"));
        } else {
            answer.discard(Duration::from_secs(5)).await;
        }
        let seen = server.requests().pop().unwrap();
        assert_eq!((seen.method.as_str(), header(&seen, "content-type")), (method, Some(content_type)));
        assert_eq!(header(&seen, "content-length"), Some(event(verb).body.len().to_string().as_str()));
        assert_eq!(header(&seen, "authorization"), Some("Bearer sesame"));
        let host = server.address();
        assert_eq!(setup.count(&format!("answered {status} {method} {host}")), Some(1));
        assert!(setup.count(&format!("ended {method} {host}")).is_some());
    }
    assert_eq!((server.connections(), server.events().len()), (1, 1));
    assert_eq!(setup.status().await, Ok(200));
    let seen = server.requests().pop().unwrap();
    assert_eq!((header(&seen, "content-type"), header(&seen, "content-length")), (None, None), "a GET has no body");
}

#[tokio::test]
async fn a_limit_of_its_own() {
    let (_server, setup, _folder) = pair(|options| (options.qps, options.burst) = (0.5, 2));
    let other = setup.client.with_own_limit();
    let begun = Instant::now();
    for client in [&setup.client, &other, &setup.client, &other] {
        client.send(&event(Verb::Create)).await.unwrap().discard(Duration::from_secs(5)).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(timeout(Duration::from_millis(100), other.send(&event(Verb::Create))).await.is_err(), "it is used up");
}

#[tokio::test]
async fn requests_wait_for_their_turn() {
    let (server, setup, _folder) = pair(|options| (options.qps, options.burst) = (50.0, 2));
    let begun = Instant::now();
    for _ in 0..7 {
        assert_eq!(setup.status().await, Ok(200));
    }
    assert!(begun.elapsed() >= Duration::from_millis(95), "{:?}", begun.elapsed());
    assert_eq!(setup.count(&format!("waited GET {}", server.address())), Some(7));
}

#[tokio::test]
async fn plain_http() {
    let server = filled(Server { prefix: "/p".to_owned(), ..Server::default() }, 3);
    let folder = Folder::new();
    let setup = Setup::new(folder.access(&format!("server: '{}/'", server.url()), "token: secret").unwrap());
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(header(&server.requests()[0], "authorization"), None);
}
