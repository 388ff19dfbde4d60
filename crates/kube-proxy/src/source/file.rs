//! Manifest files: naming, detection of changes, reading and decoding.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;
use std::string::FromUtf8Error;
use std::time::SystemTime;

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_api::wire::{Document, WireError, decode_manifest};

use crate::platform;

/// Identity of an object.
pub(super) type ObjectKey = (Kind, ObjectName);

/// Largest file that is read: ten thousand Services take some 30 MiB.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// A file changed this shortly before it was read may change again without another stamp: file system clocks have a resolution of
/// up to 10 ms.
const TICK_NANOS: i128 = 100_000_000;

/// Identity and times of a file; another stamp means that it was replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    identity: (u64, u64),
    size: u64,
    /// nanoseconds since 1970
    modified: i128,
    /// nanoseconds since 1970
    changed: i128,
}

/// Contents of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) objects: Vec<KubeObject>,
    /// malformed documents, or items of Lists
    pub(super) broken: Vec<Broken>,
}

/// A malformed file or document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// its object; `None` if unknown
    pub(super) object: Option<ObjectKey>,
    /// the name is invalid, so that it is no object read before
    pub(super) misnamed: bool,
    /// 1-based; 0 if the fault has no position
    pub(super) line: usize,
    /// 1-based; 0 if the fault has no position
    pub(super) column: usize,
    pub(super) message: String,
}

/// True if a file of this name is read: `.yaml`, `.yml` or `.json`, not hidden.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension().and_then(OsStr::to_str);
    !name.as_encoded_bytes().starts_with(b".") && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Reads and decodes a file.
pub(super) fn read(path: &Path) -> Result<Contents, Broken> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(MAX_BYTES)).unwrap_or(0));
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
    }
    let text = String::from_utf8(bytes).map_err(|error| not_text(&error))?;
    let mut contents = Contents::default();
    for document in decode_manifest(&text).documents {
        match document {
            Ok(Document::Object(object)) => contents.objects.push(object),
            Ok(Document::Ignored { .. }) => {}
            Err(error) => contents.broken.push(error.into()),
        }
    }
    Ok(contents)
}

/// The error of a file that isn't UTF-8.
fn not_text(error: &FromUtf8Error) -> Broken {
    let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let line_start = good.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Broken {
        object: None,
        misnamed: false,
        line: good.iter().filter(|byte| **byte == b'\n').count() + 1,
        column: good.len() - line_start + 1,
        message: "not UTF-8".to_owned(),
    }
}

// === impl Stamp ===

impl Stamp {
    /// The stamp of a regular file, through links; `None` if it doesn't exist.
    pub(super) fn of(path: &Path) -> io::Result<Option<Self>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(metadata.is_file().then(|| Self::from_metadata(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn from_metadata(metadata: &Metadata) -> Self {
        let (modified, changed) = platform::change_times(metadata);
        Self { identity: platform::identity(metadata), size: metadata.len(), modified, changed }
    }

    /// True if a later write is certain to leave another stamp: it is old enough by this clock.
    pub(super) fn is_reliable(&self, now: SystemTime) -> bool {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        i128::try_from(now).is_ok_and(|now| now - self.changed.max(self.modified) > TICK_NANOS)
    }
}

// === impl Broken ===

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self { object: None, misnamed: false, line: 0, column: 0, message: error.to_string() }
    }
}

impl From<WireError> for Broken {
    fn from(error: WireError) -> Self {
        let (line, column) = (error.line.unwrap_or(0), error.column.unwrap_or(0));
        Self { object: error.object, misnamed: error.misnamed, line, column, message: error.message }
    }
}
