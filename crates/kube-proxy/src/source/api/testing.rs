//! Helpers of this folder's tests.

/// The log lines of an action, from level info on.
pub(super) fn logged(action: impl FnOnce()) -> Vec<String> {
    crate::logging::logged(0, action).lines().map(str::to_owned).collect()
}
