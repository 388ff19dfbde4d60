//! Black-box tests of the executable: flags, configuration, error texts, exit codes, HTTP, signals, clean-up. Needs root and the
//! tools `nft`, `iptables` (both variants), `setpriv` and `unshare`, and Chromium; everything runs in network namespaces of its own.
#![expect(clippy::expect_used, clippy::panic, reason = "the helpers of a test fail as tests do")]

mod browser;
mod clock;
mod command_line;
mod control;
mod events;
mod explain;
mod fallback;
mod field;
mod http;
mod log;
mod modes;
mod pictures;
mod plugin;
mod privileges;
mod profile;
mod reload;
mod render;
mod self_test;
mod service;
mod snapshot;
mod start;
mod support;
mod ui;
mod ways;
