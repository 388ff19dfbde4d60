//! Completions in the shells that they are for, and the manual page.

use std::process::{Command, Stdio};

use ferry_deploy::{completions, man, values};

use crate::support::{EPOCH, fresh_folder, run};

/// The completions that bash offers for a command line, which is given as readline's words.
fn bash(words: &[&str]) -> Vec<String> {
    let file = fresh_folder("bash").join("kube-proxy");
    std::fs::write(&file, completions::bash()).unwrap();
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        ". {}; complete -p kube-proxy >&2; COMP_WORDS=({}); COMP_CWORD={}; _kube_proxy; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.join(" "),
        words.len() - 1
    );
    let output = Command::new("bash").args(["--norc", "-uc", &script]).stdin(Stdio::null()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(complaint, "complete -F _kube_proxy kube-proxy\n", "{}", output.status);
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_flags_and_values() {
    let all = bash(&["kube-proxy", "--"]);
    for flag in values::current() {
        assert!(all.contains(&format!("--{}", flag.name)), "{}: {all:?}", flag.name);
    }
    assert_eq!(bash(&["kube-proxy", "--cleanup"]), ["--cleanup", "--cleanup-leftovers"]);
    for line in [&["kube-proxy", "--proxy-mode", "ip"][..], &["kube-proxy", "--proxy-mode", "=", "ip"]] {
        assert_eq!(bash(line), ["iptables", "ipvs"], "{line:?}");
    }
    assert_eq!(bash(&["kube-proxy", "--logging-format", "="]), ["json", "text"]);
    assert_eq!(bash(&["kube-proxy", "--config", "/etc/os-rel"]), ["/etc/os-release"]);
    assert_eq!(bash(&["kube-proxy", "--manifests", "/usr/shar"]), ["/usr/share"]);
    assert_eq!(bash(&["kube-proxy", "re"]), ["render"]);
    assert!(bash(&["kube-proxy", "explain", "--in"]).contains(&"--in".to_owned()));
    assert!(!bash(&["kube-proxy", "render", "--in"]).contains(&"--in".to_owned()));
    assert_eq!(bash(&["kube-proxy", "render", "--dum"]), ["--dump"]);
    assert_eq!(bash(&["kube-proxy", "render", "--mode", "n"]), ["nftables"]);
    assert_eq!(bash(&["kube-proxy", "--dum"]), [""; 0], "a flag of a subcommand alone");
    assert_eq!(bash(&["kube-proxy", "--master", "--"]), [""; 0], "a value is not a flag");
    assert_eq!(bash(&["kube-proxy", "--masquerade-all", "--vm"]), ["--vmodule"], "a boolean flag has no value");
}

#[test]
fn fish_completes_flags_and_values() {
    let file = fresh_folder("fish").join("kube-proxy.fish");
    std::fs::write(&file, completions::fish()).unwrap();
    let offered = |line: &str| -> Vec<String> {
        let script = format!("source {}; complete -C '{line}'", file.display());
        let output = run(Command::new("fish").args(["--no-config", "-c", &script]).env("HOME", file.parent().unwrap()));
        output.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
    };
    let all = offered("kube-proxy --");
    for flag in values::current() {
        assert!(all.contains(&format!("--{}", flag.name)), "{}: {all:?}", flag.name);
    }
    assert_eq!(offered("kube-proxy --proxy-mode "), ["iptables", "ipvs", "nftables", "userspace"]);
    assert_eq!(offered("kube-proxy --proxy-mode=n"), ["--proxy-mode=nftables"]);
    assert_eq!(offered("kube-proxy re"), ["render"]);
    assert_eq!(offered("kube-proxy render --dum"), ["--dump"]);
    assert_eq!(offered("kube-proxy --dum"), [""; 0], "a flag of a subcommand alone");
}

/// In a terminal of its own, since zsh completes only what is typed.
#[test]
fn zsh_completes_flags_and_values() {
    let folder = fresh_folder("zsh");
    std::fs::write(folder.join("_kube-proxy"), completions::zsh()).unwrap();
    let typed = |keys: &str, wanted: &str| {
        let script = format!(
            "zmodload zsh/zpty; zpty z zsh -f; w() {{ zpty -w z $1; }}
w 'PS1=; fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -d {folder}/dump; setopt nolistbeep; LISTMAX=1000'
w 'print re''ady'; zpty -r z out '*ready*'
zpty -w -n z {keys:?}$'\\t'; zpty -r -m z out '*{wanted}*' && print -r -- found",
            folder = folder.display()
        );
        let mut command = Command::new("timeout");
        run(command.args(["20", "zsh", "-f", "-c", &script]).env("TERM", "dumb"))
    };
    assert_eq!(typed("kube-proxy --cleanup-l", "leftovers"), "found\n");
    assert_eq!(typed("kube-proxy --proxy-mode=nf", "nftables"), "found\n");
    assert_eq!(typed("kube-proxy --logging-format j", "json"), "found\n");
    assert_eq!(typed("kube-proxy rend", "render"), "found\n");
    assert_eq!(typed("kube-proxy render --dum", "dump="), "found\n");
}

#[test]
fn the_manual_page_is_clean_and_names_every_flag() {
    let file = fresh_folder("man").join("kube-proxy.8");
    std::fs::write(&file, man::page(EPOCH)).unwrap();
    assert_eq!(run(Command::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(&file)), "");
    let page = run(Command::new("mandoc").args(["-Tascii", "-Owidth=400"]).arg(&file));
    let plain = without_overstrikes(&page);
    for flag in values::current() {
        assert!(plain.contains(&format!("--{}", flag.name)) && plain.contains(flag.help), "{}\n{plain}", flag.name);
    }
    assert!(values::own().all(|flag| plain.contains(flag.help)), "{plain}");
    assert!(plain.contains("2023-11-14"), "{plain}");
}

/// Text of a terminal without the letters that are printed twice, to be bold, or beneath an underscore.
fn without_overstrikes(page: &str) -> String {
    let mut plain = String::new();
    for letter in page.chars() {
        if letter == '\u{8}' {
            plain.pop();
        } else {
            plain.push(letter);
        }
    }
    plain
}
