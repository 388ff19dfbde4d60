//! Failures of the iptables tools, classified by the caller's next step from exit status and standard error.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Version;
use crate::text::is_printable;

/// Maximum number of characters kept of the tool's message.
const MESSAGE_MAX: usize = 500;

/// Causes of a failed run.
///
/// `tool` is always the name of the program that was run, or searched for.
#[derive(Debug, thiserror::Error)]
pub enum ToolFailure {
    /// the tool is not installed: no directory of `PATH` has it
    #[error("{tool} not found in PATH")]
    Missing {
        /// the program, or programs, searched for
        tool: String,
    },
    /// the tool lacks features that are required
    #[error("{tool} {version} is too old: {needs} or later is required")]
    TooOld {
        /// the program
        tool: String,
        /// its version
        version: Version,
        /// the minimum version
        needs: Version,
    },
    /// this process lacks the right: the tool reports it, or reports a missing table while the process has no `CAP_NET_ADMIN`
    #[error("{tool}: permission denied: CAP_NET_ADMIN and, to load modules, CAP_NET_RAW or root are needed")]
    NoPermission {
        /// the program
        tool: String,
    },
    /// the kernel lacks the table, according to the tool's message. "unable to initialize table" without a cause counts as this;
    /// with lack of memory as its cause it is [`ToolFailure::Exhausted`]
    #[error(
        "{tool}: this kernel has no {table}: is its module loaded? (The legacy variant sees it with CAP_NET_RAW only)"
    )]
    NoTable {
        /// the program
        tool: String,
        /// the missing table or subsystem: `table nat`, or `nf_tables`
        table: String,
    },
    /// the lock file of the legacy variant cannot be created or opened
    #[error(
        "cannot open the iptables lock file {path}: {error}: its directory must exist and be writable, or XTABLES_LOCKFILE must \
         name another file that all programs use"
    )]
    NoLockFile {
        /// the lock file
        path: PathBuf,
        /// the system's error
        #[source]
        error: io::Error,
    },
    /// another process held the lock for the whole wait
    #[error("another program has held the lock {path} for {bound:?}")]
    Locked {
        /// the lock file
        path: PathBuf,
        /// the time waited
        bound: Duration,
    },
    /// the run exceeded its deadline and was killed. Sections committed before stay in force
    #[error("{tool} timed out after {after:?} and was killed")]
    TimedOut {
        /// the program
        tool: String,
        /// the limit of a run without input: see `Environment::run_time`
        after: Duration,
    },
    /// another process, or the kernel, killed the tool. Sections committed before stay in force
    #[error("{tool} was killed by signal {signal}")]
    Killed {
        /// the program
        tool: String,
        /// the signal number
        signal: i32,
    },
    /// the tool's output is no ruleset
    #[error("{tool}: unexpected output in line {line}: {text}")]
    UnexpectedOutput {
        /// the program
        tool: String,
        /// line number, from 1
        line: usize,
        /// the beginning of the line, or the defect of the output
        text: String,
    },
    /// temporary: memory is short, or the ruleset changed during the run; the caller retries
    #[error("{tool}: {text}")]
    Exhausted {
        /// the program
        tool: String,
        /// line of the input, from 1, if the tool names one: sections committed before stay in force
        line: Option<usize>,
        /// the tool's message
        text: String,
    },
    /// the tool or the kernel refused the input. Sections committed before stay in force
    #[error("{tool} refused: {text}")]
    Refused {
        /// the program
        tool: String,
        /// line of the input, from 1; that of the COMMIT if the kernel does not report which rule it refused
        line: Option<usize>,
        /// all lines that the tool names, the first one included: the nft variant names all that the kernel refused in one commit
        lines: Vec<usize>,
        /// the tool's message
        text: String,
        /// a chain, rule or object that the input refers to does not exist. The legacy variant seldom reports it
        missing: bool,
    },
    /// the tool could not be run
    #[error("{tool} cannot be run: {error}")]
    Io {
        /// the program
        tool: String,
        /// the system's error
        #[source]
        error: io::Error,
    },
}

