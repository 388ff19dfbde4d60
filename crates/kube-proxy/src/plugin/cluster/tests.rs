use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A program in the role of kubectl: it prints the file that is named by the kind of objects, `pods` or `nodes`, or fails.
struct Scripted(PathBuf);

// === impl Scripted ===

impl Scripted {
    fn new(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ferry-kubectl-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
        let script = "#!/bin/sh\ncd \"${0%/*}\"\necho \"$*\" >>log\n\
            case \"$*\" in *--field-selector=status.podIP=*) exec cat clients;; esac\n\
            if [ \"$2\" = --raw ]; then exec cat raw; fi\nexec cat \"$2\"\n";
        fs::write(folder.join("kubectl.sh"), script).unwrap();
        // A child of another thread may inherit an open file, which then can't be executed.
        let mut install = Command::new("install");
        assert!(install.args([folder.join("kubectl.sh"), folder.join("kubectl")]).status().unwrap().success());
        Self(folder)
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::at(&self.0.join("kubectl").display().to_string())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // A folder that is left is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn reach(via: Via) -> Reach {
    Reach { via, namespace: "kube-system".to_owned(), selector: "k8s-app=kube-proxy".to_owned(), port: 10249 }
}

fn pod(name: &str, node: &str, phase: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}"}},"spec":{{"nodeName":"{node}"}},"status":{{"phase":"{phase}","podIP":"1.2.3.4"}}}}"#
    )
}

fn list(items: &[String]) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"List","items":[{}],"metadata":{{"resourceVersion":""}}}}"#, items.join(","))
}

fn nodes(names: &[&str]) -> String {
    let node =
        |name: &&str| format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDR":"10.0.0.0/24"}},"status":{{}}}}"#);
    list(&names.iter().map(node).collect::<Vec<_>>())
}

fn proxy(node: &str, pod: &str) -> ReachedProxy {
    ReachedProxy { node: node.to_owned(), pod: pod.to_owned() }
}

#[test]
fn a_running_pod_of_each_node_answers() {
    let mut leaving: Item = serde_json::from_str(&pod("a-leaving", "a", "Running")).unwrap();
    leaving.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    let pods = [
        ("b-pending", "b", "Pending"),
        ("b-running", "b", "Running"),
        ("c-failed", "c", "Failed"),
        ("a-new", "a", "Running"),
    ];
    let pods = pods.iter().map(|(name, node, phase)| serde_json::from_str(&pod(name, node, phase)).unwrap());
    let found = by_node(pods.chain([leaving]).collect());
    let found: Vec<(&str, &str)> = found.iter().map(|(node, pod)| (node.as_str(), pod.as_str())).collect();
    assert_eq!(found, [("a", "a-new"), ("b", "b-running")]);
}

#[test]
fn the_node_of_the_client_answers_or_the_first_one() {
    let proxies = list(&[pod("kube-proxy-b", "b", "Running"), pod("kube-proxy-c", "c", "Running")]);
    let clients = list(&[pod("done", "b", "Succeeded"), pod("client", "c", "Running")]);
    let scripted = Scripted::new(&[("pods", &proxies), ("clients", &clients), ("nodes", &nodes(&["c", "b"]))]);
    let kubectl = scripted.kubectl();
    let choose = |via, client: Option<&str>| {
        KubectlCluster::new(&kubectl, &reach(via)).choose(client.map(|client| client.parse().unwrap())).unwrap()
    };
    let (found, why) = choose(Via::PortForward, Some("10.244.2.9"));
    assert_eq!((found, why.as_str()), (proxy("c", "kube-proxy-c"), "it has the client's pod client"));
    let log = scripted.log();
    assert!(log.contains("get pods --all-namespaces --field-selector=status.podIP=10.244.2.9 --output=json"), "{log}");
    let of_node =
        "get pods --namespace=kube-system --selector=k8s-app=kube-proxy --field-selector=spec.nodeName=c --output=json";
    assert!(log.contains(of_node), "{log}");
    assert_eq!(choose(Via::PortForward, None), (proxy("b", "kube-proxy-b"), "the first one".to_owned()));
    assert_eq!(choose(Via::NodeProxy, None).0, proxy("b", ""));
    fs::write(scripted.0.join("clients"), list(&[])).unwrap();
    let (found, why) = choose(Via::PortForward, Some("10.244.2.9"));
    let text = "the first one: no pod is known with 10.244.2.9 as its primary address, nor a proxy of its pod range";
    assert_eq!((found, why.as_str()), (proxy("b", "kube-proxy-b"), text));
    let ranges = [("b", "10.244.1.0/24"), ("c", "fd00:244:2::/64")]
        .map(|(name, range)| format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"podCIDRs":["?","{range}"]}}}}"#));
    fs::write(scripted.0.join("nodes"), list(&ranges)).unwrap();
    let (found, why) = choose(Via::PortForward, Some("fd00:244:2::9"));
    assert_eq!(
        (found, why.as_str()),
        (proxy("c", "kube-proxy-c"), "fd00:244:2::9 is in its pod range fd00:244:2::/64")
    );
}

#[test]
fn a_node_without_a_pod_has_the_reason() {
    let proxies = list(&[pod("kube-proxy-b", "b", "Running")]);
    let scripted = Scripted::new(&[("pods", &proxies), ("nodes", &nodes(&["b", "a"]))]);
    let kubectl = scripted.kubectl();
    let reach = reach(Via::PortForward);
    let cluster = KubectlCluster::new(&kubectl, &reach);
    let found = cluster.proxies().unwrap();
    let [(first, without), (second, with)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((first.as_str(), second.as_str()), ("a", "b"));
    assert_eq!(with.as_ref().unwrap(), &proxy("b", "kube-proxy-b"));
    let reason = "node a has no kube-proxy: no pod in namespace kube-system runs there with label k8s-app=kube-proxy";
    assert!(without.as_ref().unwrap_err().to_string().starts_with(reason), "{without:?}");
    assert!(cluster.proxy("a").unwrap_err().to_string().starts_with(reason));
}

#[test]
fn errors_of_kubectl_are_passed_on() {
    let scripted = Scripted::new(&[("nodes", "no JSON")]);
    let kubectl = scripted.kubectl();
    let reach = reach(Via::NodeProxy);
    let cluster = KubectlCluster::new(&kubectl, &reach);
    let error = format!("{:#}", cluster.proxies().unwrap_err());
    assert!(error.starts_with("kubectl get nodes: decoding its output: "), "{error}");
    // There is no file for it, as there may be no permission.
    let error = format!("{:#}", cluster.request(&proxy("a", ""), "/ui?format=json").unwrap_err());
    assert!(
        error.contains("kubectl get --raw /api/v1/nodes/a:10249/proxy/ui?format=json: cat: raw: No such file"),
        "{error}"
    );
    assert!(error.contains("statusPage: everyone"), "{error}");
    let missing = Kubectl::at("/nonexistent/kubectl");
    let error = KubectlCluster::new(&missing, &reach).proxies().unwrap_err().to_string();
    assert!(error.contains("kubectl must be in PATH, or named by the variable KUBECTL"), "{error}");
}

#[test]
fn names_of_nodes_are_checked() {
    for name in ["node-a", "10.0.0.1", "a.example.com", "0"] {
        assert_eq!(checked_node(name.to_owned()).unwrap(), name);
    }
    for name in ["", "-a", ".", "..", "a/b", "a b", "A", "a,b=c", "a:1"] {
        assert!(checked_node(name.to_owned()).is_err(), "{name}");
    }
}
