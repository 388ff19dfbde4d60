//! The half that touches the kernel: one run of the tool per commit, and news of what others do.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_kernel::iptables::{Backend, Failure, Family, Match, Run, Stdin, Table, Tool};
use ferry_kernel::{nfacct, sysctl};
use ferry_plane::{Batch, CommitError, Extent, Kernel, Object as _, Tended};

use crate::base;
use crate::counters::Counters;
use crate::drift;
use crate::encode::{Outline, Progress, Script, Whole, undo};
use crate::mirror::{Kind, Mirror, at};
use crate::names;
use crate::object::{ChainId, IptKey, IptObject};
use crate::plan::Plan;
use crate::read::{self, Found};
use crate::verdict::{of_failure, of_io, of_script};
use crate::watch::{Heard, LegacyWatch, Turn, all_entries};

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
}

/// When to look again after the other family had the turn.
const CONTENDED: Duration = Duration::from_millis(20);
/// Chains that others' rules lead to when they are to go: beyond so many, none goes.
const STUCK: usize = 32;

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

    // --- writing

    /// Writes a batch, all of it or nothing.
    fn write(&mut self, batch: &Batch<IptObject>) -> Result<(), CommitError> {
        let is_legacy = self.tool.backend() == Backend::Legacy;
        self.hear()?;
        // Chains of one unit are written, and go, whatever is in them.
        let tables = self.legacy.take(&places(batch).map(|place| place.table).collect());
        self.look_closer(tables)?;
        if !self.mirror.known() {
            return Err(CommitError::Drifted {
                object: "what others have done, or a run that did not end well".to_owned(),
            });
        }
        // Rules in these would be there twice, or be missing when they are to go: somebody may have done the same.
        if let Some(chain) = places(batch).find(|chain| self.unread.contains(chain)) {
            return Err(CommitError::Drifted { object: format!("{} {}", chain.table, chain.name) });
        }
        let mut mirror = std::mem::take(&mut self.mirror);
        let result = self.write_plan(&Plan::new(self.family(), self.tool.backend(), batch, &mirror));
        let before = all_entries(&mirror);
        match &result {
            Ok(Some(stuck)) => {
                mirror.apply(self.family(), batch, stuck);
                self.wrote = true;
                self.fresh = false;
            }
            Ok(None) | Err((_, Undone(true))) => {}
            Err((_, Undone(false))) => {
                mirror.doubt();
                self.told = false;
            }
        }
        self.mirror = mirror;
        self.count_rules();
        if is_legacy {
            match &result {
                Ok(Some(_)) => self.legacy.account(self.family(), before, &self.mirror, strays(batch)),
                Ok(None) | Err(_) => self.legacy.look(self.family()),
            }
            .map_err(of_io)?;
        }
        result.map(drop).map_err(|(error, _)| error)
    }

    /// Writes a plan; the chains that can't be removed come back. `None` if there is nothing to do.
    fn write_plan(&mut self, plan: &Plan<'_>) -> Result<Option<BTreeSet<ChainId>>, (CommitError, Undone)> {
        let (mut progress, mut counted) = (Progress::default(), false);
        if plan.parts.is_empty() {
            return Ok(None);
        }
        let mut written = Table::ALL.map(|_| 0);
        loop {
            let write = |stdin: &mut Stdin<'_>| Script::stream(plan, &progress, &mut |piece| stdin.write(piece));
            let (result, outline) = self.run(plan.size(), write);
            for (count, table) in written.iter_mut().zip(Table::ALL) {
                *count += outline.written(table);
            }
            let Err(failure) = result else { break };
            self.counters.failed(self.wrote);
            let script = Script::new(plan, &progress);
            let committed = line_of(&failure).map(|line| script.outline().sections_before(line));
            let stuck = stuck_at(plan, &script, &failure);
            if let Some(committed) = committed.filter(|_| !stuck.is_empty() && !progress.all_stuck) {
                // They are emptied, and stay until those who lead to them have gone.
                progress.sections += committed;
                progress.stuck.extend(stuck);
                progress.all_stuck = progress.stuck.len() > STUCK;
                continue;
            }
            // A counter that a rule names may have gone with a flush.
            if let Some(committed) = committed.filter(|_| !std::mem::replace(&mut counted, true))
                && make_counters(plan.batch)
            {
                progress.sections += committed;
                continue;
            }
            let undone = Undone(progress.sections == 0 && self.take_back(plan, &script, &failure, committed));
            return Err((of_script(failure, &self.tool, plan, &script, self.fresh), undone));
        }
        for (count, table) in written.iter().zip(Table::ALL) {
            self.counters.set_written(table, *count);
        }
        if progress.all_stuck {
            let removed = |object: &IptObject| match object {
                IptObject::Chain(id, _) | IptObject::Place(id) if !names::is_shared(object) => Some(*id),
                _ => None,
            };
            progress.stuck.extend(plan.batch.delete.iter().filter_map(removed));
        }
        Ok(Some(progress.stuck))
    }

    /// Takes back what a run that failed had committed. False if it isn't known what that is.
    fn take_back(&mut self, plan: &Plan<'_>, script: &Whole, failure: &Failure, committed: Option<usize>) -> bool {
        let committed = match failure {
            // Not run, or nothing read of what it was given.
            Failure::Missing { .. }
            | Failure::TooOld { .. }
            | Failure::NoPermission { .. }
            | Failure::NoLockFile { .. }
            | Failure::Locked { .. } => 0,
            Failure::Refused { .. } | Failure::NoTable { .. } | Failure::Exhausted { .. } => match committed {
                Some(committed) => committed,
                None if script.outline().sections() == 1 => 0,
                None => return false,
            },
            Failure::TimedOut { .. } | Failure::Killed { .. } | Failure::Garbage { .. } | Failure::Io { .. } => {
                return false;
            }
        };
        let Some(undo) = undo(plan, script, committed) else { return false };
        let text = undo.text.text();
        let write = |stdin: &mut Stdin<'_>| stdin.write(text).map(|()| Outline::of(text));
        (text.is_empty() || self.run(undo.text.lines(), write).0.is_ok()) && undo.complete
    }

    /// Runs the tool with a text of about so many lines.
    fn run(
        &mut self,
        lines: usize,
        mut write: impl FnMut(&mut Stdin<'_>) -> io::Result<Outline>,
    ) -> (Result<Run, Failure>, Outline) {
        let mut restore = || {
            let mut outline = Outline::default();
            let result = self.tool.restore_by(&mut |stdin| write(stdin).map(|of| outline = of));
            (result, outline)
        };
        let committed = |(result, outline): &(Result<Run, Failure>, Outline)| match result {
            Ok(_) => Some(outline.sections()),
            Err(failure) => line_of(failure).map(|line| outline.sections_before(line)),
        };
        let done = match self.tool.backend() {
            Backend::Nft => self.turn.take().around(lines, restore, committed),
            Backend::Legacy => {
                // So that no family waits for the other's lock, and takes it for somebody else's.
                let _turn = self.turn.take();
                Ok(restore())
            }
        };
        let (result, outline) = done.unwrap_or_else(|error| {
            (Err(Failure::Io { tool: "iptables-restore".to_owned(), error }), Outline::default())
        });
        self.counters.ran(outline.bytes);
        match &result {
            Ok(run) => self.counters.waited(run.lock_wait),
            Err(Failure::Locked { bound, .. }) => self.counters.waited(*bound),
            Err(_) => {}
        }
        (result, outline)
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
        }
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

/// Whether nothing is left of what failed.
#[derive(Clone, Copy, Debug)]
struct Undone(bool);

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

    fn commit(&mut self, batch: &Batch<IptObject>) -> Result<(), CommitError> {
        self.write(batch)?;
        let wants = |object: &IptObject| *object == IptObject::RouteLocalnet;
        if batch.create.iter().chain(&batch.replace).any(wants) && self.route_localnet().is_none() {
            sysctl::write(ROUTE_LOCALNET, "1").map_err(|error| {
                self.doubt();
                let text = format!("writing net.ipv4.conf.all.route_localnet: {error}");
                CommitError::Unusable(io::Error::new(error.kind(), text))
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

/// Makes the counters that rules of a batch name, and that may be there; false if there are none.
fn make_counters(batch: &Batch<IptObject>) -> bool {
    let rules = batch.create.iter().chain(&batch.replace).flat_map(|object| match object {
        IptObject::Chain(_, rules) => &*rules.0,
        IptObject::Entry(_, rules) => rules,
        IptObject::Place(_) | IptObject::RouteLocalnet | IptObject::Stray(..) => &[],
    });
    let names: BTreeSet<&str> = rules
        .flat_map(|rule| &rule.matches)
        .filter_map(|each| match each {
            Match::Account(name) => Some(&**name),
            _ => None,
        })
        .collect();
    // Where one can't be made, the run says so once more.
    names.iter().for_each(|name| drop(nfacct::create(name)));
    !names.is_empty()
}

/// The line that the tool refused.
fn line_of(failure: &Failure) -> Option<usize> {
    match failure {
        Failure::Refused { line, .. } => *line,
        _ => None,
    }
}

/// The chains whose removal is refused, since somebody else's rules lead to them.
fn stuck_at(plan: &Plan<'_>, script: &Whole, failure: &Failure) -> Vec<ChainId> {
    let Failure::Refused { lines, .. } = failure else { return Vec::new() };
    let removes = |line: &&usize| script.line(**line).is_some_and(|line| line.starts_with("-X "));
    let items = lines.iter().filter(removes).filter_map(|line| script.operation(*line));
    items.filter_map(|item| plan.chain(item)).collect()
}

/// The chains in which a batch adds or removes single rules.
fn places(batch: &Batch<IptObject>) -> impl Iterator<Item = ChainId> {
    let all = batch.create.iter().chain(&batch.replace).chain(&batch.delete);
    all.filter_map(|object| object.key().place())
}

/// How many rules of others a batch removes from each table.
fn strays(batch: &Batch<IptObject>) -> [i64; 3] {
    let mut strays = [0; 3];
    for object in &batch.delete {
        if let IptObject::Stray(id, _) = object
            && let Some(count) = strays.get_mut(at(id.table))
        {
            *count += 1;
        }
    }
    strays
}
