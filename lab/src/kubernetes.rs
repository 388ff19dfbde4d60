//! Runs upstream's API server with etcd, and upstream's proxy, inside a namespace of the lab.
//!
//! The script `tests/lanes/kubernetes/kube-api` builds them from their Go modules and starts them; it needs Go, openssl,
//! curl and python3. `KUBE_API_CACHE` is the folder of its builds.

mod client;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::thread;

use ferry_api::object::Family;
use serde_json::{Value, json};

use crate::host::Host;
use crate::lab::{LabMachine, NODE_NAME, POD_RANGES, SERVICE_RANGES};
use crate::objects::{Endpoints, Manifests, NAMESPACE, TestService, node_yaml};
use crate::proxy::ProxyProcess;

pub use client::{AdminClient, ApiResponse};

/// Minimum interval between two syncs of upstream's iptables mode.
const MIN_SYNC_PERIOD: &str = "10ms";
/// Connections that share the requests of [`Kubernetes::ask_all`].
const CONNECTIONS: usize = 6;

/// An API server with etcd; both end when this is dropped, and with the test's process for any reason.
pub struct Kubernetes<'a> {
    host: &'a Host,
    servers: Child,
    /// the script's input: takes commands, and its end stops the servers
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
    client: Mutex<AdminClient<'a>>,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// the API server
    Api,
    /// etcd
    Store,
}

/// A certificate that can be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// the client certificate of [`ClusterUser::Files`]
    KubeProxy,
    /// the API server's own
    Server,
}

/// The user of a kubeconfig, and its credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterUser {
    /// an administrator of the cluster, by a certificate in the kubeconfig
    Admin,
    /// a kube-proxy, by a certificate in the kubeconfig
    Certificate,
    /// a kube-proxy, by files that the kubeconfig names
    Files,
    /// a kube-proxy, by a bearer token
    Token,
    /// a user with a bearer token and without permissions before [`Kubernetes::allow_stranger`]
    Stranger,
}

/// A request to the API server.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    /// GET, POST, PUT, PATCH, DELETE
    pub method: &'static str,
    /// absolute path, with the query
    pub path: String,
    /// empty for none
    pub content_type: &'static str,
    /// empty for none
    pub body: String,
}

/// Path of the ServiceCIDRs.
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const YAML: &str = "application/yaml";
const MERGE: &str = "application/merge-patch+json";

/// Builds upstream's executables unless they are there.
pub fn build() {
    let status = Command::new(script()).arg("build").env("KUBE_API_CACHE", cache()).status();
    let status = status.unwrap_or_else(|error| panic!("{}: {error}", script().display()));
    assert!(status.success(), "building upstream's executables needs go 1.26 and the Go module proxy: {status}");
}

/// The path of upstream's kube-proxy.
pub fn upstream() -> String {
    cache().join("bin/kube-proxy").display().to_string()
}

/// The path of kubectl.
pub fn kubectl() -> String {
    cache().join("bin/kubectl").display().to_string()
}

/// The script that builds and starts them.
fn script() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace");
    root.join("tests/lanes/kubernetes/kube-api")
}

/// Folder of the executables.
fn cache() -> PathBuf {
    let named = std::env::var_os("KUBE_API_CACHE").map(PathBuf::from);
    let of_user = || {
        let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"))).expect("a home folder")
    };
    named.unwrap_or_else(|| of_user().join("ferry-kube-api"))
}

// === impl ApiRequest ===

impl ApiRequest {
    /// Creates an object, given in JSON or YAML.
    pub fn create(object: &str) -> Self {
        let (collection, _) = place(object);
        Self { method: "POST", path: collection, content_type: YAML, body: object.to_owned() }
    }

    /// Replaces the object of the same name.
    pub fn replace(object: &str) -> Self {
        let (collection, name) = place(object);
        Self { method: "PUT", path: format!("{collection}/{name}"), content_type: YAML, body: object.to_owned() }
    }

    /// Patches the object at a path with a JSON merge patch.
    pub fn patch(path: &str, json: &Value) -> Self {
        Self { method: "PATCH", path: path.to_owned(), content_type: MERGE, body: json.to_string() }
    }

