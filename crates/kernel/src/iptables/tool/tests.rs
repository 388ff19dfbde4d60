//! Both variants in network namespaces, and small scripts in place of the tools for failures.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;

use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::*;
use crate::iptables::tests::folder::Folder;
use crate::netns::Namespace;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn tools(folder: &Folder) -> impl Iterator<Item = Tool> {
    let environment = folder.real();
    FAMILIES
        .into_iter()
        .flat_map(move |family| Backend::ALL.map(|backend| Tool::find_in(&environment, family, Some(backend)).unwrap()))
}

/// Runs a test with each of the four tools, in a namespace of its own.
fn with_each(test: impl Fn(&Tool) + Sync) {
    let folder = Folder::new();
    for tool in tools(&folder) {
        Namespace::new().unwrap().run(|| test(&tool)).unwrap();
    }
}

fn saved(tool: &Tool, table: Table) -> Vec<String> {
    let mut lines = Vec::new();
    tool.save(table, &mut |line| lines.push(format!("{line:?}"))).unwrap();
    lines
}

fn listed(tool: &Tool, table: Table, chain: &str) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    let mut each = |line: OutputLine<'_>| {
        if let OutputLine::Rule { text, .. } = line {
            lines.push(text.to_owned());
        }
    };
    tool.list(table, name(chain), &mut each).unwrap().then_some(lines)
}

fn name(text: &str) -> IptablesChainName {
    IptablesChainName::new(text).unwrap()
}

fn restore(tool: &Tool, text: &str) -> Result<RestoreOutcome, ToolFailure> {
    tool.restore_by(&mut |stdin| stdin.write(text))
}

fn refusal(tool: &Tool, text: &str) -> (Option<usize>, String, bool) {
    match restore(tool, text).unwrap_err() {
        ToolFailure::Refused { line, text, missing, .. } => (line, text, missing),
        other => panic!("{tool:?}: {other:?}"),
    }
}

const SOME: &str = "*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -p tcp -j TWO\n-A TWO -j RETURN\nCOMMIT\n";

#[test]
fn restored_rules_are_listed_and_saved() {
    with_each(|tool| {
        assert_eq!(listed(tool, Table::Nat, "ONE"), None, "{tool:?}");
        let run = restore(tool, SOME).unwrap();
        assert_eq!(run.lock_wait, Duration::ZERO, "the lock was free");
        assert_eq!(listed(tool, Table::Nat, "ONE").unwrap(), ["-p tcp -j TWO"], "{tool:?}");
        assert_eq!(listed(tool, Table::Nat, "TWO").unwrap(), ["-j RETURN"]);
        assert_eq!(listed(tool, Table::Nat, "THREE"), None);
        assert_eq!(listed(tool, Table::Filter, "ONE"), None);
        let lines = saved(tool, Table::Nat);
        for line in ["Table(\"nat\")", "Chain { name: \"ONE\", builtin: false }", "Commit"] {
            assert!(lines.iter().any(|found| found == line), "{line} in {lines:?}");
        }
        // Other chains stay.
        restore(tool, "*nat\n:THREE - [0:0]\nCOMMIT\n").unwrap();
        assert_eq!(listed(tool, Table::Nat, "ONE").unwrap(), ["-p tcp -j TWO"]);
        assert_eq!(listed(tool, Table::Nat, "THREE").unwrap(), [""; 0]);
    });
}

#[test]
fn runs_are_of_the_threads_namespace() {
    let folder = Folder::new();
    for tool in tools(&folder) {
        let [one, other] = [Namespace::new().unwrap(), Namespace::new().unwrap()];
        one.run(|| restore(&tool, SOME).unwrap()).unwrap();
        assert!(one.run(|| listed(&tool, Table::Nat, "ONE")).unwrap().is_some());
        assert_eq!(other.run(|| listed(&tool, Table::Nat, "ONE")).unwrap(), None);
    }
}

#[test]
fn match_extensions_of_the_machine_are_recognised() {
    with_each(|tool| {
        assert!(tool.has_match("comment").unwrap());
        assert!(!tool.has_match("no-such-match").unwrap());
    });
}

#[test]
fn reading_creates_no_table() {
    with_each(|tool| {
        for table in Table::ALL {
            saved(tool, table);
            assert_eq!(listed(tool, table, "ONE"), None);
        }
        assert_eq!(legacy::tables(tool.family()).unwrap(), Vec::<String>::new());
        assert_eq!(nft::chains(tool.family()).unwrap(), []);
    });
}

