//! Buffers the piece of a body (a frame, an item, a field) that has not arrived completely, up to a limit.

use std::ops::Deref;

use super::{MAX_OBJECT_BYTES, StreamError};

/// Capacity of the buffer that is kept from one piece to the next, in bytes: enough for almost all objects. The rest is freed.
const KEPT_BYTES: usize = 32 << 10;

/// Collects the beginning of a piece.
#[derive(Debug, Default)]
pub(super) struct Pending(Vec<u8>);

/// A whole piece.
pub(super) enum Piece<'i> {
    /// it lies within what was pushed
    Pushed(&'i [u8]),
    /// it came in parts
    Collected(Vec<u8>),
}

// === impl Pending ===

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds bytes to a piece that must not grow beyond the limit.
    pub(super) fn extend(&mut self, bytes: &[u8], limit: usize) -> Result<(), StreamError> {
        let wanted = self.0.len() + bytes.len();
        if wanted > limit {
            return Err(StreamError::TooLarge { bytes: MAX_OBJECT_BYTES as u64 });
        }
        if wanted > self.0.capacity() {
            // Doubling, so that many small parts don't copy it each time, but never beyond the limit.
            let capacity = wanted.max(2 * self.0.capacity()).min(limit);
            self.0.reserve_exact(capacity - self.0.len());
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// Adds the last bytes of the piece and takes it as a whole.
    pub(super) fn complete<'i>(&mut self, last: &'i [u8], limit: usize) -> Result<Piece<'i>, StreamError> {
        if self.0.is_empty() && last.len() <= limit {
            return Ok(Piece::Pushed(last));
        }
        self.extend(last, limit)?;
        Ok(Piece::Collected(std::mem::take(&mut self.0)))
    }

    /// Takes as many bytes of the input as a piece of this length still needs; returns the piece once it is complete.
    pub(super) fn take<'i>(&mut self, input: &mut &'i [u8], length: usize) -> Result<Option<Piece<'i>>, StreamError> {
        match input.split_at_checked(length.saturating_sub(self.0.len())) {
            Some((last, rest)) => {
                *input = rest;
                self.complete(last, length).map(Some)
            }
            None => {
                self.extend(input, length)?;
                *input = &[];
                Ok(None)
            }
        }
    }

    /// Gives the memory of a piece back, most of it for the next.
    pub(super) fn recycle(&mut self, piece: Piece<'_>) {
        if let Piece::Collected(mut bytes) = piece {
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES);
            self.0 = bytes;
        }
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

// === impl Piece ===

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Pushed(bytes) => bytes,
            Self::Collected(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOO_LARGE: StreamError = StreamError::TooLarge { bytes: MAX_OBJECT_BYTES as u64 };

    #[test]
    fn the_buffer_doubles_up_to_the_limit() {
        let mut pending = Pending::default();
        for wanted in [1, 2, 4, 4, 8, 8, 8, 8, 10, 10] {
            pending.extend(b"x", 10).unwrap();
            assert_eq!(pending.capacity(), wanted);
        }
        assert_eq!(pending.extend(b"x", 10), Err(TOO_LARGE));
        assert!(matches!(pending.complete(b"", 10), Ok(Piece::Collected(bytes)) if bytes == b"xxxxxxxxxx"));
    }

    #[test]
    fn a_piece_that_comes_as_a_whole_is_not_copied() {
        let mut pending = Pending::default();
        assert!(matches!(pending.complete(b"abc", 3), Ok(Piece::Pushed(b"abc"))));
        assert_eq!(pending.capacity(), 0);
        assert_eq!(pending.complete(b"abcd", 3).map(|piece| piece.len()), Err(TOO_LARGE));
    }

    #[test]
    fn the_memory_of_a_piece_is_kept_for_the_next_up_to_a_limit() {
        for (length, kept) in [(100, 100), (KEPT_BYTES, KEPT_BYTES), (KEPT_BYTES + 1, KEPT_BYTES)] {
            let mut pending = Pending::default();
            pending.extend(&vec![1; length], MAX_OBJECT_BYTES).unwrap();
            let piece = pending.complete(b"", MAX_OBJECT_BYTES).unwrap();
            assert_eq!((piece.len(), pending.capacity()), (length, 0));
            pending.recycle(piece);
            assert_eq!((pending.is_empty(), pending.capacity()), (true, kept));
        }
    }
}
