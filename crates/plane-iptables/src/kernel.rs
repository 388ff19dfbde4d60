//! The half that touches the kernel: one run of the tool per commit, and news of what others do.

mod commit;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::iptables::{Backend, Table, Tool};
use ferry_kernel::sysctl;
use ferry_plane::{Batch, CommitError, CommitFailure, Extent, Kernel, Tended};

use crate::base;
use crate::counters::Counters;
use crate::drift;
use crate::mirror::{Kind, Mirror};
use crate::object::{ChainId, IptKey, IptObject};
use crate::read;
use crate::sort::Found;
use crate::verdict::{of_failure, of_io};
use crate::watch::{Heard, LegacyWatch, Turn};

/// One family's tables in the kernel.
#[derive(Debug)]
pub struct IptablesKernel {
    tool: Tool,
    turn: Turn,
    counters: Arc<Counters>,
    mirror: Mirror,
    /// what others touched, and the engine was not told yet
    heard: Heard,
    /// chains with several owners' rules that others touched, of which it isn't known what they hold
    unread: BTreeSet<ChainId>,
    /// what was found to differ, and the engine was not told yet
    owed: BTreeSet<IptKey>,
    legacy: LegacyWatch,
    /// the engine knows that everything must be read
    told: bool,
    /// everything was read, and nothing was written since
    fresh: bool,
    /// the chains of services were not looked into when everything was read
    blind: bool,
    /// something was written at least once
    wrote: bool,
    /// long chains are edited by position; not after such a run failed, until one succeeds
    edits: bool,
}

/// When to look again after the other family had the turn.
const CONTENDED: Duration = Duration::from_millis(20);

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

// === impl IptablesKernel ===

impl IptablesKernel {
    /// Of the tool's family, in the network namespace of the thread that uses it. Engines of one process share the `turn`.
    pub fn new(tool: Tool, turn: Turn, counters: Arc<Counters>) -> Self {
        Self {
            tool,
            turn,
            counters,
            mirror: Mirror::default(),
            heard: Heard::default(),
            unread: BTreeSet::new(),
            owed: BTreeSet::new(),
            legacy: LegacyWatch::default(),
            told: true,
            fresh: false,
            blind: false,
            wrote: false,
            edits: true,
        }
    }

    /// What its runs have come to.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The tool that it runs.
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    fn family(&self) -> Family {
        self.tool.family()
    }

    fn count_rules(&self) {
        for table in Table::ALL {
            self.counters.set_rules(table, self.mirror.size(table).rules);
        }
    }

    // --- reading

    fn read_all(&mut self) -> Result<Vec<IptObject>, CommitError> {
        self.hear()?;
        let suspected = self.legacy.take(&Table::ALL.into());
        let Found { mut objects, mirror, blind } = read::all(&self.tool).map_err(|failure| {
            self.legacy.suspect(suspected);
            of_failure(failure)
        })?;
        self.heard = Heard::default();
        self.unread.clear();
        self.owed.clear();
        self.mirror = mirror;
        self.told = false;
        self.blind = blind;
        self.fresh = true;
        self.count_rules();
        objects.extend(self.route_localnet());
        Ok(objects)
    }

    fn read_keys(&mut self, keys: &[IptKey]) -> Result<Vec<IptObject>, CommitError> {
        let chains = read::chains_of(keys);
        let mut objects = Vec::new();
        if !chains.is_empty() {
            self.hear()?;
            let found = read::chains(&self.tool, &chains).map_err(of_failure)?;
            if self.mirror.known() {
                // What differs in these chains and was not asked for would look as it should from now on.
                let asked: HashSet<&IptKey> = keys.iter().collect();
                let differing = drift::differing(&self.mirror, &found, &chains);
                self.owed.extend(differing.into_iter().filter(|key| !asked.contains(key)));
            }
            objects = found.objects;
            read::only(&mut objects, keys);
            self.mirror.renew(&chains, found.mirror);
            self.unread.retain(|chain| !chains.contains(chain));
        }
        if keys.contains(&IptKey::RouteLocalnet) {
            objects.extend(self.route_localnet());
        }
        Ok(objects)
    }

    fn route_localnet(&self) -> Option<IptObject> {
        let is_set = || sysctl::read(ROUTE_LOCALNET).is_ok_and(|value| value == "1");
        (self.family() == Family::V4 && is_set()).then_some(IptObject::RouteLocalnet)
    }

    // --- news

    /// Takes note of what others have done until now.
    fn hear(&mut self) -> Result<(), CommitError> {
        match self.tool.backend() {
            Backend::Nft => {
                let news = self.turn.take().news(self.tool.family()).map_err(of_io)?;
                self.note(news);
                Ok(())
            }
            Backend::Legacy => self.legacy.look(self.family()).map_err(of_io),
        }
    }