#[test]
fn syntax_errors_are_refused_with_their_line() {
    with_each(|tool| {
        let of_rule = |rule: &str| refusal(tool, &format!("*nat\n:ONE - [0:0]\n-A ONE {rule}\nCOMMIT\n"));
        for (rule, words) in [
            ("-m nosuch -j RETURN", "Couldn't load match `nosuch'"),
            ("--nosuch -j RETURN", "unknown option \"--nosuch\""),
            ("-p tcp -m tcp --dport 99999 -j RETURN", "invalid port/service `99999' specified"),
            ("-j RETURN -j ACCEPT", "multiple -j flags not allowed"),
        ] {
            let (line, text, missing) = of_rule(rule);
            assert_eq!((line, missing), (Some(3), false), "{rule} of {tool:?}");
            assert!(text.contains(words) && !text.contains("v1.8"), "{text}");
        }
        let (line, ..) = refusal(tool, "nonsense\n");
        assert_eq!(line, Some(1));
        let (line, ..) = refusal(tool, "*nat\n:ONE - [0:0]\n-A ONE -j RETURN\n");
        assert_eq!(line, Some(4), "no COMMIT");
        assert_eq!(listed(tool, Table::Nat, "ONE"), None);
    });
}

#[test]
fn missing_objects_are_refused_with_their_line() {
    with_each(|tool| {
        restore(tool, SOME).unwrap();
        // The legacy variant reports only the line.
        let says_more = tool.backend() == Backend::Nft;
        for line in ["-A THREE -j RETURN", "-I THREE -j RETURN", "-D ONE -p udp -j TWO", "-X THREE"] {
            let (at, text, missing) = refusal(tool, &format!("*nat\n:FOUR - [0:0]\n{line}\nCOMMIT\n"));
            assert_eq!((at, missing), (Some(3), says_more), "{line} of {tool:?}: {text}");
        }
        // The target chain is resolved only at COMMIT, or is taken for an extension of this name.
        let (at, text, missing) = refusal(tool, "*nat\n:FOUR - [0:0]\n-A FOUR -j THREE\nCOMMIT\n");
        assert_eq!((at, missing), (Some(if says_more { 4 } else { 3 }), true), "{text}");
        assert!(text.contains("THREE"), "{text}");
        // The chain is in use. Of errors of the kernel the legacy variant reports only the line of the COMMIT.
        let (at, ..) = refusal(tool, "*nat\n:ONE - [0:0]\n-A ONE -p tcp -j TWO\n-X TWO\nCOMMIT\n");
        assert_eq!(at, Some(4), "{tool:?}");
        assert_eq!(listed(tool, Table::Nat, "FOUR"), None, "no section is done in part");
    });
}

#[test]
fn errors_of_the_kernel_have_a_line() {
    with_each(|tool| {
        let loops = "*nat\n:ONE - [0:0]\n:TWO - [0:0]\n-A ONE -j TWO\n-A TWO -j ONE\n-A PREROUTING -j ONE\nCOMMIT\n";
        let (at, text, missing) = refusal(tool, loops);
        assert!(!missing, "{text}");
        assert!(at.is_some_and(|line| (4..=7).contains(&line)), "{at:?}: {text}");
        // The previous section is committed.
        let (at, ..) = refusal(tool, "*filter\n:ONE - [0:0]\nCOMMIT\n*nat\n-A THREE -j RETURN\nCOMMIT\n");
        assert_eq!(at, Some(5));
        assert_eq!(listed(tool, Table::Filter, "ONE").unwrap(), [""; 0]);
    });
}

#[test]
fn without_the_capability_the_failure_is_no_permission() {
    with_each(|tool| {
        restore(tool, SOME).unwrap();
        // For this thread and the processes that it starts.
        remove_capability_from_bounding_set(CapabilitySet::NET_ADMIN).unwrap();
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        rustix::thread::set_capabilities(None, sets).unwrap();
        let denied = |result: Result<(), ToolFailure>| matches!(result, Err(ToolFailure::NoPermission { .. }));
        assert!(denied(restore(tool, SOME).map(|_| ())), "{tool:?}");
        assert!(denied(tool.save(Table::Nat, &mut |_| {})), "{tool:?}");
        assert!(denied(tool.list(Table::Nat, name("ONE"), &mut |_| {}).map(|_| ())), "{tool:?}");
    });
}

