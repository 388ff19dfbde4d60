//! The single HTTP/2 connection, and its faults.

use std::time::Duration;

use ferry_lab::api::{ApiServerOptions as Server, Authority, FaultAction, FaultRule, Identity, RequestForm, Validity};
use tokio::time::timeout;

use super::*;

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(20);

fn pair(server: Server, change: impl FnOnce(&mut ClientOptions)) -> (ApiServer, Setup) {
    let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
    let server = filled(Server { tls: Some(identity.clone()), ..server }, 20);
    let access = Folder::new().access(&cluster_of(&server, &identity), "").unwrap();
    (server, Setup::with(access, change))
}

impl Setup {
    async fn watch(&self) -> Answer {
        timeout(PATIENCE, self.client.send(&call(Verb::Watch))).await.unwrap().unwrap()
    }
}

/// Reads until a chunk contains this text, and ignores the others.
async fn read_until(answer: &mut Answer, text: &str) {
    let mut all = Vec::new();
    while !all.windows(text.len()).any(|window| window == text.as_bytes()) {
        all.extend_from_slice(&timeout(PATIENCE, answer.body.chunk()).await.unwrap().unwrap().unwrap());
    }
}

fn service(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"n"}},
            "spec":{{"clusterIP":"10.96.9.9","ports":[{{"port":80}}]}}}}"#
    )
}