    /// Deletes the object at a path.
    pub fn delete(path: &str) -> Self {
        Self { method: "DELETE", path: path.to_owned(), content_type: "", body: String::new() }
    }

    /// Reads the object at a path.
    pub fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), content_type: "", body: String::new() }
    }
}

/// The path of an object's collection, and its name.
fn place(object: &str) -> (String, String) {
    let value: Value = serde_saphyr::from_str(object).unwrap_or_else(|error| panic!("{error}\n{object}"));
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (version, kind) = (text("/apiVersion").expect("an apiVersion"), text("/kind").expect("a kind"));
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let plural = format!("{}s", kind.to_lowercase());
    let collection = match text("/metadata/namespace") {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    };
    (collection, text("/metadata/name").expect("a name"))
}

/// The path of a Service.
pub fn service_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/services/{name}")
}

/// The path of the EndpointSlice of one family that [`Endpoints`] creates for a Service.
pub fn slice_path(service: &str, family: Family) -> String {
    let family = family.to_string().to_lowercase();
    format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/{service}-{family}")
}

/// The path of the lab's Node.
pub fn node_path() -> String {
    format!("/api/v1/nodes/{NODE_NAME}")
}

// === impl Kubernetes ===

impl<'a> Kubernetes<'a> {
    /// Starts the servers in a namespace, with an empty store.
    pub fn start(host: &'a Host, folder: &Path) -> Self {
        Self::start_with(host, folder, &[])
    }

    /// The same with further flags of the API server, which must not contain blanks.
    pub fn start_with(host: &'a Host, folder: &Path, flags: &[String]) -> Self {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        std::fs::create_dir_all(folder).expect("making a folder");
        // the end of the PID namespace kills all of the script's children
        let arguments = ["--pid", "--fork", "--kill-child", "--"].map(str::to_owned).into_iter().chain([
            script().display().to_string(),
            "serve".to_owned(),
            folder.display().to_string(),
        ]);
        let mut servers = host.spawn("unshare", &arguments.collect::<Vec<_>>(), |command| {
            command.env("KUBE_API_CACHE", cache()).env("KUBE_API_SERVICES", SERVICE_RANGES.join(","));
            command.env("KUBE_API_FLAGS", flags.join(" "));
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let orders = servers.stdin.take();
        let mut answers = BufReader::new(servers.stdout.take().expect("piped")).lines();
        let ready = answers.any(|line| line.is_ok_and(|line| line == "ready"));
        assert!(ready, "no API server; see the logs in {}", folder.display());
        let client = Mutex::new(AdminClient::new(host, folder));
        let api = Self { host, servers, orders, answers, folder: folder.to_owned(), client };
        api.create(&format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}}}\n"));
        api
    }

