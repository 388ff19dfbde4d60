//! Looks for foreign changes of virtual servers and their destinations.

use std::collections::VecDeque;

use ferry_kernel::clock::processor_time;
use ferry_kernel::ipvs::{Connections, Destination};
use ferry_plane::CommitError;

use super::convert::{id_of, settings_of, virtual_server};
use super::looks::Looks;
use super::{Own, ServersKernel, digest, of_ipvs};
use crate::object::IpvsKey;
use crate::server::{ServerId, Settings};

impl ServersKernel {
    /// Looks for foreign changes in the list of all servers. Returns those that are missing or have other settings.
    pub(super) fn look_at_list(&mut self) -> Result<Vec<IpvsKey>, CommitError> {
        self.generation = self.generation.wrapping_add(1);
        let mut changed = Vec::new();
        for server in self.list()? {
            let id = id_of(server.id);
            let settings = self.schedulers.wanted(id, settings_of(&server));
            if let Some(own) = self.own.get_mut(&id) {
                own.seen = self.generation;
                if own.settings != settings {
                    changed.push(IpvsKey::Server(id));
                }
            }
        }
        let missing = self.own.iter().filter(|(_, own)| own.seen != self.generation);
        changed.extend(missing.map(|(id, _)| IpvsKey::Server(*id)));
        Ok(changed)
    }

    /// Reads some servers one by one: after those of the last look, and of those that the listing has left out. Returns those whose
    /// destinations others have changed.
    pub(super) fn look_one_by_one(&mut self) -> Result<Vec<IpvsKey>, CommitError> {
        let (before, count) = (processor_time(), Looks::count_one_by_one(self.own.len()));
        // From the end of the list on to its beginning: no look is without a server.
        let round = self.own.range(self.looks.rest()).chain(&self.own);
        let mut some: VecDeque<ServerId> = round.take(count).map(|(id, _)| *id).collect();
        let mut changed = Vec::new();
        while let Some(id) =
            some.pop_front().inspect(|id| self.looks.reached(*id)).or_else(|| self.looks.next_left_out())
        {
            let destinations = self.destinations(id)?;
            if self.differs(id, &destinations) {
                changed.push(IpvsKey::Server(id));
            }
            if processor_time().saturating_sub(before) > Looks::BUDGET_ONE_BY_ONE {
                break;
            }
        }
        Ok(changed)
    }

    /// Reads on in the listing of all servers with their destinations. Returns those that others have changed.
    pub(super) fn look_at_listing(&mut self) -> Result<Vec<IpvsKey>, CommitError> {
        let (before, count) = (processor_time(), self.looks.count(self.own.len()));
        let mut changed = Vec::new();
        for number in 1..=count {
            let Some(listed) = self.director.next_listed().map_err(of_ipvs)? else {
                self.end_round();
                break;
            };
            self.looks.listed();
            let id = listed.id.map(id_of);
            // The listing may be older than the last change of this round.
            let differs = |id: &ServerId| self.differs(*id, &listed.destinations) && !self.was_left_now(*id);
            changed.extend(id.filter(differs).map(IpvsKey::Server));
            if number.is_multiple_of(Looks::BETWEEN_CLOCKS) && processor_time().saturating_sub(before) > Looks::BUDGET {
                break;
            }
        }
        Ok(changed)
    }

    /// Notes that a server of ours was found. True if these aren't its destinations.
    fn differs(&mut self, id: ServerId, destinations: &[(Destination, Connections)]) -> bool {
        let round = self.looks.round();
        let Some(own) = self.own.get_mut(&id) else { return false };
        own.found = round;
        let found = virtual_server(Settings { altered: false, ..own.settings }, destinations);
        digest(&found) != own.endpoints || found.settings.altered
    }

    /// True if this process has changed the server in this round.
    fn was_left_now(&self, id: ServerId) -> bool {
        self.own.get(&id).is_some_and(|own| own.left == self.looks.round())
    }

    /// Begins another round of looks at destinations. The servers that this one has left out are to be read one by one, those first that
    /// were not found for the longest time.
    fn end_round(&mut self) {
        let round = self.looks.round();
        let age = |own: &Own| round.wrapping_sub(own.found);
        let mut left_out: Vec<_> =
            self.own.iter().map(|(id, own)| (age(own), *id)).filter(|(age, _)| *age > 0).collect();
        left_out.sort_unstable();
        self.looks.end_round(left_out.into_iter().map(|(_, id)| id).collect());
    }
}
