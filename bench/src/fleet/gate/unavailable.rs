//! Answers 503 over TLS with the API server's certificate, like a load balancer without backends: HTTP/2 or HTTP/1.1,
//! without `Retry-After`.

use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::counted::Counted;
use super::{Counters, GateContext, Order};
use crate::fleet::audit;

/// Time limit of a handshake, and of the end of a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// A TLS acceptor with this certificate.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key).context("the API server's key")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves one connection until the gate's next order.
pub(super) async fn answer(client: Counted, mut context: GateContext) {
    let Ok(Ok(stream)) = timeout(PATIENCE, context.tls.accept(client)).await else { return };
    let counters = Arc::clone(&context.counters);
    let service = service_fn(move |request: Request<Incoming>| {
        count(&counters, &request);
        async { unavailable() }
    });
    let builder = Builder::new(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let is_over = tokio::select! {
        // The connection may break; the client's retry is counted.
        _ = connection.as_mut() => true,
        _ = context.orders.wait_for(|order| *order != Order::Unavailable) => false,
    };
    if !is_over {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(PATIENCE, connection).await;
    }
}

fn count(counters: &Counters, request: &Request<Incoming>) {
    let uri = request.uri().to_string();
    let label = audit::label(
        audit::verb(request.method().as_str(), &uri),
        &uri,
        StatusCode::SERVICE_UNAVAILABLE.as_u16().into(),
    );
    if let Ok(mut refused) = counters.refused.lock() {
        *refused.entry(label).or_default() += 1;
    }
}

fn unavailable() -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response =
        Response::new(Full::new(Bytes::from_static(b"503 Service Unavailable\nNo server is available.\n")));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    Ok(response)
}
