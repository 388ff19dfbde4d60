//! `--init-only`: looks up the Node, sets kernel parameters and does what else needs more than `CAP_NET_ADMIN` and a writable
//! `/proc/sys`, and ends. The proxy that is started afterwards finds everything set, and writes none of it.

use super::{Configured, inputs};
use crate::app;

/// Initialises the machine for the configured mode, or its first fallback that can start.
pub(super) fn initialize(configured: &Configured) -> anyhow::Result<()> {
    app::initialize(&inputs::options(configured)?, inputs::origin(configured)?)
}
