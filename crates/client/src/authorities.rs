//! Trusted certificate authorities.

use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The system's certificate authorities, read on first use: never if the cluster has its own.
#[derive(Debug, Default)]
pub(super) struct Authorities(OnceLock<Arc<RootCertStore>>);

// === impl Authorities ===

impl Authorities {
    /// The system's certificate authorities. Without any, no server is trusted and calls fail.
    pub(super) fn of_system(&self) -> Arc<RootCertStore> {
        Arc::clone(self.0.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            for error in found.errors {
                tracing::warn!(err = %error, "Reading a system certificate authority failed, skipping it");
            }
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(found.certs);
            Arc::new(store)
        }))
    }

    /// Replaces the system's certificate authorities.
    #[cfg(test)]
    pub(super) fn preset(&self, pem: &[u8]) {
        self.0.set(of_pem(pem).unwrap()).unwrap();
    }
}

/// Certificate authorities of a PEM file. Unusable ones are skipped if at least one is usable.
pub(super) fn of_pem(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let certificates = certificates(pem)?;
    if certificates.is_empty() {
        return Err("unable to parse bytes as PEM block: no certificate found".to_owned());
    }
    let mut store = RootCertStore::empty();
    if store.add_parsable_certificates(certificates).0 == 0 {
        return Err("no certificate is usable as a certificate authority".to_owned());
    }
    Ok(Arc::new(store))
}

/// All certificates of a PEM file; other blocks are skipped.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| "malformed PEM".to_owned())
}
