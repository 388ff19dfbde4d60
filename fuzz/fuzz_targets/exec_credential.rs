//! Fuzzes the output of exec plugins: what is accepted has a header that debug output redacts, in one version only, and neither an
//! error nor debug output quotes a secret.
//!
//! Most inputs are no ExecCredential, so each text is also tried as its status, and its lines as the values of a status.
#![no_main]

use std::time::SystemTime;

use ferry_client::ExecAnswer;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

const VERSION: &str = "client.authentication.k8s.io/v1";
const OTHER_VERSION: &str = "client.authentication.k8s.io/v1beta1";
/// A part of each secret, which no message of a program contains.
const SECRET: &str = "xyzzy-secret";

fuzz_target!(|printed: &[u8]| {
    check(printed);
    let Ok(text) = std::str::from_utf8(printed) else { return };
    check(format!("{{\"apiVersion\":\"{VERSION}\",\"kind\":\"ExecCredential\",\"status\":{{{text}}}}}").as_bytes());
    fields(text);
});

/// Checks a status with the text's first line as the token, the second one as the expiry, and the rest as certificate and key.
fn fields(text: &str) {
    let (token, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (expiry, pem) = rest.split_once('\n').unwrap_or((rest, ""));
    let token = format!("{token}{SECRET}");
    // Text before a block of PEM is a comment.
    let pem = if pem.is_empty() { String::new() } else { format!("{SECRET}\n{pem}") };
    let status = json!({
        "token": token, "expirationTimestamp": expiry, "clientCertificateData": pem, "clientKeyData": pem
    });
    let printed = json!({ "apiVersion": VERSION, "kind": "ExecCredential", "status": status }).to_string();
    if let Some(answer) = check(printed.as_bytes()) {
        let header = answer.header.expect("there is a token");
        assert_eq!(header.as_bytes(), format!("Bearer {}", token.trim()).as_bytes());
        assert_eq!(answer.expires.is_some(), !expiry.is_empty());
    }
}

fn check(printed: &[u8]) -> Option<ExecAnswer> {
    match ExecAnswer::parse(printed, VERSION) {
        Ok(answer) => {
            assert!(ExecAnswer::parse(printed, OTHER_VERSION).is_err());
            if let Some(header) = &answer.header {
                assert!(header.is_sensitive() && header.as_bytes().starts_with(b"Bearer "));
            }
            assert!(answer.expires.is_none_or(|at| at >= SystemTime::UNIX_EPOCH));
            assert!(!format!("{answer:?}").contains(SECRET));
            Some(answer)
        }
        Err(reason) => {
            assert!(!reason.is_empty() && !reason.contains(char::is_control), "{reason:?}");
            assert!(!reason.contains(SECRET), "{reason}");
            None
        }
    }
}
