//! One request over an open connection, for the subcommands that ask a running proxy.

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest text of an error that is shown, in characters.
const SHOWN: usize = 500;

/// Sends a request without a body, with this header Host; returns the status and the body of the answer.
///
/// # Errors
/// If the connection fails, the peer doesn't speak HTTP, or the body has more than `most_bytes`.
pub async fn request(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    (host, route): (&str, &str),
    most_bytes: usize,
) -> anyhow::Result<(StatusCode, Vec<u8>)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchanged = async {
        let request = Request::builder().method(method).uri(route).header("host", host).body(Empty::<Bytes>::new())?;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, most_bytes).collect().await.map_err(|error| anyhow::anyhow!(error))?;
        Ok((head.status, body.to_bytes().to_vec()))
    };
    tokio::pin!(exchanged, connection);
    tokio::select! {
        answer = &mut exchanged => answer,
        ended = &mut connection => {
            ended.context("the connection failed")?;
            // The connection has delivered everything.
            exchanged.await
        }
    }
}

/// The begin of a body, for the text of an error.
pub fn shown(body: &[u8]) -> String {
    String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect()
}
