//! kubectl-ferry: `kubectl ferry explain|trace|status`, questions to the kube-proxy of a node through the API server.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferry_kube_proxy::plugin::execute(std::env::args_os().collect())
}
