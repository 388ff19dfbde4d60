//! The requests to IPVS that virtual servers need: of the kernel, or of a stand-in in tests.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ferry_api::object::Family;
use ferry_kernel::clock::processor_time;
use ferry_kernel::ipvs::{
    self, Command, Connections, IpvsDestination, IpvsError, IpvsServer, IpvsSocket, ListedServer, Listing, Lost,
    RefusedCommand, Timeouts,
};

/// IPVS of one network namespace.
pub(super) trait Director: fmt::Debug + Send {
    /// The servers of a family. The kernel leaves some out if others are deleted meanwhile, and lists some twice.
    fn servers(&mut self, family: Family) -> Result<Vec<IpvsServer>, IpvsError>;
    /// The same while no engine of this process changes any.
    fn settled_servers(&mut self, family: Family) -> Result<Vec<IpvsServer>, IpvsError> {
        self.servers(family)
    }
    /// One server.
    fn server(&mut self, id: &ipvs::ServerId) -> Result<Option<IpvsServer>, IpvsError>;
    /// The destinations of a server; none if there is no such server.
    fn destinations(&mut self, id: &ipvs::ServerId) -> Result<Vec<(IpvsDestination, Connections)>, IpvsError>;
    /// The next server in a listing of all of both families, other programs' included, with its destinations, but without their
    /// thresholds; `None` at the end, after which the listing begins again.
    fn next_listed(&mut self) -> Result<Option<ListedServer>, IpvsError>;
    /// The processor time of this thread so far.
    fn processor_time(&self) -> Duration;
    /// Commits commands, each on its own; returns the refused ones.
    fn commit(&mut self, commands: &[Command]) -> Result<Vec<RefusedCommand>, Lost>;
    /// Sets the timeouts of connections.
    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), IpvsError>;
}

/// Serialises the changes of servers by the engines of a process, and the lists of servers that have to be complete.
#[derive(Clone, Debug, Default)]
pub struct ServersLock(Arc<RwLock<()>>);

/// The kernel's.
#[derive(Debug)]
pub(super) struct KernelDirector {
    socket: IpvsSocket,
    lock: ServersLock,
    /// the listing that is being read
    listing: Option<Listing>,
}

impl KernelDirector {
    /// Opens the socket, in the network namespace of this thread.
    pub(super) fn open(lock: ServersLock) -> Result<Self, IpvsError> {
        Ok(Self { socket: IpvsSocket::open()?, lock, listing: None })
    }
}

impl Director for KernelDirector {
    fn servers(&mut self, family: Family) -> Result<Vec<IpvsServer>, IpvsError> {
        let mut servers = Vec::new();
        self.socket.dump_servers(Some(family), &mut |server| servers.push(server))?;
        Ok(servers)
    }

    fn settled_servers(&mut self, family: Family) -> Result<Vec<IpvsServer>, IpvsError> {
        let ServersLock(lock) = self.lock.clone();
        let _settled = lock.read().unwrap_or_else(PoisonError::into_inner);
        self.servers(family)
    }

    fn server(&mut self, id: &ipvs::ServerId) -> Result<Option<IpvsServer>, IpvsError> {
        Ok(self.socket.server(id)?.map(|(server, _)| server))
    }

    fn destinations(&mut self, id: &ipvs::ServerId) -> Result<Vec<(IpvsDestination, Connections)>, IpvsError> {
        let mut destinations = Vec::new();
        let mut add = |destination, connections| destinations.push((destination, connections));
        self.socket.dump_destinations(id, &mut add)?;
        Ok(destinations)
    }

    fn next_listed(&mut self) -> Result<Option<ListedServer>, IpvsError> {
        // One that fails or ends is closed.
        let mut listing = match self.listing.take() {
            Some(open) => open,
            None => Listing::open()?,
        };
        let next = listing.next_server()?;
        self.listing = next.is_some().then_some(listing);
        Ok(next)
    }

    fn processor_time(&self) -> Duration {
        processor_time()
    }

    fn commit(&mut self, commands: &[Command]) -> Result<Vec<RefusedCommand>, Lost> {
        let ServersLock(lock) = &self.lock;
        let _changing = lock.write().unwrap_or_else(PoisonError::into_inner);
        self.socket.commit(commands)
    }

    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), IpvsError> {
        self.socket.set_timeouts(timeouts)
    }
}
