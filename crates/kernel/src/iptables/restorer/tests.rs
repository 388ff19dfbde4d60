//! The real tool in network namespaces, and small scripts that count its starts or behave differently.

use std::fs;
use std::process::Command;

use ferry_family::Family;

use super::*;
use crate::iptables::tests::folder::Folder;
use crate::iptables::{IptablesChainName, OutputLine, Table};
use crate::netns::Namespace;

/// Runs a text.
fn restore(restorer: &mut Restorer, text: &str) -> Result<RestoreOutcome, ToolFailure> {
    restorer.restore_by(&mut |stdin| stdin.write(text))
}

/// The text of a chain with this number of rules.
fn chain(name: &str, rules: usize) -> String {
    format!("*nat\n:{name} - [0:0]\n{}COMMIT\n", format!("-A {name} -j RETURN\n").repeat(rules))
}

fn has(restorer: &Restorer, name: &str) -> bool {
    restorer.tool().list(Table::Nat, IptablesChainName::new(name).unwrap(), &mut |_| {}).unwrap()
}

/// A restorer of the real tool by a script that counts its starts in file `starts`.
fn counting(folder: &Folder, backend: Backend) -> Restorer {
    let starts = folder.0.join("starts");
    let real = format!("exec $(basename $0 | sed s/iptables/iptables-{backend}/) \"$@\"");
    let script =
        format!("PATH=$PATH:/usr/sbin:/sbin\ncase $0 in *-restore) echo >> {};; esac\n{real}", starts.display());
    Restorer::new(folder.tool(backend, &script))
}

fn starts(folder: &Folder) -> usize {
    fs::read_to_string(folder.0.join("starts")).map_or(0, |text| text.lines().count())
}

/// A restorer of a script in place of the nft variant that counts its starts.
fn of_script(folder: &Folder, script: &str) -> Restorer {
    let starts = folder.0.join("starts");
    Restorer::new(folder.tool(Backend::Nft, &format!("echo >> {}\n{script}", starts.display())))
}

fn within_namespace(test: impl FnOnce(&Folder) + Send) {
    let folder = Folder::new();
    Namespace::new().unwrap().run(|| test(&folder)).unwrap();
}

#[test]
fn one_process_restores_text_after_text() {
    for (backend, processes) in [(Backend::Nft, 1), (Backend::Legacy, 5)] {
        within_namespace(|folder| {
            let mut restorer = counting(folder, backend);
            for text in 0..5 {
                let name = format!("C{text}");
                restore(&mut restorer, &chain(&name, text)).unwrap();
                assert!(has(&restorer, &name), "in force when it returns: {name}");
            }
            assert_eq!(starts(folder), processes, "{backend}");
        });
    }
}

#[test]
fn each_family_has_its_tool() {
    for family in Family::ALL {
        Namespace::new()
            .unwrap()
            .run(|| {
                let mut restorer = Restorer::new(Tool::find(family, Some(Backend::Nft)).unwrap());
                restore(&mut restorer, &chain("A", 1)).unwrap();
                restore(&mut restorer, &chain("B", 1)).unwrap();
                assert!(has(&restorer, "A") && has(&restorer, "B"));
            })
            .unwrap();
    }
}

#[test]
fn a_refused_line_is_counted_within_its_text() {
    within_namespace(|folder| {
        let mut restorer = counting(folder, Backend::Nft);
        let refused = format!("{}*nat\n-A NONE -j RETURN\nCOMMIT\n", chain("FIRST", 2));
        for earlier in [0, 1, 3] {
            for _ in 0..earlier {
                restore(&mut restorer, &chain("EARLIER", 4)).unwrap();
            }
            match restore(&mut restorer, &refused).unwrap_err() {
                ToolFailure::Refused { line, lines, missing, text, .. } => {
                    assert_eq!((line, missing), (Some(7), true), "{text}");
                    assert_eq!(lines.first(), Some(&7));
                    assert!(!text.contains("line") || text.contains("line 7"), "{text}");
                }
                other => panic!("{other:?}"),
            }
            assert!(has(&restorer, "FIRST"), "the section before is in force");
            assert_eq!(restorer.wake(), None, "a tool that fails ends");
        }
        assert_eq!(starts(folder), 3, "and another one is started");
    });
}

