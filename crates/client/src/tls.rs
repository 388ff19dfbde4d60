//! TLS configuration, from certificate authorities and the client certificate.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::kubeconfig::{Chosen, FileContent};
use crate::x509;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, Error, InconsistentKeys, WantsVerifier};

use super::authorities;
use super::file::read_named;
use super::settings::ClientSettings;
use super::verify::{AnyServer, KnownServer};

/// Cached TLS sessions: there is one server.
const SESSIONS: usize = 4;

/// ALPN names of HTTP/2 and HTTP/1.1.
pub(super) const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Why a private key is rejected, and which keys are supported.
const UNUSABLE_KEY: &str = "the key is malformed or of an unsupported type, as P-521 and RSA below 2048 bits are: \
                            use RSA of 2048 to 4096 bits, ECDSA with P-256 or P-384, or Ed25519";

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Content of the files that a connection depends on.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Material {
    authorities: Option<Vec<u8>>,
    pub(super) pair: Option<Pair>,
}

/// An unusable field, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldFault {
    /// the field
    pub(super) what: &'static str,
    pub(super) reason: String,
}

type Builder = ConfigBuilder<ClientConfig, WantsVerifier>;

/// TLS configuration of new connections to the server.
pub(super) fn config(settings: &ClientSettings, material: &Material) -> Result<ClientConfig, FieldFault> {
    let builder = builder()?;
    let builder = if settings.chosen.insecure {
        let provider = Arc::clone(builder.crypto_provider());
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer::new(provider)))
    } else {
        match material.authorities() {
            Some(pem) => {
                let provider = Arc::clone(builder.crypto_provider());
                let verifier = KnownServer::new(pem, provider).map_err(|reason| FieldFault {
                    what: "certificate-authority",
                    reason: format!("unable to load root certificates: {reason}"),
                })?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            None => builder.with_root_certificates(settings.authorities.of_system()),
        }
    };
    let config = match &material.pair {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified()?))),
        None => builder.with_no_client_auth(),
    };
    let http2 = settings.http2.enabled.then(|| HTTP2.to_vec());
    Ok(adjusted(config, http2.into_iter().chain([HTTP1.to_vec()]).collect()))
}

/// TLS configuration of connections to a proxy: the system's authorities, no client certificate.
pub(super) fn plain_config(settings: &ClientSettings) -> Result<ClientConfig, FieldFault> {
    let config = builder()?.with_root_certificates(settings.authorities.of_system()).with_no_client_auth();
    // Requests to a proxy are HTTP/1.1, whatever the tunnel carries.
    Ok(adjusted(config, vec![HTTP1.to_vec()]))
}

fn builder() -> Result<Builder, FieldFault> {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| FieldFault { what: "TLS", reason: error.to_string() })
}

fn adjusted(mut config: ClientConfig, protocols: Vec<Vec<u8>>) -> ClientConfig {
    config.alpn_protocols = protocols;
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config
}

// === impl Pair ===

impl Pair {
    /// Checks that certificate and key are well-formed and belong together.
    pub(super) fn check(&self) -> Result<(), FieldFault> {
        self.certified().map(|_| ())
    }

    /// Certificate and key for the handshake. X.509 version 1 certificates, which the TLS library can't parse, are sent like
    /// others: servers accept them.
    fn certified(&self) -> Result<CertifiedKey, FieldFault> {
        let (chain, key) = self.parse()?;
        let key = ring::default_provider().key_provider.load_private_key(key);
        let key = key.map_err(|_| FieldFault { what: "client-key", reason: UNUSABLE_KEY.to_owned() })?;
        let certified = CertifiedKey::new(chain, key);
        let of_certificate = |reason| FieldFault { what: "client-certificate", reason };
        match certified.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
            Err(Error::InconsistentKeys(_)) => Err(mismatch()),
            Err(Error::InvalidCertificate(why)) => {
                let of_key = certified.key.public_key();
                let of_old = certified.cert.first().and_then(|certificate| x509::old_public_key(certificate));
                match (of_old, of_key) {
                    (Some(one), Some(other)) if one != other.as_ref() => Err(mismatch()),
                    (Some(_), _) => Ok(certified),
                    (None, _) => Err(of_certificate(format!("malformed certificate: {why}"))),
                }
            }
            Err(other) => Err(of_certificate(other.to_string())),
        }
    }

    /// The certificate's expiry; `None` if it can't be parsed.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        x509::validity(authorities::certificates(&self.certificate).ok()?.first()?).map(|(_, end)| end)
    }

    fn parse(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FieldFault> {
        let wrong = |what| move |reason| FieldFault { what, reason };
        let chain = authorities::certificates(&self.certificate).map_err(wrong("client-certificate"))?;
        if chain.is_empty() {
            return Err(wrong("client-certificate")("no certificate found in the PEM data".to_owned()));
        }
        // The parser's error would contain parts of the key.
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| wrong("client-key")("no private key found in the PEM data".to_owned()))?;
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
    /// Reads all files. A plugin's pair is used if the kubeconfig has none.
    pub(super) fn read(chosen: &Chosen, plugin: Option<&Pair>) -> Result<Self, FieldFault> {
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

    /// PEM of the cluster's certificate authorities; `None` for the system's.
    pub(super) fn authorities(&self) -> Option<&[u8]> {
        self.authorities.as_deref()
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material").finish_non_exhaustive()
    }
}

fn mismatch() -> FieldFault {
    let reason = "private key does not match public key".to_owned();
    FieldFault { what: "client-certificate and client-key", reason }
}

fn bytes(what: &'static str, content: &FileContent) -> Result<Vec<u8>, FieldFault> {
    match content {
        FileContent::Data(bytes) => Ok(bytes.clone()),
        FileContent::File(path) => {
            read_named(path).map_err(|reason| FieldFault { what, reason: format!("unable to read the file: {reason}") })
        }
    }
}
