//! Creation, change and deletion of objects through the API reach the kernel.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ferry_lab::kubernetes::{ApiRequest, service_path, slice_path};
use ferry_lab::lab::NODE_NAME;
use ferry_lab::nft::Ruleset;
use ferry_lab::objects::{EndpointCondition, at_cluster_ip};
use ferry_lab::proxy::ProxyConfig;
use ferry_lab::{Checks, Family, Lab, LabMachine, Manifests, Protocol, ProxyProcess, TestService};
use serde_json::json;

use crate::matrix;
use crate::support::{Cluster, EXECUTABLE, cluster, folder, wait};

/// The rules that a proxy writes in another lab for these manifests and the API server's objects.
fn rules_of_manifests(manifests: &Manifests, others: &[serde_json::Value]) -> Ruleset {
    let lab = Lab::new();
    let folder = folder("manifests-instead");
    let directory = folder.join("manifests");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("making a folder");
    std::fs::write(directory.join("all.yaml"), manifests.to_string()).expect("writing manifests");
    for (at, other) in others.iter().enumerate() {
        std::fs::write(directory.join(format!("{at}.json")), other.to_string()).expect("writing a manifest");
    }
    let node = lab.host(LabMachine::Node);
    let mut proxy = ProxyProcess::start(node, EXECUTABLE, &folder, &directory, &ProxyConfig::default());
    proxy.wait_until_synced(&Family::ALL);
    Ruleset::of(node).essence()
}

/// The same without the lines of objects, which nft lists in other words than it loads.
fn without_rules(mut ruleset: Ruleset) -> Ruleset {
    ruleset.objects.values_mut().for_each(|content| content.lines.clear());
    ruleset
}

/// Each subcommand reads the API server's objects, by this configuration, and finds the kernel in the desired state.
#[track_caller]
fn assert_inspected(cluster: &Cluster, config: &str) {
    // `sh` panics unless the exit code is 0.
    let ask = |name: &str, more: &[&str]| cluster.node().sh(EXECUTABLE, &[&[name, "--config", config], more].concat());
    let (plan, verified) = (ask("plan", &[]), ask("verify", &[]));
    let (web, away) = (ask("explain", &["svc", "demo/web"]), ask("explain", &["svc", "demo/edge-away"]));
    assert!(!web.contains("problem:"), "{web}");
    for family in Family::ALL {
        let head = format!("{family} in mode nftables: ");
        let nothing = |line: &str| line.starts_with(&format!("{head}nothing to change, "));
        assert!(plan.lines().any(nothing), "{plan}");
        let right = |line: &str| line.starts_with(&format!("{head}all ")) && line.contains(" meet the verdict that ");
        assert!(verified.lines().any(right), "{verified}");

        let (client, to) = (LabMachine::PodA.address(family), at_cluster_ip(family, 80));
        let slice = format!("web-{}", family.to_string().to_lowercase());
        let used = format!(
            "{} (node {NODE_NAME}, EndpointSlice demo/{slice}): used by policy Cluster",
            SocketAddr::new(client, 8080)
        );
        assert!(web.contains(&format!("cluster IP {to}\n")) && web.contains(&used), "{used}: {web}");
        let problem = format!(
            "problem: demo/edge-away port tcp 80/TCP {family} has no endpoint on this node, {NODE_NAME}, among 1: "
        );
        assert!(away.lines().any(|line| line.starts_with(&problem)), "{problem}: {away}");

        let traced = ask("trace", &[&format!("{client} -> {to}")]);
        let mut lines = traced.lines();
        let forwarded = format!("{head}{client} -> {to}/TCP: forward to ");
        assert!(lines.next().is_some_and(|line| line.starts_with(&forwarded)), "{forwarded}: {traced}");
        assert_eq!(lines.next(), Some("the model decides the same"), "{traced}");
    }
}

#[test]
fn objects_of_every_kind_are_in_the_kernel_as_from_manifests() {
    let cluster = cluster();
    let manifests = matrix::manifests();
    cluster.api.create_node();
    cluster.api.create_all(&manifests);
    let mut proxy = cluster.start("kinds");
    proxy.wait_until_synced(&Family::ALL);
    matrix::check(cluster.lab, "from the API", Family::ALL.as_slice());
    // the API server's own Service
    let own = cluster.api.get("/api/v1/namespaces/default/services/kubernetes");
    let (there, here) = (rules_of_manifests(&manifests, &[own]), cluster.rules());
    assert!(here == there, "from the API (-), from manifests (+):\n{}", here.difference(&there));
    let config = folder("kinds").join("config.yaml").display().to_string();
    let arguments = ["render", "--config", &config, "--local-addresses", "machine", "--part", "nft"];
    let rendered = Ruleset::parse(&cluster.node().sh(EXECUTABLE, &arguments)).essence();
    let (here, rendered) = (without_rules(here), without_rules(rendered));
    assert!(here == rendered, "in the kernel (-), rendered (+):\n{}", here.difference(&rendered));
    assert_inspected(&cluster, &config);
    assert_eq!(proxy.metric("rest_client_requests_total", &["code=\"4"]), 0.0, "nothing was refused");
}

