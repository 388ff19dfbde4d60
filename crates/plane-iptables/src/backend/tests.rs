//! Choices in network namespaces, with the real tools.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use ferry_kernel::netns::Namespace;

use super::*;

const HINT: &str = "KUBE-IPTABLES-HINT";
const CANARY: &str = "KUBE-KUBELET-CANARY";

/// A folder for a lock file and links to programs, gone with the value.
struct Folder(PathBuf);

// === impl Folder ===

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ferry-backend-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// All programs of this machine.
    fn all(&self) -> Environment {
        Environment { lock_file: self.0.join("lock"), ..Environment::of_process() }
    }

    /// Only those of this folder.
    fn own(&self) -> Environment {
        Environment { path: self.0.clone().into(), ..self.all() }
    }

    /// Has the programs of a variant, by these names.
    fn link(&self, names: &str, backend: Backend) -> &Self {
        let path = std::env::var_os("PATH").unwrap();
        let program = format!("iptables-{backend}");
        let found = std::env::split_paths(&path).map(|folder| folder.join(&program)).find(|file| file.exists());
        let program = fs::canonicalize(found.unwrap()).unwrap();
        for stem in ["iptables", "ip6tables"] {
            for end in ["", "-save", "-restore"] {
                symlink(&program, self.0.join(format!("{stem}{names}{end}"))).unwrap();
            }
        }
        self
    }

    /// Has programs that only know their version.
    fn old(&self, names: &str, version: &str) -> &Self {
        for end in ["", "-save", "-restore"] {
            let file = self.0.join(format!("iptables{names}{end}"));
            // Not written by this process, or else one that is started just then could hold it open.
            let mut install = Command::new("install");
            install.args(["-m", "755", "/dev/stdin"]).arg(file).stdin(Stdio::piped());
            let mut child = install.spawn().unwrap();
            let text = format!("#!/bin/sh\necho 'iptables {version}'\n");
            io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success());
        }
        self
    }

    /// Runs the tool, as another program.
    fn run(&self, program: &str, arguments: &str) {
        let mut command = Command::new(program);
        command.env("XTABLES_LOCKFILE", self.0.join("lock")).args(arguments.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{program} {arguments}: {output:?}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The choice in a namespace with what these commands make.
fn chosen(environment: impl Fn(&Folder) -> Environment + Sync, commands: &[(&str, &str)]) -> VariantChoice {
    let folder = Folder::new();
    let run = || {
        commands.iter().for_each(|(program, arguments)| folder.run(program, arguments));
        choose_in(&environment(&folder)).unwrap()
    };
    Namespace::new().unwrap().run(run).unwrap()
}

/// Both variants, and the plain names are this one's.
fn both(plain: Backend) -> impl Fn(&Folder) -> Environment + Sync {
    move |folder| folder.link("", plain).link("-nft", Backend::Nft).link("-legacy", Backend::Legacy).own()
}

fn only(backend: Backend) -> impl Fn(&Folder) -> Environment + Sync {
    move |folder| folder.link(&format!("-{backend}"), backend).own()
}

fn present(family: Family) -> Vec<Backend> {
    Backend::ALL.into_iter().filter(|backend| holds(*backend, family).unwrap()).collect()
}

#[test]
fn where_nothing_is_the_plain_tool_decides() {
    for plain in Backend::ALL {
        let choice = chosen(both(plain), &[]);
        assert_eq!((choice.backend, choice.warning), (plain, None));
        assert!(choice.why.contains("plain iptables"), "{}", choice.why);
        assert_eq!(chosen(only(plain), &[]).backend, plain);
    }
}

#[test]
fn without_nf_tables_the_legacy_variant_may_work_if_its_tables_can_be_there() {
    use ModuleState::{Absent, BuiltIn, Loadable, Loaded, Unknown};
    // The kernel has, or can load, ip_tables: with each state of nf_tables.
    for nf_tables in [Loaded, BuiltIn, Loadable, Absent, Unknown] {
        let may_work = [Loaded, BuiltIn, Loadable, Absent, Unknown].map(|state| legacy_may_work(nf_tables, state));
        // An installed nf_tables that was not loaded shows that nothing can be loaded here.
        assert_eq!(may_work, [true, true, nf_tables == Absent, false, false], "{nf_tables:?}");
    }
}

#[test]
fn looking_makes_no_table() {
    let folder = Folder::new();
    let run = || {
        choose_in(&folder.all()).unwrap();
        assert_eq!(Family::ALL.map(present), [vec![], vec![]]);
        assert_eq!(Family::ALL.map(|family| legacy::tables(family).unwrap()), [Vec::<String>::new(), vec![]]);
        assert_eq!(Family::ALL.map(|family| nft::chains(family).unwrap()), [vec![], vec![]]);
    };
    Namespace::new().unwrap().run(run).unwrap();
}

#[test]
fn the_kubelets_hints_come_first() {
    for (wanted, other) in [(Backend::Nft, Backend::Legacy), (Backend::Legacy, Backend::Nft)] {
        for stem in ["iptables", "ip6tables"] {
            for hint in [HINT, CANARY] {
                let program = format!("{stem}-{wanted}");
                let choice = chosen(both(other), &[(&program, &format!("-t mangle -N {hint}"))]);
                assert_eq!((choice.backend, choice.warning), (wanted, None), "{program} {hint}");
                assert!(choice.why.contains(hint), "{}", choice.why);
            }
        }
        // Against more rules, and a worse hint, of the other variant.
        let others = format!("iptables-{other}");
        let commands = [
            (&*format!("iptables-{wanted}"), "-t mangle -N KUBE-IPTABLES-HINT"),
            (&others, "-t mangle -N KUBE-KUBELET-CANARY"),
            (&others, "-t nat -N ONE"),
            (&others, "-t nat -N TWO"),
        ];
        let choice = chosen(both(other), &commands);
        assert_eq!(choice.backend, wanted);
        let warning = choice.warning.unwrap();
        assert!(warning.contains(&format!("iptables-{other} has rules, too")), "{warning}");
    }
}

#[test]
fn without_a_hint_the_rules_decide() {
    for (wanted, other) in [(Backend::Nft, Backend::Legacy), (Backend::Legacy, Backend::Nft)] {
        let (program, others) = (format!("iptables-{wanted}"), format!("iptables-{other}"));
        // A rule in a built-in chain will do. A hint's name in another table is none.
        for arguments in ["-A INPUT -j ACCEPT", "-t nat -N KUBE-IPTABLES-HINT"] {
            let choice = chosen(both(other), &[(&program, arguments)]);
            assert_eq!((choice.backend, choice.warning), (wanted, None), "{program} {arguments}");
            assert!(choice.why.contains("only this variant has rules"), "{}", choice.why);
        }
        let ipv6 = format!("ip6tables-{wanted}");
        let commands =
            [(&*others, "-t nat -N ONE"), (&program, "-t nat -N ONE"), (&ipv6, "-t filter -A INPUT -j ACCEPT")];
        let choice = chosen(both(other), &commands);
        assert_eq!(choice.backend, wanted);
        assert!(choice.why.contains("2 chains and rules, the other one 1"), "{}", choice.why);
        assert!(choice.warning.is_some());
        // As many, and the same hint: the plain tool.
        let hint = "-t mangle -N KUBE-IPTABLES-HINT";
        assert_eq!(chosen(both(wanted), &[(&program, hint), (&others, hint)]).backend, wanted);
    }
}

#[test]
fn the_only_variant_is_used_with_a_warning() {
    for (there, missing) in [(Backend::Nft, Backend::Legacy), (Backend::Legacy, Backend::Nft)] {
        let program = format!("iptables-{missing}");
        let choice = chosen(only(there), &[(&program, "-t nat -N ONE")]);
        assert_eq!(choice.backend, there);
        let warning = choice.warning.unwrap();
        assert!(warning.starts_with(&format!("iptables-{missing} is the right variant")), "{warning}");
        assert!(warning.contains(&format!("looked for iptables-{missing}-restore")), "{warning}");
    }
    let too_old = |folder: &Folder| folder.link("-nft", Backend::Nft).old("-legacy", "v1.8.5 (legacy)").own();
    let choice = chosen(too_old, &[("iptables-legacy", "-t nat -N ONE")]);
    assert_eq!(choice.backend, Backend::Nft);
    let warning = choice.warning.unwrap();
    assert!(warning.contains("1.8.5 is too old"), "{warning}");
}

#[test]
fn without_any_tool_the_names_are_told() {
    let folder = Folder::new();
    let choose = || Namespace::new().unwrap().run(|| choose_in(&folder.own()).unwrap_err()).unwrap();
    let failure = choose();
    assert!(matches!(failure, ToolFailure::Missing { .. }), "{failure:?}");
    let said = failure.to_string();
    for name in ["iptables-restore", "iptables-nft-restore", "iptables-legacy-restore", "iptables-save"] {
        assert!(said.contains(name), "{said}");
    }
    // One that is there and cannot be used is worth more.
    folder.old("-legacy", "v1.8.5 (legacy)");
    assert!(matches!(choose(), ToolFailure::TooOld { .. }));
}

#[test]
fn what_iptables_cannot_show_counts_for_nothing() {
    let commands = [
        ("iptables-legacy", "-t nat -N ONE"),
        ("nft", "table ip nat { chain X { meta hour > \"05:00\"; }; chain Y { }; }"),
    ];
    let folder = Folder::new();
    let run = || {
        folder.run(commands[0].0, commands[0].1);
        assert!(Command::new(commands[1].0).arg(commands[1].1).status().unwrap().success());
        choose_in(&folder.all()).unwrap()
    };
    let choice = Namespace::new().unwrap().run(run).unwrap();
    assert_eq!(choice.backend, Backend::Legacy);
    assert!(choice.warning.is_some());
}

#[test]
fn chains_of_ours_are_present() {
    let folder = Folder::new();
    let run = |commands: &[(&str, &str)]| {
        let run = || {
            commands.iter().for_each(|(program, arguments)| folder.run(program, arguments));
            Family::ALL.map(present)
        };
        Namespace::new().unwrap().run(run).unwrap()
    };
    let foreign = [("iptables-nft", "-t nat -N ONE"), ("iptables-nft", "-t nat -N KUBE-FORWARD")];
    assert_eq!(run(&foreign), [vec![], vec![]]);
    assert_eq!(run(&[("iptables-nft", "-t nat -N KUBE-SERVICES")]), [vec![Backend::Nft], vec![]]);
    assert_eq!(run(&[("ip6tables-nft", "-N KUBE-FORWARD")]), [vec![], vec![Backend::Nft]]);
    assert_eq!(run(&[("ip6tables-legacy", "-S")]), [vec![], vec![]], "tables with nothing in them");
    for table in ["mangle", "filter", "nat"] {
        let command = format!("-t {table} -A OUTPUT -j ACCEPT");
        assert_eq!(run(&[("ip6tables-legacy", &format!("-t {table} -S"))]), [vec![], vec![]], "{table}");
        assert_eq!(run(&[("ip6tables-legacy", &command)]), [vec![], vec![Backend::Legacy]], "{table}");
    }
    let two = [("iptables-legacy", "-t nat -N KUBE-SERVICES"), ("iptables-nft", "-t nat -N KUBE-SERVICES")];
    assert_eq!(run(&two), [vec![Backend::Nft, Backend::Legacy], vec![]]);
}