#[test]
fn a_process_that_was_killed_between_texts_is_replaced() {
    within_namespace(|folder| {
        let mut restorer = Restorer::new(Tool::find_in(&folder.real(), Family::V4, Some(Backend::Nft)).unwrap());
        restore(&mut restorer, &chain("A", 1)).unwrap();
        let session = restorer.idle.take().and_then(|(idle, _)| idle.take()).unwrap();
        let pid = session.process.id();
        restorer.idle = Some((IdleChild::new(session), Instant::now() + IDLE));
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
        restore(&mut restorer, &chain("B", 1)).unwrap();
        assert!(has(&restorer, "B"));
    });
}

/// `-D` and `-I` at a position need the rules that are there now.
#[test]
fn what_others_do_between_texts_is_seen() {
    within_namespace(|folder| {
        let mut restorer = counting(folder, Backend::Nft);
        let nft = |arguments: &str| {
            assert!(Command::new("iptables-nft").args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
        };
        restore(&mut restorer, &chain("A", 2)).unwrap();
        nft("-t nat -F A");
        nft("-t nat -A A -p tcp -j RETURN");
        restore(&mut restorer, "*nat\n-D A -p tcp -j RETURN\n-A A -p udp -j RETURN\nCOMMIT\n").unwrap();
        nft("-t nat -I A -p sctp -j RETURN");
        restore(&mut restorer, "*nat\n-I A 2 -p tcp -j RETURN\nCOMMIT\n").unwrap();
        let mut rules = Vec::new();
        let mut each = |line: OutputLine<'_>| {
            if let OutputLine::Rule { text, .. } = line {
                rules.push(text.to_owned());
            }
        };
        restorer.tool().list(Table::Nat, IptablesChainName::new("A").unwrap(), &mut each).unwrap();
        assert_eq!(rules, ["-p sctp -j RETURN", "-p tcp -j RETURN", "-p udp -j RETURN"]);
        assert_eq!(starts(folder), 1);
    });
}

#[test]
fn a_text_that_is_not_written_to_its_end_leaves_no_process() {
    within_namespace(|folder| {
        let mut restorer = counting(folder, Backend::Nft);
        restore(&mut restorer, &chain("A", 1)).unwrap();
        let failure = restorer.restore_by(&mut |stdin| {
            stdin.write("*nat\n:HALF - [0:0]\n")?;
            Err(io::Error::other("no more"))
        });
        assert!(matches!(failure, Err(ToolFailure::Io { .. })), "{failure:?}");
        restore(&mut restorer, &chain("B", 1)).unwrap();
        assert!(has(&restorer, "B") && !has(&restorer, "HALF"));
        assert_eq!(starts(folder), 2);
    });
}

/// Shell code that echoes the comments of its input.
const ECHOES: &str = "while IFS= read -r line; do case $line in '#'*) echo \"$line\";; esac; done";

