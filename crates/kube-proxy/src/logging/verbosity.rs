//! Selects the lines that are logged: `-v`, and `--vmodule` by source file.

use ferry_api::config::VModule;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Target of informational messages that appear from `-v=1`.
pub const V1: &str = "ferry_kube_proxy/v1";
/// Target of traces that appear from `-v=6`: each decision about a Service.
pub const V6: &str = "ferry_kube_proxy/v6";

/// Prefix of Ferry's crate names, and so of its messages' targets.
const OURS: &str = "ferry_";

/// Names of upstream's source files that `--vmodule` of existing command lines raises, and Ferry's files with the same task.
const UPSTREAM: &[(&str, &[&str])] = &[
    ("bounded_frequency_runner", &["kube-proxy/engine_loop", "kube-proxy/report/*"]),
    ("cleanup", &["kube-proxy/flows/*", "kube-proxy/handover"]),
    ("config", &["kube-proxy/core/object_log"]),
    ("conntrack", &["kube-proxy/flows/*", "kube-proxy/platform/tracking"]),
    ("endpointschangetracker", &["kube-proxy/core/object_log"]),
    ("endpointslicecache", &["kube-proxy/core/object_log"]),
    ("proxier", &["kube-proxy/core", "kube-proxy/core/*", "kube-proxy/engine_loop", "kube-proxy/report/*"]),
    ("proxy_health", &["kube-proxy/health/*", "kube-proxy/serve/healthz"]),
    ("reflector", &["kube-proxy/source/api/*"]),
    ("round_trippers", &["client/*"]),
    ("server", &["kube-proxy/app", "kube-proxy/commands/*", "kube-proxy/planes/*"]),
    ("server_linux", &["kube-proxy/app", "kube-proxy/platform/*", "kube-proxy/planes/*"]),
    ("service_health", &["kube-proxy/serve/service_health/*"]),
    ("servicechangetracker", &["kube-proxy/core/object_log"]),
    ("topology", &["kube-proxy/core/object_log"]),
];

/// The lines that are logged.
#[derive(Clone, Debug)]
pub(super) struct Verbosity {
    level: u32,
    /// warnings and errors alone, at level 0
    is_terse: bool,
    /// the first one that matches a file counts
    patterns: Vec<VModule>,
}

/// The `-v` from which an event of ours is logged.
pub(super) fn level_of(metadata: &Metadata<'_>) -> u32 {
    match metadata.target() {
        V1 => 1,
        V6 => 6,
        _ => match *metadata.level() {
            Level::ERROR | Level::WARN | Level::INFO => 0,
            Level::DEBUG => 2,
            Level::TRACE => 4,
        },
    }
}

// === impl Verbosity ===

impl Verbosity {
    pub(super) fn new(level: u32, patterns: &[VModule]) -> Self {
        Self { level, is_terse: false, patterns: patterns.to_vec() }
    }

    /// The same, but without informational lines at level 0.
    pub(super) fn terse(level: u32, patterns: &[VModule]) -> Self {
        Self { is_terse: level == 0, ..Self::new(level, patterns) }
    }

    /// Changes `-v`.
    pub(super) fn set_level(&mut self, level: u32) {
        self.level = level;
    }

    fn logs(&self, metadata: &Metadata<'_>) -> bool {
        if self.is_terse || !metadata.target().starts_with(OURS) {
            // Libraries' own messages below warnings are of no use to operators.
            return *metadata.level() <= Level::WARN;
        }
        let level = level_of(metadata);
        level <= self.level || metadata.file().is_some_and(|file| level <= self.level_of_file(file))
    }

    fn level_of_file(&self, path: &str) -> u32 {
        let module = module(path);
        let found = self.patterns.iter().find(|pattern| names(&pattern.file_pattern, &module));
        found.map_or(0, |pattern| pattern.verbosity)
    }
}

