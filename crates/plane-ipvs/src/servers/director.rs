//! The requests to IPVS that virtual servers need: of the kernel, or of a stand-in in tests.

use std::fmt;

use ferry_api::object::Family;
use ferry_kernel::ipvs::{self, Command, Connections, Destination, Error, Failure, Lost, Server, Timeouts};

/// IPVS of one network namespace.
pub(super) trait Director: fmt::Debug + Send {
    /// All servers of a family.
    fn servers(&mut self, family: Family) -> Result<Vec<Server>, Error>;
    /// One server.
    fn server(&mut self, id: &ipvs::ServerId) -> Result<Option<Server>, Error>;
    /// The destinations of a server; none if there is no such server.
    fn destinations(&mut self, id: &ipvs::ServerId) -> Result<Vec<(Destination, Connections)>, Error>;
    /// Commits commands, each on its own; returns the refused ones.
    fn commit(&mut self, commands: &[Command]) -> Result<Vec<Failure>, Lost>;
    /// Sets the timeouts of connections.
    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error>;
}

impl Director for ipvs::Socket {
    fn servers(&mut self, family: Family) -> Result<Vec<Server>, Error> {
        let mut servers = Vec::new();
        self.dump_servers(Some(family), &mut |server| servers.push(server))?;
        Ok(servers)
    }

    fn server(&mut self, id: &ipvs::ServerId) -> Result<Option<Server>, Error> {
        Ok(Self::server(self, id)?.map(|(server, _)| server))
    }

    fn destinations(&mut self, id: &ipvs::ServerId) -> Result<Vec<(Destination, Connections)>, Error> {
        let mut destinations = Vec::new();
        let mut add = |destination, connections| destinations.push((destination, connections));
        self.dump_destinations(id, &mut add)?;
        Ok(destinations)
    }

    fn commit(&mut self, commands: &[Command]) -> Result<Vec<Failure>, Lost> {
        Self::commit(self, commands)
    }

    fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        Self::set_timeouts(self, timeouts)
    }
}
