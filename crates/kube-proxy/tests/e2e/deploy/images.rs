//! The container images: built by buildah from their definitions, run by crun with the DaemonSet's security context.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use ferry_lab::api::{ApiServer, ApiServerOptions};
use ferry_lab::lab::NODE_NAME;
use ferry_lab::objects::{at_cluster_ip, node_yaml};
use ferry_lab::patience::{slowly, within};
use ferry_lab::proxy::{IPVS, ProxyConfig, USERSPACE};
use ferry_lab::{Family, Host, Lab, LabMachine, Manifests, TestService};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::manifests::{objects, of_kind};
use crate::support::{EPOCH, debian, executable, folder, fresh_folder, repository, run};

/// The cluster IP's number of the Service.
const WEB: u16 = 62;
/// The rules of containers' default seccomp profile, a file of buildah's packages.
const SECCOMP: &str = "/usr/share/containers/seccomp.json";
/// Time limit until a container serves, or has initialised the node.
const PATIENCE: Duration = Duration::from_secs(30);
/// The parameter that the init container sets for the proxy, which may not: a timeout of connection tracking, in seconds.
const TRACKING: (&str, &str) = ("net.netfilter.nf_conntrack_tcp_timeout_established", "7200");
/// The folder of the configuration, in the container.
const CONFIGURATION: &str = "/var/lib/kube-proxy";

/// buildah, with images in a folder of this test. Programs of a build run in a changed root only.
fn buildah(arguments: &[&str]) -> Command {
    let store = folder("images");
    let mut command = Command::new("buildah");
    command.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
    command.args(["--storage-driver", "vfs"]).args(arguments).env("BUILDAH_ISOLATION", "chroot");
    command
}

/// Builds an image from a definition, with this executable in its context.
fn build(definition: &str, program: &Path, further: &[String]) -> String {
    let context = fresh_folder(&format!("context-{definition}"));
    std::fs::copy(program, context.join("kube-proxy")).expect("copying the executable");
    let tag = format!("localhost/{}:test", definition.to_lowercase());
    let file = repository().join("deploy/images").join(definition);
    let mut command =
        buildah(&["build", "--quiet", "--layers=false", "--timestamp", &EPOCH.0.to_string(), "--tag", &tag]);
    run(command.args(further).arg("--file").arg(file).arg(context));
    tag
}

/// The static executable, which a step before the tests builds.
pub(crate) fn static_executable() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("static").join("kube-proxy");
    assert!(built.exists(), "{} is missing: run `cargo xt package --dev`", built.display());
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    let strip = || {
        let stripped = folder("executable").join("static");
        run(Command::new("strip").arg("-o").arg(&stripped).arg(built));
        stripped
    };
    STRIPPED.get_or_init(strip).clone()
}

/// A container of an image, with a folder of files at `/var/lib/kube-proxy`.
struct Bundle {
    folder: PathBuf,
    container: String,
}

/// A container that runs until this is dropped: crun, whose child is its first process.
struct Container(Child);

// === impl Bundle ===

impl Bundle {
    /// Unpacks an image, and writes the runtime's configuration: that of the image, of a Pod's container with its arguments, and
    /// further ones.
    fn new(name: &str, image: &str, container_of_pod: &Value, mounted: &Path, further: &[&str]) -> Self {
        let folder = fresh_folder(&format!("bundle-{name}"));
        let container = run(&mut buildah(&["from", "--quiet", image])).trim().to_owned();
        let root = run(&mut buildah(&["mount", &container])).trim().to_owned();
        let inspected = run(&mut buildah(&["inspect", "--type", "image", image]));
        let image: Value = serde_json::from_str(&inspected).expect("what buildah prints is JSON");
        let entry = image["OCIv1"]["config"]["Entrypoint"].as_array().expect("an entry point").clone();
        let arguments = container_of_pod["args"].as_array().expect("arguments").iter().map(|argument| {
            // as the kubelet does
            json!(argument.as_str().expect("a text").replace("$(NODE_NAME)", NODE_NAME))
        });
        let arguments = entry.into_iter().chain(arguments).chain(further.iter().map(|&argument| json!(argument)));
        let arguments = arguments.collect();
        let mounts = mounts(container_of_pod, mounted, &folder);
        let specification = specification(&root, &container_of_pod["securityContext"], mounts, arguments);
        std::fs::write(folder.join("config.json"), specification.to_string()).expect("writing a configuration");
        Self { folder, container }
    }

    /// Runs it in the network of a host.
    fn start(&self, host: &Host) -> Container {
        let log = std::fs::File::create(self.log_file()).expect("making a log");
        let bundle = self.folder.display().to_string();
        let arguments = self.crun(&["run", "--bundle", &bundle, &self.name()]);
        Container(host.spawn("unshare", &arguments, |command| {
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        }))
    }

