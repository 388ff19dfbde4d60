//! Why the tool did not do it, by what the caller does next: read from what it prints.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Version;
use crate::text::is_printable;

/// Characters of the tool's own words that are kept.
const TEXT: usize = 500;

/// Why nothing was read or written.
///
/// `tool` is always the name of the program that was run, or that was looked for.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// it is not installed: no folder of `PATH` has it
    #[error("there is no {tool} in PATH")]
    Missing {
        /// what was looked for
        tool: String,
    },
    /// it cannot do what is needed of it
    #[error("{tool} is of version {version}, and {needs} is the first that can be used")]
    TooOld {
        /// which
        tool: String,
        /// its version
        version: Version,
        /// at least this
        needs: Version,
    },
    /// this process may not: the tool says so, or it says that there is no table, and the process has no `CAP_NET_ADMIN`
    #[error("{tool}: permission denied: CAP_NET_ADMIN and, to load modules, CAP_NET_RAW or root are needed")]
    NoPermission {
        /// which
        tool: String,
    },
    /// the kernel has none, by the tool's words. "unable to initialize table" without a cause is taken for this; with that of
    /// too little memory it is [`Failure::Exhausted`]
    #[error("{tool}: this kernel has no {table}: is its module loaded?")]
    NoTable {
        /// which
        tool: String,
        /// `table nat`, or `nf_tables`
        table: String,
    },
    /// the lock file of the legacy variant cannot be made or opened
    #[error(
        "the lock file {path} of iptables cannot be opened: {error}: its folder must exist and be writable, or XTABLES_LOCKFILE \
         must name another file that all programs use"
    )]
    NoLockFile {
        /// where
        path: PathBuf,
        /// why
        #[source]
        error: io::Error,
    },
    /// somebody else has held the lock all the time
    #[error("another program has held the lock {path} for {bound:?}")]
    Locked {
        /// the file
        path: PathBuf,
        /// how long this was waited for
        bound: Duration,
    },
    /// it took too long, and was killed. What it had committed until then stays
    #[error("{tool} was not done within {after:?} and was killed")]
    TimedOut {
        /// which
        tool: String,
        /// the bound, of a run that reads nothing: see `Environment::run_time`
        after: Duration,
    },
    /// somebody killed it. What it had committed until then stays
    #[error("{tool} was killed by signal {signal}")]
    Killed {
        /// which
        tool: String,
        /// by what
        signal: i32,
    },
    /// it printed something that is no rule set
    #[error("{tool} printed what cannot be understood, in line {line}: {text}")]
    Garbage {
        /// which
        tool: String,
        /// from 1
        line: usize,
        /// the beginning of the line, or what is wrong with all
        text: String,
    },
    /// the kernel lacks memory, or changed under the tool's hands: do it again
    #[error("{tool}: {text}")]
    Exhausted {
        /// which
        tool: String,
        /// of the text that it was given, from 1, where it names one: sections that were committed before stay
        line: Option<usize>,
        /// its words
        text: String,
    },
    /// the tool or the kernel does not take what was given. Sections that were committed before stay
    #[error("{tool} refused: {text}")]
    Refused {
        /// which
        tool: String,
        /// of the text that it was given, from 1; that of a COMMIT if the kernel does not say which rule it was
        line: Option<usize>,
        /// all that it names, the first one included: the nft variant says what the kernel did not take at once
        lines: Vec<usize>,
        /// its words
        text: String,
        /// a chain, rule or object that is named there does not exist. The legacy variant seldom says it
        missing: bool,
    },
    /// it could not be run
    #[error("{tool} cannot be run: {error}")]
    Io {
        /// which
        tool: String,
        /// why
        #[source]
        error: io::Error,
    },
}

/// What the tool printed to standard error when it failed, and what else tells why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Complaint<'a> {
    /// its name
    pub(super) tool: &'a str,
    /// all, or the beginning
    pub(super) text: &'a str,
    /// of it, if it ended by itself
    pub(super) code: Option<i32>,
    /// whether this process may change the network: the legacy variant does not say it
    pub(super) privileged: bool,
}

// === impl Complaint ===

