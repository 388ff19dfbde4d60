//! Batches: the operations of one commit, and their canonical order, which a kernel half without atomic commits follows.

/// The operations of one commit, merged by key over all units: a key that one unit drops and another wants is a `replace`. No
/// key is in two of the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<O> {
    /// sorted by rank, low to high
    pub create: Vec<O>,
    /// new content of each object; sorted by rank, low to high
    pub replace: Vec<O>,
    /// deleted objects; sorted by rank, high to low
    pub delete: Vec<O>,
}

/// A list of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// [`Batch::create`]
    Create,
    /// [`Batch::replace`]
    Replace,
    /// [`Batch::delete`]
    Delete,
}

// === impl Batch ===

impl<O> Batch<O> {
    /// The number of operations.
    pub fn len(&self) -> usize {
        self.create.len() + self.replace.len() + self.delete.len()
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The operations in the canonical order, each with its list and the index in it: creations by rising rank,
    /// replacements, deletions by falling rank. A kernel half that is not atomic works in this order: then no object refers
    /// to one that is missing, and none that is there before and after is missing at any step between (make before break).
    pub fn operations(&self) -> impl Iterator<Item = (Op, usize, &O)> {
        let of = |op, objects: &'_ [O]| (0..objects.len()).map(move |index| (op, index));
        let all =
            of(Op::Create, &self.create).chain(of(Op::Replace, &self.replace)).chain(of(Op::Delete, &self.delete));
        all.zip(self.create.iter().chain(&self.replace).chain(&self.delete))
            .map(|((op, index), object)| (op, index, object))
    }
}

impl<O> Default for Batch<O> {
    fn default() -> Self {
        Self { create: Vec::new(), replace: Vec::new(), delete: Vec::new() }
    }
}
