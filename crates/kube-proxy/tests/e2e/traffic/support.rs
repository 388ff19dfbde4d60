//! The stage that the groups share.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ferry_lab::proxy::ProxyConfig;
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Lab, LabMachine, Manifests, ProxyProcess, Stage};

/// The program under test.
pub(crate) const EXECUTABLE: &str = env!("CARGO_BIN_EXE_kube-proxy");

/// The lab, built once, with a proxy of the default configuration that serves these manifests. Groups take turns; a
/// group that failed leaves nothing behind, since each begins with its own manifests.
pub(crate) fn stage(manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    stage_with(&ProxyConfig::default(), manifests)
}

/// The same with another configuration.
pub(crate) fn stage_with(config: &ProxyConfig, manifests: &Manifests) -> MutexGuard<'static, Stage<'static>> {
    static STAGE: OnceLock<Mutex<Stage<'static>>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| {
        let lab: &Lab = Box::leak(Box::new(Lab::new()));
        Mutex::new(Stage::new(lab, EXECUTABLE, &folder("shared"), config.clone(), manifests))
    });
    let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
    stage.reset(config, manifests);
    stage
}

/// Takes the turn of the tests that share the lab, for a test with a lab of its own that writes so much that concurrent tests
/// would count delayed connections.
pub(crate) fn alone() -> MutexGuard<'static, Stage<'static>> {
    stage(&Manifests::new())
}

/// A folder of this test binary, by the name of its user.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("traffic").join(name)
}

/// Starts a second proxy over these manifests in a lab of its own, and waits until it serves them.
pub(crate) fn fresh<'a>(lab: &'a Lab, name: &str, manifests: &Manifests) -> Stage<'a> {
    Stage::new(lab, EXECUTABLE, &folder(name), ProxyConfig::default(), manifests)
}

/// Runs a subcommand on the node for a stage's configuration and manifests, with these arguments: its exit code and its output.
pub(crate) fn inspect(stage: &Stage<'_>, name: &str, more: &[&str]) -> (Option<i32>, String) {
    let [config, manifests] = ["config.yaml", "manifests"].map(|name| stage.folder().join(name).display().to_string());
    let arguments = [&[name, "--config", &config, "--manifests", &manifests], more].concat();
    let (status, text) = run_to_end(stage.lab, name, &arguments);
    (status.code(), text)
}

/// Runs the executable with these arguments on the node until it ends by itself; its log.
pub(crate) fn run_to_end(lab: &Lab, name: &str, arguments: &[&str]) -> (std::process::ExitStatus, String) {
    let directory = ManifestDirectory::new(&folder(name));
    let folder = directory.manifests();
    let mut proxy = ProxyProcess::start_with(lab.host(LabMachine::Node), EXECUTABLE, &folder, arguments);
    (proxy.wait(), proxy.log())
}
