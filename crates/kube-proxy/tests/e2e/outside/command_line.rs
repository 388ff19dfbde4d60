//! Command line, configuration and exit codes, before the kernel is changed.

use std::process::Output;

use ferry_kube_proxy::version::UPSTREAM;

use crate::support::Machine;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Asserts exit code 1; returns the error of the fatal log line.
#[track_caller]
fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    // Other threads may have logged since.
    let line = text(&output.stderr).lines().rfind(|line| line.contains("\"command failed\"")).expect("a line");
    let (head, error) = line.split_once("] \"command failed\" err=\"").unwrap_or_else(|| panic!("{line}"));
    assert!(head.starts_with('E') && head.ends_with(" run.go:72"), "{line}");
    error.strip_suffix('"').expect("a quoted value").to_owned()
}

#[test]
fn help_and_version() {
    let machine = Machine::new();
    for argument in ["-h", "--help"] {
        let output = machine.output(&[argument]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(text(&output.stdout).contains("--hostname-override"));
    }
    let output = machine.output(&["--version"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), format!("Kubernetes {UPSTREAM}\n"));
}

#[test]
fn a_wrong_command_line_shows_the_usage() {
    let output = Machine::new().output(&["--no-such-flag=1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("Usage:\n  kube-proxy [flags]\n"), "{stderr}");
    assert!(stderr.ends_with("\n\nError: unknown flag: --no-such-flag\n"), "{stderr}");
}

#[test]
fn a_configuration_that_cannot_be_read() {
    let machine = Machine::new();
    let error = failed(&machine.output(&["--config=/no/such/file"]));
    assert_eq!(error, "failed complete: open /no/such/file: no such file or directory");
    let file = machine.write("config.yaml", &format!("{HEAD}oomScoreAdj: text\n"));
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("failed complete: failed to decode: "), "{error}");
    let file = machine.write("config.yaml", "kind: Other\napiVersion: v1\n");
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("failed complete: ") && error.contains("no kind"), "{error}");
    let error = failed(&machine.output(&["--hostname-override= "]));
    assert_eq!(error, "failed complete: empty hostname-override is invalid");
}

#[test]
fn a_configuration_that_is_not_valid() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &format!("{HEAD}mode: nftables\noomScoreAdj: 2000\n"));
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("failed validate: KubeProxyConfiguration."), "{error}");
    assert!(error.contains("must be within the range [-1000, 1000]"), "{error}");
    let file = machine.write("config.yaml", &format!("{HEAD}logging: {{format: xml}}\n"));
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("initialize logging: logging.format: "), "{error}");
    // Clean-up validates too.
    let error = failed(&machine.output(&["--cleanup", "--proxy-mode=nonsense"]));
    assert!(error.starts_with("failed validate: "), "{error}");
}

#[test]
fn a_module_that_is_not_there_is_named_with_the_remedy() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    // Where the kernel has IPVS, the start goes on to the server that can't listen.
    let start = ["--proxy-mode=ipvs", "--metrics-bind-address=192.0.2.1:1", "--bind-address-hard-fail"];
    let error = failed(&machine.output(&[&start[..], &["--manifests", &manifests]].concat()));
    if ferry_kernel::module::find("ip_vs").is_present() {
        assert!(error.starts_with("starting metrics server failed"), "{error}");
    } else {
        let lacks = "mode ipvs can't be used on this machine: IPv4: not usable here: the kernel has no IPVS: kernel module ip_vs ";
        assert!(error.starts_with(lacks) && error.contains("`modprobe -- ip_vs`"), "{error}");
    }
}

#[test]
fn a_tool_that_is_not_installed_is_named() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    for mode in [&[][..], &["--proxy-mode=iptables"]] {
        let error = failed(&machine.output_without_tools(&[&["--manifests", &manifests], mode].concat()));
        assert!(
            error.starts_with("mode iptables can't be used on this machine: iptables-restore")
                && error.contains("not found in PATH"),
            "{error}"
        );
    }
    assert!(machine.tables().is_empty());
}

#[test]
fn a_parameter_that_cannot_be_written_is_named() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    let start = ["--proxy-mode=iptables", "--manifests", &manifests];
    let error = failed(&machine.output_with_read_only_parameters(&start));
    assert!(
        error.contains("net.ipv4.conf.all.route_localnet") && error.contains("iptables.localhostNodePorts"),
        "{error}"
    );
    // With the right value nothing needs to be written.
    machine.run(|| ferry_kernel::sysctl::write("net.ipv4.conf.all.route_localnet", "1")).unwrap();
    let again = [&start[..], &["--metrics-bind-address=192.0.2.1:1", "--bind-address-hard-fail"]].concat();
    let error = failed(&machine.output_with_read_only_parameters(&again));
    assert!(error.starts_with("starting metrics server failed"), "{error}");
}

