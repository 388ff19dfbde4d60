//! The running proxy's end of the control socket.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::{GivenConfiguration, OBJECTS, Quarantined, RunningState, STATE};
use crate::core::Desk;
use crate::platform::{ControlFile, ControlListener};
use crate::report::SharedInbox;
use crate::serve::http::{self, Answer, File, Late, Later, Received, Routes, Share};
use crate::{snapshot, version};

/// The answers of a running proxy.
#[derive(Debug)]
pub struct Control {
    desk: Desk,
    inbox: SharedInbox,
    setup: ControlSetup,
    /// names this run
    run: String,
    /// one copy of the objects at a time
    copies: Arc<Semaphore>,
}

/// What is fixed at the start.
#[derive(Clone, Debug)]
pub struct ControlSetup {
    /// the path of the socket; empty for none
    pub path: String,
    /// the node's name
    pub node: String,
    /// the configuration as it was given
    pub configuration: GivenConfiguration,
    /// the effective mode
    pub mode: String,
    /// the effective way of mode userspace
    pub way: Option<String>,
    /// true if objects come from manifests
    pub manifests: bool,
}

/// All clients are of this machine's administrator: few are enough.
const SHARE: Share = Share { connections: 8, spared_reserves: 1 };

/// Time between two looks at the path.
const LOOK: Duration = Duration::from_secs(60);

/// Serves for ever; without a path, or where the system has no such sockets, nothing. A path that can't be had, or that is lost to a process
/// which then ends, is tried again: subcommands work without the socket. To be run on a `LocalSet`.
pub async fn serve(control: Control) -> Infallible {
    let path = control.setup.path.clone();
    let (control, mut failed) = (Rc::new(control), false);
    loop {
        match listen(&path) {
            Ok(Some(listener)) => {
                failed = false;
                let file = listener.file();
                tokio::select! {
                    never = http::answer(listener, SHARE, Rc::clone(&control) as Rc<dyn Routes>) => match never {},
                    () = lost(&file) => {}
                }
            }
            Ok(None) => std::future::pending().await,
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::info!(
                        path,
                        err = %error,
                        "No control socket, subcommands don't reach this process: make its folder writable, or set controlSocket"
                    );
                }
                sleep(LOOK).await;
            }
        }
    }
}

/// Waits until the path leads to nobody that listens.
async fn lost(file: &ControlFile) {
    loop {
        sleep(LOOK).await;
        if file.is_lost() {
            return;
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

// === impl Control ===

impl Control {
    /// The answers about these objects and reports.
    pub fn new(desk: Desk, inbox: SharedInbox, setup: ControlSetup) -> Self {
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = format!("{}-{}", std::process::id(), begun.as_nanos());
        Self { desk, inbox, setup, run, copies: Arc::new(Semaphore::new(1)) }
    }

    fn state(&self) -> RunningState {
        let ControlSetup { node, configuration, mode, way, manifests, .. } = self.setup.clone();
        let mut inbox = self.inbox.borrow_mut();
        inbox.catch_up();
        let quarantined = inbox.quarantined().map(Quarantined::of);
        RunningState {
            program: version::full().to_string(),
            process: std::process::id(),
            node,
            run: self.run.clone(),
            configuration,
            mode,
            way,
            manifests,
            decisions: self.desk.decisions(),
            quarantined: quarantined.collect(),
        }
    }

    /// All objects, encoded on another thread: this one answers probes.
    fn objects(&self) -> Later {
        let (desk, node, copies) = (self.desk.clone(), self.setup.node.clone(), Arc::clone(&self.copies));
        Box::pin(async move {
            // A client that goes away doesn't end the copy, which keeps others waiting until it is done.
            let one = copies.acquire_owned().await;
            let failed = |why: String| {
                Late::Answer(Answer::text(format!("{why}\n")).with_status(StatusCode::SERVICE_UNAVAILABLE))
            };
            let encode = move || {
                let encoded = snapshot::encode_objects(&desk, &node);
                drop(one);
                encoded
            };
            match spawn_blocking(encode).await {
                Ok(Ok(Some(content))) => Late::File(File { name: "objects", content }),
                Ok(Ok(None)) => failed("no objects are served yet: the lists are not complete".to_owned()),
                Ok(Err(error)) => failed(error.to_string()),
                Err(error) => failed(error.to_string()),
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

    fn later(&self, received: &Received) -> Option<Later> {
        (received.path == OBJECTS).then(|| self.objects())
    }
}
