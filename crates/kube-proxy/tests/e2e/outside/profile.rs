//! The CPU profile, read by Go's tool.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use ferry_lab::patience::slowly;

use crate::support::{METRICS, Machine, Running};

/// Asks for a profile of this many seconds; returns head and content. The content is empty if the process is replaced meanwhile.
fn profile(machine: &Machine, seconds: u32) -> (String, Vec<u8>) {
    let path = format!("/debug/pprof/profile?seconds={seconds}");
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = machine.run(|| {
        let mut stream = TcpStream::connect(METRICS).expect("connecting");
        stream.set_read_timeout(Some(slowly(Duration::from_secs(20)))).expect("a time limit");
        stream.write_all(request.as_bytes()).expect("sending");
        let mut answer = Vec::new();
        // A process that is replaced resets the connection.
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |end| end + 4);
    let (head, content) = answer.split_at(end);
    (String::from_utf8_lossy(head).into_owned(), content.to_vec())
}

/// Takes a profile while the process is asked for its metrics, over and over.
fn profile_under_load(machine: &Machine, running: &Running<'_>, seconds: u32) -> (String, Vec<u8>) {
    thread::scope(|scope| {
        let taken = scope.spawn(|| profile(machine, seconds));
        while !taken.is_finished() {
            running.get(METRICS, "/metrics");
        }
        taken.join().expect("a profile")
    })
}

/// The output of `go tool pprof` for a profile, without names of functions: with debug information they take it a minute.
fn read(machine: &Machine, content: &[u8]) -> String {
    let file = machine.path("cpu.pb.gz");
    fs::write(&file, content).expect("writing the profile");
    let output =
        Command::new("go").args(["tool", "pprof", "-raw", "-symbolize=none"]).arg(&file).output().expect("starting go");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_cpu_profile_shows_the_code_that_runs() {
    let machine = Machine::new();
    let mut running = machine.start(&["--profiling"]);
    running.until_synced();
    let (head, content) = profile_under_load(&machine, &running, 3);
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Content-Type: application/octet-stream"), "{head}");
    assert!(head.contains("Content-Disposition: attachment; filename=\"profile\""), "{head}");
    let text = read(&machine, &content);
    assert!(text.starts_with("PeriodType: cpu nanoseconds\nPeriod: 10000000\n"), "{text}");
    let (samples, places) = text.split_once("\nLocations\n").expect("locations");
    let (_, samples) = samples.split_once("samples/count cpu/nanoseconds\n").expect("samples");
    let count: u64 = samples.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum();
    let deepest = samples.lines().map(|line| line.split_whitespace().count()).max().unwrap_or_default();
    println!("{count} samples of 3 s, the deepest of {deepest} addresses");
    assert!(count >= 10 && deepest > 8, "{count} samples, at most {deepest} addresses:\n{text}");
    let (places, mappings) = places.split_once("\nMappings\n").expect("mappings");
    let first = mappings.lines().next().unwrap_or_default();
    assert!(first.starts_with("1: 0x") && first.contains("/kube-proxy"), "{first}");
    let here = places.lines().filter(|place| place.contains("M=1")).count();
    assert!(here * 2 > places.lines().count(), "most addresses are the executable's:\n{text}");
}

#[test]
fn a_reload_ends_a_profile_and_nothing_else() {
    let machine = Machine::new();
    let config = |more: &str| {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nenableProfiling: true\n\
             conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n{more}\n"
        )
    };
    let file = machine.write("config.yaml", &config(""));
    let mut running = machine.start_as(&["--config", &file]);
    running.until_synced();
    thread::scope(|scope| {
        let taken = scope.spawn(|| profile(&machine, 10));
        thread::sleep(Duration::from_millis(500));
        machine.write("config.yaml", &config("clusterCIDR: 10.244.0.0/16"));
        running.until("another run", |running| running.log().matches("Starting kube-proxy").count() == 2);
        let (_, content) = taken.join().expect("an end");
        assert_eq!(content.len(), 0, "it has ended");
    });
    running.until_synced();
    // The timer has ended with the former run: its signal would end this one, which has no handler yet.
    for _ in 0..slowly(Duration::from_secs(2)).as_millis() / 20 {
        running.get(METRICS, "/metrics");
    }
    let (head, _) = profile(&machine, 1);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}
