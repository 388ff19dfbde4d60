//! Commits a batch of virtual servers: plans commands, sends them, and maps refusals to operations.
//!
//! A refused command doesn't stop those behind it. So the endpoints of new servers are sent once the kernel has accepted the
//! servers: where another program has a server already, endpoints sent together with it would become that program's. And the
//! first server of a scheduler is the last of its commands, so that a missing module is looked for once, not for each server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipvs::{Command, RefusalCause, RefusedCommand};
use ferry_kernel::module::{self, Module};
use ferry_model::Scheduler;
use ferry_plane::{Batch, CommitError, CommitFailure, Op};

use super::admission::{as_found, leads_to_service_only, of_another_program};
use super::convert::{kernel_id, kernel_server};
use super::plan::{self, Found};
use super::schedulers::module_of;
use super::{ServersKernel, of_ipvs};
use crate::failures::Failures;
use crate::object::IpvsObject;
use crate::server::{ServerId, VirtualServer};

/// Operations on servers, each with its list and the index in it.
type Operation<'a> = ((Op, usize), ServerId, &'a VirtualServer);

/// Commands that wait to be sent, and their operations.
#[derive(Default)]
struct Pending<'a> {
    operations: Vec<Operation<'a>>,
    commands: Commands,
    /// the endpoints of new servers
    endpoints: Commands,
    /// the last command about a server, if none has shown yet that the kernel has its scheduler: the position of its operation
    trial: Option<(usize, Scheduler)>,
}

/// Commands that are sent together.
#[derive(Default)]
struct Commands {
    list: Vec<Command>,
    /// for each command the position of its operation
    operations: Vec<usize>,
}

/// Commands that are sent before more are planned: they take memory.
const TOGETHER: usize = 4096;

/// Servers of one send whose unused endpoints are deleted with it, at most: each is read once more. Those of others are deleted by the next
/// look at destinations.
const ENDED_AT_ONCE: usize = 256;

/// Commits the batch in the canonical order.
pub(super) fn commit(kernel: &mut ServersKernel, batch: &Batch<IpvsObject>) -> Result<(), CommitFailure> {
    let operations = batch.operations().filter_map(|(op, index, object)| match object {
        IpvsObject::Server(id, server) => Some(((op, index), *id, server)),
        IpvsObject::Table(_) | IpvsObject::Address(..) => None,
    });
    let mut failures = Failures::default();
    run(kernel, operations, &mut failures)?;
    failures.result()
}

/// Plans and sends. Operations whose scheduler turns out to be missing run a second time, with the configured one.
fn run<'a>(
    kernel: &mut ServersKernel,
    operations: impl Iterator<Item = Operation<'a>>,
    failures: &mut Failures,
) -> Result<(), CommitFailure> {
    let mut pending = Pending::default();
    let mut again = Vec::new();
    for operation in operations {
        pending.plan(kernel, operation).map_err(CommitFailure::unknown)?;
        if pending.is_full() || pending.trial.is_some() {
            again.extend(pending.send(kernel, failures)?);
        }
    }
    again.extend(pending.send(kernel, failures)?);
    if again.is_empty() { Ok(()) } else { run(kernel, again.into_iter(), failures) }
}

// === impl Pending ===

impl<'a> Pending<'a> {
    fn plan(&mut self, kernel: &mut ServersKernel, operation: Operation<'a>) -> Result<(), CommitError> {
        let ((op, _), id, server) = operation;
        match op {
            Op::Create => self.create(kernel, id, server),
            Op::Replace => match kernel.find(id)? {
                Some(found) => self.change(kernel, id, server, &found),
                // Another program has deleted it since it was read.
                None => self.create(kernel, id, server),
            },
            Op::Delete => self.commands.add(self.operations.len(), [Command::DeleteServer(kernel_id(id))]),
        }
        self.operations.push(operation);
        Ok(())
    }

    fn create(&mut self, kernel: &mut ServersKernel, id: ServerId, wanted: &VirtualServer) {
        let scheduler = kernel.schedulers.chosen(id, wanted.settings.scheduler);
        if let Some(server) = kernel_server(id, wanted.settings, scheduler) {
            self.try_scheduler(kernel, scheduler);
            self.commands.add(self.operations.len(), [Command::NewServer(server)]);
            self.endpoints.add(self.operations.len(), plan::fill(server.id, &wanted.endpoints));
        }
    }

