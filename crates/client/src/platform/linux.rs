//! Linux.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// A plugin's process group, killed on drop. `None` once the plugin has exited by itself: processes that it left behind are
/// meant to stay.
#[derive(Debug)]
pub(crate) struct ProcessGroup(Option<Pid>);

/// Ends a connection whose bytes are not acknowledged for this long.
pub(crate) fn limit_unacknowledged<R>(connector: &mut HttpConnector<R>, limit: Duration) {
    connector.set_tcp_user_timeout(Some(limit));
}

// === impl ProcessGroup ===

impl ProcessGroup {
    /// Starts this command in a group of its own.
    pub(crate) fn prepare(command: &mut Command) {
        command.process_group(0);
    }

    /// The group of a child that was started so.
    pub(crate) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// The plugin has exited.
    pub(crate) fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // A shell's children hold its pipes, so that killing the shell alone isn't enough. They may have exited already.
            let _gone = kill_process_group(leader, Signal::KILL);
        }
    }
}
