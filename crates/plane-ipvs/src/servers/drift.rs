//! Looks for foreign changes of virtual servers and their destinations.

use std::collections::VecDeque;

use ferry_kernel::ipvs::{Connections, IpvsDestination, IpvsError};
use ferry_plane::CommitError;

use super::convert::{id_of, settings_of, virtual_server};
use super::looks::Looks;
use super::{Own, ServersKernel, digest};
use crate::object::IpvsKey;
use crate::server::{ServerId, ServerSettings};

impl ServersKernel {
    /// Looks for foreign changes in the list of all servers: notes those that are missing or have other settings.
    pub(super) fn look_at_list(&mut self) -> Result<(), CommitError> {
        self.generation = self.generation.wrapping_add(1);
        for server in self.list()? {
            let id = id_of(server.id);
            let settings = self.schedulers.wanted(id, settings_of(&server));
            if let Some(own) = self.own.get_mut(&id) {
                own.seen = self.generation;
                if own.settings != settings {
                    self.changed.push(IpvsKey::Server(id));
                }
            }
        }
        let missing = self.own.iter().filter(|(_, own)| own.seen != self.generation);
        self.changed.extend(missing.map(|(id, _)| IpvsKey::Server(*id)));
        Ok(())
    }

    /// Reads some servers one by one, in turn of all and of those that the listing has left out: notes those whose destinations others
    /// have changed.
    pub(super) fn look_one_by_one(&mut self) -> Result<(), CommitError> {
        let (before, count) = (self.director.processor_time(), Looks::count_one_by_one(self.own.len()));
        // From the end of the list on to its beginning: no look is without a server.
        let round = self.own.range(self.looks.rest()).chain(&self.own);
        let mut rotation: VecDeque<ServerId> = round.take(count).map(|(id, _)| *id).collect();
        let mut is_rotations_turn = true;
        while let Some(id) = self.looks.next_one_by_one(&mut rotation, is_rotations_turn) {
            is_rotations_turn = !is_rotations_turn;
            let destinations = self.destinations(id)?;
            if self.differs(id, &destinations) {
                self.changed.push(IpvsKey::Server(id));
            }
            if self.director.processor_time().saturating_sub(before) > Looks::BUDGET_ONE_BY_ONE {
                break;
            }
        }
        Ok(())
    }

    /// Reads on in the listing of all servers with their destinations: notes those that others have changed. Without the listing all
    /// are read one by one.
    pub(super) fn look_at_listing(&mut self) {
        match self.read_on_in_listing() {
            Ok(()) => self.listing_fails = false,
            Err(error) => {
                if !std::mem::replace(&mut self.listing_fails, true) {
                    tracing::warn!(err = %error, family = %self.family, "Cannot read /proc/net/ip_vs: drift of endpoints is found later, server by server; make /proc readable for the proxy");
                }
                if !self.looks.has_left_out() {
                    self.end_round();
                }
            }
        }
    }

    fn read_on_in_listing(&mut self) -> Result<(), IpvsError> {
        let (before, count) = (self.director.processor_time(), self.looks.count(self.own.len()));
        let mut lines = 0;
        for _ in 0..count {
            let Some(listed) = self.director.next_listed()? else {
                self.end_round();
                break;
            };
            self.looks.listed();
            let id = listed.id.map(id_of);
            // The listing may be older than the last change of this round.
            let differs = |id: &ServerId| self.differs(*id, &listed.destinations) && !self.is_changed_in_round(*id);
            if let Some(id) = id.filter(differs) {
                self.changed.push(IpvsKey::Server(id));
            }
            lines += 1 + listed.destinations.len();
            if lines >= Looks::LINES_BETWEEN_CLOCKS {
                lines = 0;
                if self.director.processor_time().saturating_sub(before) > Looks::BUDGET {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Notes that a server of ours was found. True if these aren't its destinations.
    fn differs(&mut self, id: ServerId, destinations: &[(IpvsDestination, Connections)]) -> bool {
        let round = self.looks.round();
        let Some(own) = self.own.get_mut(&id) else { return false };
        own.found_in = round;
        let found = virtual_server(ServerSettings { altered: false, ..own.settings }, destinations);
        digest(&found) != own.endpoints || found.settings.altered
    }

    /// True if this process has changed the server in this round.
    fn is_changed_in_round(&self, id: ServerId) -> bool {
        self.own.get(&id).is_some_and(|own| own.changed_in == self.looks.round())
    }

    /// Begins another round of looks at destinations. The servers that this one has left out are to be read one by one, those first that
    /// were not found for the longest time.
    fn end_round(&mut self) {
        let round = self.looks.round();
        let age = |own: &Own| round.wrapping_sub(own.found_in);
        let mut left_out: Vec<_> =
            self.own.iter().map(|(id, own)| (age(own), *id)).filter(|(age, _)| *age > 0).collect();
        left_out.sort_unstable();
        self.looks.end_round(left_out.into_iter().map(|(_, id)| id).collect());
    }
}
