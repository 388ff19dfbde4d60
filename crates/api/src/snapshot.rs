//! The format of a snapshot: the objects of an API server in a file, for a start without the server.
//!
//! ```text
//! ferry-snapshot 1                      the format's version
//! {"server":"https://…","node":"a",…}   the header
//! {"apiVersion":"v1","kind":"Node",…}   an object on each line, as Kubernetes JSON
//! end 1234 9f86d0…                      the number of objects, and the SHA-256 of all lines before
//! ```
//!
//! Both directions work line by line, so that a snapshot never stands in memory as a text.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::object::{KubeObject, Timestamp};
use crate::wire::{decode_object, encode_object, format_timestamp, parse_timestamp};

/// Origin and time of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// URL of the API server
    pub server: Box<str>,
    /// SHA-256 of the certificate authorities of the API server, in hexadecimal; empty without any
    pub authorities: Box<str>,
    /// name of the node whose proxy has written the snapshot
    pub node: Box<str>,
    /// the last time at which the API server has confirmed all objects
    pub confirmed: Timestamp,
}

/// A decoded snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// origin and time
    pub header: SnapshotHeader,
    /// all objects, in the order of the file
    pub objects: Vec<KubeObject>,
}

/// The reason why a snapshot can't be decoded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// the file can't be read
    #[error("{0}")]
    Read(#[from] io::Error),
    /// the format's version isn't this one
    #[error("it has version {0:?} of the format, this program reads version {VERSION}")]
    Version(String),
    /// the content isn't what an encoder has written
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// Writes a snapshot.
#[derive(Debug)]
pub struct SnapshotEncoder<W> {
    writer: W,
    digest: Sha256,
    objects: u64,
}

/// The header as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    server: Box<str>,
    authorities: Box<str>,
    node: Box<str>,
    confirmed: String,
}

/// Reads lines, and what they add up to.
struct SnapshotLines<R> {
    reader: R,
    digest: Sha256,
    /// number of the last line, from 1
    number: usize,
    buffer: Vec<u8>,
}

/// The first word of every snapshot.
pub const SNAPSHOT_NAME: &str = "ferry-snapshot";
/// The version of the format.
const VERSION: &str = "1";
/// Begins the last line. Objects begin with a brace.
const END: &str = "end ";

// === impl SnapshotEncoder ===

impl<W: Write> SnapshotEncoder<W> {
    /// Begins a snapshot.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(writer: W, header: &SnapshotHeader) -> io::Result<Self> {
        let mut encoder = Self { writer, digest: Sha256::new(), objects: 0 };
        let SnapshotHeader { server, authorities, node, confirmed } = header.clone();
        let confirmed = format_timestamp(confirmed).unwrap_or_default();
        let header = serde_json::to_string(&RawHeader { server, authorities, node, confirmed })?;
        encoder.line(format!("{SNAPSHOT_NAME} {VERSION}"))?;
        encoder.line(header)?;
        Ok(encoder)
    }

    /// Adds an object.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn push(&mut self, object: &KubeObject) -> io::Result<()> {
        self.objects += 1;
        self.line(encode_object(object))
    }

    /// Writes the end, without flushing the writer; returns it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        let line = format!("{END}{} {}\n", self.objects, hexadecimal(self.digest));
        self.writer.write_all(line.as_bytes())?;
        Ok(self.writer)
    }

    fn line(&mut self, mut line: String) -> io::Result<()> {
        line.push('\n');
        self.digest.update(&line);
        self.writer.write_all(line.as_bytes())
    }
}

/// Decodes a snapshot, and checks that it is complete and undamaged. The memory needed is in proportion to the bytes of the reader,
/// which the caller limits.
///
/// # Errors
/// If the reader fails, or the content isn't exactly one snapshot of this version.
pub fn decode_snapshot(reader: impl BufRead) -> Result<Snapshot, SnapshotError> {
    let mut lines = SnapshotLines { reader, digest: Sha256::new(), number: 0, buffer: Vec::new() };
    match lines.next()?.split_once(' ') {
        Some((SNAPSHOT_NAME, VERSION)) => {}
        Some((SNAPSHOT_NAME, version)) => return Err(SnapshotError::Version(version.chars().take(20).collect())),
        _ => return Err(lines.damaged("it isn't the first line of a snapshot")),
    }
    let header = match header_of(lines.next()?) {
        Ok(header) => header,
        Err(reason) => return Err(lines.damaged(&reason)),
    };
    let mut objects = Vec::new();
    loop {
        let before = lines.digest.clone();
        let line = lines.next()?;
        if let Some(end) = line.strip_prefix(END) {
            if end != format!("{} {}", objects.len(), hexadecimal(before)) {
                return Err(lines.damaged("the number of objects or the checksum doesn't match"));
            }
            lines.end()?;
            return Ok(Snapshot { header, objects });
        }
        match decode_object(line) {
            Ok(object) => objects.push(object),
            Err(reason) => return Err(lines.damaged(&reason)),
        }
    }
}

fn header_of(line: &str) -> Result<SnapshotHeader, String> {
    let RawHeader { server, authorities, node, confirmed } =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    let confirmed = parse_timestamp(&confirmed).ok_or_else(|| format!("{confirmed:?} is no time"))?;
    Ok(SnapshotHeader { server, authorities, node, confirmed })
}

fn hexadecimal(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

// === impl SnapshotLines ===

impl<R: BufRead> SnapshotLines<R> {
    /// The next line, without its end.
    fn next(&mut self) -> Result<&str, SnapshotError> {
        self.buffer.clear();
        self.number += 1;
        self.reader.read_until(b'\n', &mut self.buffer)?;
        self.digest.update(&self.buffer);
        match self.buffer.strip_suffix(b"\n") {
            None => Err(self.damaged("the file ends here, before its end is written")),
            Some(line) => str::from_utf8(line).map_err(|_| self.damaged("it is no text")),
        }
    }

    /// Checks that nothing follows.
    fn end(&mut self) -> Result<(), SnapshotError> {
        let rest = self.reader.fill_buf()?;
        if rest.is_empty() { Ok(()) } else { Err(self.damaged("the file goes on behind its end")) }
    }

    fn damaged(&self, reason: &str) -> SnapshotError {
        SnapshotError::Damaged(format!("line {}: {reason}", self.number))
    }
}

#[cfg(test)]
mod tests;
