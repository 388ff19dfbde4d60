//! Implements `Kernel` for virtual servers, over generic netlink.
//!
//! IPVS has no transactions: commands of a batch go out together, and each takes effect or is refused on its own. A new server
//! is created and then filled; a changed one is compared with the kernel's (`plan`). An endpoint that goes may drain (`drain`).
//! `ledger` determines at a start which servers are ours, `admission` which may be taken over where one is to be created. `drift` looks
//! for foreign changes, at the pace of `looks`, `schedulers` replaces those that the kernel lacks, and `forwarding` reports a node that doesn't
//! forward IPv6.

mod admission;
mod commit;
mod complete;
pub(crate) mod convert;
mod director;
mod drain;
mod drift;
mod forwarding;
pub(crate) mod ledger;
mod looks;
mod plan;
pub(crate) mod schedulers;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, IpNet};
use ferry_kernel::ipvs::{self, Command, Connections, IpvsDestination, IpvsError, IpvsServer, RefusalCause, Timeouts};
use ferry_kernel::module;
use ferry_model::Scheduler;
use ferry_plane::layered::Layer;
use ferry_plane::{Batch, CommitError, CommitFailure, Drift, Extent, Kernel};
use ferry_ruleset::failure::of_io;

use crate::object::{IpvsKey, IpvsObject};
use crate::server::{ServerId, ServerSettings, VirtualServer};
use crate::setup;
pub(crate) use complete::completely;
use convert::{id_of, kernel_id, settings_of, virtual_server};
pub use director::ServersLock;
use director::{Director, KernelDirector};
use drain::Draining;
use forwarding::Forwarding;
pub use forwarding::ForwardingReports;
use ledger::{Ledger, Traces};
use looks::Looks;
use plan::Found;
pub use schedulers::SchedulerReports;
use schedulers::{Schedulers, module_of};

/// The settings of the mode that concern virtual servers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// the configured scheduler
    pub scheduler: Scheduler,
    /// ranges in which virtual servers of other programs are never taken over (ipvs.excludeCIDRs)
    pub excluded: Vec<IpNet>,
    /// timeouts of connections; zeros leave the kernel's. `None`: all are the kernel's
    pub timeouts: Option<Timeouts>,
    /// time for which an endpoint that left the slices of its Service keeps its TCP connections
    pub grace: Duration,
    /// takes the schedulers that are missing
    pub reports: Option<SchedulerReports>,
    /// takes the problem that the node doesn't forward IPv6
    pub forwarding_reports: Option<ForwardingReports>,
}

/// One family's virtual servers.
#[derive(Debug)]
pub(crate) struct ServersKernel {
    family: Family,
    director: Box<dyn Director>,
    options: ServerOptions,
    strict_arp: bool,
    /// the servers that this process has committed or adopted, as it left them
    own: BTreeMap<ServerId, Own>,
    /// servers that were missing before the kernel was asked to create them, as wanted, and whose answer was lost
    unconfirmed: HashMap<ServerId, VirtualServer>,
    /// everything was read once: from then on all own servers are known
    adopted: bool,
    /// the traces of an earlier proxy, until a table of this mode lists our servers
    traces: Option<Traces>,
    schedulers: Schedulers,
    draining: Draining,
    looks: Looks,
    /// servers that others have changed, until they are reported: also past a look that fails
    changed: Vec<IpvsKey>,
    /// the last look could not read the listing
    listing_fails: bool,
    forwarding: Forwarding,
    generation: u32,
}

/// The state in which this process left a server.
#[derive(Clone, Copy, Debug)]
struct Own {
    settings: ServerSettings,
    /// digest of the endpoints
    endpoints: u64,
    has_endpoints: bool,
    /// the look at the list of servers that found it last
    seen: u32,
    /// the round of looks at destinations in which this process changed it last
    changed_in: u32,
    /// the round of looks at destinations that found it last
    found_in: u32,
}

/// The address and port of the server that probes a scheduler, of a range for documentation: as upstream's proxy does.
const PROBE_PORT: u16 = 20_000;

// === impl ServersKernel ===

impl ServersKernel {
    /// Opens the socket, in the network namespace of this thread; the kernel loads the module if it can.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`], with an advice, if the kernel lacks IPVS; the system's error.
    pub(crate) fn open(
        family: Family,
        lock: ServersLock,
        options: ServerOptions,
        strict_arp: bool,
    ) -> io::Result<Self> {
        let director = KernelDirector::open(lock).map_err(explained)?;
        Ok(Self::over(Box::new(director), family, options, strict_arp))
    }

