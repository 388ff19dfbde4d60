//! Chromium in a machine's network namespace, controlled by the DevTools protocol over its pipe: JSON messages, each with a NUL
//! behind it.
#![expect(clippy::indexing_slicing, reason = "of JSON, where a missing field is null")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::Machine;

/// The browser's possible names: Debian's, and Fedora's.
const NAMES: [&str; 2] = ["chromium", "chromium-browser"];
/// The message that a page and all that it names are loaded.
const LOADED: &str = "Page.loadEventFired";
/// Time limit of a start and of a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// The window in which a page is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) name: &'static str,
    /// pixels
    pub(crate) width: u32,
    /// pixels
    pub(crate) height: u32,
    pub(crate) dark: bool,
    /// the page's own width counts, by its viewport tag, as on a phone
    pub(crate) mobile: bool,
}

/// A browser with one page; killed when dropped.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    sent: u64,
    session: Value,
    /// the page and all that it names are loaded
    is_loaded: bool,
    /// violations of the page's policy, and failed requests, since the page was opened
    complaints: Vec<String>,
}

// === impl Browser ===

impl Browser {
    pub(crate) fn start(machine: &Machine) -> Self {
        let name =
            NAMES.into_iter().find(|name| machine.tool("sh", &["-c", &format!("command -v {name}")]).status.success());
        let profile = format!("--user-data-dir={}", machine.path("browser").display());
        let mut command = Command::new("unshare");
        // The browser's processes end with the first one. It reads the protocol from descriptor 3, and writes to 4.
        command.args(["--pid", "--fork", "--kill-child", "sh", "-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2", "sh"]);
        command.args([name.expect("this test needs chromium"), "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars", &profile]);
        command.args(["--remote-debugging-pipe"]);
        command.env("TMPDIR", machine.path(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = machine.run(|| command.spawn()).expect("starting the browser");
        let requests = child.stdin.take().expect("piped");
        let messages = read(child.stdout.take().expect("piped"));
        let (session, complaints) = (Value::Null, Vec::new());
        let mut browser = Self { child, requests, messages, sent: 0, session, is_loaded: false, complaints };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let session = browser.ask("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = session["sessionId"].clone();
        for domain in ["Page", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a page, and waits until it and all that it names are loaded.
    pub(crate) fn open(&mut self, url: &str, view: View) {
        self.size(view, view.height);
        let scheme = if view.dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", features);
        self.complaints.clear();
        self.is_loaded = false;
        let answer = self.ask("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        // It may have come before the answer.
        if !self.is_loaded {
            self.receive("the end of loading", |message| message["method"] == LOADED);
        }
    }

    fn size(&mut self, view: View, height: u32) {
        let View { width, mobile, .. } = view;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// Violations of the page's policy, and failed requests, since the page was opened.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let answer = self.ask("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// A picture of the page in PNG, as wide as the view and of this height.
    pub(crate) fn picture(&mut self, view: View, height: u32) -> Vec<u8> {
        self.size(view, height);
        let answer = self.ask("Page.captureScreenshot", json!({"format": "png"}));
        STANDARD.decode(answer["data"].as_str().expect("a picture")).expect("in base64")
    }

    /// Sends a request and waits for its result.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut request = json!({"id": self.sent, "method": method, "params": params});
        if !self.session.is_null() {
            request["sessionId"] = self.session.clone();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).expect("the browser reads its pipe");
        let id = self.sent;
        let answer = self.receive(method, |message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The next message of this kind. Complaints on the way are kept.
    fn receive(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            let message = self.messages.recv_timeout(rest).unwrap_or_else(|error| panic!("{what}: {error}"));
            if message["method"] == "Log.entryAdded" || message["method"] == "Network.loadingFailed" {
                self.complaints.push(message["params"].to_string());
            }
            self.is_loaded |= message["method"] == LOADED;
            if is_it(&message) {
                return message;
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads messages until the pipe ends.
fn read(pipe: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(pipe).split(0) {
            let Ok(message) = message else { return };
            // The last message of a browser that is killed may be a part of one.
            let Ok(message) = serde_json::from_slice(&message) else { return };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