/// The evidence about a failed run: standard error, exit status and privileges.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedRun<'a> {
    /// name of the program
    pub(super) tool: &'a str,
    /// standard error, or its beginning
    pub(super) text: &'a str,
    /// number of lines of earlier texts, which the tool counts, too
    pub(super) lines: usize,
    /// exit status, if the tool was not killed
    pub(super) code: Option<i32>,
    /// true if this process has `CAP_NET_ADMIN`: the legacy variant does not report missing permission
    pub(super) privileged: bool,
}

// === impl FailedRun ===

impl<'a> FailedRun<'a> {
    /// Classifies the failure.
    pub(super) fn classify(self) -> ToolFailure {
        let tool = self.tool.to_owned();
        let has = |words: &[&str]| words.iter().any(|words| self.text.contains(words));
        // 126 and 127: a shell or the dynamic loader failed, the tool itself did not run. The tool's lock is its stdin.
        if matches!(self.code, Some(126 | 127)) || has(&["can't open lock file"]) {
            return ToolFailure::Io { tool, error: io::Error::other(self.message()) };
        }
        if has(&["Permission denied", "you must be root", "Operation not permitted"]) {
            return ToolFailure::NoPermission { tool };
        }
        let exhausted = [
            "Resource temporarily unavailable",
            "Cannot allocate memory",
            // libip4tc's message for ENOMEM
            "Memory allocation problem",
            "No buffer space available",
            "Interrupted system call",
            "Too many open files",
            "holding the xtables lock",
        ];
        if has(&exhausted) {
            return ToolFailure::Exhausted { tool, line: self.line_numbers().first().copied(), text: self.message() };
        }
        if let Some(table) = self.missing_table() {
            return if self.privileged {
                ToolFailure::NoTable { tool, table }
            } else {
                ToolFailure::NoPermission { tool }
            };
        }
        let missing = has(&[
            "No chain/target/match by that name",
            "(No such file or directory)",
            "does a matching rule exist in that chain",
            "Couldn't load target `",
        ]) || (has(&["Chain '"]) && has(&["' does not exist"]));
        let lines = self.line_numbers();
        ToolFailure::Refused { tool, line: lines.first().copied(), lines, text: self.message(), missing }
    }

    /// The table or subsystem that the kernel lacks, if the message is about that.
    fn missing_table(self) -> Option<String> {
        let quoted = |before: &str, close: char, after: &str| {
            let (_, rest) = self.text.split_once(before)?;
            let (name, rest) = rest.split_once(close)?;
            rest.starts_with(after).then(|| format!("table {name}"))
        };
        let named = quoted("unable to initialize table '", '\'', "")
            .or_else(|| quoted("table `", '\'', ": Table does not exist"))
            .or_else(|| quoted("table name '", '\'', " invalid"))
            .or_else(|| quoted("table '", '\'', " does not exist"))
            .or_else(|| quoted("Table `", '\'', " does not exist"));
        let nameless = || self.text.contains("Table does not exist").then(|| "such table".to_owned());
        let variant =
            ["Could not fetch rule set generation id", "Failed to initialize nft", "Could not initialize nftables"];
        let without = || variant.iter().any(|words| self.text.contains(words)).then(|| "nf_tables".to_owned());
        named.or_else(nameless).or_else(without)
    }