    fn over(director: Box<dyn Director>, family: Family, options: ServerOptions, strict_arp: bool) -> Self {
        Self {
            family,
            director,
            own: BTreeMap::new(),
            unconfirmed: HashMap::new(),
            adopted: false,
            traces: None,
            schedulers: Schedulers::new(options.scheduler, options.reports.clone()),
            draining: Draining::new(options.grace),
            looks: Looks::default(),
            changed: Vec::new(),
            listing_fails: false,
            forwarding: Forwarding::new(family, options.forwarding_reports.clone()),
            generation: 0,
            options,
            strict_arp,
        }
    }

    /// True if a server of any family has the configured scheduler, as at most restarts, and the kernel's IPVS has this family: it
    /// needs no probe, which would be a write.
    fn scheduler_serves(&mut self) -> Result<bool, CommitError> {
        let scheduler = ipvs::Scheduler::new(self.schedulers.fallback().name());
        let mut serves = false;
        for family in Family::ALL {
            let servers = self.director.servers(family).map_err(of_ipvs)?;
            serves |= servers.iter().any(|server| Some(server.scheduler) == scheduler);
        }
        // One that is left of a probe is deleted by the next.
        Ok(serves && matches!(self.director.server(&kernel_id(self.probe_id())), Ok(None)))
    }

