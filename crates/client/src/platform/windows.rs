//! Windows, where a program is ended without those that it has started: such a plugin's processes go on after its time limit, and
//! nothing waits for their output.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use tokio::process::{Child, Command};

/// `CREATE_NEW_PROCESS_GROUP`: Ctrl-C in the proxy's console is not the plugin's.
const NEW_PROCESS_GROUP: u32 = 0x200;

/// A plugin, which its handle kills on drop ([`Command::kill_on_drop`]).
#[derive(Debug)]
pub(crate) struct ProcessGroup;

/// Ends a connection whose bytes are not acknowledged: the system does so after five attempts, some ten to twenty seconds.
pub(crate) fn limit_unacknowledged<R>(_connector: &mut HttpConnector<R>, _limit: Duration) {}

// === impl ProcessGroup ===

impl ProcessGroup {
    /// Starts this command in a group of its own.
    pub(crate) fn prepare(command: &mut Command) {
        command.creation_flags(NEW_PROCESS_GROUP);
    }

    /// The group of a child that was started so.
    pub(crate) fn of(_child: &Child) -> Self {
        Self
    }

    /// The plugin has exited.
    pub(crate) fn release(&mut self) {}
}