#[test]
fn without_a_source_of_objects_it_says_so() {
    let machine = Machine::new();
    for (argument, wanted) in [
        (
            "--v=0",
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
        ),
        ("--kubeconfig=/no/such/file", "stat /no/such/file: no such file or directory"),
        (
            "--manifests=/no/such/directory",
            "reading the manifests in /no/such/directory: No such file or directory (os error 2)",
        ),
    ] {
        assert_eq!(failed(&machine.output(&["--proxy-mode=nftables", argument])), wanted);
    }
}

#[test]
fn flags_that_do_nothing_are_named() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &format!("{HEAD}mode: iptables\nnoSuchField: 1\n"));
    let manifests = format!("--manifests={}", machine.manifests());
    let output = machine.output_without_tools(&[
        "--config",
        &file,
        "--proxy-mode=nftables",
        "--masquerade_all",
        "--config-sync-period=5m",
        "--logtostderr=true",
        &manifests,
        "--master=http://localhost",
    ]);
    // The file wins.
    let error = failed(&output);
    assert!(error.starts_with("mode iptables can't be used on this machine"), "{error}");
    let stderr = text(&output.stderr);
    for wanted in [
        "\"Flag is ignored, the configuration file takes precedence\" flag=\"masquerade-all\"",
        "\"Flag is ignored, the configuration file takes precedence\" flag=\"proxy-mode\"",
        "\"Flag has no effect in this build\" flag=\"config-sync-period\"",
        "\"Flag was removed upstream and has no effect\" flag=\"logtostderr\"",
        "\"Flag is ignored, objects come from manifests\" flag=\"master\"",
    ] {
        let line = stderr.lines().find(|line| line.ends_with(wanted));
        assert!(line.is_some_and(|line| line.starts_with('W')), "{wanted}\n{stderr}");
    }
    let lenient = "\"Using lenient decoding as strict decoding failed\" err=\"strict decoding error: ";
    let line = stderr.lines().find(|line| line.contains(lenient)).unwrap_or_else(|| panic!("{stderr}"));
    assert!(line.starts_with('I') && line.contains("unknown field \\\"noSuchField\\\""), "{line}");
}

#[test]
fn the_configuration_is_written() {
    let machine = Machine::new();
    let file = machine.write("config.yaml", &format!("{HEAD}mode: nftables\nclientConnection: {{qps: 7.5}}\n"));
    let to = machine.path("written.yaml").display().to_string();
    let output =
        machine.output(&["--config", &file, "--write-config-to", &to, "--metrics-port=0", "--conntrack-min=-1"]);
    assert!(output.status.success(), "{output:?}");
    let stderr = text(&output.stderr);
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with('I') && last.ends_with(&format!("] \"Wrote configuration\" file=\"{to}\"")), "{stderr}");
    let written = std::fs::read_to_string(&to).unwrap();
    for line in
        ["mode: nftables", "  qps: 7.5", "nodePortAddresses:", "- primary", "metricsBindAddress: 127.0.0.1:10249"]
    {
        assert!(written.lines().any(|own| own == line), "{line}\n{written}");
    }
    // Validated all the same, and bare addresses get no port.
    for (flag, wanted) in [
        ("--healthz-bind-address=10.0.0.1", "HealthzBindAddress: Invalid value: \\\"10.0.0.1\\\": must be IP:port"),
        ("--conntrack-min=-1", "Min: Invalid value: -1: must be greater than or equal to 0"),
    ] {
        let error = failed(&machine.output(&[flag, "--write-config-to", &to]));
        assert!(error.starts_with("failed validate: KubeProxyConfiguration.") && error.ends_with(wanted), "{error}");
    }
}

#[test]
fn own_settings_are_checked_and_written() {
    let machine = Machine::new();
    let own = "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n";
    let file = machine.write("config.yaml", &format!("{HEAD}{own}acceptforward: true\n"));
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("failed complete: failed to decode: FerryConfiguration.acceptforward: "), "{error}");
    let file = machine.write("config.yaml", &format!("{HEAD}{own}acceptForward: true\nproxyModeFallback: [foo]\n"));
    let error = failed(&machine.output(&["--config", &file]));
    assert!(error.starts_with("failed validate: FerryConfiguration.proxyModeFallback[0]: "), "{error}");
    // The flag wins, also beside a file.
    let to = machine.path("written.yaml").display().to_string();
    let fallback = "--proxy-mode-fallback=nftables,iptables";
    let output = machine.output(&["--config", &file, fallback, "--write-config-to", &to]);
    assert!(output.status.success(), "{output:?}");
    let written = std::fs::read_to_string(&to).unwrap();
    let wanted = "---\nacceptForward: true\napiVersion: ferry.io/v1alpha1\ncontrolSocket: /run/kube-proxy/control.sock\nipvsPingOnlyWithEndpoints: false\nipvsTerminationGracePeriod: 15m0s\n\
                  kind: FerryConfiguration\nproxyModeFallback:\n- nftables\n- iptables\nselfTestPeriod: 0s\nselfTestRanges: null\nsnapshot: \"\"\n\
                  snapshotMaxAge: 24h0m0s\nstatusPage: loopback\nuserspaceDrainTimeout: 2s\nuserspaceInterface: \"\"\nuserspaceMaxAssociations: 50000\n\
                  userspaceMaxConnections: 100000\nuserspaceMaxConnectionsPerPort: 0\n\
                  userspaceTerminationGracePeriod: 15m0s\nuserspaceUDPTimeout: 250ms\nuserspaceWay: \"\"\n";
    assert!(written.ends_with(wanted), "{written}");
    assert!(!text(&output.stderr).contains("Ignoring further documents"), "{output:?}");
    let output = machine.output(&["--config", &to, "--write-config-to", &to]);
    assert!(output.status.success() && std::fs::read_to_string(&to).unwrap() == written, "{output:?}");
}