#[tokio::test]
async fn one_connection_carries_everything() {
    let (server, setup) = pair(Server::default(), |_| {});
    let (one, two) = (setup.client.clone(), setup.client.with_own_limit());
    // concurrent requests without an open connection
    let watch = call(Verb::Watch);
    let (first, second, third) = tokio::join!(one.send(&watch), two.send(&watch), setup.status());
    assert_eq!(third, Ok(200));
    let mut watches = [first.unwrap(), second.unwrap()];
    for _ in 0..5 {
        assert_eq!(setup.status().await, Ok(200));
    }
    server.put(&service("late"));
    for watch in &mut watches {
        read_until(watch, "late").await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn without_it_each_watch_has_a_connection() {
    for server in [Server { http2: false, ..Server::default() }, Server::default()] {
        let is_disabled = server.http2;
        let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
        let server = filled(Server { tls: Some(identity.clone()), ..server }, 1);
        let folder = Folder::new();
        let kubeconfig = folder.kubeconfig(&cluster_of(&server, &identity), "");
        let env = |name: &str| (is_disabled && name == "DISABLE_HTTP2").then(|| "1".to_owned());
        let setup = Setup::new(Access::load_with(&kubeconfig, None, &env, Path::new("/nowhere")).unwrap());
        let _watches = (setup.watch().await, setup.watch().await);
        for _ in 0..3 {
            assert_eq!(setup.status().await, Ok(200));
        }
        assert_eq!(server.connections(), 3);
    }
}

#[tokio::test]
async fn a_server_that_is_leaving_finishes_what_it_has_begun() {
    let (server, setup) = pair(Server::default(), |_| {});
    let mut old = setup.watch().await;
    server.go_away();
    let begun = Instant::now();
    while server.connections() == 1 {
        assert_eq!(setup.status().await, Ok(200), "no request is lost to it");
        assert!(begun.elapsed() < PATIENCE, "requests stay on the connection that is closing");
    }
    let mut new = setup.watch().await;
    server.put(&service("late"));
    read_until(&mut old, "late").await;
    read_until(&mut new, "late").await;
    assert_eq!(server.connections(), 2);
}

/// Short pings, and time enough for their answers.
fn pings(options: &mut ClientOptions) {
    (options.timing.ping, options.timing.pong) = (Duration::from_millis(50), Duration::from_secs(2));
}

/// Contract with the cluster: a dead connection is noticed within 45 seconds, as by other clients of the API server.
#[test]
fn a_silent_connection_is_asked_after_thirty_seconds_and_given_up_after_fifteen_more() {
    let timing = TimeLimits::default();
    assert_eq!((timing.ping, timing.pong), (Duration::from_secs(30), Duration::from_secs(15)));
}

#[tokio::test]
async fn a_connection_that_answers_no_ping_is_given_up() {
    let (server, setup) = pair(Server::default(), pings);
    let mut watch = setup.watch().await;
    let heard = server.heard() + 5;
    tokio::select! {
        end = async { while let Ok(Some(_)) = watch.body.chunk().await {} } => panic!("the watch ended: {end:?}"),
        () = until("pings", || server.heard() >= heard) => {}
    }
    assert_eq!(setup.status().await, Ok(200), "one that is only silent stays");
    assert_eq!(server.connections(), 1);
    server.freeze();
    let end = timeout(PATIENCE, watch.body.chunk()).await.unwrap();
    assert!(matches!(end, Err(CallError::Interrupted(_))), "{end:?}");
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(server.connections(), 2);
}

/// The connection has answered other requests, so the connection is lost, not the server.
#[tokio::test]
async fn a_request_on_a_connection_that_answers_no_ping_is_sent_again() {
    let (server, setup) = pair(Server::default(), pings);
    assert_eq!(setup.status().await, Ok(200));
    server.script(FaultRule::new(1, FaultAction::NoAnswer));
    let freeze = async {
        until("the request", || server.requests().len() == 2).await;
        server.freeze();
    };
    let (status, ()) = tokio::join!(setup.status(), freeze);
    assert_eq!(status, Ok(200));
    assert_eq!((server.requests().len(), server.connections()), (3, 2));
}

/// A client with this environment.
fn with_environment(
    server: &ApiServer,
    identity: &Identity,
    of: &[(&str, &str)],
    timing: fn(&mut ClientOptions),
) -> Setup {
    let folder = Folder::new();
    let kubeconfig = folder.kubeconfig(&cluster_of(server, identity), "");
    let env = |name: &str| of.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Setup::with(Access::load_with(&kubeconfig, None, &env, Path::new("/nowhere")).unwrap(), timing)
}

#[tokio::test]
async fn pings_can_be_set_by_the_environment() {
    let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
    let server = filled(Server { tls: Some(identity.clone()), ..Server::default() }, 1);
    let (idle, answer) = ("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS");
    let off = with_environment(&server, &identity, &[(idle, "0"), (answer, "soon")], pings);
    let on = with_environment(&server, &identity, &[(idle, "1"), (answer, "1")], |options| {
        (options.timing.ping, options.timing.pong) = (Duration::from_secs(3600), Duration::from_secs(3600));
    });
    let unset = with_environment(&server, &identity, &[], pings);
    let mut watches = [off.watch().await, on.watch().await, unset.watch().await];
    for watch in &mut watches {
        // the objects of the initial list
        read_until(watch, "service-").await;
    }
    server.freeze();
    let [off, on, unset] = &mut watches;
    // Without PINGs no connection ends; so the server didn't end the others.
    tokio::select! {
        end = async { while let Ok(Some(_)) = off.body.chunk().await {} } => panic!("it is pinged: {end:?}"),
        () = async {
            for watch in [on, unset] {
                while let Ok(Some(_)) = timeout(PATIENCE, watch.body.chunk()).await.unwrap() {}
            }
        } => {}
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_is_asked_for_again() {
    let (server, setup) = pair(Server::default(), |_| {});
    assert_eq!(setup.status().await, Ok(200));
    server.script(FaultRule::new(2, FaultAction::RefuseStream));
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(server.requests().len(), 4);
    server.script(FaultRule::new(3, FaultAction::RefuseStream));
    let result = setup.status().await;
    assert!(matches!(result, Err(CallError::Interrupted(_))), "{result:?}");
    assert_eq!(server.requests().len(), 7, "not for ever");
    // A request whose response has begun isn't sent again by the client, but by its caller.
    server.script(FaultRule::new(1, FaultAction::CutHead { bytes: 0 }));
    let result = setup.status().await;
    assert!(matches!(result, Err(CallError::Interrupted(_))), "{result:?}");
    assert_eq!((server.requests().len(), server.connections()), (8, 1));
}

#[tokio::test]
async fn a_server_that_allows_few_streams_gets_more_connections() {
    let (server, setup) = pair(Server { streams: Some(2), ..Server::default() }, |_| {});
    assert_eq!(setup.status().await, Ok(200));
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(setup.watch().await);
    }
    server.put(&service("late"));
    for watch in &mut watches {
        read_until(watch, "late").await;
    }
    assert_eq!(server.connections(), 3);
    // ended streams free capacity
    watches.truncate(1);
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(server.connections(), 3);
}

/// An unread stream doesn't block the others, and memory is bounded.
#[tokio::test]
async fn what_one_stream_doesnt_read_holds_up_no_other() {
    const LARGE: usize = 20 << 20;
    let (server, setup) = pair(Server::default(), |_| {});
    let mut unread = Vec::new();
    // The four kinds' lists, none of which is read.
    for _ in 0..4 {
        server.script(FaultRule::new(1, FaultAction::Raw(vec![b'a'; LARGE])).form(RequestForm::List));
        unread.push(setup.client.send(&call(Verb::List)).await.unwrap());
    }
    // until flow control stops the server
    let mut heard = 0;
    while std::mem::replace(&mut heard, server.heard()) != heard {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for round in 0..20 {
        let mut watch = setup.watch().await;
        let name = format!("late-{round}");
        server.put(&service(&name));
        read_until(&mut watch, &name).await;
        assert_eq!(timeout(PATIENCE, setup.status()).await.unwrap(), Ok(200));
    }
    for answer in unread {
        assert_eq!(timeout(PATIENCE, whole(answer)).await.unwrap().unwrap().1.len(), LARGE);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_was_cut_costs_no_request() {
    let (server, setup) = pair(Server::default(), |_| {});
    for _ in 0..20 {
        assert_eq!(setup.status().await, Ok(200));
        server.cut();
    }
}