#[test]
fn standard_error_of_an_earlier_text_is_forgotten() {
    let folder = Folder::new();
    let floods = "head -c 200000 /dev/zero | tr '\\0' x >&2; echo 'Operation not permitted' >&2";
    let fails = "read text; read text; echo 'line 5 failed' >&2; exit 1";
    let script = format!("read -r first; echo \"$first\"; read a; read b; read -r c; {floods}; echo \"$c\"; {fails}");
    let mut restorer = of_script(&folder, &script);
    restore(&mut restorer, "*nat\nCOMMIT\n").unwrap();
    match restore(&mut restorer, "*nat\nCOMMIT\n").unwrap_err() {
        ToolFailure::Refused { line, text, .. } => assert_eq!((line, text.as_str()), (Some(1), "line 1 failed")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_slow_tool_is_given_another_chance() {
    let folder = Folder::new();
    let mut restorer = of_script(&folder, &format!("[ -e $0.fast ] || sleep 1.2\n{ECHOES}"));
    restore(&mut restorer, "*nat\nCOMMIT\n").unwrap();
    assert_eq!((restorer.wake(), restorer.silent), (None, 1), "its exit status counted");
    folder.script("iptables-restore.fast", "");
    restore(&mut restorer, "*nat\nCOMMIT\n").unwrap();
    assert!(restorer.wake().is_some() && restorer.silent == 0);
    restorer.singly_until = Some(Instant::now() + RETRY);
    assert!(!restorer.keeps_process());
    restorer.singly_until = Some(Instant::now());
    assert!(restorer.keeps_process());
}

#[test]
fn a_release_that_keeps_its_output_is_run_for_each_text() {
    let folder = Folder::new();
    let script = format!("echo >> {}; cat > /dev/null", folder.0.join("starts").display());
    for (version, keeps) in [("v1.8.4 (nf_tables)", false), ("v1.8.5 (nf_tables)", true)] {
        folder.programs("iptables", version, &script);
        let tool = Tool::find_in(&folder.own(), Family::V4, Some(Backend::Nft)).unwrap();
        assert_eq!(Restorer::new(tool).keeps_process(), keeps, "{version}");
    }
}

/// It reads a text and dies.
#[test]
fn a_process_that_dies_during_a_text_leaves_it_unknown() {
    let folder = Folder::new();
    let mut restorer = of_script(&folder, "read first; echo \"$first\"; read line; kill -9 $$");
    assert!(matches!(restore(&mut restorer, &chain("A", 1)), Err(ToolFailure::Killed { signal: 9, .. })));
    let mut restorer = of_script(&folder, "read first; echo \"$first\"; read line; exit 0");
    match restore(&mut restorer, &chain("A", 1)).unwrap_err() {
        ToolFailure::Io { error, .. } => assert_eq!(error.to_string(), "it ended without confirming its input"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_that_hangs_is_killed_at_the_deadline() {
    let folder = Folder::new();
    let mut restorer = Restorer::new(folder.endless(Backend::Nft, "read first; echo \"$first\"; exec sleep 60"));
    assert!(matches!(restore(&mut restorer, &chain("A", 1)), Err(ToolFailure::TimedOut { .. })));
    assert_eq!(restorer.wake(), None);
}

#[test]
fn a_tool_that_prints_no_comments_is_run_for_each_text() {
    let folder = Folder::new();
    let all = folder.0.join("all");
    let mut restorer = of_script(&folder, &format!("cat >> {}", all.display()));
    for text in 1..=SILENT + 2 {
        let gave_up = restore(&mut restorer, "*nat\nCOMMIT\n").unwrap().gave_up;
        assert_eq!((restorer.wake(), gave_up), (None, (text == SILENT).then_some(RETRY)), "text {text}");
    }
    assert_eq!(starts(&folder), usize::from(SILENT) + 2);
    let read = fs::read_to_string(&all).unwrap();
    assert_eq!(read.matches("*nat\nCOMMIT\n").count(), usize::from(SILENT) + 2, "{read}");
    assert!(read.ends_with("*nat\nCOMMIT\n*nat\nCOMMIT\n"), "the last ones without comments: {read}");
    // Its failures are those of the exit status.
    let mut restorer = of_script(&folder, "cat > /dev/null; echo 'iptables-restore: line 3 failed' >&2; exit 1");
    match restore(&mut restorer, "*nat\nCOMMIT\n").unwrap_err() {
        ToolFailure::Refused { line, .. } => assert_eq!(line, Some(2), "without the comment before the text"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_ends_after_ten_idle_seconds_many_texts_or_a_long_one() {
    within_namespace(|folder| {
        let mut restorer = counting(folder, Backend::Nft);
        restore(&mut restorer, &chain("A", 1)).unwrap();
        let due = restorer.wake().expect("a time to end it");
        restorer.tend(due - Duration::from_millis(1));
        assert_eq!(restorer.wake(), Some(due));
        restorer.tend(due);
        assert_eq!((restorer.wake(), starts(folder)), (None, 1));
        for _ in 0..TEXTS {
            restore(&mut restorer, "*nat\nCOMMIT\n").unwrap();
        }
        assert_eq!((restorer.wake(), starts(folder)), (None, 2), "after its last text");
        restore(&mut restorer, &format!("{}*nat\nCOMMIT\n", "# a comment\n".repeat(BYTES / 10))).unwrap();
        assert_eq!((restorer.wake(), starts(folder)), (None, 3));
        restore(&mut restorer, &chain("B", 1)).unwrap();
        assert!(restorer.wake().is_some());
    });
}
