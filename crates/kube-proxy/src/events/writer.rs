//! Writes recorded events to the API server, one request after another.

use std::collections::BTreeSet;
use std::time::Instant;

use ferry_api::wire::stream::Status;
use tokio::time::sleep_until;

use super::EventTiming;
use super::event::CONTROLLER;
use super::outbox::{Outbox, PendingWrite, WriteOutcome, is_harmless, text};
use super::recorder::Inbox;
use super::series::{RecentEvents, Write};
use ferry_client::{Call, Client, Verb};

/// Writes recorded events to the API server.
#[derive(Debug)]
pub struct EventWriter {
    client: Client,
    /// reportingInstance
    instance: String,
    timing: EventTiming,
    inbox: Inbox,
    series: RecentEvents,
    outbox: Outbox,
    said: Said,
}

/// State of what was logged.
#[derive(Debug)]
struct Said {
    /// a temporary failure was logged
    trouble: bool,
    /// logged rejections: reason of the event and status
    refused: BTreeSet<(&'static str, u16)>,
    /// lost events that aren't logged yet, and the reason of the last one
    lost: (u64, &'static str),
    /// earliest time to log them
    lost_due: Instant,
}

/// Pending requests at which no further event is taken from the queue, which is bounded.
const MOST_WAITING: usize = 32;
/// The resource's name in RBAC rules.
const RESOURCE: &str = "events.events.k8s.io";

// === impl EventWriter ===

impl EventWriter {
    pub(super) fn new(client: Client, machine: &str, timing: EventTiming, inbox: Inbox) -> Self {
        Self {
            client,
            instance: format!("{CONTROLLER}-{machine}"),
            series: RecentEvents::new(&timing),
            outbox: Outbox::new(&timing),
            timing,
            inbox,
            said: Said { trouble: false, refused: BTreeSet::new(), lost: (0, ""), lost_due: Instant::now() },
        }
    }

    /// Runs until all recorders are dropped. Dropping it loses unwritten events.
    pub async fn run(mut self) {
        loop {
            let has_room = self.outbox.len() < MOST_WAITING;
            let series = self.series.due().filter(|_| has_room);
            let wake = [self.outbox.due(), series, self.lost_due()].into_iter().flatten().min();
            let mut writes = Vec::new();
            tokio::select! {
                biased;
                next = self.inbox.next(), if has_room => match next {
                    Some((event, time)) => {
                        let (regarding, reason) = (event.regarding.clone(), event.reason);
                        if !self.series.observe(event, time, Instant::now(), &mut writes) {
                            tracing::debug!(%regarding, reason, "Too many Events about this object, dropping one");
                        }
                    }
                    None => return,
                },
                () = sleep_until(wake.unwrap_or_else(Instant::now).into()), if wake.is_some() => {
                    if has_room {
                        self.series.tidy(Instant::now(), &mut writes);
                    }
                }
            }
            let now = Instant::now();
            writes.into_iter().for_each(|write| self.outbox.push(write, now));
            self.send_due().await;
            self.lost(self.inbox.take_dropped(), "too many at once");
            self.tell_lost(Instant::now());
        }
    }

    /// Sends all requests that are due.
    async fn send_due(&mut self) {
        while let Some(waiting) = self.outbox.take(Instant::now()) {
            let outcome = match self.send(&waiting.write).await {
                WriteOutcome::Gone => {
                    // Creates the expired Event again, with its series.
                    let write = Write::Create(waiting.write.record().clone());
                    self.send(&write).await
                }
                outcome => outcome,
            };
            self.conclude(waiting, outcome);
        }
    }

    fn conclude(&mut self, waiting: PendingWrite, outcome: WriteOutcome) {
        let now = Instant::now();
        let event = &waiting.write.record().event;
        match outcome {
            WriteOutcome::Done | WriteOutcome::Gone => {
                tracing::debug!(regarding = %event.regarding, reason = event.reason, note = event.note(), "Wrote Event");
                if std::mem::take(&mut self.said.trouble) {
                    tracing::info!("Writing Events succeeds again");
                }
            }
            WriteOutcome::Unreachable(err) => {
                self.trouble(&err);
                let lost = self.outbox.unreachable(waiting, now) as u64;
                self.lost(lost, "the API server is unreachable");
            }
            WriteOutcome::Later(err, after) => {
                self.trouble(&err);
                let lost = u64::from(self.outbox.later(waiting, after, now));
                self.lost(lost, "the API server failed too often");
            }
            WriteOutcome::Refused(status) => self.refused(&waiting.write, &status),
        }
    }

    async fn send(&self, write: &Write) -> WriteOutcome {
        let record = write.record();
        let (verb, path, body) = match write {
            Write::Create(_) => (Verb::Create, record.collection(), record.to_json(&self.instance)),
            Write::Patch(_) => (Verb::Patch, record.path(), record.patch_json()),
        };
        let call = Call { verb, resource: RESOURCE, path_and_query: path, body: body.into() };
        let answer = match self.client.send(&call).await {
            Ok(answer) => answer,
            Err(error) => return WriteOutcome::Unreachable(error.to_string()),
        };
        if (200..300).contains(&answer.status) {
            answer.discard(self.timing.answer).await;
            return WriteOutcome::Done;
        }
        let retry_after = answer.retry_after;
        WriteOutcome::of(write, answer.refusal(self.timing.answer).await, retry_after)
    }

    /// Logs a temporary failure once.
    fn trouble(&mut self, err: &str) {
        if std::mem::replace(&mut self.said.trouble, true) {
            tracing::debug!(err, "Writing an Event failed");
        } else {
            tracing::info!(err, "Writing an Event failed, retrying");
        }
    }

    /// Logs a rejection once per reason and status.
    fn refused(&mut self, write: &Write, status: &Status) {
        let event = &write.record().event;
        let (regarding, reason, err) = (&event.regarding, event.reason, text(status));
        if is_harmless(status) || !self.said.refused.insert((reason, status.code)) {
            tracing::debug!(%regarding, reason, err, "API server rejected an Event");
        } else {
            tracing::warn!(%regarding, reason, err, "API server rejected an Event, not logging further identical rejections");
        }
    }

    fn lost(&mut self, events: u64, why: &'static str) {
        if events > 0 {
            self.said.lost = (self.said.lost.0 + events, why);
        }
    }

    /// Logs the number of lost events, at most once per interval.
    fn tell_lost(&mut self, now: Instant) {
        if self.lost_due().is_some_and(|due| due <= now) {
            let (events, why) = std::mem::take(&mut self.said.lost);
            self.said.lost_due = now + self.timing.pause;
            tracing::warn!(events, why, "Events were lost");
        }
    }

    /// Time of that log line.
    fn lost_due(&self) -> Option<Instant> {
        (self.said.lost.0 > 0).then_some(self.said.lost_due)
    }
}
