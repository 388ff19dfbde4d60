//! The error type of configuration files: decoding errors and locked feature gates.

use thiserror::Error;

/// A configuration file that can't be used. The texts are upstream's, without the `failed complete: ` that the program
/// puts before them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// no YAML, not a KubeProxyConfiguration, or a field of the wrong type
    #[error("failed to decode: {message}{}", at(*.line, *.column))]
    Decode {
        /// 1-based line, where known
        line: Option<usize>,
        /// 1-based column, where known
        column: Option<usize>,
        /// the cause
        message: String,
    },
    /// a feature gate that is locked to the other value
    #[error("cannot set feature gate {name} to {value}, feature is locked to {locked}")]
    Gate {
        /// the gate
        name: String,
        /// the requested value
        value: bool,
        /// the only value it can have
        locked: bool,
    },
}

fn at(line: Option<usize>, column: Option<usize>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!(" (line {line}, column {column})"),
        (Some(line), None) => format!(" (line {line})"),
        (None, _) => String::new(),
    }
}
