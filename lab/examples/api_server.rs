//! Runs the scripted API server with many objects, for a proxy or a benchmark: `api_server SERVICES KUBECONFIG [NODE]`.
//!
//! Serves TLS; PUT and DELETE of their paths, with the kubeconfig's token, change objects. Ends at the end of its input.
#![expect(clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a tool of tests")]

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;

use ferry_lab::api::{ApiServer, ApiServerOptions, objects};

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (services, kubeconfig, node) = match arguments.as_slice() {
        [services, kubeconfig] => (services, kubeconfig, "node-0"),
        [services, kubeconfig, node] => (services, kubeconfig, node.as_str()),
        _ => panic!("api_server SERVICES KUBECONFIG [NODE]"),
    };
    let server = ApiServer::start(ApiServerOptions::secure());
    server.load([
        objects::node(node, Ipv4Addr::new(10, 0, 0, 1), "zone-0"),
        objects::service_cidr("kubernetes", &["10.96.0.0/12"]),
    ]);
    server.load(objects::services(services.parse().expect("a number of services")));
    server.kubeconfig(Path::new(kubeconfig));
    // Runs until the parent process closes the input.
    std::io::stdin().read_to_end(&mut Vec::new()).expect("reading the input");
    for seen in server.requests() {
        eprintln!("{} {} {:?}", seen.method, seen.path_and_query, seen.header("accept"));
    }
}
