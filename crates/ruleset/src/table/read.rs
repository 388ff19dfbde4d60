//! Reads the actual state of the table back from the kernel, as objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Element, Socket};

use super::{ChainName, Owner, SetName, TableKey, TableObject, Vocabulary};
use crate::names::Name as _;
use crate::sources::{Ranges, SourcesId};
use crate::{Rule, Rules};

/// Most elements that one read queries one by one. A set whose keys exceed the rest of this number is dumped.
const SINGLE_READS: usize = 64;

/// Result of a read-back.
pub(super) enum Found<V: Vocabulary> {
    Objects(Vec<TableObject<V>>),
    /// the table is not ours, or has objects that this mode never makes: it can only be replaced as a whole
    Foreign,
}

/// Reads objects of one family.
pub(super) struct Reader<'a, V: Vocabulary> {
    pub(super) socket: &'a mut Socket,
    pub(super) family: Family,
    pub(super) world: &'a V::World,
}

impl<V: Vocabulary> Reader<'_, V> {
    /// Reads all objects.
    pub(super) fn all(&mut self) -> io::Result<Found<V>> {
        match self.owner()? {
            None => Ok(Found::Objects(Vec::new())),
            Some(Owner::Foreign) => Ok(Found::Foreign),
            Some(Owner::Ours) => self.everything(),
        }
    }

    /// Reads the objects with these keys.
    pub(super) fn some(&mut self, keys: &[TableKey<V>]) -> io::Result<Found<V>> {
        match self.owner()? {
            None => Ok(Found::Objects(Vec::new())),
            Some(Owner::Foreign) => Ok(Found::Foreign),
            Some(Owner::Ours) => self.keys(keys),
        }
    }

    /// The owner of the table, by its comment; `None` if there is no table.
    pub(super) fn owner(&mut self) -> io::Result<Option<Owner>> {
        Ok(self.socket.table(self.family, V::TABLE)?.map(|table| {
            let ours = table.comment.as_deref() == Some(V::COMMENT) && !table.dormant;
            if ours { Owner::Ours } else { Owner::Foreign }
        }))
    }

    fn everything(&mut self) -> io::Result<Found<V>> {
        let Some(sets) = self.sets()? else { return Ok(Found::Foreign) };
        let Some(chains) = self.chains()? else { return Ok(Found::Foreign) };
        let mut objects = vec![TableObject::Table(Owner::Ours)];
        objects.extend(chains);
        for set in sets {
            let known = match set {
                SetName::Sources(id) => self.ranges(id, &mut objects)?,
                SetName::Fixed(fixed) => {
                    objects.push(TableObject::Set(set));
                    self.elements(fixed, &mut objects)?
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
        let sets = self.socket.sets(self.family, V::TABLE)?;
        let family = self.family;
        let ours = |mut set: nft::Set| {
            let name = SetName::parse(&set.name)?;
            let shape = name.shape(family);
            // Userdata is for the nft tool only, which writes its own when it loads a ruleset.
            set.userdata.clone_from(&shape.userdata);
            (set == shape).then_some(name)
        };
        Ok(sets.into_iter().map(ours).collect())
    }

    /// The chains with their rules; `None` if there is one that this mode never makes.
    fn chains(&mut self) -> io::Result<Option<Vec<TableObject<V>>>> {
        let mut rules: HashMap<String, Vec<Rule>> = HashMap::new();
        for (chain, rule) in self.socket.rules(self.family, V::TABLE, None)? {
            rules.entry(chain).or_default().push(Rule { exprs: rule.exprs, text: String::new() });
        }
        let ours = |chain: &nft::Chain| {
            let name = ChainName::parse(&chain.name).filter(|name| name.chain() == *chain)?;
            Some(TableObject::Chain(name, Rules(rules.remove(&chain.name).unwrap_or_default().into())))
        };
        Ok(self.socket.chains(self.family, V::TABLE)?.iter().map(ours).collect())
    }

    /// Adds the elements of a set; false if there is one that this mode never makes.
    fn elements(&mut self, set: V::Set, objects: &mut Vec<TableObject<V>>) -> io::Result<bool> {
        let (family, world, mut ours) = (self.family, self.world, true);
        self.socket.elements(
            family,
            V::TABLE,
            set.name(),
            &mut |element| match decode(world, set, family, &element) {
                Some(element) => objects.push(element),
                None => ours = false,
            },
        )?;
        Ok(ours)
    }

    /// Adds a set of source ranges; false if it holds an element that this mode never makes.
    fn ranges(&mut self, id: SourcesId, objects: &mut Vec<TableObject<V>>) -> io::Result<bool> {
        let (family, mut elements) = (self.family, Vec::new());
        let name = SetName::<V>::Sources(id).to_string();
        self.socket.elements(family, V::TABLE, &name, &mut |element| elements.push(element))?;
        let ranges = Ranges::read(family, &elements);
        let known = ranges.is_some();
        objects.extend(ranges.map(|ranges| TableObject::Ranges(id, ranges)));
        Ok(known)
    }

    fn keys(&mut self, keys: &[TableKey<V>]) -> io::Result<Found<V>> {
        let mut objects = Vec::new();
        let mut elements: BTreeMap<V::Set, Vec<V::Element>> = BTreeMap::new();
        let (Some(sets), Some(chains)) = (self.sets()?, self.chains()?) else { return Ok(Found::Foreign) };
        let sets: HashSet<SetName<V>> = sets.into_iter().collect();
        let mut chains: HashMap<TableKey<V>, TableObject<V>> =
            chains.into_iter().map(|chain| (chain.key(), chain)).collect();
        for key in keys {
            match key {
                TableKey::Table => objects.push(TableObject::Table(Owner::Ours)),
                TableKey::Set(SetName::Sources(id)) => {
                    if sets.contains(&SetName::Sources(*id)) && !self.ranges(*id, &mut objects)? {
                        return Ok(Found::Foreign);
                    }
                }
                TableKey::Set(name) => objects.extend(sets.contains(name).then_some(TableObject::Set(*name))),
                TableKey::Chain(_) => objects.extend(chains.remove(key)),
                TableKey::Element(element) => elements.entry(V::set_of(element)).or_default().push(element.clone()),
            }
        }
        let mut queries = SINGLE_READS;
        for (set, keys) in elements.into_iter().filter(|(set, _)| sets.contains(&SetName::Fixed(*set))) {
            if let Some(rest) = queries.checked_sub(keys.len()) {
                queries = rest;
                self.some_elements(set, &keys, &mut objects)?;
            } else if !self.filtered_elements(set, &keys.into_iter().collect(), &mut objects)? {
                return Ok(Found::Foreign);
            }
        }
        Ok(Found::Objects(objects))
    }

    /// Reads all elements of a set, and adds those with these keys; false if there is one that this mode never makes.
    fn filtered_elements(
        &mut self,
        set: V::Set,
        keys: &HashSet<V::Element>,
        objects: &mut Vec<TableObject<V>>,
    ) -> io::Result<bool> {
        let mut all = Vec::new();
        let ours = self.elements(set, &mut all)?;
        let is_wanted = |object: &TableObject<V>| matches!(object, TableObject::Element(key, _) if keys.contains(key));
        objects.extend(all.into_iter().filter(is_wanted));
        Ok(ours)
    }

    fn some_elements(&mut self, set: V::Set, keys: &[V::Element], objects: &mut Vec<TableObject<V>>) -> io::Result<()> {
        let family = self.family;
        for key in keys {
            // An element whose bytes are not known can't be in the kernel by that key.
            let Some(bytes) = V::key_bytes(self.world, key) else { continue };
            let found = match self.socket.element(family, V::TABLE, set.name(), bytes.as_slice()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                found => found?,
            };
            objects.extend(found.and_then(|element| decode(self.world, set, family, &element)));
        }
        Ok(())
    }
}

/// Decodes an element; `None` if its key is none that this mode writes.
fn decode<V: Vocabulary>(world: &V::World, set: V::Set, family: Family, element: &Element) -> Option<TableObject<V>> {
    if element.key_end.is_some() || element.interval_end {
        return None;
    }
    let key = V::key(Some(world), set, family, &element.key)?;
    Some(TableObject::Element(key, V::value(world, set, family, &element.data)))
}
