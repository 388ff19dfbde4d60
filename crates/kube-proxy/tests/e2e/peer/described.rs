//! `FLAG:` lines: for the same command line, upstream's executable and Ferry's log the same values, in both formats.

use std::process::Command;

use ferry_lab::kubernetes;

use super::{EXECUTABLE, folder};

/// Ferry's own flags, which upstream lacks.
const OWN: [&str; 6] = [
    "--cleanup-leftovers=",
    "--control-socket=",
    "--manifests=",
    "--proxy-mode-fallback=",
    "--proxy-port-range=",
    "--udp-timeout=",
];

const CASES: &[&[&str]] = &[
    &[],
    &["--proxy-mode=nftables", "--hostname-override=Abc", "--healthz-port=0"],
    &["--proxy-mode=ipvs", "--ipvs-min-sync-period=0s", "--ipvs-exclude-cidrs=\"10.0.0.0/8\",fd00::/64"],
    &["--detect-local-mode=NodeCIDR", "--bind-address=010.0.0.1", "--metrics-bind-address=[::1]:99"],
    &[
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses=::/0",
        "--iptables-sync-period=90s",
        "--kube-api-qps=7.5",
    ],
    &[
        "--feature-gates=WatchListClient=0,AllAlpha=f",
        "--feature-gates=AllAlpha=t",
        "--log-text-info-buffer-size=1024Ki",
    ],
    &[
        "--conntrack-min=0x10",
        "--masquerade-all",
        "--iptables-localhost-nodeports=F",
        "--vmodule=a=1",
        "--vmodule=b*=2",
    ],
    &["--config=/no/such/file"],
];

/// What an executable logs of its flags, from the file's name on.
fn flags(executable: &str, written: &str, arguments: &[&str], format: &str) -> Vec<String> {
    let common = ["-v=1".to_owned(), format!("--logging-format={format}"), format!("--write-config-to={written}")];
    let output = Command::new(executable).args(common).args(arguments).output().expect("starting an executable");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let mark = if format == "json" { ",\"caller\":\"flag/flags.go:64\"," } else { " flags.go:64] " };
    let lines = log.lines().filter_map(|line| line.split_once(mark)).map(|(_, text)| text.to_owned());
    lines.filter(|line| !OWN.iter().any(|own| line.contains(own))).collect()
}

#[test]
fn all_flags_are_logged_with_upstreams_values() {
    kubernetes::build();
    let folder = folder("described");
    std::fs::create_dir_all(&folder).expect("making a folder");
    let written = folder.join("written.yaml").display().to_string();
    let upstream = kubernetes::upstream();
    for arguments in CASES {
        for format in ["text", "json"] {
            let theirs = flags(&upstream, &written, arguments, format);
            let is_started = arguments.iter().all(|argument| !argument.starts_with("--config"))
                && !(format == "json" && arguments.iter().any(|argument| argument.starts_with("--vmodule")));
            assert_eq!(theirs.len() > 50, is_started, "{arguments:?} {format}: {theirs:?}");
            assert_eq!(flags(EXECUTABLE, &written, arguments, format), theirs, "{arguments:?} {format}");
        }
    }
}
