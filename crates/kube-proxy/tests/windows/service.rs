//! The program as a service, by the system's own tool `sc`.

use std::process::Command;

use crate::kit::{Folder, eventually, free_address, get, output, program};

const NAME: &str = "ferry-test";

fn sc(words: &[&str]) -> (i32, String) {
    output(Command::new("sc").args(words))
}

/// The state that the service manager shows.
fn has_state(state: &str) -> bool {
    sc(&["query", NAME]).1.lines().any(|line| line.contains("STATE") && line.contains(state))
}

/// The service, deleted with the test.
struct Installed;

impl Drop for Installed {
    fn drop(&mut self) {
        drop(sc(&["stop", NAME]));
        drop(sc(&["delete", NAME]));
    }
}

#[test]
fn the_service_manager_starts_and_stops_it() {
    let folder = Folder::new("service");
    folder.write("node.yaml", crate::NODE);
    let (healthz, metrics) = (free_address(), free_address());
    let command = format!(
        "{} --windows-service --hostname-override=node-1 {} --healthz-bind-address={healthz} --metrics-bind-address={metrics}",
        env!("CARGO_BIN_EXE_kube-proxy"),
        folder.flag()
    );
    let (code, text) = sc(&["create", NAME, "binPath=", &command]);
    assert_eq!(code, 0, "{text}");
    let installed = Installed;
    let (code, text) = sc(&["start", NAME]);
    assert_eq!(code, 0, "{text}");
    eventually("it runs", || has_state("RUNNING"));
    eventually("it is healthy", || get(healthz, "/healthz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")));
    sc(&["stop", NAME]);
    eventually("it has stopped", || has_state("STOPPED"));
    assert!(sc(&["query", NAME]).1.contains("SERVICE_EXIT_CODE  : 0"), "in order");
    eventually("its port is free", || get(healthz, "/healthz").is_none());
    drop(installed);
}

#[test]
fn in_a_console_the_flag_is_refused_with_advice() {
    let (code, text) = output(program().arg("--windows-service"));
    assert!(code == 1 && text.contains("--windows-service") && text.contains("omit it in a console"), "{text}");
    let (code, text) = output(program().args(["--windows-service", "--windows-service=false", "--version"]));
    assert!(code == 0 && text.starts_with("Kubernetes"), "the last one counts: {text}");
}
