//! Reads the actual state of the table back from the kernel, as objects.

use std::collections::{BTreeMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{Element, NftSocket};

use super::{ChainName, SetName, TableKey, TableObject, Vocabulary};
use crate::Rules;
use crate::names::Name as _;
use crate::read::{TableOwner, TableReader};
use crate::sources::SourcesId;

/// Result of a read-back.
pub(super) enum Found<V: Vocabulary> {
    Objects(Vec<TableObject<V>>),
    /// the table is not ours, or has objects that this mode never makes: it can only be replaced as a whole
    Foreign,
}

/// Reads objects of one family.
pub(super) struct Reader<'a, V: Vocabulary> {
    table: TableReader<'a>,
    family: Family,
    world: &'a V::World,
}

impl<'a, V: Vocabulary> Reader<'a, V> {
    pub(super) fn new(socket: &'a mut NftSocket, family: Family, world: &'a V::World) -> Self {
        Self { table: TableReader::new(socket, family, V::TABLE), family, world }
    }

    /// Reads all objects.
    pub(super) fn all(&mut self) -> io::Result<Found<V>> {
        match self.owner()? {
            None => Ok(Found::Objects(Vec::new())),
            Some(TableOwner::Foreign) => Ok(Found::Foreign),
            Some(TableOwner::Ours) => self.everything(),
        }
    }

    /// Reads the objects with these keys.
    pub(super) fn some(&mut self, keys: &[TableKey<V>]) -> io::Result<Found<V>> {
        match self.owner()? {
            None => Ok(Found::Objects(Vec::new())),
            Some(TableOwner::Foreign) => Ok(Found::Foreign),
            Some(TableOwner::Ours) => self.keys(keys),
        }
    }

    /// The owner of the table; `None` if there is no table.
    pub(super) fn owner(&mut self) -> io::Result<Option<TableOwner>> {
        self.table.owner(V::COMMENT)
    }

    fn everything(&mut self) -> io::Result<Found<V>> {
        let Some(sets) = self.sets()? else { return Ok(Found::Foreign) };
        let Some(chains) = self.chains()? else { return Ok(Found::Foreign) };
        let mut objects = vec![TableObject::Table(TableOwner::Ours)];
        objects.extend(chains.into_iter().map(|(name, rules)| TableObject::Chain(name, rules)));
        for set in sets {
            let known = match set {
                SetName::Sources(id) => self.ranges(id, &mut objects)?,
                SetName::Fixed(fixed) => {
                    objects.push(TableObject::Set(set));
                    let (family, world) = (self.family, self.world);
                    self.table.elements(fixed.name(), |element| decode(world, fixed, family, element), &mut objects)?
                }
            };
            if !known {
                return Ok(Found::Foreign);
            }
        }
        Ok(Found::Objects(objects))
    }

    /// The sets and maps; `None` if there is one that this mode never makes.
    fn sets(&mut self) -> io::Result<Option<Vec<SetName<V>>>> {
        let family = self.family;
        self.table.sets(|name| SetName::parse(name).map(|name| (name, name.shape(family))))
    }

    /// The chains with their rules; `None` if there is one that this mode never makes.
    fn chains(&mut self) -> io::Result<Option<BTreeMap<ChainName<V>, Rules>>> {
        self.table.chains(|name| ChainName::parse(name).map(|name| (name, name.chain())))
    }

    /// Adds a set of source ranges; false if it holds an element that this mode never makes.
    fn ranges(&mut self, id: SourcesId, objects: &mut Vec<TableObject<V>>) -> io::Result<bool> {
        let ranges = self.table.ranges(&SetName::<V>::Sources(id).to_string())?;
        let known = ranges.is_some();
        objects.extend(ranges.map(|ranges| TableObject::Ranges(id, ranges)));
        Ok(known)
    }

    fn keys(&mut self, keys: &[TableKey<V>]) -> io::Result<Found<V>> {
        let mut objects = Vec::new();
        let mut elements: BTreeMap<V::Set, Vec<V::Element>> = BTreeMap::new();
        let (Some(sets), Some(mut chains)) = (self.sets()?, self.chains()?) else { return Ok(Found::Foreign) };
        let sets: HashSet<SetName<V>> = sets.into_iter().collect();
        for key in keys {
            match key {
                TableKey::Table => objects.push(TableObject::Table(TableOwner::Ours)),
                TableKey::Set(SetName::Sources(id)) => {
                    if sets.contains(&SetName::Sources(*id)) && !self.ranges(*id, &mut objects)? {
                        return Ok(Found::Foreign);
                    }
                }
                TableKey::Set(name) => objects.extend(sets.contains(name).then_some(TableObject::Set(*name))),
                TableKey::Chain(name) => {
                    objects.extend(chains.remove(name).map(|rules| TableObject::Chain(*name, rules)));
                }
                TableKey::Element(element) => elements.entry(V::set_of(element)).or_default().push(element.clone()),
            }
        }
        let (family, world) = (self.family, self.world);
        for (set, keys) in elements.into_iter().filter(|(set, _)| sets.contains(&SetName::Fixed(*set))) {
            let bytes = |key: &V::Element| V::key_bytes(world, key);
            let decode = |element: &Element| decode(world, set, family, element);
            if !self.table.some_elements(set.name(), (&keys, bytes), (decode, element_key), &mut objects)? {
                return Ok(Found::Foreign);
            }
        }
        Ok(Found::Objects(objects))
    }
}

fn element_key<V: Vocabulary>(object: &TableObject<V>) -> Option<&V::Element> {
    if let TableObject::Element(key, _) = object { Some(key) } else { None }
}

/// Decodes an element; `None` if its key is none that this mode writes.
fn decode<V: Vocabulary>(world: &V::World, set: V::Set, family: Family, element: &Element) -> Option<TableObject<V>> {
    if element.key_end.is_some() || element.interval_end {
        return None;
    }
    let key = V::key(Some(world), set, family, &element.key)?;
    Some(TableObject::Element(key, V::value(world, set, family, &element.data)))
}
