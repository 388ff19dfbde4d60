//! The client against a scripted server, over real sockets.

mod access;
mod calls;
mod exec;
mod http2;
mod identity;
mod observed;
mod pair;
mod proxy;
mod token;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use ferry_lab::api::{ApiServer, objects};

use super::*;
use observed::Observed;

/// A test's temporary folder.
struct Folder(PathBuf);

/// A client and its recorded metrics.
struct Setup {
    client: Client,
    observed: Arc<Observed>,
}

// === impl Folder ===

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ferry-client-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file atomically; returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        let temporary = self.path("temporary");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, &path).unwrap();
        path
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.write(name, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Writes a kubeconfig with these fields of its cluster and user; returns its path.
    fn kubeconfig(&self, cluster: &str, user: &str) -> String {
        self.write(
            "kubeconfig",
            &format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, \
                 cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
            ),
        )
    }

    /// Loads such a kubeconfig with an empty environment.
    fn access(&self, cluster: &str, user: &str) -> Result<Access, AccessError> {
        Access::load_with(&self.kubeconfig(cluster, user), None, &|_| None, Path::new("/nowhere"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = fs::remove_dir_all(&self.0);
    }
}

// === impl Setup ===

impl Setup {
    fn new(access: Access) -> Self {
        Self::with(access, |_| {})
    }

    fn with(access: Access, change: impl FnOnce(&mut ClientOptions)) -> Self {
        let mut options = ClientOptions {
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            accept_content_types: String::new(),
            qps: -1.0,
            burst: 0,
            user_agent: user_agent("/bin/kube-proxy", "v1.36.2", "linux/amd64"),
            timing: TimeLimits::default(),
        };
        change(&mut options);
        let observed = Arc::new(Observed::default());
        let client = Client::new(access, options, observed.clone()).unwrap();
        Self { client, observed }
    }

    /// Status and body of a list.
    async fn list(&self) -> Result<(u16, Vec<u8>), CallError> {
        whole(self.client.send(&call(Verb::List)).await?).await
    }

    async fn status(&self) -> Result<u16, CallError> {
        self.list().await.map(|(status, _)| status)
    }

    /// The count that the client reported under this name.
    fn count(&self, name: &str) -> Option<u64> {
        self.observed.count(name)
    }
}

fn call(verb: Verb) -> Call {
    let query = if verb == Verb::Watch { "watch=true&resourceVersion=1" } else { "limit=500" };
    Call { verb, resource: "services", path_and_query: format!("/api/v1/services?{query}"), body: Bytes::new() }
}

/// Waits for a condition.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn whole(mut answer: Answer) -> Result<(u16, Vec<u8>), CallError> {
    let mut all = Vec::new();
    while let Some(bytes) = answer.body.chunk().await? {
        assert!(!bytes.is_empty());
        all.extend_from_slice(&bytes);
    }
    assert_eq!(answer.body.chunk().await, Ok(None));
    Ok((answer.status, all))
}

/// The field for the server's certificate authority.
fn authority_field(identity: &ferry_lab::api::Identity) -> String {
    format!("certificate-authority-data: {}", base64(&identity.authority))
}

fn base64(text: &str) -> String {
    use ::base64::Engine as _;
    ::base64::engine::general_purpose::STANDARD.encode(text)
}

/// The fields of a server's cluster, for [`Folder::access`].
fn cluster_of(server: &ApiServer, identity: &ferry_lab::api::Identity) -> String {
    format!("server: '{}', {}", server.url(), authority_field(identity))
}

fn header<'a>(seen: &'a ferry_lab::api::RecordedRequest, name: &str) -> Option<&'a str> {
    seen.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// A server with this number of services.
fn filled(options: ferry_lab::api::ApiServerOptions, count: usize) -> ApiServer {
    let server = ApiServer::start(options);
    server.load(objects::services(count));
    server
}

/// Runs a future; returns its result and the log.
fn logged(work: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, work);
    String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
}
