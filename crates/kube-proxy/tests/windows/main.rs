//! The executable on Windows, seen from outside: command lines, manifests, the servers, and the program as a service. `cargo xt windows`
//! runs this under Wine; on Linux there is nothing in it.

#![cfg(windows)]
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

mod kit;
mod relay;
mod service;

use std::fs;

use kit::{Folder, Proxy, eventually, get, output, program};

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {type: ClusterIP, clusterIP: 10.96.0.10, \
                       clusterIPs: [10.96.0.10], ipFamilies: [IPv4], ports: [{port: 80, protocol: TCP}]}\n";

#[test]
fn the_version_and_the_flags_are_printed() {
    let (code, text) = output(program().arg("--version"));
    assert_eq!((code, text.trim_end()), (0, "Kubernetes v1.36.3"));
    let (code, text) = output(program().arg("--version=raw"));
    assert!(code == 0 && text.contains("Platform:\"windows/amd64\""), "{text}");
    let (code, text) = output(program().arg("--help"));
    assert!(code == 0 && text.contains("--manifests"), "{text}");
}

#[test]
fn modes_of_linux_and_unknown_ones_are_refused() {
    let folder = Folder::new("refused");
    for mode in ["iptables", "ipvs", "nftables"] {
        let (code, text) = output(program().args([&format!("--proxy-mode={mode}"), &folder.flag()]));
        assert!(code == 1 && text.contains("programs the Linux kernel: use winuserspace on Windows"), "{text}");
    }
    let (code, text) = output(program().args(["--proxy-mode=ebpf", &folder.flag()]));
    assert!(code == 1 && text.contains("ebpf"), "{text}");
}

/// The default mode, by each of its names. The service's object is applied, replaced and removed.
#[test]
fn manifests_are_followed_and_probes_and_metrics_answered() {
    for mode in ["--proxy-mode=winuserspace", "--proxy-mode=userspace", "--proxy-mode="] {
        let folder = Folder::new("manifests");
        folder.write("node.yaml", NODE);
        let proxy = Proxy::start(&folder, &[mode]);
        eventually("it is healthy", || {
            get(proxy.healthz, "/healthz").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
        assert!(get(proxy.metrics, "/proxyMode").unwrap().ends_with("winuserspace"));
        let page = get(proxy.metrics, "/metrics").unwrap();
        for name in ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_start_time_seconds "] {
            assert!(page.lines().any(|line| line.starts_with(name)), "{name}");
        }
        let changes = || {
            let page = get(proxy.metrics, "/metrics").unwrap();
            let value =
                page.lines().find_map(|line| line.strip_prefix("kubeproxy_sync_proxy_rules_service_changes_total "));
            value.map_or(0.0, |value| value.parse().unwrap())
        };
        let none: f64 = changes();
        folder.write("web.yaml", SERVICE);
        eventually("the Service is served", || changes() > none);
        let one = changes();
        fs::remove_file(folder.path.join("web.yaml")).unwrap();
        eventually("it is served no longer", || changes() > one);
    }
}

#[test]
fn what_needs_linux_says_so() {
    let folder = Folder::new("profile");
    folder.write("node.yaml", NODE);
    let proxy = Proxy::start(&folder, &["--profiling"]);
    eventually("it answers", || get(proxy.metrics, "/proxyMode").is_some());
    let answer = get(proxy.metrics, "/debug/pprof/profile?seconds=1").unwrap();
    assert!(answer.contains("500") && answer.contains("Windows has no signals that sample stacks"), "{answer}");
}