    fn note(&mut self, news: Heard) {
        if news.everything || news.unheard {
            self.unread.extend(base::shared_chains());
            self.mirror.forget_sequences();
        }
        news.chains.iter().for_each(|id| self.mirror.forget_sequence(*id));
        self.unread.extend(news.chains.iter().filter(|id| Kind::of(**id) != Some(Kind::Own)));
        self.heard.merge(news);
    }

    /// The legacy variant says no more than that somebody has changed a table: looks at what is ours there.
    fn look_closer(&mut self, tables: BTreeSet<Table>) -> Result<(), CommitError> {
        if tables.is_empty() || !self.mirror.known() {
            return Ok(());
        }
        let begin = Instant::now();
        match read::tables(&self.tool, &tables.iter().copied().collect::<Vec<_>>()) {
            Ok(found) => {
                let keys = drift::keys_in(&self.mirror, &found, &tables);
                self.legacy.read(&tables, begin.elapsed());
                self.unread.extend(keys.iter().filter_map(IptKey::place));
                self.owed.extend(keys);
                Ok(())
            }
            Err(failure) => {
                self.legacy.suspect(tables);
                Err(of_failure(failure))
            }
        }
    }

    fn doubt(&mut self) {
        self.mirror.doubt();
        self.told = false;
    }

    /// What others may have changed.
    fn drift(&mut self) -> Result<Option<Extent<IptKey>>, CommitError> {
        if !self.mirror.known() {
            let tells = !std::mem::replace(&mut self.told, true);
            return Ok(tells.then_some(Extent::All));
        }
        let mut heard = std::mem::take(&mut self.heard);
        if heard.everything || heard.unheard && !self.blind {
            return Ok(Some(Extent::All));
        }
        if heard.unheard {
            // To read everything would say once more that nobody can look into the chains of services, and they would be
            // written anew, unheard by anybody, without end.
            match read::lost(&self.tool, &self.mirror) {
                Ok(keys) => self.owed.extend(keys),
                Err(failure) => {
                    self.heard.merge(heard);
                    return Err(of_failure(failure));
                }
            }
            heard.chains.extend(base::shared_chains());
        }
        match drift::keys(&self.tool, &self.mirror, &heard.chains) {
            Ok(keys) => {
                let places: HashSet<ChainId> = keys.iter().filter_map(IptKey::place).collect();
                self.unread.retain(|chain| !heard.chains.contains(chain) || places.contains(chain));
                self.owed.extend(keys);
            }
            Err(failure) => {
                self.heard.merge(heard);
                return Err(of_failure(failure));
            }
        }
        let owed: Vec<IptKey> = std::mem::take(&mut self.owed).into_iter().collect();
        Ok(drift::extent(owed))
    }
}

impl Kernel<IptObject> for IptablesKernel {
    /// Tries the tool, and listens.
    fn prepare(&mut self) -> Result<(), CommitError> {
        let tried = [Table::Nat, Table::Filter].map(|table| self.tool.try_table(table).map_err(of_failure));
        let listens = match self.tool.backend() {
            Backend::Nft => self.turn.take().join().map_err(of_io),
            Backend::Legacy => Ok(()),
        };
        // What may pass by shows at the first use.
        let unusable = |result| match result {
            Err(error @ CommitError::Unusable(_)) => Some(error),
            Err(_) | Ok(()) => None,
        };
        tried.into_iter().chain([listens]).find_map(unusable).map_or(Ok(()), Err)
    }

    fn read_back(&mut self, extent: &Extent<IptKey>) -> Result<Vec<IptObject>, CommitError> {
        match extent {
            Extent::All => self.read_all(),
            Extent::Keys(keys) => self.read_keys(keys),
        }
    }

    fn commit(&mut self, batch: &Batch<IptObject>) -> Result<(), CommitFailure> {
        self.write(batch)?;
        let wants = |object: &IptObject| *object == IptObject::RouteLocalnet;
        if batch.create.iter().chain(&batch.replace).any(wants) && self.route_localnet().is_none() {
            sysctl::write(ROUTE_LOCALNET, "1").map_err(|error| {
                self.doubt();
                let text = format!("writing net.ipv4.conf.all.route_localnet: {error}");
                CommitFailure::unknown(CommitError::Unusable(io::Error::new(error.kind(), text)))
            })?;
        }
        Ok(())
    }

    fn tend(&mut self, now: Instant) -> Result<Tended<IptKey>, CommitError> {
        let mut wake = None;
        match self.tool.backend() {
            Backend::Nft => {
                let news = self.turn.try_take().map(|mut watch| watch.news(self.tool.family()));
                match news {
                    Some(news) => self.note(news.map_err(of_io)?),
                    // The other family has the turn: soon again.
                    None => wake = Some(now + CONTENDED),
                }
            }
            Backend::Legacy => {
                self.hear()?;
                let tables = self.legacy.due(now);
                self.look_closer(tables)?;
            }
        }
        Ok(Tended { wake, drift: self.drift()? })
    }
}