    /// The server that probes a scheduler.
    fn probe_id(&self) -> ServerId {
        let address = match self.family {
            Family::V4 => [198, 51, 100, 0].into(),
            Family::V6 => std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).into(),
        };
        ServerId { protocol: ferry_api::object::Protocol::Tcp, address, port: PROBE_PORT }
    }

    /// Creates and deletes a server with the configured scheduler, so that the kernel loads its module.
    fn probe_scheduler(&mut self) -> Result<(), CommitError> {
        let (id, scheduler) = (self.probe_id(), self.schedulers.fallback());
        let settings = ServerSettings { scheduler, persistence: None, altered: false };
        let server = convert::kernel_server(id, settings, scheduler).ok_or_else(|| unusable_scheduler(scheduler))?;
        let failures = self.director.commit(&[Command::NewServer(server)]).map_err(|lost| of_ipvs(lost.error))?;
        match failures.first().map(|failure| failure.cause) {
            Some(RefusalCause::NoScheduler(_)) => return Err(unusable_scheduler(scheduler)),
            // With that the scheduler is not proven, but IPVS is: a server that needs it reports what is missing.
            Some(RefusalCause::Exists) if !self.destinations(id)?.is_empty() => return Ok(()),
            // An empty one was left by a proxy that was killed here.
            None | Some(RefusalCause::Exists) => {}
            Some(RefusalCause::NoServer | RefusalCause::NoDestination | RefusalCause::Other) => {
                let error = failures.into_iter().next().map(|failure| failure.error.error);
                return Err(of_io(error.unwrap_or_else(|| io::ErrorKind::Other.into())));
            }
        }
        self.director.commit(&[Command::DeleteServer(server.id)]).map_err(|lost| of_ipvs(lost.error)).map(drop)
    }

    /// The server with its destinations; `None` if there is none.
    fn find(&mut self, id: ServerId) -> Result<Option<Found>, CommitError> {
        let Some(server) = self.director.server(&kernel_id(id)).map_err(of_ipvs)? else { return Ok(None) };
        Ok(Some(Found { server, destinations: self.destinations(id)? }))
    }

    fn destinations(&mut self, id: ServerId) -> Result<Vec<(IpvsDestination, Connections)>, CommitError> {
        self.director.destinations(&kernel_id(id)).map_err(of_ipvs)
    }

    /// All servers of the family.
    fn list(&mut self) -> Result<Vec<IpvsServer>, CommitError> {
        self.director.servers(self.family).map_err(of_ipvs)
    }

    /// The same, complete. One that is left out would count as another program's from then on, since it can't be created.
    fn list_completely(&mut self) -> Result<Vec<IpvsServer>, CommitError> {
        completely(|| self.director.settled_servers(self.family)).map_err(of_ipvs)
    }

    /// Notes an own server as it was found.
    fn read(&mut self, id: ServerId, found: &Found, now: Instant) -> IpvsObject {
        self.draining.found(id, &found.destinations, now);
        let settings = self.schedulers.wanted(id, settings_of(&found.server));
        let server = virtual_server(settings, &found.destinations);
        if !settings.altered {
            self.schedulers.prove(settings_of(&found.server).scheduler);
        }
        self.note(id, &server);
        IpvsObject::Server(id, server)
    }

    /// True if the server was created by a command whose answer was lost: it has the wanted settings, and no other endpoints.
    fn confirm(&mut self, id: ServerId, found: &Found) -> bool {
        let Some(wanted) = self.unconfirmed.remove(&id) else { return false };
        let settings = self.schedulers.wanted(id, settings_of(&found.server));
        let there = virtual_server(settings, &found.destinations);
        let is_wanted = |endpoint| wanted.endpoints.iter().any(|weighted| weighted.endpoint == endpoint);
        there.settings == wanted.settings
            && found.destinations.iter().all(|(to, _)| is_wanted(convert::endpoint_of(to.address)))
    }

    /// Remembers a server of ours as it is in the kernel, or is about to be.
    fn note(&mut self, id: ServerId, server: &VirtualServer) {
        self.unconfirmed.remove(&id);
        let own = Own {
            settings: server.settings,
            endpoints: digest(server),
            has_endpoints: !server.endpoints.is_empty(),
            seen: self.generation,
            changed_in: self.looks.round(),
            found_in: self.looks.round(),
        };
        self.own.insert(id, own);
    }

    /// The servers of an earlier proxy among those that are there.
    fn adopt(&mut self, listed: &[IpvsServer]) -> Result<HashSet<ServerId>, CommitError> {
        let ledger = Ledger::read(self.family, &self.options.excluded).map_err(of_io)?;
        let own = ledger.own(listed, |id| {
            let destinations = self.destinations(id)?;
            Ok::<_, CommitError>(destinations.into_iter().map(|(to, _)| to).collect())
        })?;
        self.traces = match ledger {
            Ledger::Traces(traces) => Some(traces),
            Ledger::Listed(_) => None,
        };
        Ok(own)
    }

    fn read_all(&mut self) -> Result<Vec<IpvsObject>, CommitError> {
        let now = Instant::now();
        self.schedulers.look_again();
        let listed = self.list_completely()?;
        let adopted = if self.adopted { HashSet::new() } else { self.adopt(&listed)? };
        let mut gone: HashSet<ServerId> = self.own.keys().chain(self.unconfirmed.keys()).copied().collect();
        let mut objects = Vec::new();
        for server in listed {
            let id = id_of(server.id);
            if gone.remove(&id) || adopted.contains(&id) {
                let found = Found { server, destinations: self.destinations(id)? };
                if self.own.contains_key(&id) || adopted.contains(&id) || self.confirm(id, &found) {
                    objects.push(self.read(id, &found, now));
                }
            }
        }
        gone.into_iter().for_each(|id| self.forget(id));
        self.adopted = true;
        Ok(objects)
    }

    fn read_keys(&mut self, keys: &[IpvsKey]) -> Result<Vec<IpvsObject>, CommitError> {
        let now = Instant::now();
        let mut objects = Vec::new();
        for key in keys {
            let IpvsKey::Server(id) = *key else { continue };
            if !self.own.contains_key(&id) && !self.unconfirmed.contains_key(&id) {
                continue;
            }
            match self.find(id)? {
                Some(found) if self.own.contains_key(&id) || self.confirm(id, &found) => {
                    objects.push(self.read(id, &found, now));
                }
                // Another program's.
                Some(_) => {}
                None => self.forget(id),
            }
        }
        Ok(objects)
    }

    fn forget(&mut self, id: ServerId) {
        self.own.remove(&id);
        self.unconfirmed.remove(&id);
        self.draining.forget(id);
        self.schedulers.forget(id);
    }

    /// Deletes draining endpoints of these servers whose connections have ended, or whose grace period is over. What the kernel refuses is
    /// tried again at the next look.
    fn end_drained(&mut self, servers: Vec<ServerId>, now: Instant) -> Result<(), CommitError> {
        let mut ended = Vec::new();
        for id in servers {
            let destinations = self.destinations(id)?;
            ended.extend(self.draining.ended(id, &destinations, now).into_iter().map(|endpoint| (id, endpoint)));
        }
        let address = |endpoint| convert::destination(endpoint, 0).address;
        let delete = |(id, endpoint): &(_, _)| Command::DeleteDestination(kernel_id(*id), address(*endpoint));
        let commands: Vec<Command> = ended.iter().map(delete).collect();
        let refused = self.director.commit(&commands).map_err(|lost| of_ipvs(lost.error))?;
        for failure in self.draining.deleted(&ended, &refused) {
            if let Some((server, endpoint)) = ended.get(failure.index) {
                tracing::warn!(%server, %endpoint, err = %failure, "Cannot delete a draining endpoint, trying again");
            }
        }
        Ok(())
    }
}

