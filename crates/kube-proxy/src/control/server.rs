//! Server of the control socket, in the running proxy.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use hyper::{Method, StatusCode};
use tokio::time::sleep;

use super::{GivenConfiguration, MissingScheduler, OBJECTS, Quarantined, RunningState, SELF_TEST, STATE};
use crate::core::Desk;
use crate::platform::{ControlFile, ControlListener};
use crate::report::SharedInbox;
use crate::self_test::{self, SelfTest};
use crate::serve::http::{self, BlockingAnswers, Deferred, File, HttpRequest, HttpResponse, Routes, Share};
use crate::{snapshot, version};

/// Routes of the control socket.
#[derive(Debug)]
pub struct Control {
    desk: Desk,
    inbox: SharedInbox,
    setup: ControlSetup,
    self_test: SelfTest,
    /// identifies this run
    run: String,
    blocking: BlockingAnswers,
    /// apart from the others, since a failing test takes many seconds
    tests: BlockingAnswers,
}

/// Facts that don't change during a run.
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

/// Only the administrator of the machine connects.
const SHARE: Share = Share { connections: 8, spared_reserves: 1 };

/// Interval of the checks of the path.
const LOOK: Duration = Duration::from_secs(60);

/// Serves for ever; does nothing without a path, and on systems without Unix sockets. Binding is retried after an error, and after another
/// process has replaced the file and ended. To be run on a `LocalSet`.
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
                        "Creating the control socket failed, subcommands can't reach this process, retrying every minute: make its folder writable, or set controlSocket"
                    );
                }
                sleep(LOOK).await;
            }
        }
    }
}

/// Waits until no process listens at the path.
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
    /// Routes over these objects and reports.
    pub fn new(desk: Desk, inbox: SharedInbox, (setup, self_test): (ControlSetup, SelfTest)) -> Self {
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = format!("{}-{}", std::process::id(), begun.as_nanos());
        Self {
            desk,
            inbox,
            setup,
            self_test,
            run,
            blocking: BlockingAnswers::default(),
            tests: BlockingAnswers::default(),
        }
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
            hand_overs: self.desk.hand_overs(),
            quarantined: quarantined.collect(),
            missing_schedulers: MissingScheduler::all(&self.desk.missing_schedulers()),
        }
    }

    /// A test of the data path, on another thread.
    fn test(&self) -> Deferred {
        let self_test = self.self_test.clone();
        self.tests.answer(move || match self_test.run() {
            Ok(tested) => HttpResponse::of("application/json", self_test::json(&tested).to_string()),
            Err(error) => HttpResponse::text(format!("{error:#}\n")).with_status(StatusCode::SERVICE_UNAVAILABLE),
        })
    }

    /// All objects, encoded on another thread.
    fn objects(&self) -> Deferred {
        let (desk, node) = (self.desk.clone(), self.setup.node.clone());
        self.blocking.answer(move || {
            let unavailable = |why: String| HttpResponse::text(why + "\n").with_status(StatusCode::SERVICE_UNAVAILABLE);
            match snapshot::encode_objects(&desk, &node) {
                Ok(Some(content)) => Ok(File { name: "objects", content }),
                Ok(None) => Err(unavailable("no objects are served yet: the lists are not complete".to_owned())),
                Err(error) => Err(unavailable(error.to_string())),
            }
        })
    }
}

impl Routes for Control {
    fn answer(&self, received: &HttpRequest) -> HttpResponse {
        if received.path != STATE {
            return HttpResponse::not_found();
        }
        match serde_json::to_string(&self.state()) {
            Ok(state) => HttpResponse::of("application/json", state),
            Err(error) => HttpResponse::text(error.to_string()).with_status(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    fn deferred(&self, received: &HttpRequest) -> Option<Deferred> {
        match received.path.as_str() {
            OBJECTS => Some(self.objects()),
            // Not by GET, which has no effects: a test adds a Service and devices.
            SELF_TEST if received.method == Method::POST => Some(self.test()),
            _ => None,
        }
    }
}
