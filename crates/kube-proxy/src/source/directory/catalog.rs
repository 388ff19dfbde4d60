//! Maps objects to the manifest files that define them, and derives events from changes of files.
//!
//! Objects themselves are not kept: the model's store has them. A fingerprint detects changes of an object; a file that takes
//! over an object from another one is read again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use ferry_api::object::{Kind, KubeObject, ObjectName};
use ferry_model::store::Event;

use crate::source::file::{Broken, Contents, ObjectKey};

/// A file's name within the directory.
pub(super) type FileName = Arc<OsStr>;

/// Files by object.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    files: BTreeMap<FileName, Vec<ObjectKey>>,
    owners: BTreeMap<ObjectKey, OwningFile>,
    /// files that define the same object, after its owner
    shadows: BTreeMap<ObjectKey, BTreeSet<FileName>>,
}

/// The file that provides an object.
#[derive(Debug)]
struct OwningFile {
    file: FileName,
    /// fingerprint of the delivered object; `None` until the file is read again
    fingerprint: Option<u64>,
}

/// Changes of the catalog.
#[derive(Debug, Default)]
pub(super) struct CatalogChanges {
    objects: BTreeMap<ObjectKey, Option<KubeObject>>,
    /// files that take over an object and must be read again
    pub(super) reread: BTreeSet<FileName>,
}

/// Objects of a malformed file that may still be in it, and so stay.
#[derive(Debug)]
enum KeptObjects<'a> {
    /// all: a malformed document may be any object
    All,
    These(BTreeSet<&'a ObjectKey>),
}

/// Hashes formatted text.
struct Fingerprint(DefaultHasher);

// === impl Catalog ===

impl Catalog {
    /// The number of objects.
    pub(super) fn len(&self) -> usize {
        self.owners.len()
    }

    /// True if a valid state of the object has been read.
    pub(super) fn knows(&self, key: &ObjectKey) -> bool {
        self.owners.contains_key(key)
    }

    /// True if the file owns an object that these contents lack.
    pub(super) fn would_lose(&self, file: &OsStr, contents: &Contents) -> bool {
        let known = self.files.get(file).map(Vec::as_slice).unwrap_or_default();
        let objects = contents.objects.iter();
        let there: BTreeSet<(Kind, &ObjectName)> = objects.map(|object| (object.kind(), object.name())).collect();
        let mut absent = known.iter().filter(|(kind, name)| !there.contains(&(*kind, name)));
        let kept = KeptObjects::of(&contents.broken);
        absent.any(|key| !kept.contains(key))
    }

    /// Replaces a file's contents; empty for a removed file. Objects of malformed documents keep their last state.
    pub(super) fn update(
        &mut self,
        file: &FileName,
        objects: Vec<KubeObject>,
        broken: &[Broken],
        changes: &mut CatalogChanges,
    ) {
        let kept = KeptObjects::of(broken);
        let mut fresh: BTreeMap<ObjectKey, KubeObject> = BTreeMap::new();
        for object in objects {
            let key = (object.kind(), object.name().clone());
            match fresh.entry(key) {
                Entry::Vacant(entry) => {
                    entry.insert(object);
                }
                Entry::Occupied(entry) => warn_duplicate(entry.key(), file, file),
            }
        }
        let before = self.files.remove(file).unwrap_or_default();
        let absent = before.into_iter().filter(|key| !fresh.contains_key(key));
        let (stays, lost): (Vec<ObjectKey>, Vec<ObjectKey>) = absent.partition(|key| kept.contains(key));
        let keys: Vec<ObjectKey> = fresh.keys().cloned().chain(stays).collect();
        if !keys.is_empty() {
            self.files.insert(Arc::clone(file), keys);
        }
        for key in lost {
            self.release(&key, file, changes);
        }
        for (key, object) in fresh {
            self.claim(key, object, file, changes);
        }
    }