impl<S> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.logs(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.logs(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let levels = self.patterns.iter().map(|pattern| pattern.verbosity);
        Some(match levels.chain([self.level]).max() {
            None | Some(0 | 1) => LevelFilter::INFO,
            Some(2 | 3) => LevelFilter::DEBUG,
            Some(_) => LevelFilter::TRACE,
        })
    }
}

/// Path of a source file from its crate on, without `src` and the suffix; that of `mod.rs` is its folder's:
/// `kube-proxy/source/api/plan`.
fn module(path: &str) -> String {
    let path = path.rsplit_once("crates/").map_or(path, |(_, rest)| rest);
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.replacen("/src/", "/", 1)
}

/// True if a pattern of `--vmodule` names this module: by the file's name, with a slash by its path, or by the name of upstream's
/// file with the same task.
fn names(pattern: &str, module: &str) -> bool {
    let file = module.rsplit_once('/').map_or(module, |(_, file)| file);
    let by_name = if pattern.contains('/') { matches(pattern, module) } else { matches(pattern, file) };
    by_name
        || UPSTREAM
            .iter()
            .any(|(upstream, ours)| matches(pattern, upstream) && ours.iter().any(|pattern| matches(pattern, module)))
}

/// True if the pattern matches the whole text: `*` stands for any characters but a slash, `?` for one of them.
fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => {
            let end = text.find('/').unwrap_or(text.len());
            let tails = text.char_indices().map(|(at, _)| at).chain([text.len()]).take_while(|at| *at <= end);
            tails.filter_map(|at| text.get(at..)).any(|tail| matches(rest.as_str(), tail))
        }
        Some(wanted) => {
            let mut tail = text.chars();
            let is_one = |found: char| found == wanted || (wanted == '?' && found != '/');
            tail.next().is_some_and(is_one) && matches(rest.as_str(), tail.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_paths_from_the_crate_on() {
        for (path, wanted) in [
            ("crates/kube-proxy/src/core.rs", "kube-proxy/core"),
            ("/build/crates/kube-proxy/src/source/api/mod.rs", "kube-proxy/source/api"),
            ("crates/client/src/exec/run.rs", "client/exec/run"),
        ] {
            assert_eq!(module(path), wanted);
        }
    }

    #[test]
    fn patterns_name_files_paths_and_files_of_upstream() {
        for (pattern, module, wanted) in [
            ("reporter", "kube-proxy/report/reporter", true),
            ("report*", "kube-proxy/report/reporter", true),
            ("repor?er", "kube-proxy/report/reporter", true),
            ("report", "kube-proxy/report/reporter", false),
            ("kube-proxy/report/*", "kube-proxy/report/reporter", true),
            ("*/report/*", "kube-proxy/report/reporter", true),
            ("kube-proxy/*", "kube-proxy/report/reporter", false),
            ("kube-proxy?report/*", "kube-proxy/report/reporter", false),
            ("*", "kube-proxy/report/reporter", true),
            ("api", "kube-proxy/source/api", true),
            ("proxier", "kube-proxy/core/object_log", true),
            ("proxier", "kube-proxy/app", false),
            ("server*", "kube-proxy/app", true),
            ("conntrack", "kube-proxy/flows/cleaner", true),
        ] {
            assert_eq!(names(pattern, module), wanted, "{pattern} {module}");
        }
    }

    #[test]
    fn names_of_upstream_are_sorted() {
        assert!(UPSTREAM.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn the_first_pattern_of_a_file_counts() {
        let pattern = |file_pattern: &str, verbosity| VModule { file_pattern: file_pattern.to_owned(), verbosity };
        let verbosity = Verbosity::new(1, &[pattern("core", 4), pattern("c*", 9)]);
        let levels =
            ["crates/kube-proxy/src/core.rs", "crates/kube-proxy/src/core/cut.rs", "crates/kube-proxy/src/app.rs"]
                .map(|path| verbosity.level_of_file(path));
        assert_eq!(levels, [4, 9, 0]);
    }
}
