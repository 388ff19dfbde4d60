//! The manifests of a cluster: kustomize's output and the static Pod, in a dry run of a real API server; the objects that they contain.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use ferry_lab::kubernetes::ApiRequest;
use ferry_lab::{Host, Kubernetes, kubernetes};
use serde_json::Value;

use crate::support::{folder, read, repository, run};

/// The overlays, one for each mode.
const MODES: [&str; 4] = ["nftables", "iptables", "ipvs", "userspace"];

/// The program that builds kustomizations, by the library of `kubectl kustomize`.
fn kustomize() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = folder("kustomize").join("kustomize");
        let mut build = Command::new("go");
        build.args(["build", "-o"]).arg(&program).arg(".").current_dir(repository().join("tests/lanes/kustomize"));
        run(&mut build);
        program
    })
}

/// The objects of a folder below `deploy/kubernetes`.
pub(crate) fn objects(folder: &str) -> Vec<Value> {
    let text = run(Command::new(kustomize()).arg(repository().join("deploy/kubernetes").join(folder)));
    text.split("\n---\n").map(parsed).collect()
}

/// The object of this kind.
pub(crate) fn of_kind<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn parsed(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// The path of a kind's objects in `kube-system`.
fn collection(kind: &str) -> &'static str {
    match kind {
        "ServiceAccount" => "/api/v1/namespaces/kube-system/serviceaccounts",
        "ConfigMap" => "/api/v1/namespaces/kube-system/configmaps",
        "Pod" => "/api/v1/namespaces/kube-system/pods",
        "DaemonSet" => "/apis/apps/v1/namespaces/kube-system/daemonsets",
        "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        other => panic!("where are objects of kind {other}?"),
    }
}

#[test]
fn a_real_api_server_accepts_them() {
    kubernetes::build();
    let host = Host::new("api");
    let api = Kubernetes::start(&host, &folder("api"));
    let dry_run = |object: &Value| {
        let kind = object["kind"].as_str().expect("a kind");
        let path = format!("{}?dryRun=All&fieldValidation=Strict", collection(kind));
        let body = object.to_string();
        let answer = api.ask(&ApiRequest { method: "POST", path, content_type: "application/json", body });
        assert_eq!(answer["metadata"]["name"], object["metadata"]["name"]);
        answer
    };
    let overlays = MODES.map(|mode| format!("overlays/{mode}"));
    for folder in overlays.into_iter().chain(["base".to_owned()]) {
        let objects = objects(&folder);
        assert_eq!(objects.len(), 4, "{folder}");
        objects.iter().for_each(|object| {
            dry_run(object);
        });
    }
    dry_run(&parsed(&read("deploy/kubernetes/static-pod/kube-proxy.yaml")));
    // dry runs leave nothing behind, and the role that the binding names is the API server's own
    assert_eq!(
        api.get(collection("ConfigMap"))["items"]
            .as_array()
            .map_or(0, |items| { items.iter().filter(|item| item["metadata"]["name"] == "kube-proxy").count() }),
        0
    );
    let objects = objects("base");
    let role = &of_kind(&objects, "ClusterRoleBinding")["roleRef"]["name"];
    assert_eq!(role, "system:node-proxier");
    api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node-proxier");
}

#[test]
fn every_overlay_sets_its_mode_and_the_names_of_kubeadm_stay() {
    for mode in MODES {
        let objects = objects(&format!("overlays/{mode}"));
        let data = &of_kind(&objects, "ConfigMap")["data"];
        let config = parsed(data["config.conf"].as_str().expect("a text"));
        assert_eq!(config["mode"], mode);
        let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
        let mount = mounts.iter().find(|mount| mount["name"] == "kube-proxy").map(|mount| &mount["mountPath"]);
        let mount = mount.expect("the configuration");
        let kubeconfig = format!("{}/kubeconfig.conf", mount.as_str().expect("a path"));
        assert_eq!(config["clientConnection"]["kubeconfig"], kubeconfig.as_str());
        let kubeconfig = parsed(data["kubeconfig.conf"].as_str().expect("a text"));
        assert_eq!(kubeconfig["kind"], "Config");
    }
}
