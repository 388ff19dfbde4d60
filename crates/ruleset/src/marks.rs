//! Positions of the operations of a batch in its transaction, to map the kernel's errors to operations.

use ferry_kernel::nft::{self, NftBatch};
use ferry_plane::Op;

/// Positions of the operations in a transaction, ascending.
#[derive(Debug, Default)]
pub struct Marks(Vec<Mark>);

/// Position of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// the transaction's position ([`NftBatch::position`]) before the operation was written
    pub position: usize,
    /// the list of the batch that holds the object
    pub op: Op,
    /// the object's index in this list
    pub index: usize,
}

// === impl Marks ===

impl Marks {
    /// No positions, with room for those of so many operations.
    pub fn with_capacity(operations: usize) -> Self {
        Self(Vec::with_capacity(operations))
    }

    /// Writes each of these objects, the list `op` of a batch, to a transaction, and records the positions of those that add
    /// anything to it.
    pub fn write<O>(&mut self, batch: &mut NftBatch, op: Op, objects: &[O], write: impl Fn(&mut NftBatch, &O)) {
        for (index, object) in objects.iter().enumerate() {
            let position = batch.position();
            write(batch, object);
            if batch.position() != position {
                self.record(position, op, index);
            }
        }
    }

    /// Records an operation that begins at this position, which is behind all recorded ones.
    pub fn record(&mut self, position: usize, op: Op, index: usize) {
        self.0.push(Mark { position, op, index });
    }

    /// The operations that an error may refer to: the one at its position, or all of the message if the error has no offset.
    pub fn operations(&self, error: &nft::BatchError) -> Vec<(Op, usize)> {
        let at = |position| self.0.partition_point(|mark| mark.position <= position).saturating_sub(1);
        let (first, last) = match error.error.offset {
            Some(_) => (at(error.position), at(error.position)),
            None => (at(error.message_start), at(error.message_end.saturating_sub(1))),
        };
        let hit = self.0.get(first..=last).unwrap_or_default();
        hit.iter().map(|mark| (mark.op, mark.index)).collect()
    }

    /// All of them.
    pub fn as_slice(&self) -> &[Mark] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use ferry_api::object::Family;
    use ferry_kernel::netlink::MessageError;

    use super::*;

    #[test]
    fn an_error_is_about_the_operation_at_its_place() {
        let mut batch = NftBatch::new(Family::V4, "ours");
        let mut marks = Marks::default();
        let sets = ["a", "b", "unwritten"];
        marks.write(&mut batch, Op::Delete, &sets, |batch, set| {
            if *set != "unwritten" {
                batch.delete_set(set);
            }
        });
        let elements: [u8; 3] = [1, 2, 3];
        marks.write(&mut batch, Op::Create, &elements, |batch, element| {
            batch.add_element("c", &[*element], None, nft::ElementData::None);
        });
        let at: Vec<usize> = marks.as_slice().iter().map(|mark| mark.position).collect();
        let end = batch.position();
        let hit = |offset, position, message_start, message_end| {
            let error = MessageError { sequence: 1, offset, error: io::Error::from_raw_os_error(22), text: None };
            marks.operations(&nft::BatchError { position, message_start, message_end, error })
        };
        let operations = [(Op::Delete, 0), (Op::Delete, 1), (Op::Create, 0), (Op::Create, 1), (Op::Create, 2)];
        assert_eq!(at.len(), operations.len());
        for (position, operation) in at.iter().zip(operations) {
            assert_eq!(hit(Some(1), *position, at[2], end), [operation]);
            assert_eq!(hit(Some(1), *position + 1, at[2], end), [operation]);
        }
        // Without an offset: all operations of the message.
        assert_eq!(hit(None, at[2], at[2], end), operations[2..]);
        assert_eq!(hit(None, at[1], at[1], at[2]), [operations[1]]);
    }
}
