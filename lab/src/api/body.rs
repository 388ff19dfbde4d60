//! Writes response bodies in chunks and applies scripted faults to them.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::connection::{Connection, Cut, Limits};
use super::fault::FaultAction;

/// Chunks are buffered up to about this many bytes and written together: one TLS record.
const TOGETHER: usize = 16 * 1024;

/// A body of unknown length: each piece of content is one chunk.
pub(super) struct ChunkedBody<'a> {
    pub(super) connection: &'a mut Connection,
    limits: Limits,
    zip: Option<Zip>,
    /// content bytes left before a clean end
    left: Option<usize>,
    pending: Vec<u8>,
}

enum Zip {
    Stream(GzEncoder<Vec<u8>>),
    Members,
}

/// True if an action compresses the body.
pub(super) fn is_zipped(action: Option<&FaultAction>) -> bool {
    matches!(action, Some(FaultAction::Gzip | FaultAction::GzipMembers | FaultAction::GzipBomb { .. }))
}

fn gzip() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::new(), Compression::fast())
}

// === impl ChunkedBody ===

impl<'a> ChunkedBody<'a> {
    /// Starts the body, right after its head was written.
    pub(super) fn new(connection: &'a mut Connection, action: Option<&FaultAction>) -> io::Result<Self> {
        let cut = |left: usize, reset: bool| Some(Cut { left, reset });
        let mut limits = Limits::default();
        match action {
            Some(FaultAction::CutAfter { bytes }) => limits.cut = cut(*bytes, false),
            Some(FaultAction::ResetAfter { bytes }) => limits.cut = cut(*bytes, true),
            Some(FaultAction::StallAfter { bytes }) => limits.stall = Some(*bytes),
            Some(FaultAction::Silence) => limits.stall = Some(0),
            Some(FaultAction::Slow { bytes, pause }) => limits.slow = Some((*bytes, *pause)),
            _ => {}
        }
        let zip = match action {
            Some(FaultAction::GzipMembers) => Some(Zip::Members),
            action => is_zipped(action).then(|| Zip::Stream(gzip())),
        };
        let left = if let Some(FaultAction::EndAfter { bytes }) = action { Some(*bytes) } else { None };
        // A limit of zero bytes takes effect before there is content to send.
        connection.send(&[], &mut limits)?;
        Ok(Self { connection, limits, zip, left, pending: Vec::new() })
    }

    /// Adds one chunk; written when the buffer is full, or by [`ChunkedBody::flush`].
    pub(super) fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (bytes, ends) = match &mut self.left {
            Some(left) if bytes.len() >= *left => (bytes.get(..*left).unwrap_or(bytes), true),
            Some(left) => {
                *left -= bytes.len();
                (bytes, false)
            }
            None => (bytes, false),
        };
        let packed;
        let packed = match &mut self.zip {
            None => bytes,
            Some(Zip::Stream(encoder)) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                packed = std::mem::take(encoder.get_mut());
                &packed
            }
            Some(Zip::Members) => {
                let mut member = gzip();
                member.write_all(bytes)?;
                packed = member.finish()?;
                &packed
            }
        };
        self.chunk(packed);
        if ends {
            self.finish()?;
            return Err(io::Error::other("ended as the script wants it"));
        }
        if self.pending.len() >= TOGETHER { self.flush() } else { Ok(()) }
    }

    fn chunk(&mut self, bytes: &[u8]) {
        if !self.connection.has_chunks() {
            self.pending.extend_from_slice(bytes);
        } else if !bytes.is_empty() {
            self.pending.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
            self.pending.extend_from_slice(bytes);
            self.pending.extend_from_slice(b"\r\n");
        }
    }

    /// Writes the buffered chunks.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let outcome = self.connection.send(&self.pending, &mut self.limits);
        self.pending.clear();
        outcome
    }

    /// Ends the body.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> io::Result<()> {
        if let Some(Zip::Stream(encoder)) = self.zip.take() {
            let rest = encoder.finish()?;
            self.chunk(&rest);
        }
        if self.connection.has_chunks() {
            self.pending.extend_from_slice(b"0\r\n\r\n");
        }
        self.flush()?;
        self.connection.complete();
        Ok(())
    }
}
