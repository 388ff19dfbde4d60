//! `--write-config-to`: for the same command lines and files, upstream's executable and Ferry's write the same bytes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use ferry_lab::kubernetes;

use super::{EXECUTABLE, folder};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
const EVERY_FIELD: &str = include_str!("../../../../api/testdata/every-field.yaml");
const KUBEADM: &str = include_str!("../../../../api/testdata/kubeadm.yaml");

/// Input of both executables.
struct Case {
    name: String,
    arguments: Vec<String>,
    file: Option<String>,
}

/// Result of one executable.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Option<i32>,
    written: Option<String>,
}

const FLAGS: &[&[&str]] = &[
    &[],
    &["--proxy-mode=iptables"],
    &["--proxy-mode=nftables"],
    &["--proxy-mode=ipvs"],
    &["--proxy-mode=IPTables"],
    &["--bind-address=::", "--cluster-cidr=10.0.0.0/8,fd00::/64"],
    &["--bind-address=", "--healthz-bind-address=", "--metrics-bind-address="],
    &["--healthz-bind-address=10.0.0.1"],
    &["--metrics-bind-address=10.0.0.1"],
    &["--healthz-bind-address=10.0.0.1:1", "--metrics-bind-address=[::1]:2"],
    &["--healthz-port=0", "--metrics-port=0"],
    &["--healthz-port=99", "--metrics-port=98"],
    &["--hostname-override= Node-1 "],
    &["--hostname-override=  "],
    &["--master=https://10.0.0.1", "--kubeconfig=/etc/kube proxy/conf", "--cleanup", "--init-only"],
    &["--kube-api-burst=0", "--kube-api-qps=-1.5", "--kube-api-content-type=application/json"],
    &["--kube-api-qps=0.1"],
    &["--kube-api-qps=12345678"],
    &["--kube-api-qps=1e20"],
    &["--feature-gates=AllAlpha=true,WatchListClient=false", "--feature-gates=AllBeta=true"],
    &["--feature-gates=NFTablesProxyMode=false"],
    &["--masquerade-all", "--iptables-masquerade-bit=3", "--iptables-localhost-nodeports=false"],
    &["--masquerade-all", "--proxy-mode=nftables", "--iptables-sync-period=2m", "--iptables-min-sync-period=0s"],
    &["--iptables-sync-period=1500ms", "--iptables-min-sync-period=1.5s", "--ipvs-sync-period=9s"],
    &["--proxy-mode=ipvs", "--ipvs-sync-period=9s", "--ipvs-min-sync-period=0s", "--iptables-sync-period=2m"],
    &[
        "--ipvs-scheduler=lc",
        "--ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=1s",
        "--ipvs-tcpfin-timeout=2s",
        "--ipvs-udp-timeout=3s",
    ],
    &[
        "--detect-local-mode=BridgeInterface",
        "--pod-bridge-interface=br0",
        "--pod-interface-name-prefix=veth",
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses=::/0",
        "--oom-score-adj=0",
        "--config-sync-period=1h",
    ],
    &[
        "--conntrack-max-per-core=0",
        "--conntrack-min=0x10",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=1us",
        "--conntrack-tcp-be-liberal",
        "--conntrack-udp-timeout=1h30m",
        "--conntrack-udp-timeout-stream=1ns",
    ],
    &["--profiling", "--bind-address-hard-fail", "--show-hidden-metrics-for-version=1.35"],
    &["--show-hidden-metrics-for-version=1.30"],
    &["-v=3", "--vmodule=a=1,b*=2", "--vmodule=c=3", "--log-flush-frequency=1s"],
    &["--logging-format=json"],
    &["--logging-format=xml"],
    &["--log-text-split-stream", "--log-json-info-buffer-size=1024Ki"],
    &[
        "--feature-gates=LoggingAlphaOptions=true",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=1500",
        "--log-json-info-buffer-size=1024Ki",
    ],
    &["--conntrack-min=-1"],
    &["--detect-local-mode=NodeCIDR", "--cluster-cidr="],
    &["--vmodule=a"],
    &["--vmodule=a=99999999999"],
    &["--log-text-info-buffer-size=x"],
    &["--pod-bridge-interface=yes", "--ipvs-scheduler=1e3", "--kubeconfig=a: b"],
];