#[test]
fn rules_that_only_nft_can_show_are_a_failure() {
    let folder = Folder::new();
    let tool = Tool::find_in(&folder.real(), Family::V4, Some(Backend::Nft)).unwrap();
    let run = || {
        let rules = "table ip nat { chain ONE { meta hour > \"05:00\" accept; }; chain TWO { accept; }; }";
        assert!(Command::new("nft").arg(rules).status().unwrap().success());
        let saved = tool.save(Table::Nat, &mut |_| {}).unwrap_err();
        assert!(
            matches!(&saved, ToolFailure::UnexpectedOutput { text, .. } if text.contains("incompatible")),
            "{saved:?}"
        );
        let listed = tool.list(Table::Nat, name("ONE"), &mut |_| {}).unwrap_err();
        assert!(matches!(&listed, ToolFailure::Refused { text, .. } if text.contains("incompatible")), "{listed:?}");
        assert!(tool.list(Table::Nat, name("TWO"), &mut |_| {}).unwrap());
        assert!(!tool.list(Table::Nat, name("THREE"), &mut |_| {}).unwrap());
    };
    Namespace::new().unwrap().run(run).unwrap();
}

#[test]
fn the_wait_for_the_lock_is_measured_and_bounded() {
    let folder = Folder::new();
    let environment = folder.real();
    for backend in Backend::ALL {
        let mut tool = Tool::find_in(&environment, Family::V4, Some(backend)).unwrap();
        tool.environment.lock_wait = Duration::from_millis(300);
        let run = move || {
            let environment = tool.environment.clone();
            let (lock, _) = Lock::take(&environment.lock_file, Duration::ZERO).unwrap();
            let began = Instant::now();
            let result = restore(&tool, SOME);
            if backend == Backend::Nft {
                // The nft variant has no lock.
                assert_eq!(result.unwrap().lock_wait, Duration::ZERO);
                return;
            }
            match result.unwrap_err() {
                ToolFailure::Locked { path, bound } => {
                    assert_eq!((path, bound), (environment.lock_file, environment.lock_wait));
                    assert!(began.elapsed() >= bound);
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(legacy::tables(Family::V4).unwrap(), Vec::<String>::new(), "no tool was run");
            tool.environment.lock_wait = Duration::from_secs(20);
            let waited = std::thread::scope(|scope| {
                let namespace = crate::netns::current().unwrap();
                let restore = scope.spawn(move || {
                    namespace.enter().unwrap();
                    restore(&tool, SOME).unwrap().lock_wait
                });
                sleep(Duration::from_millis(100));
                drop(lock);
                restore.join().unwrap()
            });
            assert!(waited > Duration::from_millis(50), "{waited:?}");
        };
        Namespace::new().unwrap().run(run).unwrap();
    }
}

#[test]
fn the_lock_is_held_for_the_run_and_no_longer() {
    let folder = Folder::new();
    let lock = folder.0.join("lock");
    let free = |lock: &Path| Lock::take(lock, Duration::ZERO).is_ok();
    // The child has the lock and no other descriptor of ours. A process that it leaves behind doesn't keep the lock.
    let text = |files: &str| {
        format!(
            "cat >/dev/null; flock -n '{0}' true && echo free >&2\n\
             ls -l /proc/self/fd | grep -- '-> /[^dp]' | grep -c {files} -- '-> {0}$' >&2\n\
             sleep 2 >/dev/null 2>&1 & exit 1",
            fs::canonicalize(&folder.0).unwrap().join("lock").display()
        )
    };
    for (files, count) in [("", "1"), ("-v", "0")] {
        let (_, output, _) = refusal(&folder.tool(Backend::Legacy, &text(files)), SOME);
        assert_eq!(output, count, "the lock was free, or files were open");
        assert!(free(&lock));
    }
    // The nft variant has no lock.
    let (_, output, _) = refusal(&folder.tool(Backend::Nft, &text("").replace("flock", ": flock")), SOME);
    assert!(output.ends_with("0"), "{output}");
    // The lock is also released when the tool is killed.
    let tool = folder.endless(Backend::Legacy, "exec sleep 1000");
    assert!(matches!(restore(&tool, SOME), Err(ToolFailure::TimedOut { .. })));
    assert!(free(&lock));
}

/// Environment variable with which the test below runs itself as a process, because it has to be killed.
const VICTIM: &str = "FERRY_TEST_LOCK_VICTIM";

#[test]
fn the_lock_outlives_this_process_with_the_child_that_writes() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        let folder = std::mem::ManuallyDrop::new(Folder(folder.into()));
        let tool = Tool::find_in(&folder.own(), Family::V4, Some(Backend::Legacy)).unwrap();
        let _ = restore(&tool, SOME);
        return;
    }
    let folder = Folder::new();
    let at = |name: &str| folder.0.join(name);
    let text = format!(
        "cat >/dev/null; touch '{}'; while [ ! -e '{}' ]; do sleep 0.01; done; touch '{}'; exit 0",
        at("begun").display(),
        at("go").display(),
        at("ended").display()
    );
    drop(folder.tool(Backend::Legacy, &text));
    let this = std::thread::current().name().unwrap().to_owned();
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", &this]).env(VICTIM, &folder.0).stdout(Stdio::null());
    let mut victim = victim.spawn().unwrap();
    let until = |what: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it never happened");
            sleep(Duration::from_millis(5));
        }
    };
    let free = || Lock::take(&at("lock"), Duration::ZERO).is_ok();
    until(&|| at("begun").exists());
    assert!(!free(), "while both run");
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(!free(), "the child still writes");
    assert!(!at("ended").exists());
    fs::write(at("go"), "").unwrap();
    until(&free);
    assert!(at("ended").exists(), "the lock was free before the child had ended");
}

