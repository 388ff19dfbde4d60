//! The reported version.
//!
//! Scripts read `Kubernetes vX.Y.Z`, and compare X.Y with the other components of a node; so the answer is the
//! upstream version whose behaviour this build reproduces. Ferry's own version stands in `--version=raw`, in the
//! metric `kubernetes_build_info` and in the first log line.

/// The upstream version whose behaviour this build reproduces.
pub const UPSTREAM: &str = "v1.36.3";
/// Its component.
pub const MAJOR: &str = "1";
/// Its component.
pub const MINOR: &str = "36";
/// Ferry's own version.
pub const FERRY: &str = env!("CARGO_PKG_VERSION");

/// Upstream's version with Ferry's as build metadata: `v1.36.2+ferry.0.1.0`.
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
    format!(
        "version.Info{{Major:\"{MAJOR}\", Minor:\"{MINOR}\", EmulationMajor:\"\", EmulationMinor:\"\", \
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
