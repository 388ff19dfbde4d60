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

#[cfg(test)]
mod tests {
    use ferry_api::object::ObjectName;

    use super::*;
    use crate::UnitId;

    /// The sizes of the portions of so many new units, in the order of their commits.
    fn sizes(units: usize, portion: usize) -> Vec<usize> {
        let id = |index: usize| UnitId::Service(ObjectName::new("default", &format!("{index:02}")));
        let group: Vec<Change> = (0..units).map(|index| Change { id: id(index), before: None, after: None }).collect();
        let groups: Vec<Vec<Change>> = portions(group.clone(), portion).into_iter().rev().collect();
        assert!(groups.iter().flatten().map(|change| &change.id).eq(group.iter().map(|change| &change.id)));
        groups.iter().map(Vec::len).collect()
    }

    #[test]
    fn the_first_portion_is_the_smaller_one_and_none_is_empty() {
        assert_eq!(sizes(3, 3), [3]);
        assert_eq!(sizes(4, 3), [1, 3]);
        assert_eq!(sizes(6, 3), [3, 3]);
        assert_eq!(sizes(8, 3), [2, 3, 3]);
    }
}