    /// Passes objects that the unreadable file should take over to the next file, or deletes them.
    pub(super) fn disown(&mut self, file: &FileName, changes: &mut CatalogChanges) {
        let Some(keys) = self.files.get_mut(file) else { return };
        let owners = &self.owners;
        let unread =
            |key: &ObjectKey| owners.get(key).is_some_and(|owner| owner.file == *file && owner.fingerprint.is_none());
        let lost: Vec<ObjectKey> = keys.extract_if(.., |key| unread(key)).collect();
        for key in lost {
            self.release(&key, file, changes);
        }
    }

    /// The file no longer defines the object.
    fn release(&mut self, key: &ObjectKey, file: &FileName, changes: &mut CatalogChanges) {
        let mut behind = self.shadows.remove(key).unwrap_or_default();
        match self.owners.get_mut(key) {
            Some(owner) if owner.file == *file => match behind.pop_first() {
                Some(next) => {
                    changes.reread.insert(Arc::clone(&next));
                    *owner = OwningFile { file: next, fingerprint: None };
                }
                None => {
                    self.owners.remove(key);
                    changes.objects.insert(key.clone(), None);
                }
            },
            _ => drop(behind.remove(file)),
        }
        if !behind.is_empty() {
            self.shadows.insert(key.clone(), behind);
        }
    }

    /// The file defines the object.
    fn claim(&mut self, key: ObjectKey, object: KubeObject, file: &FileName, changes: &mut CatalogChanges) {
        match self.owners.get_mut(&key) {
            Some(owner) if owner.file < *file => {
                if self.shadows.entry(key.clone()).or_default().insert(Arc::clone(file)) {
                    warn_duplicate(&key, &owner.file, file);
                }
                return;
            }
            Some(owner) => {
                let fingerprint = Some(fingerprint(&object));
                let same = owner.fingerprint == fingerprint;
                if owner.file != *file {
                    warn_duplicate(&key, file, &owner.file);
                    let overruled = std::mem::replace(&mut owner.file, Arc::clone(file));
                    self.shadows.entry(key.clone()).or_default().insert(overruled);
                }
                owner.fingerprint = fingerprint;
                if same {
                    return;
                }
            }
            None => {
                let owner = OwningFile { file: Arc::clone(file), fingerprint: Some(fingerprint(&object)) };
                self.owners.insert(key.clone(), owner);
            }
        }
        changes.objects.insert(key, Some(object));
    }
}

// === impl KeptObjects ===

impl<'a> KeptObjects<'a> {
    fn of(broken: &'a [Broken]) -> Self {
        let known = broken.iter().filter(|broken| !broken.misnamed);
        let keys: Option<BTreeSet<&ObjectKey>> = known.map(|broken| broken.object.as_ref()).collect();
        keys.map_or(Self::All, Self::These)
    }

    fn contains(&self, key: &ObjectKey) -> bool {
        match self {
            Self::All => true,
            Self::These(keys) => keys.contains(key),
        }
    }
}

// === impl CatalogChanges ===

impl CatalogChanges {
    /// The number of changed objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Takes the events to deliver.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.objects)
            .into_iter()
            .map(|((kind, name), object)| match object {
                Some(object) => Event::Upsert(object),
                None => Event::Delete(kind, name),
            })
            .collect()
    }
}

// === impl Fingerprint ===

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// Hashes an object's debug text, which contains every field.
fn fingerprint(object: &KubeObject) -> u64 {
    let mut hasher = Fingerprint(DefaultHasher::new());
    // Writing into a hash cannot fail.
    let _ = fmt::write(&mut hasher, format_args!("{object:?}"));
    hasher.0.finish()
}

fn warn_duplicate((kind, name): &ObjectKey, taken: &OsStr, ignored: &OsStr) {
    tracing::warn!(
        %kind,
        object = %name,
        taken_from = %taken.display(),
        ignored_in = %ignored.display(),
        "Manifests define the same object twice"
    );
}
