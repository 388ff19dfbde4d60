use std::io::ErrorKind;
use std::process::Command;

use ferry_kernel::netns::Namespace;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

use super::*;
use crate::worker::Worker;

/// The profile that is shipped.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/seccomp/kube-proxy.json")
}

/// The result of a closure on a thread under the shipped profile.
fn confined<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let worker = Worker::start("confined", |work| {
        SeccompProfile::read(&shipped()).apply();
        work();
    });
    worker.run(body)
}

fn error(syscalls: &str) -> String {
    let text = format!(
        r#"{{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": [], "syscalls": {syscalls}}}"#
    );
    serde_json::from_str::<Document>(&text)
        .map_err(|error| error.to_string())
        .and_then(|document| document.filters())
        .unwrap_err()
}

#[test]
fn namespaces_and_other_sockets_are_refused() {
    let (namespace, packets, bluetooth) = confined(|| {
        let refused = |family| socket(family, SocketType::RAW, None).unwrap_err();
        (Namespace::new().unwrap_err().kind(), refused(AddressFamily::PACKET), refused(AddressFamily::BLUETOOTH))
    });
    assert_eq!((namespace, packets, bluetooth), (ErrorKind::PermissionDenied, Errno::PERM, Errno::PERM));
    // and so they are to programs
    let mount = confined(|| Command::new("mount").args(["-t", "tmpfs", "none", "/mnt"]).status().unwrap());
    assert!(!mount.success());
    assert!(
        Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]).status().unwrap().success()
    );
}

#[test]
fn threads_programs_and_the_sockets_of_a_proxy_are_admitted() {
    let status = confined(|| {
        for family in [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6] {
            socket(family, SocketType::STREAM, None).unwrap();
        }
        socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        std::thread::spawn(|| Command::new("true").status().unwrap()).join().unwrap()
    });
    assert!(status.success());
}

#[test]
fn a_profile_with_an_error_is_refused() {
    for (syscalls, part) in [
        (r#"[{"comment": "", "names": ["acept"], "action": "SCMP_ACT_ALLOW"}]"#, "acept"),
        (r#"[{"comment": "", "names": ["accept"], "action": "SCMP_ACT_LOG"}]"#, "action SCMP_ACT_LOG"),
        (r#"[{"comment": "", "names": ["accept"], "action": "SCMP_ACT_ERRNO"}]"#, "errnoRet None"),
        (r#"[{"comment": "", "names": ["accept"], "action": "SCMP_ACT_ALLOW", "arg": []}]"#, "unknown field `arg`"),
        (
            r#"[{"comment": "", "names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_GT"}]}]"#,
            "unknown op SCMP_CMP_GT",
        ),
    ] {
        let error = error(syscalls);
        assert!(error.contains(part), "{error}");
    }
}
