//! Decodes a plugin's output, an ExecCredential. Errors never quote it.

use std::fmt;
use std::time::{Duration, SystemTime};

use ferry_api::wire::parse_timestamp;
use hyper::header::HeaderValue;
use serde::Deserialize;

use crate::credential::bearer;
use crate::tls::Pair;

/// Credentials returned by a plugin: a token, a certificate, or both.
pub struct ExecAnswer {
    /// the header Authorization for the token, redacted in debug output
    pub header: Option<HeaderValue>,
    /// the client certificate with its key
    pub(crate) pair: Option<Pair>,
    /// expirationTimestamp: when to run the plugin again
    pub expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: Option<String>,
    kind: Option<String>,
    status: Option<CredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

// === impl ExecAnswer ===

impl ExecAnswer {
    /// Decodes a plugin's output, which must have this API version.
    ///
    /// # Errors
    /// The reason, if the output is no ExecCredential of this version with usable credentials. It never quotes the output.
    pub fn parse(printed: &[u8], version: &str) -> Result<Self, String> {
        let credential: ExecCredential = serde_json::from_slice(printed).map_err(|error| {
            // The parser's own text may quote the input.
            format!("the output is no ExecCredential: invalid at line {}, column {}", error.line(), error.column())
        })?;
        if credential.kind.as_deref() != Some("ExecCredential") {
            return Err("the output is no ExecCredential: wrong kind".to_owned());
        }
        if credential.api_version.as_deref() != Some(version) {
            return Err(format!("the output is an ExecCredential of another version than {version}"));
        }
        let status = credential.status.ok_or("the plugin didn't return a status field")?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let pair = match (given(status.client_certificate_data), given(status.client_key_data)) {
            (Some(certificate), Some(key)) => {
                let pair = Pair { certificate: certificate.into_bytes(), key: key.into_bytes() };
                pair.check().map_err(|fault| format!("its {}: {}", fault.what, fault.reason))?;
                Some(pair)
            }
            (None, None) => None,
            _ => return Err("the plugin returned only one of certificate and key".to_owned()),
        };
        let header = given(status.token).map(|token| bearer(&token)).transpose()?;
        if header.is_none() && pair.is_none() {
            return Err("the plugin didn't return a token or a certificate and key".to_owned());
        }
        let expires = given(status.expiration_timestamp)
            .map(|text| parse_timestamp(&text).ok_or("its expirationTimestamp is not an RFC 3339 timestamp"))
            .transpose()?
            .map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(at.seconds).unwrap_or(0)));
        Ok(Self { header, pair, expires })
    }
}

impl fmt::Debug for ExecAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecAnswer").field("expires", &self.expires).finish_non_exhaustive()
    }
}