impl<'a> Complaint<'a> {
    /// The failure that this tells of.
    pub(super) fn failure(self) -> Failure {
        let tool = self.tool.to_owned();
        let has = |words: &[&str]| words.iter().any(|words| self.text.contains(words));
        // What a shell and the dynamic loader end with: the tool itself has not run. Its lock is a pipe of its own.
        if matches!(self.code, Some(126 | 127)) || has(&["can't open lock file"]) {
            return Failure::Io { tool, error: io::Error::other(self.words()) };
        }
        if has(&["Permission denied", "you must be root", "Operation not permitted"]) {
            return Failure::NoPermission { tool };
        }
        let exhausted = [
            "Resource temporarily unavailable",
            "Cannot allocate memory",
            // libip4tc's words for the same
            "Memory allocation problem",
            "No buffer space available",
            "Interrupted system call",
            "Too many open files",
            "holding the xtables lock",
        ];
        if has(&exhausted) {
            return Failure::Exhausted { tool, line: self.named().first().copied(), text: self.words() };
        }
        if let Some(table) = self.table() {
            return if self.privileged { Failure::NoTable { tool, table } } else { Failure::NoPermission { tool } };
        }
        let missing = has(&[
            "No chain/target/match by that name",
            "(No such file or directory)",
            "does a matching rule exist in that chain",
            "Couldn't load target `",
        ]) || (has(&["Chain '"]) && has(&["' does not exist"]));
        let lines = self.named();
        Failure::Refused { tool, line: lines.first().copied(), lines, text: self.words(), missing }
    }

    /// What the kernel does not have.
    fn table(self) -> Option<String> {
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

    /// The lines that say something, without the tool's name and version before them.
    fn lines(self) -> impl Iterator<Item = &'a str> {
        let noise = ["# Warning: ", "Try `", "Perhaps "];
        let telling = move |line: &&str| !line.is_empty() && !noise.iter().any(|noise| line.starts_with(noise));
        self.text.lines().map(without_name).filter(telling)
    }

    /// The lines of the input that the tool names.
    fn named(self) -> Vec<usize> {
        let number = |line: &str| {
            let before = ["Error occurred at line: ", "COMMIT expected at line ", "Bad line ", "line "];
            let rest = before.iter().find_map(|before| line.strip_prefix(before))?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        self.lines().filter_map(number).collect()
    }

    /// All that it says, in one line.
    fn words(self) -> String {
        let mut words = String::new();
        for line in self.lines() {
            words.push_str(if words.is_empty() { "" } else { "; " });
            words.push_str(line);
        }
        if words.is_empty() {
            words = self.code.map_or_else(|| "it failed".to_owned(), |code| format!("it ended with status {code}"));
        }
        shortened(&words)
    }
}

/// The text of a line behind `iptables-restore: ` and `iptables-restore v1.8.9 (legacy): `, which may both stand there.
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

/// The first characters, with those replaced that a terminal would interpret instead of showing.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(TEXT).map(|c| if is_printable(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Failure {
        Complaint { tool: "iptables-restore", text, code: Some(1), privileged: true }.failure()
    }

    /// Words of several releases; those of this machine's are tested where the tool is run.
    #[test]
    fn refusals_have_lines_and_words() {
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
            ("", None, "it ended with status 1", false),
            ("\u{1b}[1mline: x\0\n", None, "\u{fffd}[1mline: x\u{fffd}", false),
            ("line 7 failed\r\u{9b}2J\u{202e}\n", Some(7), "line 7 failed\u{fffd}\u{fffd}2J\u{fffd}", false),
            ("line 99999999999999999999 failed", None, "line 99999999999999999999 failed", false),
        ] {
            match failure(text) {
                Failure::Refused { line: at, text: said, missing: is, .. } => {
                    assert_eq!((at, said.as_str(), is), (line, words, missing));
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let Failure::Refused { text, .. } = failure(&"ä".repeat(4000)) else { panic!() };
        assert_eq!(text.chars().count(), TEXT);
    }

    #[test]
    fn tables_that_the_kernel_lacks_are_told_from_missing_permission() {
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
                Failure::NoTable { table: named, .. } => assert_eq!(named, table),
                other => panic!("{text}: {other:?}"),
            }
            let unprivileged = Complaint { tool: "iptables", text, code: Some(3), privileged: false }.failure();
            assert!(matches!(unprivileged, Failure::NoPermission { .. }));
        }
        for text in [
            "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)",
            "iptables-nft-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)",
        ] {
            assert!(matches!(failure(text), Failure::NoPermission { .. }), "{text}");
        }
    }

    #[test]
    fn what_passes_is_told_from_what_stays() {
        for text in [
            "iptables-restore v1.8.9 (nf_tables): Could not fetch rule set generation id: Resource temporarily unavailable",
            "iptables-restore v1.8.9 (nf_tables): \nline 7: RULE_APPEND failed (Cannot allocate memory): rule in chain A",
            "iptables-restore: line 812 failed: Memory allocation problem.",
            "iptables v1.8.9 (legacy): can't initialize iptables table `nat': Memory allocation problem",
            "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'nat': Cannot allocate memory",
            "Another app is currently holding the xtables lock. Stopped waiting after 5s.",
        ] {
            assert!(matches!(failure(text), Failure::Exhausted { .. }), "{text}");
        }
        let own_lock = "Fatal: can't open lock file /proc/self/fd/0: Permission denied";
        assert!(matches!(failure(own_lock), Failure::Io { .. }));
    }
}
