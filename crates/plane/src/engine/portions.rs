//! Portions of a large group of new units, committed one after the other.

use crate::attempt::Change;

/// True if the group only adds units, and so can be split: no frontend passes from one unit to another.
pub(super) fn only_adds(group: &[Change]) -> bool {
    group.iter().all(|change| change.before.is_none())
}

/// Groups to commit one after the other, the first at the end. Many units that come at once take less memory in portions,
/// and the first ones serve earlier.
pub(super) fn portions(mut group: Vec<Change>, portion: usize) -> Vec<Vec<Change>> {
    if group.len() <= portion || !only_adds(&group) {
        return vec![group];
    }
    let mut groups = Vec::new();
    while group.len() > portion {
        groups.push(group.split_off(group.len() - portion));
    }
    groups.push(group);
    groups
}
