//! Streaming gzip decoder: decodes as much as has been received.

use std::fmt;
use std::io::{self, Write as _};

use flate2::write::MultiGzDecoder;
use hyper::body::Bytes;

/// Input decoded in one step, which bounds its output.
const STEP_BYTES: usize = 256;

/// Decoded bytes that are collected before they are returned.
const OUTPUT_BYTES: usize = 32 << 10;

/// The most bytes that deflate expands one byte to: four copies of 258 bytes, with codes of one bit for length and distance.
const MAX_EXPANSION: usize = 1032;

/// Decompresses a stream of gzip members, one after the other, in chunks of bounded size.
pub struct Gunzip {
    decoder: MultiGzDecoder<Vec<u8>>,
    /// received and not decoded yet
    pending: Bytes,
}

// === impl Gunzip ===

impl Gunzip {
    /// The size of the largest chunk: less than what is collected before a step, and the output of this step. The decoder keeps less
    /// than one byte's output from the step before.
    pub const MAX_CHUNK_BYTES: usize = OUTPUT_BYTES + (STEP_BYTES + 1) * MAX_EXPANSION;

    /// A decoder without input.
    pub fn new() -> Self {
        Self { decoder: MultiGzDecoder::new(Vec::new()), pending: Bytes::new() }
    }

    /// Adds received bytes. To be called when [`Self::chunk`] has returned `None`.
    pub fn push(&mut self, bytes: Bytes) {
        self.pending = bytes;
    }

    /// The next chunk of the content, never empty and at most [`Self::MAX_CHUNK_BYTES`]; `None` if more input is needed.
    ///
    /// # Errors
    /// If the input is no gzip, or a checksum doesn't match.
    pub fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        while !self.pending.is_empty() && self.decoder.get_ref().len() < OUTPUT_BYTES {
            let step = self.pending.split_to(self.pending.len().min(STEP_BYTES));
            self.decoder.write_all(&step)?;
            self.decoder.flush()?;
        }
        let decoded = std::mem::take(self.decoder.get_mut());
        Ok((!decoded.is_empty()).then(|| Bytes::from(decoded)))
    }

    /// Ends the input; returns the last chunk, if there is one.
    ///
    /// # Errors
    /// If the last member is incomplete.
    pub fn finish(&mut self) -> io::Result<Option<Bytes>> {
        self.decoder.try_finish()?;
        self.chunk()
    }
}

impl Default for Gunzip {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gunzip").field("pending_bytes", &self.pending.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Everything, and the largest piece.
    fn decode(packed: &[u8], chunk: usize) -> io::Result<(Vec<u8>, usize)> {
        let mut gunzip = Gunzip::new();
        let mut out = Vec::new();
        let mut largest = 0;
        let mut take = |bytes: Bytes| {
            largest = largest.max(bytes.len());
            out.extend_from_slice(&bytes);
        };
        for chunk in packed.chunks(chunk) {
            gunzip.push(Bytes::copy_from_slice(chunk));
            while let Some(bytes) = gunzip.chunk()? {
                take(bytes);
            }
        }
        if let Some(bytes) = gunzip.finish()? {
            take(bytes);
        }
        Ok((out, largest))
    }

    #[test]
    fn any_chunks_and_several_members() {
        let text: Vec<u8> = (0..40_000_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let packed = [gzip(&text), gzip(b"and more"), gzip(b"")].concat();
        let wanted = [&text[..], b"and more"].concat();
        for chunk in [1, 7, 255, 256, 257, 8192, packed.len()] {
            assert!(decode(&packed, chunk).unwrap().0 == wanted, "{chunk}");
        }
    }

    #[test]
    fn a_bomb_comes_in_pieces() {
        let packed = gzip(&vec![0; 64 << 20]);
        let (content, largest) = decode(&packed, packed.len()).unwrap();
        assert_eq!(content.len(), 64 << 20);
        assert!(largest <= Gunzip::MAX_CHUNK_BYTES, "{largest}");
    }

    #[test]
    fn what_is_sent_so_far_can_be_read_so_far() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"first").unwrap();
        encoder.flush().unwrap();
        let mut gunzip = Gunzip::new();
        gunzip.push(Bytes::from(encoder.get_ref().clone()));
        assert_eq!(gunzip.chunk().unwrap().as_deref(), Some(&b"first"[..]));
        assert_eq!(gunzip.chunk().unwrap(), None);
        assert!(gunzip.finish().is_err());
    }

    #[test]
    fn broken_ones_are_errors() {
        let packed = gzip(b"some text, long enough to be cut");
        for end in 0..packed.len() {
            assert!(decode(&packed[..end], 5).is_err(), "{end}");
        }
        let mut damaged = packed.clone();
        let last = damaged.len() - 6;
        damaged[last] ^= 1;
        assert!(decode(&damaged, 64).is_err());
        assert!(decode(b"no gzip at all", 64).is_err());
    }
}