#[test]
fn changes_and_deletions_arrive() {
    let cluster = cluster();
    cluster.api.create_node();
    let web = TestService::new("web", 20);
    cluster.create(&web, &[LabMachine::PodA]);
    let mut proxy = cluster.start("changes");
    cluster.wait(&mut proxy, 20, &["pod-a:8080"]);

    cluster.move_to(&web, &[LabMachine::PodA, LabMachine::Far]);
    let took = cluster.wait(&mut proxy, 20, &["far:8080", "pod-a:8080"]);
    println!("an endpoint more after {took:?}");
    // a service that is new while it runs
    let late = TestService::new("late", 21).protocols(&[Protocol::Tcp, Protocol::Udp]).node_port(30021);
    cluster.create(&late, &[LabMachine::Far]);
    cluster.wait(&mut proxy, 21, &["far:8080"]);
    let udp = cluster.lab.from(LabMachine::PodB).ask(Protocol::Udp, at_cluster_ip(Family::V6, 21), 3);
    assert!(udp.all_answered(), "{udp}");

    // its port changes
    let ports = json!([{"name": "tcp", "protocol": "TCP", "port": 8088, "nodePort": 30021}]);
    cluster.api.patch(&service_path("late"), &json!({"spec": {"ports": ports}}));
    wait(&mut proxy, "the new port", |_| {
        Family::ALL.into_iter().all(|family| {
            let mut at = at_cluster_ip(family, 21);
            at.set_port(8088);
            cluster.lab.from(LabMachine::PodB).patience(Duration::from_millis(200)).tcp(at, 1).all_answered()
        })
    });

    // no endpoint is ready
    let none = web.endpoints(8080, &[]).and(LabMachine::PodA, EndpointCondition::Unready);
    for slice in Family::ALL.into_iter().filter_map(|family| none.slice(family)) {
        cluster.api.replace(&slice);
    }
    let is_refused = |family| cluster.ask(family, 20, 1).all(&ferry_lab::ProbeOutcome::Refused);
    wait(&mut proxy, "refusal without endpoints", |_| Family::ALL.into_iter().all(is_refused));
    cluster.move_to(&web, &[LabMachine::PodB]);
    cluster.wait(&mut proxy, 20, &["pod-b:8080"]);
    // the slices go, then the service
    Family::ALL.into_iter().for_each(|family| cluster.api.delete(&slice_path("web", family)));
    wait(&mut proxy, "refusal without slices", |_| Family::ALL.into_iter().all(is_refused));
    cluster.api.delete(&service_path("web"));
    cluster.api.delete(&service_path("late"));
    wait(&mut proxy, "nothing left", |_| {
        let rules = cluster.rules();
        ["ip kube-proxy", "ip6 kube-proxy"]
            .into_iter()
            .all(|table| !format!("{:?}", rules.names(table).collect::<Vec<_>>()).contains("demo/"))
            && Family::ALL.into_iter().all(|family| !is_refused(family))
    });
    let mut checks = Checks::new();
    for family in Family::ALL {
        for number in [20, 21] {
            let silence = cluster.lab.from(LabMachine::PodB).silence(Protocol::Tcp, at_cluster_ip(family, number));
            checks.silent(&format!("deleted service {number}, {family}"), &silence);
        }
    }
}