    fn change(&mut self, kernel: &mut ServersKernel, id: ServerId, wanted: &VirtualServer, found: &Found) {
        let scheduler = kernel.schedulers.chosen(id, wanted.settings.scheduler);
        if let Some(server) = kernel_server(id, wanted.settings, scheduler) {
            let mut commands = Vec::new();
            let draining = plan::change(found, server, &wanted.endpoints, &mut commands);
            if commands.iter().any(|command| matches!(command, Command::EditServer(_))) {
                self.try_scheduler(kernel, scheduler);
            }
            self.commands.add(self.operations.len(), commands);
            let now = Instant::now();
            kernel.draining.set(id, &draining, now);
            kernel.draining.list(id, &wanted.listed, now);
        }
        kernel.note(id, wanted);
    }

    /// The operation that is planned sets this scheduler.
    fn try_scheduler(&mut self, kernel: &ServersKernel, scheduler: Scheduler) {
        if kernel.schedulers.is_unproven(scheduler) {
            self.trial = Some((self.operations.len(), scheduler));
        }
    }

    fn is_full(&self) -> bool {
        self.commands.list.len() + self.endpoints.list.len() >= TOGETHER
    }

    /// Sends all commands. Returns the operations that have to run again, since their scheduler is replaced by another.
    fn send(
        &mut self,
        kernel: &mut ServersKernel,
        failures: &mut Failures,
    ) -> Result<Vec<Operation<'a>>, CommitFailure> {
        let Self { operations, commands, mut endpoints, trial } = std::mem::take(self);
        let refused = match kernel.director.commit(&commands.list) {
            Ok(refused) => {
                commands.note_created(kernel, &operations, &refused, commands.list.len());
                commands.named(refused)
            }
            Err(lost) => {
                commands.note_created(kernel, &operations, &lost.failures, lost.from);
                return Err(CommitFailure::unknown(of_ipvs(lost.error)));
            }
        };
        if let Some((_, scheduler)) = trial.filter(|(at, _)| !refused.iter().any(|(_, position, _)| position == at)) {
            kernel.schedulers.prove(scheduler);
        }
        let unmade = refused.iter().filter(|(_, _, command)| matches!(command, Command::NewServer(_)));
        endpoints.leave_out(&unmade.map(|(_, position, _)| *position).collect());
        let (mut again, mut advice) = (BTreeSet::new(), None);
        for (failure, position, _) in &refused {
            if let (RefusalCause::NoScheduler(name), Some(operation)) = (failure.cause, operations.get(*position))
                && lack_scheduler(kernel, operation, name.name().parse().unwrap_or_default(), &mut advice, failures)
            {
                again.insert(*position);
            }
        }
        let unfilled = kernel.director.commit(&endpoints.list);
        let unfilled = unfilled.map_err(|lost| CommitFailure::unknown(of_ipvs(lost.error)))?;
        for (failure, position, command) in refused.into_iter().chain(endpoints.named(unfilled)) {
            if let Some(operation) = operations.get(position).filter(|_| !again.contains(&position)) {
                judge(kernel, operation, command, &failure, failures)?;
            }
        }
        for ((op, _), id, _) in &operations {
            if *op == Op::Delete {
                kernel.forget(*id);
            }
        }
        let draining = operations.iter().map(|(_, id, _)| *id).filter(|id| kernel.draining.has(*id));
        kernel.end_drained(draining.take(ENDED_AT_ONCE).collect(), Instant::now()).map_err(CommitFailure::unknown)?;
        Ok(again.into_iter().filter_map(|position| operations.get(position).copied()).collect())
    }
}

// === impl Commands ===

impl Commands {
    fn add(&mut self, operation: usize, commands: impl IntoIterator<Item = Command>) {
        self.list.extend(commands);
        self.operations.resize(self.list.len(), operation);
    }

    /// Drops the commands of these operations.
    fn leave_out(&mut self, operations: &BTreeSet<usize>) {
        if !operations.is_empty() {
            let all = std::mem::take(self);
            let kept = all.list.into_iter().zip(all.operations).filter(|(_, of)| !operations.contains(of));
            (self.list, self.operations) = kept.unzip();
        }
    }