#[test]
fn a_lock_file_that_cannot_be_created_is_named() {
    let folder = Folder::new();
    let mut environment = folder.real();
    environment.lock_file = folder.0.join("no/such/folder/lock");
    let tool = Tool::find_in(&environment, Family::V4, Some(Backend::Legacy)).unwrap();
    let failure = restore(&tool, SOME).unwrap_err();
    assert!(matches!(&failure, ToolFailure::NoLockFile { path, .. } if *path == environment.lock_file));
    let named = format!("cannot open the iptables lock file {}: ", environment.lock_file.display());
    assert!(failure.to_string().starts_with(&named), "{failure}");
}

#[test]
fn missing_programs_are_named() {
    let folder = Folder::new();
    let find = |backend| Tool::find_in(&folder.own(), Family::V6, backend).unwrap_err();
    for (backend, names) in [
        (None, "ip6tables-restore, ip6tables-save, ip6tables, ip6tables-nft-restore, "),
        (
            Some(Backend::Nft),
            "of the nft variant (looked for ip6tables-nft-restore, ip6tables-nft-save, ip6tables-nft, ",
        ),
        (
            Some(Backend::Legacy),
            "ip6tables-legacy-save, ip6tables-legacy, ip6tables-restore, ip6tables-save, ip6tables)",
        ),
    ] {
        let failure = find(backend);
        assert!(matches!(failure, ToolFailure::Missing { .. }), "{failure:?}");
        assert!(failure.to_string().contains(names), "{failure}");
    }
    // All three programs must exist and be executable.
    folder.programs("ip6tables", "v1.8.9 (legacy)", "");
    assert!(matches!(find(Some(Backend::Nft)), ToolFailure::Missing { .. }), "of the other variant");
    assert_eq!(Tool::find_in(&folder.own(), Family::V6, None).unwrap().backend(), Backend::Legacy);
    fs::remove_file(folder.0.join("ip6tables-save")).unwrap();
    assert!(matches!(find(None), ToolFailure::Missing { .. }));
    fs::write(folder.0.join("ip6tables-save"), "no program").unwrap();
    assert!(matches!(find(None), ToolFailure::Missing { .. }));
    // Deleted after it was found.
    let tool = folder.tool(Backend::Nft, "");
    fs::remove_file(folder.0.join("iptables-restore")).unwrap();
    assert!(matches!(restore(&tool, SOME), Err(ToolFailure::Missing { tool }) if tool == "iptables-restore"));
}

