//! Fuzzes the kubeconfig: decoding and selecting the current context; the server's address, written as text, parses back.
//!
//! Most inputs have no context, so each text is also tried as the fields of a cluster and a user.
#![no_main]

use ferry_client::kubeconfig::{Chosen, ServerAddress, decode, of_master};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    try_one(text, None);
    try_one(text, Some("https://10.0.0.1:6443"));
    let (cluster, user) = text.split_once('\n').unwrap_or((text, ""));
    try_one(
        &format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: \
             {{server: 'https://a', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        ),
        None,
    );
    if let Ok(chosen) = of_master(text) {
        check(&chosen);
    }
});

fn try_one(text: &str, master: Option<&str>) {
    match decode(text, master) {
        Ok(chosen) => check(&chosen),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn check(chosen: &Chosen) {
    let server = &chosen.server;
    let shown = server.to_string();
    assert_eq!(ServerAddress::parse(&shown, !server.tls).as_ref(), Ok(server), "{shown}");
    assert!(server.tls || chosen.user == Default::default());
    assert!(!(chosen.insecure && chosen.authorities.is_some()));
}
