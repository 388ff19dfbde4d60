//! Verifies server certificates.

use std::sync::Arc;

use crate::x509;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::authorities;

type Signature = Result<HandshakeSignatureValid, Error>;

/// Accepts certificates signed by the cluster's authorities, and those authorities' own certificates: a self-signed server
/// certificate is listed among the authorities, and is mostly marked as a CA, which the usual check rejects for a server.
#[derive(Debug)]
pub(super) struct KnownServer {
    signed: Arc<WebPkiServerVerifier>,
    authorities: Vec<CertificateDer<'static>>,
}

/// Accepts any certificate, for `insecure-skip-tls-verify`. The server must still prove possession of its key.
#[derive(Debug)]
pub(super) struct AnyServer(Arc<CryptoProvider>);

// === impl KnownServer ===

impl KnownServer {
    /// A verifier with the authorities of a PEM file.
    pub(super) fn new(pem: &[u8], provider: Arc<CryptoProvider>) -> Result<Self, String> {
        let signed = WebPkiServerVerifier::builder_with_provider(authorities::of_pem(pem)?, provider).build();
        Ok(Self { signed: signed.map_err(|error| error.to_string())?, authorities: authorities::certificates(pem)? })
    }
}

impl ServerCertVerifier for KnownServer {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let refused = match self.signed.verify_server_cert(server, between, name, ocsp, now) {
            Ok(verified) => return Ok(verified),
            Err(error) => error,
        };
        if !self.authorities.contains(server) {
            return Err(refused);
        }
        let (begin, end) = x509::validity(server).ok_or(refused)?;
        let invalid = |error| Err(Error::InvalidCertificate(error));
        let unix = |at: std::time::SystemTime| {
            UnixTime::since_unix_epoch(at.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default())
        };
        let (not_before, not_after) = (unix(begin), unix(end));
        if now < not_before {
            return invalid(CertificateError::NotValidYetContext { time: now, not_before });
        }
        if now > not_after {
            return invalid(CertificateError::ExpiredContext { time: now, not_after });
        }
        verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        server: &CertificateDer<'_>,
        by: &DigitallySignedStruct,
    ) -> Signature {
        self.signed.verify_tls12_signature(text, server, by)
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        server: &CertificateDer<'_>,
        by: &DigitallySignedStruct,
    ) -> Signature {
        self.signed.verify_tls13_signature(text, server, by)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

// === impl AnyServer ===

impl AnyServer {
    pub(super) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self(provider)
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        text: &[u8],
        server: &CertificateDer<'_>,
        by: &DigitallySignedStruct,
    ) -> Signature {
        verify_tls12_signature(text, server, by, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        text: &[u8],
        server: &CertificateDer<'_>,
        by: &DigitallySignedStruct,
    ) -> Signature {
        verify_tls13_signature(text, server, by, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use ferry_lab::api::Authority;
    use rustls::crypto::ring;

    use super::*;

    #[test]
    fn a_server_that_is_its_own_authority() {
        let pem = Authority::new("kubernetes").certificate();
        let [verifier, other] = [pem.clone(), Authority::new("other").certificate()]
            .map(|pem| KnownServer::new(pem.as_bytes(), Arc::new(ring::default_provider())).unwrap());
        let server = authorities::certificates(pem.as_bytes()).unwrap().remove(0);
        let at = |verifier: &KnownServer, at: SystemTime| {
            let now = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
            let name = ServerName::try_from("kubernetes").unwrap();
            verifier.verify_server_cert(&server, &[], &name, &[], now).map(|_| ()).map_err(|error| error.to_string())
        };
        let now = SystemTime::now();
        let year = Duration::from_hours(24 * 366);
        // The certificate has no server name: every other check passed.
        let error = at(&verifier, now).unwrap_err();
        assert!(error.contains("not valid for"), "{error}");
        let error = at(&verifier, now + year).unwrap_err();
        assert!(error.contains("expired"), "{error}");
        let error = at(&verifier, now - year).unwrap_err();
        assert!(error.contains("not valid yet"), "{error}");
        let error = at(&other, now).unwrap_err();
        assert!(!error.contains("not valid for"), "{error}");
    }
}
