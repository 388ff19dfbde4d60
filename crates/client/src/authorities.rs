//! Whom a server's certificate may come from.

use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// The system's authorities, read when they are needed first: with a cluster's own, never.
#[derive(Debug, Default)]
pub(super) struct Authorities(OnceLock<Arc<RootCertStore>>);

// === impl Authorities ===

impl Authorities {
    /// The system's. Where there are none, no server is trusted and calls fail.
    pub(super) fn of_system(&self) -> Arc<RootCertStore> {
        Arc::clone(self.0.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            for error in found.errors {
                tracing::warn!(err = %error, "Some of the system's certificate authorities can't be read");
            }
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(found.certs);
            Arc::new(store)
        }))
    }

    /// Takes these for the system's.
    #[cfg(test)]
    pub(super) fn preset(&self, pem: &[u8]) {
        self.0.set(of_pem(pem).unwrap()).unwrap();
    }
}

/// Those of a PEM file. Some that can't be used are passed over, as long as there is one that can.
pub(super) fn of_pem(pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let certificates = certificates(pem)?;
    if certificates.is_empty() {
        return Err("unable to parse bytes as PEM block: there is no certificate".to_owned());
    }
    let mut store = RootCertStore::empty();
    if store.add_parsable_certificates(certificates).0 == 0 {
        return Err("no certificate in it can be an authority".to_owned());
    }
    Ok(Arc::new(store))
}

/// All certificates of a PEM file; other blocks are passed over.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| "it is no well-formed PEM".to_owned())
}