#[test]
fn old_versions_are_refused() {
    let find = |version: &str, backend| {
        let folder = Folder::new();
        folder.programs("iptables", version, "");
        Tool::find_in(&folder.own(), Family::V4, backend).map(|tool| (tool.backend(), tool.version().to_string()))
    };
    assert_eq!(find("v1.8.9 (nf_tables)", None).unwrap(), (Backend::Nft, "1.8.9".to_owned()));
    assert_eq!(find("v1.8.6 (legacy)", Some(Backend::Legacy)).unwrap(), (Backend::Legacy, "1.8.6".to_owned()));
    assert_eq!(find("v1.10 (legacy)", None).unwrap(), (Backend::Legacy, "1.10.0".to_owned()));
    for (version, backend) in
        [("v1.8.3 (nf_tables)", Backend::Nft), ("v1.8.5 (legacy)", Backend::Legacy), ("v1.4.21", Backend::Legacy)]
    {
        let (failure, needs) = (find(version, None).unwrap_err(), backend.needs());
        assert!(matches!(&failure, ToolFailure::TooOld { needs: it, .. } if *it == needs), "{version}: {failure:?}");
        let message = failure.to_string();
        assert!(message.contains(&format!("{needs} or later is required")), "{message}");
    }
    for version in ["", "1.8.9", "v1.x (legacy)", "v1.8.9 (quantum)"] {
        assert!(matches!(find(version, None), Err(ToolFailure::UnexpectedOutput { .. })), "{version}");
    }
}

#[test]
fn programs_of_different_variants_are_not_used_together() {
    let folder = Folder::new();
    folder.programs("iptables", "v1.8.9 (legacy)", "");
    folder.script("iptables-save", "echo iptables-save 'v1.8.9 (nf_tables)'");
    for backend in [None, Some(Backend::Legacy)] {
        let failure = Tool::find_in(&folder.own(), Family::V4, backend).unwrap_err();
        assert!(
            failure.to_string().contains("it is of the nft variant, but iptables-restore of the legacy"),
            "{failure}"
        );
    }
}

#[test]
fn a_hanging_tool_is_killed_and_leaves_no_process() {
    let folder = Folder::new();
    let note = folder.0.join("pid");
    let tool = folder.endless(Backend::Nft, &format!("echo $$ >'{}'; exec sleep 1000", note.display()));
    let gone = || {
        let pid = fs::read_to_string(&note).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} is still there, or a zombie");
    };
    let begin = Instant::now();
    // More than a pipe holds: the tool does not read it.
    let much = "#\n".repeat(100_000);
    let failure = restore(&tool, &much).unwrap_err();
    assert_eq!(failure.to_string(), "iptables-restore timed out after 400ms and was killed");
    gone();
    assert!(matches!(tool.save(Table::Nat, &mut |_| {}), Err(ToolFailure::TimedOut { .. })));
    gone();
    assert!(matches!(tool.list(Table::Nat, name("ONE"), &mut |_| {}), Err(ToolFailure::TimedOut { .. })));
    gone();
    assert!(begin.elapsed() < Duration::from_secs(10));
}

/// A script that waits for its child.
#[test]
fn children_of_a_hanging_tool_are_killed_with_it() {
    let folder = Folder::new();
    let note = folder.0.join("pid");
    let text = format!("sh -c 'echo $$ >{}; cat >/dev/null; exec sleep 1000' <&0; exit $?", note.display());
    let gone = || {
        let pid = fs::read_to_string(&note).unwrap();
        let status = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("status")).unwrap_or_default();
        // An orphan is reaped by the init process, at any later time.
        assert!(status.is_empty() || status.contains("State:\tZ"), "process {pid} goes on: {status}");
        fs::remove_file(&note).unwrap();
    };
    for backend in Backend::ALL {
        let tool = folder.endless(backend, &text);
        assert!(matches!(restore(&tool, SOME), Err(ToolFailure::TimedOut { .. })));
        gone();
        assert!(Lock::take(&folder.real().lock_file, Duration::ZERO).is_ok());
    }
    let tool = folder.endless(Backend::Nft, &text);
    assert!(matches!(tool.save(Table::Nat, &mut |_| {}), Err(ToolFailure::TimedOut { .. })));
    gone();
}

#[test]
fn a_tool_with_endless_output_is_killed() {
    let folder = Folder::new();
    for text in ["exec yes -- -A ONE", "exec yes >&2", "exec >&- 2>&-; exec sleep 1000"] {
        let tool = folder.endless(Backend::Nft, text);
        for result in [restore(&tool, SOME).map(|_| ()), tool.save(Table::Nat, &mut |_| {})] {
            assert!(matches!(result, Err(ToolFailure::TimedOut { .. })), "{text}: {result:?}");
        }
    }
}

