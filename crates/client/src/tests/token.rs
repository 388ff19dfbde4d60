use std::time::Duration;

use ferry_lab::api::{ApiServerOptions as Server, Authority, Identity, Validity};

use super::*;

fn secured(token: Option<&str>) -> (ApiServer, Identity) {
    let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
    let options = Server { tls: Some(identity.clone()), token: token.map(str::to_owned), ..Server::default() };
    (filled(options, 1), identity)
}

#[tokio::test]
async fn a_renewed_token_is_used_at_once_when_the_old_one_is_refused() {
    let (server, identity) = secured(Some("one"));
    let folder = Folder::new();
    folder.write("token", "one\n");
    let setup = Setup::new(folder.access(&cluster_of(&server, &identity), "tokenFile: token, token: other").unwrap());
    assert_eq!(setup.status().await, Ok(200));
    folder.write("token", "two");
    server.accept_token(Some("two"));
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(setup.count(&format!("retried 401 GET {}", server.address())), Some(1));
    // An unchanged token isn't sent again.
    server.accept_token(Some("three"));
    server.forget_requests();
    assert_eq!(setup.status().await, Ok(401));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_token_file_is_read_again_and_the_last_token_stays_without_it() {
    let (server, identity) = secured(None);
    let folder = Folder::new();
    folder.write("token", "one");
    let access = folder.access(&cluster_of(&server, &identity), "tokenFile: token").unwrap();
    let setup = Setup::with(access, |options| options.timing.recheck = Duration::ZERO);
    for (content, wanted) in
        [(Some("one"), "one"), (Some(" two \n"), "two"), (None, "two"), (Some(""), "two"), (Some("3"), "3")]
    {
        match content {
            Some(content) => drop(folder.write("token", content)),
            None => fs::remove_file(folder.path("token")).unwrap(),
        }
        server.forget_requests();
        assert_eq!(setup.status().await, Ok(200));
        let seen = server.requests().remove(0);
        assert_eq!(header(&seen, "authorization"), Some(format!("Bearer {wanted}").as_str()));
    }
}

#[tokio::test]
async fn passwords_and_impersonation() {
    let (server, identity) = secured(None);
    let folder = Folder::new();
    let user = "username: me, password: secret, as: admin, as-uid: '7', as-groups: [g, h], \
                as-user-extra: {Scopes/x y: [a, b]}";
    let setup = Setup::new(folder.access(&cluster_of(&server, &identity), user).unwrap());
    assert_eq!(setup.status().await, Ok(200));
    let seen = server.requests().remove(0);
    assert_eq!(header(&seen, "authorization"), Some("Basic bWU6c2VjcmV0"));
    let sent: Vec<_> = seen.headers.iter().filter(|(name, _)| name.starts_with("impersonate-")).collect();
    let mut sent: Vec<String> = sent.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    sent.sort();
    assert_eq!(
        sent,
        [
            "impersonate-extra-scopes%2fx%20y=a",
            "impersonate-extra-scopes%2fx%20y=b",
            "impersonate-group=g",
            "impersonate-group=h",
            "impersonate-uid=7",
            "impersonate-user=admin"
        ]
    );
}