    /// Runs its program in the running container, as `kubectl exec` does; returns its output.
    fn execute(&self, words: &[&str]) -> String {
        let name = self.name();
        let arguments = self.crun(&[&["exec", &name, "/usr/local/bin/kube-proxy"], words].concat());
        run(Command::new("unshare").args(arguments))
    }

    /// The name of its container.
    fn name(&self) -> String {
        // The names of buildah's containers are used again, while crun may still have a record of the last one of that name.
        let of_bundle = self.folder.file_name().expect("a folder has a name").display();
        format!("ferry-test-{}-{of_bundle}", std::process::id())
    }

    /// The arguments of `unshare` for a command of crun.
    fn crun(&self, words: &[&str]) -> Vec<String> {
        let state = folder("crun").display().to_string();
        // crun refuses machines that have control groups of both versions, although it needs none here
        let unified = "test \"$(stat --file-system --format=%T /sys/fs/cgroup)\" = cgroup2fs || mount -t cgroup2 none /sys/fs/cgroup \
                       && exec \"$@\"";
        let own = ["--mount", "--propagation", "private", "sh", "-c", unified, "sh"];
        let crun = ["crun", "--root", &state, "--cgroup-manager", "disabled"];
        own.into_iter().chain(crun).chain(words.iter().copied()).map(str::to_owned).collect()
    }

    /// Runs it in the network of a host until it ends; returns its exit status and log.
    fn run_to_end(&self, host: &Host) -> (Option<ExitStatus>, String) {
        let mut container = self.start(host);
        let mut status = None;
        within(slowly(PATIENCE), || {
            status = container.0.try_wait().expect("asking for a child's state");
            status.is_some()
        });
        drop(container);
        (status, self.log())
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = buildah(&["rm", &self.container]).output();
    }
}

// === impl Container ===

impl Container {
    /// The container's first process, while there is one.
    fn first(&self) -> Option<Pid> {
        let crun = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{crun}/task/{crun}/children")).ok()?;
        Pid::from_raw(children.trim().parse().ok()?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It outlives crun, and may have ended.
        if let Some(first) = self.first() {
            let _ = kill_process(first, Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The runtime's configuration of a container with this security context, in the network namespace that the runtime is started in, as
/// `hostNetwork` gives it that of the node.
fn specification(root: &str, context: &Value, mounts: Vec<Value>, arguments: Vec<Value>) -> Value {
    let is_privileged = context["privileged"] == json!(true);
    let capabilities = if is_privileged { all_capabilities() } else { capabilities(context) };
    let read_only: &[&str] =
        if is_privileged { &[] } else { &["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"] };
    let mut specification = json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": arguments,
            "cwd": "/",
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            "noNewPrivileges": context["allowPrivilegeEscalation"] == json!(false),
        },
        "root": {"path": root, "readonly": context["readOnlyRootFilesystem"] == json!(true)},
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}],
            "readonlyPaths": read_only,
        },
    });
    if !is_privileged {
        specification["linux"]["seccomp"] = seccomp(&capabilities);
    }
    specification
}

/// The capabilities of a container that isn't privileged.
fn capabilities(context: &Value) -> Vec<String> {
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(context["privileged"], json!(false));
    let names = context["capabilities"]["add"].as_array().expect("capabilities");
    names.iter().map(|name| format!("CAP_{}", name.as_str().expect("a name"))).collect()
}

/// The capabilities of a privileged container: all that this process may have.
fn all_capabilities() -> Vec<String> {
    let dump = run(Command::new("setpriv").arg("--dump"));
    let line = dump.lines().find_map(|line| line.strip_prefix("Capability bounding set: ")).expect("a bounding set");
    line.split(',').map(|name| format!("CAP_{}", name.to_uppercase())).collect()
}

/// The mounts of every container, and the volumes of this one: the configuration, the lock file of the node, the folder of the
/// control socket, and the node's folder for a snapshot.
fn mounts(container: &Value, configuration: &Path, folder: &Path) -> Vec<Value> {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        json!({"destination": "/sys", "type": "none", "source": "/sys", "options": ["rbind", "ro", "nosuid", "noexec", "nodev"]}),
    ];
    for mount in container["volumeMounts"].as_array().expect("mounts") {
        let source = match mount["name"].as_str() {
            Some("kube-proxy") => configuration.to_owned(),
            Some("xtables-lock") => {
                let lock = folder.join("xtables.lock");
                std::fs::write(&lock, "").expect("making a file");
                lock
            }
            Some(name @ ("control" | "state")) => {
                let folder = folder.join(name);
                std::fs::create_dir_all(&folder).expect("making a folder");
                folder
            }
            other => panic!("an unknown volume: {other:?}"),
        };
        let access = if mount["readOnly"] == json!(true) { "ro" } else { "rw" };
        mounts.push(
            json!({"destination": mount["mountPath"], "type": "none", "source": source, "options": ["rbind", access]}),
        );
    }
    mounts
}

