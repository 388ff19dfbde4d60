//! Insertions into and deletions from a source text, which keep track of the mutants that each inserted part belongs to.

use std::cmp::Reverse;
use std::ops::Range;

/// A part of an inserted text.
#[derive(Debug)]
pub(crate) enum Piece {
    /// needed for all mutants of the group
    Common(String),
    /// needed for this mutant alone
    Own(u32, String),
}

/// A place of the source that is rewritten for some mutants: a number, which is greater for a part of another group's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EditGroup(usize);

/// All edits of one file.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    insertions: Vec<Insertion>,
    deletions: Vec<Range<usize>>,
    /// the mutants of each group
    groups: Vec<Vec<u32>>,
}

#[derive(Debug)]
struct Insertion {
    at: usize,
    group: EditGroup,
    is_first: bool,
    pieces: Vec<Piece>,
}

/// A source text with its edits.
#[derive(Debug, Default)]
pub(crate) struct EditedText {
    pub(crate) text: String,
    regions: Vec<Region>,
}

/// A part of an edited text with the mutants that it is there for.
#[derive(Debug)]
struct Region {
    place: Range<usize>,
    mutants: Vec<u32>,
    is_own: bool,
}

/// The mutants that a compile error is put down to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Culprits<'a> {
    /// the error is in this mutant's own text
    Mutant(u32),
    /// the error is in what these mutants have in common
    Group(&'a [u32]),
}

// === impl Edits ===

impl Edits {
    /// Begins a group of mutants, with the text before its place in the source. Groups begin in the order of the syntax tree, outer
    /// before inner ones.
    pub(crate) fn begin(&mut self, at: usize, mutants: Vec<u32>, pieces: Vec<Piece>) -> EditGroup {
        let group = EditGroup(self.groups.len());
        self.groups.push(mutants);
        self.insertions.push(Insertion { at, group, is_first: true, pieces });
        group
    }

    /// Adds text of a group behind a part of its place.
    pub(crate) fn add(&mut self, group: EditGroup, at: usize, pieces: Vec<Piece>) {
        self.insertions.push(Insertion { at, group, is_first: false, pieces });
    }

    /// Deletes a part of the source.
    pub(crate) fn delete(&mut self, place: Range<usize>) {
        self.deletions.push(place);
    }

    /// The source with all edits.
    pub(crate) fn apply(mut self, source: &str) -> EditedText {
        // At one position inner groups end before outer ones, and then outer ones begin before inner ones.
        let order = |insertion: &Insertion| match insertion {
            Insertion { group, is_first: false, .. } => (0, Reverse(group.0), 0),
            Insertion { group, is_first: true, .. } => (1, Reverse(0), group.0),
        };
        self.insertions.sort_by_key(|insertion| (insertion.at, order(insertion)));
        self.deletions.sort_by_key(|place| place.start);
        let mut edited = EditedText::default();
        let mut places: Vec<Option<Range<usize>>> = vec![None; self.groups.len()];
        let mut at = 0;
        for Insertion { at: next, group, pieces, .. } in self.insertions {
            edited.copy(source, at..next, &self.deletions);
            at = at.max(next);
            let start = edited.text.len();
            pieces.into_iter().for_each(|piece| edited.push(piece));
            if let Some(place) = places.get_mut(group.0) {
                place.get_or_insert(start..start).end = edited.text.len();
            }
        }
        edited.copy(source, at..source.len(), &self.deletions);
        for (place, mutants) in places.into_iter().zip(self.groups) {
            edited.regions.extend(place.map(|place| Region { place, mutants, is_own: false }));
        }
        edited
    }
}

// === impl EditedText ===

impl EditedText {
    /// Appends a part of the source without what is deleted.
    fn copy(&mut self, source: &str, part: Range<usize>, deletions: &[Range<usize>]) {
        let mut at = part.start;
        for deleted in deletions.iter().filter(|deleted| deleted.end > part.start && deleted.start < part.end) {
            self.text.push_str(source.get(at..deleted.start).unwrap_or_default());
            at = at.max(deleted.end.min(part.end));
        }
        self.text.push_str(source.get(at..part.end).unwrap_or_default());
    }

    fn push(&mut self, piece: Piece) {
        match piece {
            Piece::Common(text) => self.text.push_str(&text),
            Piece::Own(mutant, text) => {
                let start = self.text.len();
                self.text.push_str(&text);
                self.regions.push(Region { place: start..self.text.len(), mutants: vec![mutant], is_own: true });
            }
        }
    }

    /// The mutants that the text at this byte is there for, from the smallest part around it.
    pub(crate) fn culprits(&self, at: usize) -> Option<Culprits<'_>> {
        let around = self.regions.iter().filter(|region| region.place.contains(&at) && !region.mutants.is_empty());
        let smallest = around.min_by_key(|region| region.place.len())?;
        Some(match smallest.mutants.as_slice() {
            [mutant] if smallest.is_own => Culprits::Mutant(*mutant),
            mutants => Culprits::Group(mutants),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(text: &str) -> Vec<Piece> {
        vec![Piece::Common(text.to_owned())]
    }

    #[test]
    fn groups_nest_at_a_shared_begin_and_end() {
        let mut edits = Edits::default();
        let outer = edits.begin(0, vec![1], common("["));
        let inner = edits.begin(0, vec![2], common("("));
        edits.add(outer, 3, common("]"));
        edits.add(inner, 3, common(")"));
        let next = edits.begin(3, vec![3], common("<"));
        edits.add(next, 4, common(">"));
        assert_eq!(edits.apply("abcd").text, "[(abc)]<d>");
    }

    #[test]
    fn a_deleted_part_is_left_out_also_where_text_is_inserted() {
        let mut edits = Edits::default();
        let group = edits.begin(0, vec![1], common("f("));
        edits.delete(2..4);
        edits.add(group, 2, common(", "));
        edits.add(group, 6, common(")"));
        assert_eq!(edits.apply("a +  b;").text, "f(a ,  b);");
    }

    #[test]
    fn an_error_belongs_to_the_smallest_part_around_it() {
        let mut edits = Edits::default();
        let outer = edits.begin(0, vec![1, 2], Vec::new());
        let inner = edits.begin(1, vec![1], vec![Piece::Own(1, "OWN".into())]);
        edits.add(inner, 2, common("END"));
        edits.add(outer, 3, Vec::new());
        let edited = edits.apply("abcd");
        assert_eq!(edited.text, "aOWNbENDcd");
        assert_eq!(edited.culprits(2), Some(Culprits::Mutant(1)));
        assert_eq!(edited.culprits(5), Some(Culprits::Group(&[1])));
        assert_eq!(edited.culprits(8), Some(Culprits::Group(&[1, 2])));
        assert_eq!(edited.culprits(9), None);
    }
}