#[test]
fn a_killed_tool_is_distinguished_from_a_failing_one() {
    let folder = Folder::new();
    let tool = folder.tool(Backend::Nft, "printf '*nat\\n:ONE - [0:0]\\n-A ON'; kill -9 $$");
    assert!(matches!(restore(&tool, SOME), Err(ToolFailure::Killed { signal: 9, .. })));
    let failure = tool.save(Table::Nat, &mut |_| {}).unwrap_err();
    assert_eq!(failure.to_string(), "iptables-save was killed by signal 9");
}

#[test]
fn a_tool_that_reads_nothing_reports_the_cause() {
    let folder = Folder::new();
    let much = "#\n".repeat(1_000_000);
    for text in ["echo 'iptables: no mood' >&2; exit 3", "exec <&-; echo 'iptables: no mood' >&2; exit 3"] {
        let tool = folder.tool(Backend::Nft, text);
        assert_eq!(refusal(&tool, &much), (None, "no mood".to_owned(), false));
    }
    let tool = folder.tool(Backend::Nft, "exit 3");
    assert_eq!(refusal(&tool, &much).1, "exit status 3, no message");
    // The status of the dynamic loader, and that of a shell.
    let tool = folder.tool(Backend::Nft, "echo error while loading shared libraries >&2; exit 127");
    assert!(matches!(restore(&tool, &much), Err(ToolFailure::Io { .. })));
}

/// The nft variant names every refused rule.
#[test]
fn a_truncated_message_names_no_wrong_line() {
    let folder = Folder::new();
    // Lines of 93 bytes: the kept part ends within a number.
    let text = "cat >/dev/null; seq 1000 1199 | while read line; do printf 'line %d: %-81s\\n' $line \
                'RULE_APPEND failed (No such file or directory): rule in chain KUBE-SVC-X'; done >&2; exit 1";
    match restore(&folder.tool(Backend::Nft, text), SOME).unwrap_err() {
        ToolFailure::Refused { line, lines, .. } => {
            assert_eq!(line, Some(1000));
            assert!(lines.len() > 80 && lines.iter().copied().eq(1000..1000 + lines.len()), "{lines:?}");
        }
        other => panic!("{other:?}"),
    }
    // Shorter output is kept whole, with or without a final line end.
    let tool = folder.tool(Backend::Nft, "printf 'line 12: no\\nline 345: no' >&2; exit 1");
    let ToolFailure::Refused { lines, .. } = restore(&tool, SOME).unwrap_err() else { panic!() };
    assert_eq!(lines, [12, 345]);
}

#[test]
fn all_of_a_long_text_arrives() {
    let folder = Folder::new();
    let tool = folder.tool(Backend::Legacy, "echo $(wc -c) >&2; exit 1");
    let much = "0123456789abcde\n".repeat(250_000);
    assert_eq!(refusal(&tool, &much).1, much.len().to_string());
}

#[test]
fn unexpected_output_is_reported() {
    let folder = Folder::new();
    for (text, line) in [
        ("echo '*nat'; head -c 100000 /dev/zero; echo", 2),
        ("exec cat /dev/zero", 1),
        ("echo '*nat'; echo ':ONE - [0:0]'; exit 0", 3),
        ("echo '*nat'; echo hello", 2),
        ("printf '\\377\\376\\000\\n'", 1),
    ] {
        let tool = folder.tool(Backend::Nft, text);
        match tool.save(Table::Nat, &mut |_| {}).unwrap_err() {
            ToolFailure::UnexpectedOutput { tool, line: at, text: shown } => {
                assert_eq!((tool.as_str(), at), ("iptables-save", line), "{text}: {shown}");
                assert!(!shown.contains('\0'));
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    // The tool reports itself why it stops.
    let tool = folder.tool(Backend::Nft, "echo '*nat'; echo 'iptables: Cannot allocate memory' >&2; exit 4");
    assert!(matches!(tool.save(Table::Nat, &mut |_| {}), Err(ToolFailure::Exhausted { .. })));
}

#[test]
fn pipes_held_by_a_child_of_the_tool_are_not_waited_for() {
    let folder = Folder::new();
    let tool = folder.tool(Backend::Nft, "sleep 30 & echo '*nat'; echo COMMIT; exit 0");
    let begin = Instant::now();
    restore(&tool, SOME).unwrap();
    assert_eq!(saved(&tool, Table::Nat), ["Table(\"nat\")", "Commit"]);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}