    /// URL of the API server: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        std::fs::read_to_string(self.folder.join("url")).expect("the script wrote it").trim().to_owned()
    }

    /// Path of the kubeconfig of a user.
    pub fn kubeconfig(&self, user: ClusterUser) -> PathBuf {
        self.folder.join(match user {
            ClusterUser::Admin => "admin.conf",
            ClusterUser::Certificate => "kube-proxy.conf",
            ClusterUser::Files => "kube-proxy-files.conf",
            ClusterUser::Token => "kube-proxy-token.conf",
            ClusterUser::Stranger => "stranger.conf",
        })
    }

    /// The bearer token of a kube-proxy.
    pub fn token(&self) -> String {
        let users = std::fs::read_to_string(self.folder.join("tokens.csv")).expect("the script wrote it");
        users.split(',').next().expect("a token").to_owned()
    }

    /// Path of the certificate of the API server's certificate authority.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The API server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("apiserver.log")).expect("the script made it")
    }

    /// Terminates one of the servers, and waits for its end.
    pub fn stop(&mut self, server: ServerKind) {
        self.order("stop", server);
    }

    /// Kills one of the servers.
    pub fn kill(&mut self, server: ServerKind) {
        self.order("kill", server);
    }

    /// Starts one of the servers again: same port, same data. Waits until the API server is ready, if both run.
    pub fn resume(&mut self, server: ServerKind) {
        self.order("start", server);
    }

    fn order(&mut self, order: &str, server: ServerKind) {
        self.send(
            order,
            match server {
                ServerKind::Api => "apiserver",
                ServerKind::Store => "etcd",
            },
        );
    }

    /// Replaces a certificate and its key in their files.
    pub fn rotate(&mut self, certificate: Certificate) {
        self.send(
            "rotate",
            match certificate {
                Certificate::KubeProxy => "kube-proxy",
                Certificate::Server => "server",
            },
        );
    }

    fn send(&mut self, order: &str, name: &str) {
        let orders = self.orders.as_mut().expect("only dropping takes it");
        writeln!(orders, "{order} {name}").expect("the script reads orders");
        let answer = self.answers.next().and_then(Result::ok);
        assert_eq!(answer.as_deref(), Some("done"), "{order} {name}; see the logs in {}", self.folder.display());
    }

    /// Sends a request as cluster-admin, and expects success.
    ///
    /// # Panics
    /// If the API server rejects it, with the response.
    pub fn ask(&self, request: &ApiRequest) -> Value {
        let answer = self.client.lock().expect("nobody panics with it").ask(request);
        parsed(request, answer)
    }

    /// Sends many requests concurrently, in undefined order.
    pub fn ask_all(&self, requests: &[ApiRequest]) {
        let share = requests.len().div_ceil(CONNECTIONS).max(1);
        thread::scope(|scope| {
            for requests in requests.chunks(share) {
                let mut client = AdminClient::new(self.host, &self.folder);
                scope.spawn(move || {
                    for request in requests {
                        parsed(request, client.ask(request));
                    }
                });
            }
        });
    }

    /// Creates an object, given in JSON or YAML.
    pub fn create(&self, object: &str) -> Value {
        self.ask(&ApiRequest::create(object))
    }

    /// Replaces the object of the same name.
    pub fn replace(&self, object: &str) -> Value {
        self.ask(&ApiRequest::replace(object))
    }

    /// Patches an object.
    pub fn patch(&self, path: &str, json: &Value) -> Value {
        self.ask(&ApiRequest::patch(path, json))
    }

    /// Deletes an object.
    pub fn delete(&self, path: &str) {
        self.ask(&ApiRequest::delete(path));
    }

    /// Reads the object at a path.
    pub fn get(&self, path: &str) -> Value {
        self.ask(&ApiRequest::get(path))
    }

    /// Reads the text at a path in any format, for example `/metrics`.
    pub fn text(&self, path: &str) -> String {
        let answer = self.client.lock().expect("nobody panics with it").ask(&ApiRequest::get(path));
        assert_eq!(answer.status, 200, "{path}");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// Creates the Node that the proxy runs on, with its addresses.
    pub fn create_node(&self) {
        self.create(&node_yaml());
        self.set_node_addresses(&Family::ALL.map(|family| LabMachine::Node.address(family).to_string()));
    }

    /// Replaces the Node's addresses.
    pub fn set_node_addresses(&self, addresses: &[String]) {
        let addresses: Vec<_> =
            addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        self.patch(&format!("{}/status", node_path()), &json!({"status": {"addresses": addresses}}));
    }

    /// Creates a Service with its status.
    pub fn create_service(&self, service: &TestService) {
        self.create(&service.to_string());
        if let Some(status) = service.status_json() {
            let path = format!("{}/status", service_path(&service.name));
            let status = serde_json::from_str(&status).expect("it is JSON");
            self.patch(&path, &status);
        }
    }

    /// Creates the EndpointSlices of a Service.
    pub fn create_endpoints(&self, endpoints: &Endpoints) {
        for slice in Family::ALL.into_iter().filter_map(|family| endpoints.slice(family)) {
            self.create(&slice);
        }
    }

    /// Creates all Services and EndpointSlices.
    pub fn create_all(&self, manifests: &Manifests) {
        manifests.services.iter().for_each(|service| self.create_service(service));
        manifests.endpoints.iter().for_each(|endpoints| self.create_endpoints(endpoints));
    }

    /// Deletes all Services and EndpointSlices of the tests, the Nodes, and further ranges of cluster IPs.
    pub fn clear(&self) {
        let collections = [
            format!("/api/v1/namespaces/{NAMESPACE}/services"),
            format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
            "/api/v1/nodes".to_owned(),
            RANGES.to_owned(),
        ];
        let mut requests = Vec::new();
        for collection in collections {
            let list = self.get(&collection);
            for item in list.get("items").and_then(Value::as_array).into_iter().flatten() {
                let name = item.pointer("/metadata/name").and_then(Value::as_str).expect("a name");
                if collection == RANGES && name == "kubernetes" {
                    continue;
                }
                self.release(&format!("{collection}/{name}"), item);
                if item.pointer("/metadata/deletionTimestamp").is_none() {
                    requests.push(ApiRequest::delete(&format!("{collection}/{name}")));
                }
            }
        }
        self.ask_all(&requests);
    }

    /// Deletes an object together with its finalizers.
    pub fn delete_at_once(&self, path: &str) {
        self.release(path, &self.get(path));
        self.delete(path);
    }

    /// Removes the finalizers of an object that is being deleted.
    fn release(&self, path: &str, object: &Value) {
        if object.pointer("/metadata/finalizers").is_some() {
            self.patch(path, &json!({"metadata": {"finalizers": null}}));
        }
    }

    /// Replaces the permissions of [`ClusterUser::Stranger`]: rules of a ClusterRole.
    pub fn allow_stranger(&self, rules: &Value) {
        let api = "rbac.authorization.k8s.io/v1";
        let roles = format!("/apis/{api}/clusterroles");
        let role = json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": "stranger"}, "rules": rules});
        // PUT creates a missing role
        self.ask(&ApiRequest {
            method: "PUT",
            path: format!("{roles}/stranger"),
            ..ApiRequest::create(&role.to_string())
        });
        let binding = json!({
            "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": "stranger"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "stranger"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}],
        });
        let request = ApiRequest::create(&binding.to_string());
        let answer = self.client.lock().expect("nobody panics with it").ask(&request);
        if answer.status != 409 {
            parsed(&request, answer);
        }
    }

    /// Starts upstream's proxy in a mode.
    pub fn start_proxy(&self, folder: &Path, mode: &str) -> ProxyProcess<'a> {
        std::fs::create_dir_all(folder).expect("making a folder");
        // conntrack limits can only be set in the initial network namespace
        let arguments = [
            format!("--proxy-mode={mode}"),
            format!("--iptables-min-sync-period={MIN_SYNC_PERIOD}"),
            format!("--kubeconfig={}", self.kubeconfig(ClusterUser::Certificate).display()),
            format!("--hostname-override={NODE_NAME}"),
            format!("--cluster-cidr={}", POD_RANGES.join(",")),
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
            // logs each sync
            "-v=2".to_owned(),
        ];
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        ProxyProcess::start_with(self.host, &upstream(), folder, &arguments)
    }

    /// Runs upstream's `--cleanup`; returns its log.
    pub fn clean_up(host: &Host, folder: &Path) -> String {
        std::fs::create_dir_all(folder).expect("making a folder");
        let mut proxy = ProxyProcess::start_with(host, &upstream(), folder, &["--cleanup"]);
        let status = proxy.wait();
        format!("{status}\n{}", proxy.log())
    }
}

/// The response's body, parsed.
fn parsed(request: &ApiRequest, answer: ApiResponse) -> Value {
    let ApiRequest { method, path, body, .. } = request;
    let text = String::from_utf8_lossy(&answer.body);
    assert!((200..300).contains(&answer.status), "{method} {path}: {} {text}\n{body}", answer.status);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {path}: {error}\n{text}"))
}

impl Drop for Kubernetes<'_> {
    fn drop(&mut self) {
        self.orders = None;
        // ends the PID namespace with all its processes
        let _ = self.servers.kill();
        let _ = self.servers.wait();
    }
}