impl Layer<IpvsObject> for ServersKernel {
    fn holds(&self, key: &IpvsKey) -> bool {
        matches!(key, IpvsKey::Server(_))
    }

    fn admit(&mut self, batch: &Batch<IpvsObject>) -> Result<(), CommitError> {
        admission::admit(self, batch)
    }

    fn kernel(&mut self) -> &mut dyn Kernel<IpvsObject> {
        self
    }
}

impl Kernel<IpvsObject> for ServersKernel {
    fn prepare(&mut self) -> Result<(), CommitError> {
        if !self.scheduler_serves()? {
            self.probe_scheduler()?;
        }
        // What the kernel may refuse comes before what stays set after a refusal.
        if let Some(timeouts) = self.options.timeouts {
            let refused = |error| setup::refused_timeouts(timeouts, &error).unwrap_or_else(|| of_ipvs(error));
            self.director.set_timeouts(timeouts).map_err(refused)?;
        }
        setup::set(self.family, self.strict_arp)
    }

    fn read_back(&mut self, extent: &Extent<IpvsKey>) -> Result<Vec<IpvsObject>, CommitError> {
        match extent {
            Extent::All => self.read_all(),
            Extent::Keys(keys) => self.read_keys(keys),
        }
    }

    fn commit(&mut self, batch: &Batch<IpvsObject>) -> Result<(), CommitFailure> {
        commit::commit(self, batch)
    }

    /// A draining endpoint may have left the slices of its Service, or be in them after a restart.
    fn acknowledged(&mut self, objects: &[IpvsObject]) {
        if self.draining.is_empty() {
            return;
        }
        let now = Instant::now();
        for object in objects {
            if let IpvsObject::Server(id, server) = object {
                self.draining.list(*id, &server.listed, now);
            }
        }
    }

    fn tend(&mut self, now: Instant) -> Result<Drift<IpvsKey>, CommitError> {
        let (list_is_due, destinations_are_due) = (self.looks.list.begin(now), self.looks.destinations.begin(now));
        if list_is_due || destinations_are_due {
            self.forwarding.check(self.own.values().any(|own| own.has_endpoints));
        }
        if list_is_due {
            self.schedulers.tend(now);
            let before = self.director.processor_time();
            self.look_at_list()?;
            self.looks.list.done(now, self.director.processor_time().saturating_sub(before));
        }
        if destinations_are_due {
            let before = self.director.processor_time();
            self.end_drained(self.draining.servers(), now)?;
            self.look_one_by_one()?;
            self.look_at_listing();
            self.looks.destinations.done(now, self.director.processor_time().saturating_sub(before));
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.dedup();
        let extent = (!changed.is_empty()).then_some(Extent::Keys(changed));
        Ok(Drift { by_proxies: None, by_others: extent })
    }

    fn wake(&mut self, now: Instant) -> Option<Instant> {
        self.looks.wake(self.own.len(), now)
    }
}

/// Digest of a server's endpoints with their weights.
fn digest(server: &VirtualServer) -> u64 {
    let mut hasher = DefaultHasher::new();
    for weighted in server.endpoints.iter() {
        (weighted.endpoint, weighted.weight).hash(&mut hasher);
    }
    hasher.finish()
}

/// Maps an error of IPVS that concerns a whole request.
pub(crate) fn of_ipvs(error: IpvsError) -> CommitError {
    match error {
        IpvsError::Absent => CommitError::Unusable(explained(IpvsError::Absent)),
        IpvsError::Io(error) => of_io(error),
    }
}

/// The error as one of the system, with an advice if the module is missing.
fn explained(error: IpvsError) -> io::Error {
    match error {
        IpvsError::Absent => {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel has no IPVS: {}", module::find("ip_vs")))
        }
        IpvsError::Io(error) => error,
    }
}

fn unusable_scheduler(scheduler: Scheduler) -> CommitError {
    let text = format!("the kernel has no scheduler {scheduler}: {}", module::find(&module_of(scheduler)));
    CommitError::Unusable(io::Error::new(io::ErrorKind::Unsupported, text))
}
