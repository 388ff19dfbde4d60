//! The reported version.
//!
//! Scripts read `Kubernetes vX.Y.Z`, and compare X.Y with the other components of a node; so the answer is the
//! upstream version whose behaviour this build reproduces. Ferry's own version stands in `--version=raw`, in the
//! metric `kubernetes_build_info` and in the first log line.
//!
//! The version stands here alone. The lane that builds upstream's programs, and documents, have it too, and a test compares them.

/// The upstream version whose behaviour this build reproduces.
pub const UPSTREAM: &str = "v1.36.3";
/// Ferry's own version.
pub const FERRY: &str = env!("CARGO_PKG_VERSION");

/// The first two numbers of the upstream version.
pub fn major_and_minor() -> (&'static str, &'static str) {
    let mut numbers = UPSTREAM.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default();
    (next(), next())
}

/// Upstream's version with Ferry's as build metadata: `vX.Y.Z+ferry.0.1.0`.
pub fn full() -> String {
    format!("{UPSTREAM}+ferry.{FERRY}")
}

/// The operating system and processor, as Go names them.
pub fn platform() -> String {
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    };
    format!("{}/{processor}", std::env::consts::OS)
}

/// The line of `--version=raw`.
pub fn raw() -> String {
    let (major, minor) = major_and_minor();
    format!(
        "version.Info{{Major:\"{major}\", Minor:\"{minor}\", EmulationMajor:\"\", EmulationMinor:\"\", \
         MinCompatibilityMajor:\"\", MinCompatibilityMinor:\"\", GitVersion:\"{}\", GitCommit:\"\", \
         GitTreeState:\"\", BuildDate:\"\", GoVersion:\"\", Compiler:\"rustc\", Platform:\"{}\"}}",
        full(),
        platform()
    )
}

/// The version that `--version=TEXT` reports instead: upstream's version with a suffix; `None` for any other text.
pub fn reported_as(text: &str) -> Option<&str> {
    let suffix = text.strip_prefix(UPSTREAM)?;
    (suffix.is_empty() || suffix.starts_with(['-', '+'])).then_some(text)
}

#[cfg(test)]
mod tests;