#[test]
fn ports_of_listeners_are_checked_in_every_mode_and_used_in_that_with_listeners() {
    let machine = Machine::new();
    let to = machine.path("written.yaml").display().to_string();
    for mode in ["userspace", "nftables"] {
        let mode = format!("--proxy-mode={mode}");
        let refused = machine.output(&["--proxy-port-range=a-b", &mode]);
        let reason =
            "invalid argument \"a-b\" for \"--proxy-port-range\" flag: must be a range of ports such as 61000-61999";
        assert!(refused.status.code() == Some(1) && text(&refused.stderr).contains(reason), "{refused:?}");
        let output = machine.output(&["--proxy-port-range=62000-62999", &mode, "--write-config-to", &to]);
        assert!(output.status.success(), "{output:?}");
        let is_ignored = text_of_warning(&output).contains("flag=\"proxy-port-range\"");
        assert_eq!(is_ignored, mode == "--proxy-mode=nftables", "{output:?}");
    }
    // A configuration file of an older release may have any text there, which upstream ignores.
    let config =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nportRange: a-b\n";
    let config = machine.write("config.yaml", config);
    let output = machine.output(&["--config", &config, "--write-config-to", &to]);
    assert!(output.status.success(), "{output:?}");
}

/// The line of a flag that is ignored for the mode.
fn text_of_warning(output: &Output) -> &str {
    let warning = |line: &&str| line.contains("Flag is ignored, only mode userspace has listeners");
    text(&output.stderr).lines().find(warning).unwrap_or_default()
}

#[test]
fn all_flags_are_logged_when_asked() {
    let output = Machine::new().output(&["-v1", "--proxy-mode=ipvs"]);
    let stderr = text(&output.stderr);
    assert!(stderr.lines().any(|line| line.ends_with("] FLAG: --proxy-mode=\"ipvs\"")), "{stderr}");
    assert!(stderr.lines().any(|line| line.ends_with("] FLAG: --oom-score-adj=\"-999\"")), "{stderr}");
    let unasked = Machine::new().output(&["--proxy-mode=ipvs"]);
    assert_eq!(failed(&unasked), failed(&output), "the same error, which comes after the flags");
    assert!(!text(&unasked.stderr).contains("FLAG:"), "{unasked:?}");
}

#[test]
fn a_missing_capability_is_named() {
    let machine = Machine::new();
    let manifests = machine.manifests();
    // Tables may exist all the same, so clean-up must not report that there is nothing to remove.
    let start = ["--proxy-mode=nftables", "--manifests", &manifests];
    let iptables = ["--manifests", &manifests];
    for arguments in [&start[..], &iptables, &["--cleanup"], &["--cleanup-leftovers"]] {
        let output = machine.output_without_capability(arguments);
        let error = failed(&output);
        assert!(error.starts_with("missing capability CAP_NET_ADMIN: run as root"), "{error}");
        let log = text(&output.stderr).to_lowercase();
        assert!(!log.contains("nothing") && !log.contains("no leftovers"), "{output:?}");
    }
}

#[test]
fn what_may_not_be_removed_is_no_success() {
    let machine = Machine::new();
    // A table that belongs to another process can't be touched by anybody else.
    let mut owner = machine.run(|| {
        let mut command = std::process::Command::new("nft");
        command.arg("-i").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap()
    });
    let mut input = owner.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"add table ip6 kube-proxy { flags owner; }\n").unwrap();
    while machine.tables().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = machine.output(&["--cleanup"]);
    assert_eq!(failed(&output), "encountered an error while tearing down rules");
    assert!(text(&output.stderr).contains("\"Cleanup failed\" mode=\"nftables\" family=\"IPv6\""), "{output:?}");
    drop(input);
    owner.wait().unwrap();
}
