//! Reads parts of a table back from the kernel. What its objects mean is the mode's: closures tell those that it makes from others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::io;

use ferry_api::object::Family;
use ferry_kernel::nft::{self, Element, NftSocket};

use crate::fields::Bytes;
use crate::sources::Ranges;
use crate::{Rules, TableRule};

/// Most elements that one read queries one by one. A set whose keys exceed the rest of this number is dumped.
const SINGLE_READS: usize = 64;

/// Owner of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableOwner {
    /// this mode, with this layout
    Ours,
    /// another mode, upstream, another layout, or it has objects that this mode never makes: it is replaced as a whole
    Foreign,
}

/// Reads one family's table.
#[derive(Debug)]
pub struct TableReader<'a> {
    socket: &'a mut NftSocket,
    family: Family,
    table: &'static str,
    /// elements that may still be queried one by one
    single_reads: usize,
}

// === impl TableReader ===

impl<'a> TableReader<'a> {
    /// A reader of the table of this name.
    pub fn new(socket: &'a mut NftSocket, family: Family, table: &'static str) -> Self {
        Self { socket, family, table, single_reads: SINGLE_READS }
    }

    /// The owner of the table, by its comment; `None` if there is no table.
    ///
    /// # Errors
    /// The system's error.
    pub fn owner(&mut self, comment: &str) -> io::Result<Option<TableOwner>> {
        Ok(self.socket.table(self.family, self.table)?.map(|table| {
            let ours = table.comment.as_deref() == Some(comment) && !table.dormant;
            if ours { TableOwner::Ours } else { TableOwner::Foreign }
        }))
    }

    /// The sets and maps; `None` if one is not as `known` makes that of its name.
    ///
    /// # Errors
    /// The system's error.
    pub fn sets<N>(&mut self, known: impl Fn(&str) -> Option<(N, nft::Set)>) -> io::Result<Option<Vec<N>>> {
        let ours = |mut set: nft::Set| {
            let (name, shape) = known(&set.name)?;
            // Userdata is for the nft tool only, which writes its own when it loads a ruleset.
            set.userdata.clone_from(&shape.userdata);
            (set == shape).then_some(name)
        };
        Ok(self.socket.sets(self.family, self.table)?.into_iter().map(ours).collect())
    }

    /// The chains with their rules; `None` if one is not as `known` makes that of its name.
    ///
    /// # Errors
    /// The system's error.
    pub fn chains<N: Ord>(
        &mut self,
        known: impl Fn(&str) -> Option<(N, nft::Chain)>,
    ) -> io::Result<Option<BTreeMap<N, Rules>>> {
        let mut rules: HashMap<String, Vec<TableRule>> = HashMap::new();
        for (chain, rule) in self.socket.rules(self.family, self.table, None)? {
            rules.entry(chain).or_default().push(TableRule { exprs: rule.exprs, text: String::new() });
        }
        let ours = |chain: &nft::Chain| {
            let (name, shape) = known(&chain.name)?;
            let rules = rules.remove(&chain.name).unwrap_or_default();
            (*chain == shape).then(|| (name, Rules(rules.into())))
        };
        Ok(self.socket.chains(self.family, self.table)?.iter().map(ours).collect())
    }

    /// Adds the elements of a set as `decode` makes them; false if it returns `None` for one, which this mode never makes.
    ///
    /// # Errors
    /// The system's error.
    pub fn elements<O>(
        &mut self,
        set: &str,
        decode: impl Fn(&Element) -> Option<O>,
        objects: &mut Vec<O>,
    ) -> io::Result<bool> {
        let mut ours = true;
        self.socket.elements(self.family, self.table, set, &mut |element| match decode(&element) {
            Some(object) => objects.push(object),
            None => ours = false,
        })?;
        Ok(ours)
    }

    /// Adds those elements of a set whose keys are wanted, few by single queries and many from all; false if `decode` returns
    /// `None` for one of all, which this mode never makes. A key without `bytes` is in no set.
    ///
    /// # Errors
    /// The system's error.
    pub fn some_elements<K: Eq + Hash, O>(
        &mut self,
        set: &str,
        (wanted, bytes): (&[K], impl Fn(&K) -> Option<Bytes>),
        (decode, key): (impl Fn(&Element) -> Option<O>, impl Fn(&O) -> Option<&K>),
        objects: &mut Vec<O>,
    ) -> io::Result<bool> {
        let Some(rest) = self.single_reads.checked_sub(wanted.len()) else {
            let wanted: HashSet<&K> = wanted.iter().collect();
            let mut all = Vec::new();
            let ours = self.elements(set, decode, &mut all)?;
            objects.extend(all.into_iter().filter(|object| key(object).is_some_and(|key| wanted.contains(key))));
            return Ok(ours);
        };
        self.single_reads = rest;
        for bytes in wanted.iter().filter_map(bytes) {
            let found = match self.socket.element(self.family, self.table, set, bytes.as_slice()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                found => found?,
            };
            objects.extend(found.as_ref().and_then(&decode));
        }
        Ok(true)
    }

    /// The ranges in a set of source ranges; `None` if it has an element that is none of a range.
    ///
    /// # Errors
    /// The system's error.
    pub fn ranges(&mut self, set: &str) -> io::Result<Option<Ranges>> {
        let mut elements = Vec::new();
        self.socket.elements(self.family, self.table, set, &mut |element| elements.push(element))?;
        Ok(Ranges::read(self.family, &elements))
    }
}
