//! Upstream's API server and proxy, inside a namespace of the lab.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferry_testkit::lab::{NODE_NAME, POD_RANGES, SERVICE_RANGES};
use ferry_testkit::objects::{NAMESPACE, node_yaml};
use ferry_testkit::{Endpoints, Family, Host, Place, Proxy, Service};

/// An API server with its store; both end when this is dropped, and when the test ends however it ends.
pub(crate) struct Kubernetes<'a> {
    host: &'a Host,
    servers: Child,
    folder: PathBuf,
}

/// The script that builds and starts them.
fn script() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate of the workspace");
    root.join("tests/lanes/kubernetes/kube-api")
}

/// Where the executables are.
fn cache() -> PathBuf {
    let named = std::env::var_os("KUBE_API_CACHE").map(PathBuf::from);
    let of_user = || {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).expect("a home folder")
    };
    named.unwrap_or_else(|| of_user().join("ferry-kube-api"))
}

// === impl Kubernetes ===

impl<'a> Kubernetes<'a> {
    /// Builds upstream's executables unless they are there.
    pub(crate) fn build() {
        let status = Command::new(script()).arg("build").env("KUBE_API_CACHE", cache()).status();
        let status = status.unwrap_or_else(|error| panic!("{}: {error}", script().display()));
        assert!(status.success(), "building upstream's executables needs go 1.26 and the Go module proxy: {status}");
    }

    /// Starts the servers in a namespace.
    pub(crate) fn start(host: &'a Host, folder: &Path) -> Self {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        std::fs::create_dir_all(folder).expect("making a folder");
        // a process namespace takes all of the script's children along when it ends
        let arguments = ["--pid", "--fork", "--kill-child", "--"].map(str::to_owned).into_iter().chain([
            script().display().to_string(),
            "serve".to_owned(),
            folder.display().to_string(),
        ]);
        let mut servers = host.spawn("unshare", &arguments.collect::<Vec<_>>(), |command| {
            command.env("KUBE_API_CACHE", cache()).env("KUBE_API_SERVICES", SERVICE_RANGES.join(","));
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        });
        let mut lines = BufReader::new(servers.stdout.take().expect("piped")).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
        assert!(ready, "no API server; see the logs in {}", folder.display());
        let api = Self { host, servers, folder: folder.to_owned() };
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n");
        api.request("POST", "/api/v1/namespaces", "application/yaml", &namespace);
        api
    }

    /// Creates the Node that the proxy runs on.
    pub(crate) fn create_node(&self) {
        self.request("POST", "/api/v1/nodes", "application/yaml", &node_yaml());
        let addresses = Family::ALL
            .map(|family| format!("{{\"type\":\"InternalIP\",\"address\":\"{}\"}}", Place::Node.address(family)));
        let status = format!("{{\"status\":{{\"addresses\":[{}]}}}}", addresses.join(","));
        self.request("PATCH", &format!("/api/v1/nodes/{NODE_NAME}/status"), "application/merge-patch+json", &status);
    }

    /// Creates a Service with its status.
    pub(crate) fn create_service(&self, service: &Service) {
        let services = format!("/api/v1/namespaces/{NAMESPACE}/services");
        self.request("POST", &services, "application/yaml", &service.to_string());
        if let Some(status) = service.status_json() {
            let path = format!("{services}/{}/status", service.name);
            self.request("PATCH", &path, "application/merge-patch+json", &status);
        }
    }

    /// Creates the EndpointSlices of a Service.
    pub(crate) fn create_endpoints(&self, endpoints: &Endpoints) {
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices");
        for slice in Family::ALL.into_iter().filter_map(|family| endpoints.slice(family)) {
            self.request("POST", &slices, "application/yaml", &slice);
        }
    }

    /// Starts upstream's proxy in nftables mode.
    pub(crate) fn start_proxy(&self, folder: &Path) -> Proxy<'a> {
        std::fs::create_dir_all(folder).expect("making a folder");
        let kubeconfig = self.folder.join("kube-proxy.conf");
        // in a namespace that isn't the machine's first, the limits of connection tracking can't be set
        let arguments = [
            "--proxy-mode=nftables".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={NODE_NAME}"),
            format!("--cluster-cidr={}", POD_RANGES.join(",")),
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        Proxy::start_with(self.host, &upstream(), folder, &arguments)
    }

    /// Lets upstream's proxy remove its rules.
    pub(crate) fn clean_up(host: &Host, folder: &Path) {
        std::fs::create_dir_all(folder).expect("making a folder");
        let mut proxy = Proxy::start_with(host, &upstream(), folder, &["--cleanup"]);
        let status = proxy.wait();
        println!("upstream's cleanup: {status}\n{}", proxy.log());
    }

    fn request(&self, method: &str, path: &str, kind: &str, body: &str) {
        let url = std::fs::read_to_string(self.folder.join("url")).expect("the script wrote it");
        let file = |name: &str| self.folder.join(name).display().to_string();
        let (ca, certificate, key) = (file("ca.crt"), file("admin.crt"), file("admin.key"));
        let (url, kind) = (format!("{}{path}", url.trim()), format!("Content-Type: {kind}"));
        let arguments = [
            "--silent",
            "--show-error",
            "--fail-with-body",
            "--cacert",
            &ca,
            "--cert",
            &certificate,
            "--key",
            &key,
            "--request",
            method,
            "--header",
            &kind,
            "--data-binary",
            "@-",
            &url,
        ];
        // what the server says about a mistake is in the body, on the standard output
        let script = "curl \"$@\" 1>&2";
        let arguments: Vec<_> = ["-c", script, "curl"].into_iter().chain(arguments).collect();
        if let Err(complaint) = self.host.feed("sh", &arguments, body) {
            panic!("{method} {path}: {complaint}\n{body}");
        }
    }
}

impl Drop for Kubernetes<'_> {
    fn drop(&mut self) {
        // ends the process namespace with everything in it
        let _ = self.servers.kill();
        let _ = self.servers.wait();
    }
}

fn upstream() -> String {
    cache().join("bin/kube-proxy").display().to_string()
}
