//! The kubeconfig's fields as they are written. All are optional: `null` and absent are the same.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_path_to_error::Path;
use serde_saphyr::{DuplicateKeyPolicy, with_deserializer_from_str_with_options};

use super::KubeconfigError;
use ferry_api::yaml::{self, YamlError};

/// Deepest nesting of a kubeconfig; the extension for plugins may contain anything.
const DEPTH: usize = 32;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    pub(super) kind: Option<String>,
    #[serde(rename = "apiVersion")]
    pub(super) api_version: Option<String>,
    pub(super) clusters: Option<Vec<NamedCluster>>,
    pub(super) contexts: Option<Vec<NamedContext>>,
    pub(super) users: Option<Vec<NamedUser>>,
    #[serde(rename = "current-context")]
    pub(super) current_context: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedCluster {
    pub(super) name: Option<String>,
    pub(super) cluster: Option<RawCluster>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedContext {
    pub(super) name: Option<String>,
    pub(super) context: Option<RawContext>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NamedUser {
    pub(super) name: Option<String>,
    pub(super) user: Option<RawUser>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct RawCluster {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
    pub(super) disable_compression: Option<bool>,
    pub(super) extensions: Option<Vec<Extension>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Extension {
    pub(super) name: Option<String>,
    pub(super) extension: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RawContext {
    pub(super) cluster: Option<String>,
    pub(super) user: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct RawUser {
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<String>,
    pub(super) token: Option<String>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    #[serde(rename = "as")]
    pub(super) impersonate: Option<String>,
    pub(super) as_uid: Option<String>,
    pub(super) as_groups: Option<Vec<String>>,
    pub(super) as_user_extra: Option<BTreeMap<String, Option<Vec<String>>>>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) auth_provider: Option<AuthProvider>,
    pub(super) exec: Option<Exec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthProvider {
    pub(super) name: Option<String>,
    pub(super) config: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Exec {
    pub(super) command: Option<String>,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) api_version: Option<String>,
    pub(super) install_hint: Option<String>,
    pub(super) provide_cluster_info: Option<bool>,
    pub(super) interactive_mode: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Variable {
    pub(super) name: Option<String>,
    pub(super) value: Option<String>,
}

/// Decodes the first document; an empty one gives an empty configuration.
pub(super) fn parse(text: &str) -> Result<RawConfig, KubeconfigError> {
    let Some(chunk) = yaml::documents(text).into_iter().next() else { return Ok(RawConfig::default()) };
    let options = yaml::options(chunk.text.len(), DEPTH, DuplicateKeyPolicy::LastWins);
    let mut field = None;
    let read = with_deserializer_from_str_with_options(chunk.text, options, |deserializer| {
        serde_path_to_error::deserialize::<_, Option<RawConfig>>(deserializer).map_err(|error| {
            field = shown(error.path());
            error.into_inner()
        })
    });
    read.map(Option::unwrap_or_default).map_err(|error| {
        let YamlError { place, message } = chunk.fault(&error);
        let (line, column) = place.unzip();
        let message = field.into_iter().chain([message]).collect::<Vec<_>>().join(": ");
        KubeconfigError::Malformed { line, column, message }
    })
}

/// A field's path, `clusters[0].cluster.server`; `None` for the document itself.
fn shown(path: &Path) -> Option<String> {
    path.iter().next().map(|_| path.to_string().escape_debug().to_string())
}
