//! Rotation of certificates: the API server's own, and the client certificate in the files that a kubeconfig names.

use std::time::Duration;

use ferry_lab::kubernetes::{Certificate, ClusterUser, ServerKind, service_path};
use ferry_lab::patience::until;
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Family, LabMachine, ProxyProcess, TestService};

use crate::support::{Cluster, assert_unharmed, cluster, connection, hammer, start, wait};

/// Time limit until the API server presents a new certificate: it looks at the file once a minute if no notification arrives.
const PRESENTED: Duration = Duration::from_secs(90);

/// Serial number of a certificate in PEM.
fn serial(cluster: &Cluster, pem: &str) -> String {
    cluster.node().feed("openssl", &["x509", "-noout", "-serial"], pem).expect("a certificate")
}

/// Serial number of the certificate that the API server presents to new connections.
fn presented(cluster: &Cluster) -> String {
    let at = cluster.api.url().replace("https://", "");
    let shown = cluster.node().feed("openssl", &["s_client", "-connect", &at], "").expect("a connection");
    serial(cluster, &shown)
}

/// Serial number of the API server's certificate in its file.
fn in_file(cluster: &Cluster) -> String {
    let file = cluster.api.ca().with_file_name("server.crt");
    serial(cluster, &std::fs::read_to_string(file).expect("the script wrote it"))
}

/// Connections to the API server so far.
fn connections(proxy: &ProxyProcess<'_>) -> f64 {
    proxy.metric("kubeproxy_source_connections_total", &["result=\"h2\""])
}

/// The lines of the log about certificates that are worse than information.
fn complaints(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.starts_with(['W', 'E']) && line.contains("certificate")).collect()
}

/// Changes everything while the proxy sleeps and the API server restarts: all connections are new ones.
fn miss_everything(cluster: &mut Cluster, proxy: &mut ProxyProcess<'_>, web: &TestService) {
    proxy.suspend();
    cluster.api.delete(&service_path("gone"));
    cluster.move_to(web, &[LabMachine::PodB]);
    cluster.create(&TestService::new("new", 32), &[LabMachine::Far]);
    cluster.api.stop(ServerKind::Api);
    cluster.api.resume(ServerKind::Api);
    proxy.go_on();
    cluster.wait(proxy, 30, &["pod-b:8080"]);
    cluster.wait(proxy, 32, &["far:8080"]);
    wait(proxy, "the deleted service", |_| {
        Family::ALL.into_iter().all(|family| !cluster.ask(family, 31, 1).all_answered())
    });
}

/// Services with the numbers 30 and 31.
fn services(cluster: &Cluster) -> TestService {
    cluster.api.create_node();
    let web = TestService::new("web", 30);
    cluster.create(&web, &[LabMachine::PodA]);
    cluster.create(&TestService::new("gone", 31), &[LabMachine::PodA]);
    web
}

#[test]
fn a_new_certificate_of_the_api_server_loses_no_change() {
    let mut cluster = cluster();
    let web = services(&cluster);
    let mut proxy = cluster.start("server-certificate");
    cluster.wait(&mut proxy, 31, &["pod-a:8080"]);
    let hammers = hammer(&cluster, 30);
    let (before, generation) = (presented(&cluster), cluster.settled_generation());
    cluster.api.rotate(Certificate::Server);
    let rotated = in_file(&cluster);
    assert_ne!(rotated, before);
    let took = until("the new certificate", PRESENTED, || presented(&cluster) == rotated);
    println!("presented after {took:?}");
    assert_eq!(cluster.generation(), generation, "something was committed\n{}", proxy.log());
    // By the connection of before, which the server goes on with.
    cluster.move_to(&web, &[LabMachine::Far]);
    cluster.wait(&mut proxy, 30, &["far:8080"]);
    // Another one, which the server presents from its start on.
    cluster.api.rotate(Certificate::Server);
    miss_everything(&mut cluster, &mut proxy, &web);
    assert_eq!(presented(&cluster), in_file(&cluster));
    assert_ne!(in_file(&cluster), rotated);
    assert_unharmed("rotation of the server's certificate", hammers);
    let log = proxy.log();
    assert_eq!(complaints(&log), [""; 0], "{log}");
}

#[test]
fn a_new_client_certificate_in_its_files_is_used_without_a_restart() {
    let mut cluster = cluster();
    let web = services(&cluster);
    let config = ProxyConfig::with(&connection(&cluster.api.kubeconfig(ClusterUser::Files)));
    let mut proxy = start(cluster.node(), "client-certificate", &config, &[]);
    cluster.wait(&mut proxy, 31, &["pod-a:8080"]);
    let hammers = hammer(&cluster, 30);
    for (round, place) in (1..).zip([LabMachine::Far, LabMachine::PodA]) {
        let before = connections(&proxy);
        let generation = cluster.settled_generation();
        cluster.api.rotate(Certificate::KubeProxy);
        wait(&mut proxy, "the new certificate", |proxy| {
            proxy.log().matches("\"Client certificate changed, new connections use it\"").count() == round
        });
        wait(&mut proxy, "a new connection", |proxy| connections(proxy) > before);
        assert_eq!(cluster.generation(), generation, "something was committed\n{}", proxy.log());
        cluster.move_to(&web, &[place]);
        cluster.wait(&mut proxy, 30, &[&format!("{}:8080", place.name())]);
    }
    cluster.api.rotate(Certificate::KubeProxy);
    miss_everything(&mut cluster, &mut proxy, &web);
    assert_unharmed("rotation of the client's certificate", hammers);
    let log = proxy.log();
    assert_eq!(log.matches("\"Starting kube-proxy\"").count(), 1, "in one run: {log}");
    assert_eq!(complaints(&log), [""; 0], "{log}");
}
