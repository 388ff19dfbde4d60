//! Reads the actual state of our table back from the kernel, as objects.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Socket};
use ferry_plane::{Extent, Object as _};
use ferry_ruleset::sources::{Ranges, SourcesId};
use ferry_ruleset::{Rule, Rules};

use crate::layout;
use crate::names::{ChainName, FixedSet, SetName, TABLE, TABLE_COMMENT};
use crate::object::{ElementKey, IpvsKey, IpvsObject, Table};
use crate::wire;

/// Most elements that one read queries one by one. A set whose keys exceed the rest of this number is dumped.
const SINGLE_READS: usize = 64;

/// Owner of the table, by its comment.
pub(crate) enum TableOwner {
    None,
    Ours,
    Foreign,
}

/// Result of a read-back.
pub(crate) enum Found {
    Objects(Vec<IpvsObject>),
    /// the table is not ours, or has objects that this mode never makes: it can only be replaced as a whole
    Foreign,
}

/// Reads objects of one family.
pub(crate) struct Reader<'a> {
    pub(crate) socket: &'a mut Socket,
    pub(crate) family: Family,
}

impl Reader<'_> {
    /// Reads all objects, or those with these keys.
    pub(crate) fn read(&mut self, extent: &Extent<IpvsKey>) -> io::Result<Found> {
        match (self.table_owner()?, extent) {
            (TableOwner::None, _) => Ok(Found::Objects(Vec::new())),
            (TableOwner::Foreign, _) => Ok(Found::Foreign),
            (TableOwner::Ours, Extent::Keys(keys)) => self.keys(keys),
            (TableOwner::Ours, Extent::All) => self.all(),
        }
    }

    pub(crate) fn table_owner(&mut self) -> io::Result<TableOwner> {
        Ok(match self.socket.table(self.family, TABLE)? {
            None => TableOwner::None,
            Some(table) if table.comment.as_deref() == Some(TABLE_COMMENT) && !table.dormant => TableOwner::Ours,
            Some(_) => TableOwner::Foreign,
        })
    }

    fn all(&mut self) -> io::Result<Found> {
        let Some(sets) = self.sets()? else { return Ok(Found::Foreign) };
        let Some(chains) = self.chains()? else { return Ok(Found::Foreign) };
        let mut objects = vec![IpvsObject::Table(Table::Ours)];
        objects.extend(chains);
        for set in sets {
            let known = match set {
                SetName::Sources(id) => self.ranges(id, &mut objects)?,
                SetName::Fixed(fixed) => {
                    objects.push(IpvsObject::Set(set));
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
    fn sets(&mut self) -> io::Result<Option<Vec<SetName>>> {
        let sets = self.socket.sets(self.family, TABLE)?;
        let family = self.family;
        let ours = |mut set: nft::Set| {
            let name = SetName::parse(&set.name)?;
            let shape = layout::shape(name, family);
            // Userdata is for the nft tool only, which writes its own when it loads a ruleset.
            set.userdata.clone_from(&shape.userdata);
            (set == shape).then_some(name)
        };
        Ok(sets.into_iter().map(ours).collect())
    }

    /// The chains with their rules; `None` if there is one that this mode never makes.
    fn chains(&mut self) -> io::Result<Option<Vec<IpvsObject>>> {
        let mut rules: HashMap<String, Vec<Rule>> = HashMap::new();
        for (chain, rule) in self.socket.rules(self.family, TABLE, None)? {
            rules.entry(chain).or_default().push(Rule { exprs: rule.exprs, text: String::new() });
        }
        let ours = |chain: &nft::Chain| {
            let name = ChainName::parse(&chain.name).filter(|name| name.chain() == *chain)?;
            Some(IpvsObject::Chain(name, Rules(rules.remove(&chain.name).unwrap_or_default().into())))
        };
        Ok(self.socket.chains(self.family, TABLE)?.iter().map(ours).collect())
    }

    /// Adds the elements of a set; false if there is one that this mode never makes.
    fn elements(&mut self, set: FixedSet, objects: &mut Vec<IpvsObject>) -> io::Result<bool> {
        let (family, mut ours) = (self.family, true);
        self.socket.elements(family, TABLE, set.name(), &mut |element| match wire::element(set, family, &element) {
            Some((key, value)) => objects.push(IpvsObject::Element(key, value)),
            None => ours = false,
        })?;
        Ok(ours)
    }

    /// Adds a set of source ranges; false if it holds an element that this mode never makes.
    fn ranges(&mut self, id: SourcesId, objects: &mut Vec<IpvsObject>) -> io::Result<bool> {
        let (family, mut elements) = (self.family, Vec::new());
        let name = SetName::Sources(id).to_string();
        self.socket.elements(family, TABLE, &name, &mut |element| elements.push(element))?;
        let ranges = Ranges::read(family, &elements);
        let known = ranges.is_some();
        objects.extend(ranges.map(|ranges| IpvsObject::Ranges(id, ranges)));
        Ok(known)
    }

    fn keys(&mut self, keys: &[IpvsKey]) -> io::Result<Found> {
        let mut objects = Vec::new();
        let mut elements: BTreeMap<FixedSet, Vec<ElementKey>> = BTreeMap::new();
        let (Some(sets), Some(chains)) = (self.sets()?, self.chains()?) else { return Ok(Found::Foreign) };
        let sets: HashSet<SetName> = sets.into_iter().collect();
        let mut chains: HashMap<IpvsKey, IpvsObject> = chains.into_iter().map(|chain| (chain.key(), chain)).collect();
        for key in keys {
            match key {
                IpvsKey::Table => objects.push(IpvsObject::Table(Table::Ours)),
                IpvsKey::Set(SetName::Sources(id)) => {
                    if sets.contains(&SetName::Sources(*id)) && !self.ranges(*id, &mut objects)? {
                        return Ok(Found::Foreign);
                    }
                }
                IpvsKey::Set(name) => objects.extend(sets.contains(name).then_some(IpvsObject::Set(*name))),
                IpvsKey::Chain(_) => objects.extend(chains.remove(key)),
                IpvsKey::Element(key) => elements.entry(key.set()).or_default().push(*key),
                IpvsKey::Server(_) | IpvsKey::Address(_) => {}
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
        set: FixedSet,
        keys: &HashSet<ElementKey>,
        objects: &mut Vec<IpvsObject>,
    ) -> io::Result<bool> {
        let mut all = Vec::new();
        let ours = self.elements(set, &mut all)?;
        let is_wanted = |object: &IpvsObject| matches!(object, IpvsObject::Element(key, _) if keys.contains(key));
        objects.extend(all.into_iter().filter(is_wanted));
        Ok(ours)
    }

    fn some_elements(&mut self, set: FixedSet, keys: &[ElementKey], objects: &mut Vec<IpvsObject>) -> io::Result<()> {
        let family = self.family;
        for key in keys {
            let bytes = wire::key_bytes(key);
            let found = match self.socket.element(family, TABLE, set.name(), bytes.as_slice()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                found => found?,
            };
            let decoded = found.and_then(|element| wire::element(set, family, &element));
            objects.extend(decoded.map(|(key, value)| IpvsObject::Element(key, value)));
        }
        Ok(())
    }
}