/// The default profile for a process with these capabilities, in the runtime's form.
fn seccomp(capabilities: &[String]) -> Value {
    let text = std::fs::read_to_string(SECCOMP).unwrap_or_else(|error| panic!("{SECCOMP}: {error}"));
    let profile: Value = serde_json::from_str(&text).expect("the profile is JSON");
    let has = |rule: &Value, list: &str| {
        let wanted = rule[list]["caps"].as_array().cloned().unwrap_or_default();
        (!wanted.is_empty()).then(|| wanted.iter().any(|name| capabilities.iter().any(|own| name == own.as_str())))
    };
    let applies = |rule: &&Value| {
        let architectures = rule["includes"]["arches"].as_array();
        architectures.is_none_or(|list| list.iter().any(|name| name == "amd64"))
            && has(rule, "includes") != Some(false)
            && has(rule, "excludes") != Some(true)
    };
    let rules: Vec<Value> = profile["syscalls"].as_array().expect("rules").iter().filter(applies).map(rule).collect();
    assert!(rules.len() > 2, "{SECCOMP} has other fields than expected");
    json!({"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"], "syscalls": rules})
}

fn rule(rule: &Value) -> Value {
    let mut own = json!({"names": rule["names"], "action": rule["action"]});
    for field in ["args", "errnoRet"] {
        if !rule[field].is_null() && rule[field] != json!([]) {
            own[field] = rule[field].clone();
        }
    }
    own
}

/// The folder with a configuration, which also has the timeout of [`TRACKING`].
fn mounted(name: &str, config: &ProxyConfig) -> PathBuf {
    let folder = fresh_folder(name);
    let file = folder.join("config.conf");
    config.write(&file);
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let changed = text.replace("tcpEstablishedTimeout: 0s", &format!("tcpEstablishedTimeout: {}s", TRACKING.1));
    assert_ne!(changed, text);
    std::fs::write(file, changed).expect("writing the configuration");
    folder
}

fn web() -> Manifests {
    Manifests::new().with(TestService::new("web", WEB), &[LabMachine::PodA])
}

/// Adds manifests to the folder; returns the argument that names them.
fn with_manifests(mounted: &Path) -> String {
    std::fs::create_dir_all(mounted.join("manifests")).expect("making a folder");
    std::fs::write(mounted.join("manifests/all.yaml"), web().to_string()).expect("writing manifests");
    format!("--manifests={CONFIGURATION}/manifests")
}

/// Starts an API server with TLS on the node, and adds a kubeconfig for it to the folder.
fn with_api_server(lab: &Lab, mounted: &Path) -> ApiServer {
    let objects = format!("{}---\n{}", node_yaml(), web());
    let server = lab.host(LabMachine::Node).run(move || {
        let server = ApiServer::start(ApiServerOptions::secure());
        server.put(&objects);
        server
    });
    server.kubeconfig(&mounted.join("kubeconfig.conf"));
    server
}

fn serves(lab: &Lab) -> bool {
    let client = lab.from(LabMachine::PodB).patience(slowly(Duration::from_millis(300)));
    Family::ALL.into_iter().all(|family| client.tcp(at_cluster_ip(family, WEB), 2).all_answered())
}

/// The node's value of the parameter that the init container sets.
fn tracking(lab: &Lab) -> String {
    lab.host(LabMachine::Node).run(|| ferry_kernel::sysctl::read(TRACKING.0)).expect("the parameter")
}