    /// The relevant lines of the message, without the tool's name and version in front.
    fn lines(self) -> impl Iterator<Item = &'a str> {
        let noise = ["# Warning: ", "Try `", "Perhaps "];
        let relevant = move |line: &&str| !line.is_empty() && !noise.iter().any(|noise| line.starts_with(noise));
        self.text.lines().map(without_name).filter(relevant)
    }

    /// The line numbers of the input that the tool names.
    fn line_numbers(self) -> Vec<usize> {
        let number = |line: &str| self.own_number(split_at_number(line)?.1);
        self.lines().filter_map(number).collect()
    }

    /// The number of a line of this input; `None` for a line of an earlier text.
    fn own_number(self, number: usize) -> Option<usize> {
        number.checked_sub(self.lines).filter(|own| *own > 0)
    }

    /// The tool's message in one line, or the exit status without one.
    fn message(self) -> String {
        let mut words = String::new();
        for line in self.lines() {
            words.push_str(if words.is_empty() { "" } else { "; " });
            let own = |(before, number, after)| Some((before, self.own_number(number)?, after));
            match split_at_number(line).and_then(own) {
                Some((before, number, after)) => words.extend([before, &number.to_string(), after]),
                None => words.push_str(line),
            }
        }
        if words.is_empty() {
            words = self.code.map_or_else(|| "no message".to_owned(), |code| format!("exit status {code}, no message"));
        }
        shortened(&words)
    }
}

/// Splits a line of a message at the line number of the input that begins it.
fn split_at_number(line: &str) -> Option<(&str, usize, &str)> {
    let before = ["Error occurred at line: ", "COMMIT expected at line ", "Bad line ", "line "];
    let before = before.into_iter().find(|before| line.starts_with(before))?;
    let rest = line.get(before.len()..)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, after) = rest.split_at(digits);
    Some((before, number.parse().ok()?, after))
}

/// Strips the prefixes `iptables-restore: ` and `iptables-restore v1.8.9 (legacy): ` from a line, which may have both.
fn without_name(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((name, words)) = rest.split_once(':') {
        let first = name.split(' ').next().unwrap_or_default();
        let own = first.contains("tables") && !first.contains(['`', '\'', '"']);
        let version = name.get(first.len()..).unwrap_or_default().trim_start();
        if !own || !(version.is_empty() || version.starts_with('v')) {
            break;
        }
        rest = words.trim_start();
    }
    rest
}