/// Bodies of files, with flags.
const FILES: &[(&str, &[&str])] = &[
    ("", &[]),
    ("mode: nftables", &[]),
    ("mode: ipvs", &[]),
    ("mode: nftables\nnodePortAddresses: [10.0.0.0/8, \"::/0\"]\nnftables: {syncPeriod: 0s, masqueradeAll: true}", &[]),
    ("iptables: {masqueradeAll: true, syncPeriod: 1m}\nnftables: {masqueradeAll: true, syncPeriod: 2m}", &[]),
    ("mode: nftables\niptables: {masqueradeAll: true, syncPeriod: 1m}\nnftables: {syncPeriod: 2m}", &[]),
    ("mode: ipvs\niptables: {masqueradeAll: true, minSyncPeriod: 2s}\nipvs: {syncPeriod: 2m}", &["--masquerade-all"]),
    ("unknown: 1\nmode: iptables\nmode: ipvs", &["--proxy-mode=nftables", "--kubeconfig=x", "--kube-api-qps=99"]),
    ("hostnameOverride: ' Node-1 '", &[]),
    ("hostnameOverride: a", &["--hostname-override=B"]),
    ("healthzBindAddress: 10.0.0.1\nmetricsBindAddress: '::1'", &["--healthz-port=0"]),
    ("bindAddress: fd00::1", &["--metrics-port=1"]),
    ("logging: {verbosity: 2, vmodule: [{filePattern: x, verbosity: 1}]}", &["-v=5", "--vmodule=y=9"]),
    ("logging: {flushFrequency: 1500000000, options: {text: {splitStream: true}}}", &[]),
    ("logging: {flushFrequency: 0}", &[]),
    ("logging: {flushFrequency: 1m}", &["--log-flush-frequency=2s"]),
    (
        "featureGates: {LoggingAlphaOptions: true}\n\
         logging: {options: {text: {splitStream: true, infoBufferSize: 1.5Ki}, json: {infoBufferSize: 3000000}}}",
        &["--feature-gates=AllAlpha=true"],
    ),
    ("clientConnection: {qps: -0.25, burst: 1000000, acceptContentTypes: 'a/b,c/d'}", &[]),
    ("clusterCIDR: ' 10.0.0.0/8'", &[]),
    ("mode: kernelspace", &[]),
    ("windowsRunAsService: true\nportRange: 30000-32767\nwinkernel: {enableDSR: true, networkName: null}", &[]),
    ("nodePortAddresses: [10.0.0.0/8]\noomScoreAdj: -1000\nconntrack: {min: null}", &[]),
];

/// Texts that YAML may take for something else, and such as are not written plain.
const ODD: &[&str] = &[
    "",
    " ",
    "~",
    "null",
    "nULL",
    "yes",
    "Y",
    "yEs",
    "on",
    "off",
    "true",
    "0",
    "-1",
    "+1",
    "1_0",
    "0x1F",
    "0b2",
    "017",
    "08",
    "0o17",
    "1.5",
    "1.",
    "1e3",
    "1e400",
    ".5",
    ".5_0",
    "..5",
    ".inf",
    "-.INF",
    ".nan",
    "1:30",
    "1:60",
    "-1:2:3.4",
    "2001-1-1",
    "2001-02-29",
    "2001-01-01 1:2:3",
    "2001-01-01T10:00:00Z",
    "2001-01-01T10:00:00",
    "<<",
    "=",
    "-",
    "- a",
    "-a",
    "?",
    "? a",
    "?a",
    ":",
    ":a",
    "a:",
    "a: b",
    "a:b",
    "#a",
    "a #b",
    "a#b",
    "a\t#b",
    "[a",
    "a[",
    "{a",
    "a}",
    ",a",
    "a,b",
    "&a",
    "*a",
    "!a",
    "|a",
    ">a",
    "'a",
    "a'b",
    "\"a",
    "a\"b",
    "%a",
    "@a",
    "`a",
    "---",
    "--- a",
    "...",
    "a ",
    " a",
    "  a  ",
    "a\tb",
    "a\\b",
    "a\n",
    "a\nb",
    "\na",
    " a\nb\n",
    "a \nb",
    "a\nb ",
    "a\n\n",
    "\n",
    "\n\n",
    "ä€",
    "\u{a0}",
    "\u{1f600}",
    "a\u{300}",
    "18446744073709551615",
    "18446744073709551616",
    "0xFFFFFFFFFFFFFFFFFF",
    "<&>",
    "\u{e000}",
    "99999999999999999999",
    "!!str a",
    "NaN",
    "inf",
    "0x1p-2",
    "1e-5",
    "+.5",
    "2001-01-01t1:2:3,5+01:00",
    "a\r\nb",
];

