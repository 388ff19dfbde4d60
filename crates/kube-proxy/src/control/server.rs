//! The running proxy's end of the control socket.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::rc::Rc;

use ferry_api::config::KubeProxyConfiguration;
use ferry_plane::UnitId;
use hyper::StatusCode;
use tokio::task::spawn_blocking;

use super::{OBJECTS, Quarantined, RunningState, STATE};
use crate::core::Desk;
use crate::platform::ControlListener;
use crate::report::SharedInbox;
use crate::serve::http::{self, Answer, Download, File, Received, Routes, Share};
use crate::{snapshot, version};

/// The answers of a running proxy.
#[derive(Debug)]
pub struct Control {
    desk: Desk,
    inbox: SharedInbox,
    setup: ControlSetup,
}

/// What is fixed at the start.
#[derive(Clone, Debug)]
pub struct ControlSetup {
    /// the path of the socket; empty for none
    pub path: String,
    /// the node's name
    pub node: String,
    /// the complete configuration in the effective mode
    pub configuration: String,
    /// true if objects come from manifests
    pub manifests: bool,
}

/// All clients are of this machine's administrator: few are enough.
const SHARE: Share = Share { connections: 8, spared_reserves: 1 };

/// Serves for ever; without a path, or where the socket can't be made, nothing: subcommands work without it. To be run on a `LocalSet`.
pub async fn serve(control: Control) -> Infallible {
    let path = control.setup.path.clone();
    match listen(&path) {
        Ok(Some(listener)) => http::answer(listener, SHARE, Rc::new(control)).await,
        Ok(None) => std::future::pending().await,
        Err(error) => {
            tracing::info!(
                path,
                err = %error,
                "No control socket, subcommands don't reach this process: make its folder writable, or set controlSocket"
            );
            std::future::pending().await
        }
    }
}

/// The listening socket; `None` without a path, and where the system has none.
fn listen(path: &str) -> io::Result<Option<ControlListener>> {
    if path.is_empty() {
        return Ok(None);
    }
    match ControlListener::bind(Path::new(path)) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        bound => bound.map(Some),
    }
}

// === impl ControlSetup ===

impl ControlSetup {
    /// Of a node's proxy with this configuration, whose mode is the effective one.
    pub fn new(config: &KubeProxyConfiguration, node: &str, manifests: bool) -> Self {
        let path = config.ferry.control_socket.clone();
        Self { path, node: node.to_owned(), configuration: config.to_yaml(), manifests }
    }
}

// === impl Control ===

impl Control {
    /// The answers about these objects and reports.
    pub fn new(desk: Desk, inbox: SharedInbox, setup: ControlSetup) -> Self {
        Self { desk, inbox, setup }
    }

    fn state(&self) -> RunningState {
        let ControlSetup { node, configuration, manifests, .. } = self.setup.clone();
        let mut inbox = self.inbox.borrow_mut();
        inbox.catch_up();
        let quarantined = inbox.quarantined().map(|(family, unit, error)| Quarantined {
            family: family.to_string(),
            service: match unit {
                UnitId::Base => None,
                UnitId::Service(name) => Some(name.to_string()),
            },
            error: error.to_owned(),
        });
        RunningState {
            program: version::full().to_string(),
            process: std::process::id(),
            node,
            configuration,
            manifests,
            decisions: self.desk.decisions(),
            quarantined: quarantined.collect(),
        }
    }

    /// All objects, encoded on another thread: this one answers probes.
    fn objects(&self) -> Download {
        let (desk, node) = (self.desk.clone(), self.setup.node.clone());
        Box::pin(async move {
            let failed = |why: String| Answer::text(format!("{why}\n")).with_status(StatusCode::SERVICE_UNAVAILABLE);
            match spawn_blocking(move || snapshot::encode_objects(&desk, &node)).await {
                Ok(Ok(Some(content))) => Ok(File { name: "objects", content }),
                Ok(Ok(None)) => Err(failed("no objects are served yet: the lists are not complete".to_owned())),
                Ok(Err(error)) => Err(failed(error.to_string())),
                Err(error) => Err(failed(error.to_string())),
            }
        })
    }
}

impl Routes for Control {
    fn answer(&self, received: &Received) -> Answer {
        if received.path != STATE {
            return Answer::not_found();
        }
        match serde_json::to_string(&self.state()) {
            Ok(state) => Answer::of("application/json", state),
            Err(error) => Answer::text(error.to_string()).with_status(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    fn download(&self, received: &Received) -> Option<Download> {
        (received.path == OBJECTS).then(|| self.objects())
    }
}