/// Runs the image's containers one after another, as the DaemonSet of an overlay would, and checks that a Service works.
fn check(lab: &Lab, (overlay, mode): (&str, &str), image: &str, mounted: &Path, further: &[&str]) {
    let objects = objects(&format!("overlays/{overlay}"));
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], json!(true));
    assert_ne!(tracking(lab), TRACKING.1);
    for container in pod["initContainers"].as_array().expect("init containers") {
        let bundle = Bundle::new(&format!("{mode}-init"), image, container, mounted, further);
        let (status, log) = bundle.run_to_end(lab.host(LabMachine::Node));
        assert!(status.is_some_and(|status| status.success()), "{mode}: {status:?}\n{log}");
        assert_eq!(log.matches("\"System initialized and --init-only specified\"").count(), 2, "{log}");
    }
    assert_eq!(tracking(lab), TRACKING.1, "the init container sets it");
    assert!(!serves(lab), "only the other container serves");
    let bundle = Bundle::new(mode, image, &pod["containers"][0], mounted, &[further, &["-v=2"]].concat());
    let mut container = bundle.start(lab.host(LabMachine::Node));
    let served = within(slowly(PATIENCE), || serves(lab));
    let ended = container.0.try_wait().expect("asking for a child's state");
    if served && ended.is_none() {
        let explained = bundle.execute(&["explain", "svc", "demo/web"]);
        assert!(explained.starts_with("Service demo/web in IPv4\n"), "{explained}\n{}", bundle.log());
    }
    let first = container.first();
    let status =
        first.and_then(|first| std::fs::read_to_string(format!("/proc/{}/status", first.as_raw_nonzero())).ok());
    drop(container);
    let log = bundle.log();
    assert!(served && ended.is_none(), "{mode}: {ended:?}\n{log}");
    println!("{mode}: {:?}", status.iter().flat_map(|text| text.lines()).find(|line| line.starts_with("CapEff")));
    assert!(log.lines().all(|line| !line.starts_with('E')), "{log}");
    assert!(!log.contains("can't be set"), "everything is set already: {log}");
}

/// The image from scratch, built once.
fn from_scratch() -> &'static str {
    static IMAGE: OnceLock<String> = OnceLock::new();
    IMAGE.get_or_init(|| build("Containerfile", &static_executable(), &[]))
}

#[test]
fn the_image_from_scratch_serves_in_mode_userspace() {
    for way in ["redirect", "bind"] {
        let own = format!("apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceWay: {way}\n");
        let more = format!("nodePortAddresses: [primary]\n---\n{own}");
        let mounted =
            mounted(&format!("mounted-{way}"), &ProxyConfig { mode: USERSPACE, more, ..ProxyConfig::default() });
        let manifests = with_manifests(&mounted);
        check(&Lab::new(), ("userspace", way), from_scratch(), &mounted, &[&manifests]);
    }
}

#[test]
fn the_image_from_scratch_serves_in_mode_nftables() {
    let image = from_scratch();
    let (lab, kubeconfig) = (Lab::new(), format!("{CONFIGURATION}/kubeconfig.conf"));
    let config = ProxyConfig::with(&format!("clientConnection: {{kubeconfig: {kubeconfig}}}"));
    let mounted = mounted("mounted-nftables", &config);
    let _server = with_api_server(&lab, &mounted);
    check(&lab, ("nftables", "nftables"), image, &mounted, &[]);
    let container = run(&mut buildah(&["from", "--quiet", image])).trim().to_owned();
    let root = run(&mut buildah(&["mount", &container])).trim().to_owned();
    let files = run(Command::new("find").arg(&root).args(["-type", "f", "-printf", "%P\n"]));
    run(&mut buildah(&["rm", &container]));
    assert_eq!(files, "usr/local/bin/kube-proxy\n", "one executable, and nothing else");
}

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn the_image_from_scratch_serves_in_mode_ipvs() {
    let config = ProxyConfig { mode: IPVS, more: "nodePortAddresses: [primary]\n".into(), ..ProxyConfig::default() };
    let mounted = mounted("mounted-ipvs", &config);
    let manifests = with_manifests(&mounted);
    check(&Lab::new(), ("ipvs", "ipvs"), from_scratch(), &mounted, &[&manifests]);
}

#[test]
fn the_image_with_tools_serves_in_mode_iptables() {
    let base = base();
    let image = build("Containerfile.iptables", executable(), &["--build-arg".into(), format!("BASE={base}")]);
    let config = ProxyConfig { more: "nodePortAddresses: [primary]\n".into(), ..ProxyConfig::iptables() };
    let mounted = mounted("mounted-iptables", &config);
    let manifests = with_manifests(&mounted);
    check(&Lab::new(), ("iptables", "iptables"), &image, &mounted, &[&manifests]);
}

/// Debian's image, made of its packages, since no registry is needed for a test.
fn base() -> &'static str {
    const NAME: &str = "localhost/debian:bookworm";
    let container = run(&mut buildah(&["from", "--quiet", "scratch"])).trim().to_owned();
    let archive = debian();
    std::fs::set_permissions(archive, std::fs::Permissions::from_mode(0o644)).expect("setting a mode");
    run(buildah(&["add", "--quiet", &container]).arg(archive).arg("/"));
    run(&mut buildah(&["commit", "--quiet", "--rm", &container, NAME]));
    NAME
}