fn cases() -> Vec<Case> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let mut cases: Vec<Case> =
        FLAGS.iter().map(|flags| Case { name: format!("{flags:?}"), arguments: texts(flags), file: None }).collect();
    cases.extend(FILES.iter().map(|(body, flags)| Case {
        name: format!("{body:?} {flags:?}"),
        arguments: texts(flags),
        file: Some(format!("{HEAD}{body}\n")),
    }));
    for (name, file) in [("every field", EVERY_FIELD), ("kubeadm's", KUBEADM)] {
        cases.push(Case { name: name.to_owned(), arguments: Vec::new(), file: Some(file.to_owned()) });
    }
    // JSON, which is YAML, says exactly which text is meant
    let list = |texts: &[String]| {
        let mut list = String::new();
        for text in texts {
            let comma = if list.is_empty() { "" } else { ", " };
            write!(list, "{comma}{}", quoted(text)).expect("writing to a text");
        }
        list
    };
    for (at, odd) in ODD.chunks(6).enumerate() {
        let odd = texts(odd);
        let first = quoted(odd.first().expect("a chunk"));
        let file =
            format!("{HEAD}ipvs: {{excludeCIDRs: [{}], scheduler: {first}}}\nhostnameOverride: {first}\n", list(&odd));
        cases.push(Case { name: format!("odd texts {at}"), arguments: Vec::new(), file: Some(file) });
    }
    // long ones are folded, each style by its own rules
    let words = |word: &str, gap: &str| vec![word; 40].join(gap);
    let long = [
        words("word", " "),
        words("word", "  "),
        words("it's", " "),
        format!("'{}", words("it's", "  ")),
        format!("\t{}", words("word", " ")),
        format!("\t{}", words("word", "   ")),
        format!("{}\n{}", words("word", " "), words("word", " ")),
        "x".repeat(300),
        words("ä€", " "),
    ];
    let file = format!(
        "{HEAD}ipvs: {{excludeCIDRs: [{}], scheduler: {}}}\nclientConnection: {{kubeconfig: {}}}\n",
        list(&long),
        quoted(&long[0]),
        quoted(&long[3])
    );
    cases.push(Case { name: "long texts".to_owned(), arguments: Vec::new(), file: Some(file) });
    cases
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{0}'..='\u{1f}' => write!(quoted, "\\u{:04x}", u32::from(c)).expect("writing to a text"),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn outcome(executable: &str, folder: &Path, case: &Case) -> (Outcome, String) {
    let written = folder.join("written.yaml");
    let _ = std::fs::remove_file(&written);
    let mut arguments = case.arguments.clone();
    if let Some(file) = &case.file {
        let path = folder.join("config.yaml");
        std::fs::write(&path, file).expect("writing a file");
        arguments.push(format!("--config={}", path.display()));
    }
    arguments.push(format!("--write-config-to={}", written.display()));
    let output = Command::new(executable).args(&arguments).output().expect("starting an executable");
    // upstream forgets portRange when it reads it
    let kept =
        |text: String| text.lines().filter(|line| !line.starts_with("portRange:")).collect::<Vec<_>>().join("\n");
    let outcome = Outcome { code: output.status.code(), written: std::fs::read_to_string(&written).ok().map(kept) };
    (outcome, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Departures are not among the cases: portRange is written as it was read (upstream forgets it), a list that is there and empty
/// (`[]`) is written as null, the separators of lines and paragraphs (U+2028, U+2029) are escaped, control characters, which
/// upstream fails to write, are written, and feature gates that upstream doesn't know don't end the program, nor does
/// `--cluster-cidr=` without a value. Mode userspace is one of ours again.
#[test]
fn the_configuration_is_written_as_upstream_writes_it() {
    kubernetes::build();
    let folder = folder("written");
    std::fs::create_dir_all(&folder).expect("making a folder");
    let upstream = kubernetes::upstream();
    let mut different = Vec::new();
    let cases = cases();
    for case in &cases {
        let (theirs, their_log) = outcome(&upstream, &folder, case);
        let (ours, our_log) = outcome(EXECUTABLE, &folder, case);
        if theirs != ours {
            let text = |outcome: &Outcome| outcome.written.clone().unwrap_or_default();
            let (their_text, our_text) = (text(&theirs), text(&ours));
            let lines = their_text.lines().zip(our_text.lines()).filter(|(theirs, ours)| theirs != ours).take(6);
            let lines: Vec<_> = lines.collect();
            different.push(format!(
                "{}\n  codes {:?} {:?}\n  {lines:#?}\n  {}\n  {}",
                case.name,
                theirs.code,
                ours.code,
                their_log.lines().last().unwrap_or_default(),
                our_log.lines().last().unwrap_or_default()
            ));
        }
    }
    assert!(different.is_empty(), "{} of {}:\n{}", different.len(), cases.len(), different.join("\n"));
}

/// Ferry's own settings are a second document, which upstream doesn't read: it starts with a file that has one, also with the file
/// that Ferry writes.
#[test]
fn a_file_with_settings_of_ferry_is_one_of_upstream() {
    const OURS: &str = "apiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nsnapshot: /var/lib/kube-proxy/snapshot\n\
                        proxyModeFallback: [iptables]\n";
    kubernetes::build();
    let (folder, upstream) = (folder("settings-of-ferry"), kubernetes::upstream());
    std::fs::create_dir_all(&folder).expect("making a folder");
    let written = |executable: &str, file: String| {
        let case = Case { name: file.clone(), arguments: Vec::new(), file: Some(file) };
        let (Outcome { code, written }, log) = outcome(executable, &folder, &case);
        assert_eq!(code, Some(0), "{executable}: {log}");
        written.unwrap_or_else(|| panic!("{executable} wrote nothing: {log}"))
    };
    for first in [format!("{HEAD}mode: nftables\nclusterCIDR: 10.0.0.0/8\n"), EVERY_FIELD.to_owned()] {
        let file = format!("{first}---\n{OURS}");
        let (theirs, ours) = (written(&upstream, file.clone()), written(EXECUTABLE, file));
        assert_eq!(theirs, written(&upstream, first), "upstream reads the first document alone");
        let (common, rest) = ours.split_once("\n---\n").unwrap_or_else(|| panic!("one document: {ours}"));
        assert_eq!(common, theirs);
        assert!(rest.contains("kind: FerryConfiguration") && rest.contains("snapshot: /var/lib"), "{rest}");
        assert_eq!(written(&upstream, ours), theirs);
    }
}

#[test]
fn what_cant_be_written_ends_with_1() {
    kubernetes::build();
    let folder = folder("unwritable");
    std::fs::create_dir_all(&folder).expect("making a folder");
    for executable in [&kubernetes::upstream(), EXECUTABLE] {
        let to = format!("--write-config-to={}", folder.join("missing/file").display());
        let output = Command::new(executable).arg(to).output().expect("starting an executable");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("\"command failed\" err=\"open ") && last.contains("no such file or directory"), "{log}");
    }
}
