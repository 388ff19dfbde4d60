//! kube-proxy: programs this node's kernel so that the addresses of Kubernetes Services lead to their endpoints.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferry_kube_proxy::platform::run_program(ferry_kube_proxy::commands::execute)
}