#[test]
fn ranges_of_cluster_ips_are_followed() {
    let cluster = cluster();
    cluster.api.create_node();
    let mut proxy = cluster.start("ranges");
    proxy.wait_until_synced(&Family::ALL);
    let holds = |text: &str| ferry_lab::nft::list(cluster.node()).contains(text);
    assert!(!holds("10.97.3.0/24"));
    let range = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: more}\n\
                 spec: {cidrs: [10.97.3.0/24, \"fd00:10:97::/112\"]}\n";
    cluster.api.create(range);
    wait(&mut proxy, "the new ranges", |_| holds("10.97.3.0/24") && holds("fd00:10:97::/112"));
    cluster.api.delete_at_once("/apis/networking.k8s.io/v1/servicecidrs/more");
    wait(&mut proxy, "the ranges gone", |_| !holds("10.97.3.0/24") && !holds("fd00:10:97::/112"));
}

#[test]
fn other_proxies_services_and_headless_ones_are_left_alone() {
    let cluster = cluster();
    cluster.api.create_node();
    cluster.create(&TestService::new("ours", 22), &[LabMachine::PodA]);
    cluster.create(&TestService::new("theirs", 23), &[LabMachine::PodA]);
    let label =
        |value: serde_json::Value| json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": value}}});
    cluster.api.patch(&service_path("theirs"), &label(json!("another")));
    let mut proxy = cluster.start("selected");
    cluster.wait(&mut proxy, 22, &["pod-a:8080"]);
    let is_served = || Family::ALL.into_iter().any(|family| cluster.ask(family, 23, 1).all_answered());
    assert!(!is_served());
    // the label for another proxy, removed and added at run time
    cluster.api.patch(&service_path("theirs"), &label(json!(null)));
    cluster.wait(&mut proxy, 23, &["pod-a:8080"]);
    cluster.api.patch(&service_path("theirs"), &label(json!("another")));
    wait(&mut proxy, "another proxy's service", |_| !is_served());
    assert!(cluster.serves(22, &["pod-a:8080"]));
}

#[test]
fn a_restart_with_unchanged_objects_writes_nothing() {
    let cluster = cluster();
    let manifests = matrix::manifests();
    cluster.api.create_node();
    cluster.api.create_all(&manifests);
    let mut proxy = cluster.start("restart");
    proxy.wait_until_synced(&Family::ALL);
    let generation = cluster.settled_generation();
    let before = cluster.rules();
    for round in 0..2 {
        let (status, _) = proxy.terminate();
        println!("ended: {status}");
        proxy = cluster.start("restart");
        proxy.wait_until_synced(&Family::ALL);
        cluster.assert_quiet("after a restart", &proxy, Duration::from_millis(500));
        assert_eq!(cluster.generation(), generation, "restart {round} wrote\n{}", proxy.log());
    }
    assert!(cluster.rules() == before);
}

#[test]
fn many_objects_at_once_arrive_and_go() {
    const SERVICES: u16 = 300;
    let cluster = cluster();
    cluster.api.create_node();
    let mut proxy = cluster.start("many");
    proxy.wait_until_synced(&Family::ALL);
    let services: Vec<_> =
        (0..SERVICES).map(|number| TestService::new(&format!("many-{number}"), 1000 + number)).collect();
    let slices = |service: &TestService, at: &[LabMachine]| {
        let endpoints = service.endpoints(8080, at);
        Family::ALL.into_iter().filter_map(move |family| endpoints.slice(family))
    };
    let both = [LabMachine::PodA, LabMachine::Far];
    let created = services.iter().flat_map(|service| {
        slices(service, &both).map(|slice| ApiRequest::create(&slice)).chain([ApiRequest::create(&service.to_string())])
    });
    let start = Instant::now();
    cluster.api.ask_all(&created.collect::<Vec<_>>());
    println!("{} objects created in {:?}", 3 * services.len(), start.elapsed());
    // service entries of a table, one per Service for its one port
    let held = || {
        let rules = Ruleset::of(cluster.node());
        ["ip kube-proxy", "ip6 kube-proxy"].map(|table| rules.get(table, "map service-ips").elements.len())
    };
    // the API server's own service is of IPv4
    let (own, all) = (1, usize::from(SERVICES));
    let took = wait(&mut proxy, "all services", |_| held() == [all + own, all]);
    println!("all of them in the kernel {took:?} later");
    for number in [0, SERVICES / 2, SERVICES - 1] {
        cluster.wait(&mut proxy, 1000 + number, &["far:8080", "pod-a:8080"]);
    }
    let moved = services
        .iter()
        .flat_map(|service| slices(service, &[LabMachine::PodB]).map(|slice| ApiRequest::replace(&slice)));
    cluster.api.ask_all(&moved.collect::<Vec<_>>());
    for number in [0, SERVICES / 2, SERVICES - 1] {
        cluster.wait(&mut proxy, 1000 + number, &["pod-b:8080"]);
    }
    cluster.api.clear();
    wait(&mut proxy, "none of the services", |_| held() == [own, 0]);
}