    /// Notes the servers that were created, by the answers to the commands before this one. Of the others it isn't known whether
    /// another program has made them since their admission.
    fn note_created(
        &self,
        kernel: &mut ServersKernel,
        operations: &[Operation<'_>],
        refused: &[RefusedCommand],
        answered: usize,
    ) {
        let refused: BTreeSet<usize> = refused.iter().map(|failure| failure.index).collect();
        for (index, (command, position)) in self.list.iter().zip(&self.operations).enumerate() {
            let Some((_, id, wanted)) = operations.get(*position) else { continue };
            match command {
                Command::NewServer(_) if refused.contains(&index) => {}
                Command::NewServer(_) if index < answered => kernel.note(*id, wanted),
                Command::NewServer(_) => drop(kernel.unconfirmed.insert(*id, (*wanted).clone())),
                Command::EditServer(_)
                | Command::DeleteServer(_)
                | Command::NewDestination(..)
                | Command::EditDestination(..)
                | Command::DeleteDestination(..) => {}
            }
        }
    }

    /// The refusals, each with the position of its operation and its command.
    fn named(&self, refused: Vec<RefusedCommand>) -> Vec<(RefusedCommand, usize, &Command)> {
        let named = |failure: RefusedCommand| {
            let (operation, command) = (*self.operations.get(failure.index)?, self.list.get(failure.index)?);
            Some((failure, operation, command))
        };
        refused.into_iter().filter_map(named).collect()
    }
}

/// The kernel lacks the scheduler of this server. True if the configured one takes its place; otherwise the server is refused, with
/// an advice that is the same for all of a commit.
fn lack_scheduler(
    kernel: &mut ServersKernel,
    (at, id, _): &Operation<'_>,
    scheduler: Scheduler,
    advice: &mut Option<Module>,
    failures: &mut Failures,
) -> bool {
    let is_replaced = kernel.schedulers.lack(scheduler);
    if !is_replaced {
        // The module of the configured one was removed since the start.
        let advice = advice.get_or_insert_with(|| module::find(&module_of(scheduler)));
        failures.refuse(*at, format!("virtual server {id}: the kernel has no scheduler {scheduler}: {advice}"));
    }
    is_replaced
}

/// Maps a refusal of the kernel.
fn judge(
    kernel: &mut ServersKernel,
    operation: &Operation<'_>,
    command: &Command,
    failure: &RefusedCommand,
    failures: &mut Failures,
) -> Result<(), CommitFailure> {
    let (at, id, wanted) = *operation;
    match (failure.cause, command) {
        // It is gone, as wanted.
        (RefusalCause::NoServer, Command::DeleteServer(_))
        | (RefusalCause::NoDestination, Command::DeleteDestination(..)) => {}
        (RefusalCause::Exists, Command::NewServer(_)) => {
            // Made by another program since the admission.
            let found = kernel.find(id).map_err(CommitFailure::unknown)?;
            let foreign = found.filter(|_| !kernel.own.contains_key(&id));
            match foreign {
                Some(foreign) if !leads_to_service_only(wanted, &foreign) => {
                    failures.refuse(at, of_another_program(id));
                    return Ok(());
                }
                Some(adopted) => kernel.note(id, &as_found(&adopted)),
                None => {}
            }
            failures.drift(|| format!("virtual server {id}"));
        }
        (RefusalCause::Exists | RefusalCause::NoServer | RefusalCause::NoDestination, _) => {
            failures.drift(|| format!("virtual server {id}"));
        }
        // `lack_scheduler` has refused the operation.
        (RefusalCause::NoScheduler(_), _) => {}
        (RefusalCause::Other, Command::NewDestination(_, to))
            if ErrorClass::of(&failure.error.error) == ErrorClass::Invalid =>
        {
            failures.refuse(at, format!("cannot {command}: {}: {}", failure.error, refused_address(to.address.ip())));
        }
        (RefusalCause::Other, _) => failures.add(at, &failure.error.error, || format!("cannot {command}")),
    }
    Ok(())
}

/// The reasons for which the kernel refuses the address of an endpoint.
fn refused_address(address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => format!(
            "{address} is a broadcast or multicast address of this node (`ip -4 route show table local`), or the loopback \
             interface of its network namespace was never up (`ip link set lo up`)"
        ),
        IpAddr::V6(_) => format!("{address} is a multicast or link-local address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_address_is_explained() {
        let text = refused_address([10, 244, 0, 255].into());
        assert!(text.starts_with("10.244.0.255 is a broadcast") && text.contains("ip link set lo up"), "{text}");
        let text = refused_address("ff02::1".parse().unwrap());
        assert!(text.starts_with("ff02::1 is a multicast") && !text.contains("loopback"), "{text}");
    }
}
