//! Requests a page of a node's proxy.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferry_kernel::text::in_one_line;
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::forward::PortForward;
use super::kubectl::Kubectl;
use crate::http_client;
use crate::query::encoded;
use crate::ui::VERSION;

/// Time limit of an answer: that of a trace, and some seconds.
const LIMIT: Duration = Duration::from_secs(90);
/// Longest answer in bytes: twice the longest trace, as JSON.
const MOST_BYTES: usize = 16 << 20;

/// Gets a page by a port-forward to a pod.
///
/// # Errors
/// If the port can't be forwarded, or the answer is none of the status page.
pub(super) fn by_port_forward(
    kubectl: &Kubectl,
    (namespace, pod): (&str, &str),
    port: u16,
    route: &str,
) -> anyhow::Result<Value> {
    let mut forward = PortForward::start(kubectl, namespace, pod, port)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(async {
        let answer = timeout(LIMIT, async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, forward.port)).await?;
            http_client::request(stream, Method::GET, ("localhost", route), MOST_BYTES).await
        });
        answer.await.with_context(|| format!("no answer within {} s", LIMIT.as_secs()))?
    });
    let named = || format!("asking pod {pod} at port {port}");
    match answered {
        Ok((status, body)) => object(status, &body).with_context(named),
        // A closed connection alone says nothing: kubectl has the reason.
        Err(error) => Err(match forward.complaint() {
            Some(complaint) => error.context(complaint).context(named()),
            None => error.context(named()),
        }),
    }
}

/// Gets a page by the API server's node proxy.
///
/// # Errors
/// If the user may not, the API server doesn't reach the page or gets none, or the answer is none of the status page.
pub(super) fn by_node_proxy(kubectl: &Kubectl, node: &str, port: u16, route: &str) -> anyhow::Result<Value> {
    let path = format!("/api/v1/nodes/{}:{port}/proxy{route}", encoded(node));
    let needs = "the node proxy needs permission for nodes/proxy, a metricsBindAddress that the API server reaches, and \
                 FerryConfiguration.statusPage: everyone; --via=port-forward needs none of them";
    let body = kubectl.output(&["get", "--raw", &path]).map_err(|error| anyhow::anyhow!("{error:#}; {needs}"))?;
    object(StatusCode::OK, body.as_bytes()).with_context(|| format!("asking node {node} at port {port}"))
}

/// The JSON object of an answer.
///
/// # Errors
/// If it is an error of the page, or of another server.
fn object(status: StatusCode, body: &[u8]) -> anyhow::Result<Value> {
    if status == StatusCode::NOT_FOUND {
        bail!(
            "it has no status page: FerryConfiguration.statusPage is nobody, or it is another kube-proxy or an earlier version"
        );
    }
    if status != StatusCode::OK {
        bail!("it answers {status}: {}", in_one_line(&http_client::shown(body)));
    }
    let answer: Value =
        serde_json::from_slice(body).ok().context("it answers something else: is it of an earlier version?")?;
    if let Some(error) = answer.get("error").and_then(Value::as_str) {
        bail!("{}", in_one_line(error));
    }
    match answer.get("version").and_then(Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => Ok(answer),
        _ => bail!("its answer has another version than {VERSION}: use the kubectl-ferry of its release"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body: &str) -> String {
        object(StatusCode::from_u16(status).unwrap(), body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn answers_of_the_page_are_objects_of_its_version() {
        assert!(object(StatusCode::OK, br#"{"version": 1, "node": "a"}"#).is_ok());
        assert_eq!(refused(200, r#"{"version": 1, "error": "no Service a/b"}"#), "no Service a/b");
        assert_eq!(refused(200, r#"{"version": 1, "error": "\u001b[2J"}"#), "\\x1b[2J");
        assert!(refused(404, "404 page not found\n").contains("statusPage is nobody"));
        assert_eq!(refused(403, "forward a port\n"), "it answers 403 Forbidden: forward a port");
        assert!(refused(200, "<!DOCTYPE html>").contains("earlier version"));
        for other in [r#"{"version": 2}"#, "{}", "[]", r#"{"version": "1"}"#] {
            assert!(refused(200, other).contains("another version than 1"), "{other}");
        }
    }
}
