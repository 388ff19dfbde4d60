//! For the tests of this folder.

/// What an action logs from level info on, line by line.
pub(super) fn logged(action: impl FnOnce()) -> Vec<String> {
    crate::logging::logged(0, action).lines().map(str::to_owned).collect()
}
