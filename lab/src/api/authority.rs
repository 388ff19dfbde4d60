//! Certificates of the lab: a certificate authority that signs server and client certificates.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// A certificate authority with a newly generated key.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// the certificate in PEM
    pub certificate: String,
    /// its private key (PKCS #8) in PEM
    pub key: String,
    /// the certificate of the authority that signed it, in PEM
    pub authority: String,
    pub(super) certificate_der: Vec<u8>,
    pub(super) key_der: Vec<u8>,
}

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// from an hour ago until a day from now
    Now,
    /// expired an hour ago
    Expired,
    /// valid from an hour from now
    NotYet,
    /// from an hour ago until this long from now
    For(Duration),
}

// === impl Authority ===

impl Authority {
    /// A new authority of this name.
    pub fn new(name: &str) -> Self {
        let mut parameters = parameters(name, &[], Validity::For(Duration::from_hours(24 * 365)));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("making a key");
        Self { issuer: CertifiedIssuer::self_signed(parameters, key).expect("signing an authority's certificate") }
    }

    /// Its certificate in PEM.
    pub fn certificate(&self) -> String {
        pem("CERTIFICATE", self.issuer.der())
    }

    pub(super) fn der(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// Issues a server certificate for these names and addresses.
    pub fn server(&self, names: &[&str], validity: Validity) -> Identity {
        let mut parameters = parameters(names.first().unwrap_or(&"kube-apiserver"), &[], validity);
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        parameters.subject_alt_names = CertificateParams::new(names).expect("names of a server").subject_alt_names;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters)
    }

    /// Issues a client certificate: user and groups are the common name and the organisations.
    pub fn client(&self, user: &str, groups: &[&str], validity: Validity) -> Identity {
        let mut parameters = parameters(user, groups, validity);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(parameters)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Identity {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().expect("making a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("signing a certificate");
        Identity {
            certificate: pem("CERTIFICATE", certificate.der()),
            key: pem("PRIVATE KEY", key.serialized_der()),
            authority: self.certificate(),
            certificate_der: certificate.der().to_vec(),
            key_der: key.serialize_der(),
        }
    }
}

/// TLS configuration of a server with this certificate; requests client certificates if given an authority for them.
pub(super) fn server_config(identity: &Identity, clients: Option<&Authority>, http2: bool) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the provider's own versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let mut roots = RootCertStore::empty();
            roots.add(clients.der().clone()).expect("an authority's certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().expect("a verifier"))
        }
    };
    let chain = vec![CertificateDer::from(identity.certificate_der.clone())];
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key_der.clone()));
    let mut config = builder.with_single_cert(chain, key).expect("a certificate with its key");
    let http2 = http2.then(|| super::http2::NAME.to_vec());
    config.alpn_protocols = http2.into_iter().chain([b"http/1.1".to_vec()]).collect();
    config
}

/// Base64 on one line, the encoding of a kubeconfig's `-data` fields.
pub(super) fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

fn parameters(user: &str, groups: &[&str], validity: Validity) -> CertificateParams {
    let hour = Duration::from_hours(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let (begin, end) = match validity {
        Validity::Now => (now - hour, now + 24 * hour),
        Validity::Expired => (now - 24 * hour, now - hour),
        Validity::NotYet => (now + hour, now + 24 * hour),
        Validity::For(time) => (now - hour, now + time),
    };
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    for &group in groups {
        name.push(DnType::OrganizationName, group);
    }
    let mut parameters = CertificateParams::default();
    parameters.not_before = date_time_ymd(1970, 1, 1) + begin;
    parameters.not_after = date_time_ymd(1970, 1, 1) + end;
    parameters.distinguished_name = name;
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        out.push('\n');
    }
    out + &format!("-----END {label}-----\n")
}
