//! Reads the actual state of our table back from the kernel, as objects.

use std::collections::{BTreeMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{Element, NftSocket};
use ferry_plane::Extent;
use ferry_ruleset::Rules;
use ferry_ruleset::read::{TableOwner, TableReader};
use ferry_ruleset::sources::SourcesId;

use crate::layout;
use crate::names::{ChainName, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, NftKey, NftObject};
use crate::wire;

/// Result of a read-back.
pub(crate) enum Found {
    Objects(Vec<NftObject>),
    /// the table is not ours, or has objects that this mode never makes: it can only be replaced as a whole
    Foreign,
}

/// Reads objects of one family.
pub(crate) struct ObjectReader<'a> {
    table: TableReader<'a>,
    family: Family,
}

impl<'a> ObjectReader<'a> {
    pub(crate) fn new(socket: &'a mut NftSocket, family: Family) -> Self {
        Self { table: TableReader::new(socket, family, TABLE), family }
    }

    /// Reads all objects, or those with these keys.
    pub(crate) fn read(&mut self, extent: &Extent<NftKey>) -> io::Result<Found> {
        match (self.owner()?, extent) {
            (None, _) => Ok(Found::Objects(Vec::new())),
            (Some(TableOwner::Foreign), _) => Ok(Found::Foreign),
            (Some(TableOwner::Ours), Extent::Keys(keys)) => self.keys(keys),
            (Some(TableOwner::Ours), Extent::All) => self.all(),
        }
    }

    /// The owner of the table; `None` if there is no table.
    pub(crate) fn owner(&mut self) -> io::Result<Option<TableOwner>> {
        self.table.owner(TABLE_COMMENT)
    }

    fn all(&mut self) -> io::Result<Found> {
        let Some(sets) = self.sets()? else { return Ok(Found::Foreign) };
        let Some(chains) = self.chains()? else { return Ok(Found::Foreign) };
        let mut objects = vec![NftObject::Table(TableOwner::Ours)];
        objects.extend(chains.into_iter().map(|(name, rules)| NftObject::Chain(name, rules)));
        for set in sets {
            let known = match set {
                SetName::Sources(id) => self.ranges(id, &mut objects)?,
                SetName::Fixed(_) | SetName::Affinity(..) | SetName::Members(..) | SetName::Pool(_) => {
                    objects.push(NftObject::Set(set));
                    matches!(set, SetName::Affinity(..)) || self.elements(set, &mut objects)?
                }
            };
            if !known {
                return Ok(Found::Foreign);
            }
        }
        Ok(Found::Objects(objects))
    }

    /// The sets and maps; `None` if there is one that this mode never makes.
    fn sets(&mut self) -> io::Result<Option<Vec<SetName>>> {
        let family = self.family;
        self.table.sets(|name| SetName::parse(name).map(|name| (name, layout::shape(name, family))))
    }

    /// The chains with their rules; `None` if there is one that this mode never makes.
    fn chains(&mut self) -> io::Result<Option<BTreeMap<ChainName, Rules>>> {
        self.table.chains(|name| ChainName::parse(name).map(|name| (name, name.chain())))
    }

    /// Adds the elements of a set; false if there is one that this mode never makes.
    fn elements(&mut self, set: SetName, objects: &mut Vec<NftObject>) -> io::Result<bool> {
        let family = self.family;
        self.table.elements(&set.to_string(), |element| decode(set, family, element), objects)
    }

    /// Adds a set of source ranges; false if it holds an element that this mode never makes.
    fn ranges(&mut self, id: SourcesId, objects: &mut Vec<NftObject>) -> io::Result<bool> {
        let ranges = self.table.ranges(&SetName::Sources(id).to_string())?;
        let known = ranges.is_some();
        objects.extend(ranges.map(|ranges| NftObject::Ranges(id, ranges)));
        Ok(known)
    }

    fn keys(&mut self, keys: &[NftKey]) -> io::Result<Found> {
        let mut objects = Vec::new();
        let mut elements: BTreeMap<SetName, Vec<ElementKey>> = BTreeMap::new();
        let (Some(sets), Some(mut chains)) = (self.sets()?, self.chains()?) else { return Ok(Found::Foreign) };
        let sets: HashSet<SetName> = sets.into_iter().collect();
        for key in keys {
            match key {
                NftKey::Table => objects.push(NftObject::Table(TableOwner::Ours)),
                NftKey::Set(SetName::Sources(id)) => {
                    if sets.contains(&SetName::Sources(*id)) && !self.ranges(*id, &mut objects)? {
                        return Ok(Found::Foreign);
                    }
                }
                NftKey::Set(name) => objects.extend(sets.contains(name).then_some(NftObject::Set(*name))),
                NftKey::Chain(name) => {
                    objects.extend(chains.remove(name).map(|rules| NftObject::Chain(*name, rules)));
                }
                NftKey::Element(key) => elements.entry(key.set()).or_default().push(*key),
            }
        }
        let family = self.family;
        for (set, keys) in elements.into_iter().filter(|(set, _)| sets.contains(set)) {
            let bytes = |key: &ElementKey| Some(wire::key_bytes(key));
            let decode = |element: &Element| decode(set, family, element);
            if !self.table.some_elements(&set.to_string(), (&keys, bytes), (decode, element_key), &mut objects)? {
                return Ok(Found::Foreign);
            }
        }
        Ok(Found::Objects(objects))
    }
}

fn element_key(object: &NftObject) -> Option<&ElementKey> {
    if let NftObject::Element(key, _) = object { Some(key) } else { None }
}

/// Decodes an element; `None` for one that this mode never makes.
fn decode(set: SetName, family: Family, element: &Element) -> Option<NftObject> {
    wire::element(set, family, element).map(|(key, value)| NftObject::Element(key, value))
}