/// Truncates a text and replaces characters that a terminal would interpret instead of showing.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> ToolFailure {
        FailedRun { tool: "iptables-restore", text, lines: 0, code: Some(1), privileged: true }.classify()
    }

    /// Messages of several releases; those of the installed release are tested by running the tool.
    #[test]
    fn refusals_have_lines_and_messages() {
        for (text, line, words, missing) in [
            (
                "iptables-restore v1.8.7 (nf_tables): \nline 4: RULE_APPEND failed (No such file or directory): rule in chain A\n",
                Some(4),
                "line 4: RULE_APPEND failed (No such file or directory): rule in chain A",
                true,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 2: CHAIN_DEL failed (Device or resource busy): chain B\n\
                 line 3: CHAIN_DEL failed (Device or resource busy): chain C\n",
                Some(2),
                "line 2: CHAIN_DEL failed (Device or resource busy): chain B; \
                 line 3: CHAIN_DEL failed (Device or resource busy): chain C",
                false,
            ),
            ("iptables-restore: line 12 failed\n", Some(12), "line 12 failed", false),
            (
                "# Warning: iptables-legacy tables present, use iptables-legacy to see them\n\
                 iptables-nft-restore: line 3 failed: Bad rule (does a matching rule exist in that chain?).\n",
                Some(3),
                "line 3 failed: Bad rule (does a matching rule exist in that chain?).",
                true,
            ),
            (
                "iptables-restore v1.8.6 (legacy): unknown option \"--line 7\"\nError occurred at line: 3\n\
                 Try `iptables-restore -h' or 'iptables-restore --help' for more information.\n",
                Some(3),
                "unknown option \"--line 7\"; Error occurred at line: 3",
                false,
            ),
            (
                "iptables-restore v1.8.6 (legacy): Couldn't load target `KUBE-SVC-X':No such file or directory\n\n\
                 Error occurred at line: 5\n",
                Some(5),
                "Couldn't load target `KUBE-SVC-X':No such file or directory; Error occurred at line: 5",
                true,
            ),
            ("iptables-restore: COMMIT expected at line 9\n", Some(9), "COMMIT expected at line 9", false),
            ("", None, "exit status 1, no message", false),
            ("\u{1b}[1mline: x\0\n", None, "\u{fffd}[1mline: x\u{fffd}", false),
            ("line 7 failed\r\u{9b}2J\u{202e}\n", Some(7), "line 7 failed\u{fffd}\u{fffd}2J\u{fffd}", false),
            ("line 99999999999999999999 failed", None, "line 99999999999999999999 failed", false),
        ] {
            match failure(text) {
                ToolFailure::Refused { line: at, text: found, missing: is, .. } => {
                    assert_eq!((at, found.as_str(), is), (line, words, missing));
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let ToolFailure::Refused { text, .. } = failure(&"ä".repeat(4000)) else { panic!() };
        assert_eq!(text.chars().count(), MESSAGE_MAX);
    }

    #[test]
    fn lines_of_earlier_texts_are_not_counted() {
        let text = "line 14: RULE_APPEND failed (No such file or directory): rule in chain A\n\
                    line 17: CHAIN_DEL failed (Device or resource busy): chain B\nline 3 of 14\n";
        let failed = FailedRun { tool: "iptables-restore", text, lines: 10, code: Some(1), privileged: true };
        let ToolFailure::Refused { line, lines, text, .. } = failed.classify() else { panic!() };
        assert_eq!((line, lines), (Some(4), vec![4, 7]));
        assert_eq!(
            text,
            "line 4: RULE_APPEND failed (No such file or directory): rule in chain A; \
             line 7: CHAIN_DEL failed (Device or resource busy): chain B; line 3 of 14"
        );
    }

    #[test]
    fn missing_tables_are_distinguished_from_missing_permission() {
        for (text, table) in [
            (
                "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)\n\
              Perhaps iptables or your kernel needs to be upgraded.",
                "table nat",
            ),
            (
                "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'mangle'\nError occurred at line: 1",
                "table mangle",
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): iptables-nft-restore: line 1 table name 'nat' invalid\nError occurred at line: 1",
                "table nat",
            ),
            ("iptables v1.8.9 (nf_tables): table 'nat' does not exist", "table nat"),
            ("Table `nat' does not exist", "table nat"),
            (
                "iptables-save v1.8.9 (legacy): Cannot initialize: Table does not exist (do you need to insmod?)",
                "such table",
            ),
            (
                "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument",
                "nf_tables",
            ),
        ] {
            match failure(text) {
                ToolFailure::NoTable { table: named, .. } => assert_eq!(named, table),
                other => panic!("{text}: {other:?}"),
            }
            let unprivileged =
                FailedRun { tool: "iptables", text, lines: 0, code: Some(3), privileged: false }.classify();
            assert!(matches!(unprivileged, ToolFailure::NoPermission { .. }));
        }
        for text in [
            "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)",
            "iptables-nft-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)",
        ] {
            assert!(matches!(failure(text), ToolFailure::NoPermission { .. }), "{text}");
        }
    }

    #[test]
    fn temporary_failures_are_distinguished_from_permanent_ones() {
        for text in [
            "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Resource temporarily unavailable",
            "iptables-restore v1.8.9 (nf_tables): \nline 7: RULE_APPEND failed (Cannot allocate memory): rule in chain A",
            "iptables-restore: line 812 failed: Memory allocation problem.",
            "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Memory allocation problem",
            "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat': Cannot allocate memory",
            "Another app is currently holding the xtables lock. Stopped waiting after 5s.",
        ] {
            assert!(matches!(failure(text), ToolFailure::Exhausted { .. }), "{text}");
        }
        let own_lock = "Fatal: can't open lock file /proc/self/fd/0: Permission denied";
        assert!(matches!(failure(own_lock), ToolFailure::Io { .. }));
    }
}
