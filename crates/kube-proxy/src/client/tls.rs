//! TLS: what the configuration is made from, and making it.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use ferry_api::kubeconfig::{Chosen, Content};
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};

use super::access::{Settings, read_named};
use super::verify::{AnyServer, KnownServer};
use super::{authorities, expiry};

/// Tickets to remember: there is one server.
const SESSIONS: usize = 4;

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// The content of all files that a connection depends on.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Material {
    authorities: Option<Vec<u8>>,
    pub(super) pair: Option<Pair>,
}

/// What can't be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// the field
    pub(super) what: &'static str,
    pub(super) reason: String,
}

type Builder = ConfigBuilder<ClientConfig, WantsVerifier>;

/// The configuration for new connections to the server.
pub(super) fn config(settings: &Settings, material: &Material) -> Result<ClientConfig, Fault> {
    let builder = builder()?;
    let builder = if settings.chosen.insecure {
        let provider = Arc::clone(builder.crypto_provider());
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer::new(provider)))
    } else {
        match material.authorities() {
            Some(pem) => {
                let provider = Arc::clone(builder.crypto_provider());
                let verifier = KnownServer::new(pem, provider).map_err(|reason| Fault {
                    what: "certificate-authority",
                    reason: format!("unable to load root certificates: {reason}"),
                })?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            None => builder.with_root_certificates(settings.authorities.of_system()),
        }
    };
    let config = match &material.pair {
        Some(pair) => {
            let (chain, key) = pair.parse()?;
            builder.with_client_auth_cert(chain, key).map_err(mismatch)?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(adjusted(config))
}

/// The configuration towards a proxy: the system's authorities, no certificate.
pub(super) fn plain_config(settings: &Settings) -> Result<ClientConfig, Fault> {
    Ok(adjusted(builder()?.with_root_certificates(settings.authorities.of_system()).with_no_client_auth()))
}

fn builder() -> Result<Builder, Fault> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Fault { what: "TLS", reason: error.to_string() })
}

fn adjusted(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config
}

// === impl Pair ===

impl Pair {
    /// Whether it is a certificate and its key.
    pub(super) fn check(&self) -> Result<(), Fault> {
        let (chain, key) = self.parse()?;
        CertifiedKey::from_der(chain, key, &ring::default_provider()).map(|_| ()).map_err(mismatch)
    }

    /// When the certificate ends, where that can be read.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        expiry::validity(authorities::certificates(&self.certificate).ok()?.first()?).map(|(_, end)| end)
    }

    fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Fault> {
        let wrong = |what| move |reason| Fault { what, reason };
        let chain = authorities::certificates(&self.certificate).map_err(wrong("client-certificate"))?;
        if chain.is_empty() {
            return Err(wrong("client-certificate")("there is no certificate in the PEM".to_owned()));
        }
        // The error would hold parts of the key.
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| wrong("client-key")("there is no private key in the PEM".to_owned()))?;
        Ok((chain, key))
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").finish_non_exhaustive()
    }
}

// === impl Material ===

impl Material {
    /// Reads all files. A plugin's pair counts where the kubeconfig has none of its own.
    pub(super) fn read(chosen: &Chosen, plugin: Option<&Pair>) -> Result<Self, Fault> {
        if !chosen.server.tls {
            return Ok(Self::default());
        }
        let authorities = chosen.authorities.as_ref().map(|ca| bytes("certificate-authority", ca)).transpose()?;
        let pair = match &chosen.user.certificate {
            Some((certificate, key)) => {
                Some(Pair { certificate: bytes("client-certificate", certificate)?, key: bytes("client-key", key)? })
            }
            None => plugin.cloned(),
        };
        Ok(Self { authorities, pair })
    }

    /// The authorities' PEM, if the cluster has its own.
    pub(super) fn authorities(&self) -> Option<&[u8]> {
        self.authorities.as_deref()
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

fn mismatch(error: rustls::Error) -> Fault {
    let reason = match error {
        rustls::Error::InconsistentKeys(_) => "private key does not match public key".to_owned(),
        other => other.to_string(),
    };
    Fault { what: "client-certificate and client-key", reason }
}

fn bytes(what: &'static str, content: &Content) -> Result<Vec<u8>, Fault> {
    match content {
        Content::Data(bytes) => Ok(bytes.clone()),
        Content::File(path) => {
            read_named(path).map_err(|reason| Fault { what, reason: format!("unable to read it: {reason}") })
        }
    }
}
