//! Follows one kind: executes the steps of its plan for ever, and delivers the objects to the core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_api::object::Kind;
use ferry_api::wire::stream::{Encoding, StreamError};
use hyper::body::Bytes;
use tokio::time::{sleep, timeout};

use super::failure::{FailureCause, RequestFailure};
use super::history::Witnesses;
use super::outlet::Outlet;
use super::plan::{AttemptResult, RequestPlan};
use super::report::Report;
use super::resource::Resource;
use super::step::NextRequest;
use super::timing::SourceTiming;
use super::turns::{Back, Turn, TurnOutcome, Turns};
use crate::health::Freshness;
use crate::source::Closed;
use ferry_client::{Answer, Body, Call, CallError, Client, Verb};

/// Follows one kind.
#[derive(Debug)]
pub(super) struct Reflector {
    pub(super) resource: Resource,
    pub(super) client: Client,
    pub(super) timing: SourceTiming,
    pub(super) freshness: Arc<Freshness>,
    pub(super) plan: RequestPlan,
    pub(super) outlet: Outlet,
    pub(super) report: Report,
    /// pacing of requests while the server is away
    pub(super) turns: Arc<Turns>,
    /// held while this kind is the one that sends requests
    pub(super) turn: Option<Turn>,
    /// number of the server's returns at the end of the last step
    pub(super) returns: u64,
    /// number of the server's absences at the end of the last step
    pub(super) absences: u64,
    /// failed attempts to connect at the beginning of the last step
    pub(super) failures: u64,
    /// status with which the server rejected an optional kind
    pub(super) absence: Option<u16>,
}

/// Why a step ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// the core has ended
    Closed(Closed),
    /// the step failed
    Failed(RequestFailure),
}

// === impl Reflector ===

impl Reflector {
    /// Runs until the core has ended.
    pub(super) async fn run(mut self) -> Closed {
        loop {
            let failures = self.client.failures();
            if std::mem::replace(&mut self.failures, failures) != failures {
                self.plan.missed();
            }
            if self.plan.asks_in_turn() && self.turn.is_none() {
                self.take_turn().await;
                // The kind that had the turn has handled these failures.
                self.failures = self.client.failures();
            }
            let step = self.plan.begin(Instant::now());
            let (verb, result) = match step {
                NextRequest::List(recency) => (Verb::List, self.list(&recency).await),
                NextRequest::Check { name, version } => (Verb::List, self.check(name, &version).await),
                NextRequest::StreamingList { recency, seconds } => {
                    (Verb::Watch, self.watch(self.resource.streaming_list(&recency, seconds)).await)
                }
                NextRequest::Watch { version, seconds } => {
                    (Verb::Watch, self.watch(self.resource.watch(&version, seconds)).await)
                }
            };
            self.freshness.disconnected(self.kind());
            let pause = match result {
                Ok(()) => {
                    if !self.plan.is_checking() {
                        self.pass_turn(None);
                    }
                    self.conclude(verb, None).await
                }
                Err(Stop::Failed(failure)) => {
                    self.turn_after(&failure);
                    self.conclude(verb, Some(failure)).await
                }
                Err(Stop::Closed(closed)) => Err(closed),
            };
            (self.returns, self.absences) = (self.turns.returns(), self.turns.absences());
            match pause {
                Ok(Duration::ZERO) => {}
                Ok(pause) => sleep(pause).await,
                Err(closed) => return closed,
            }
        }
    }

    /// Waits until this kind has the turn, or the server is back.
    async fn take_turn(&mut self) {
        let courtesy = if self.is_best() { Duration::ZERO } else { self.timing.courtesy };
        loop {
            match self.turns.take(self.returns, courtesy).await {
                TurnOutcome::Turn(turn) => {
                    self.turn = Some(turn);
                    self.meet_absence();
                }
                TurnOutcome::Unreached(failure) => {
                    self.plan.missed();
                    self.report.failed(Verb::Watch, &failure, false);
                    continue;
                }
                TurnOutcome::Back(back) => self.resume_after(back).await,
                TurnOutcome::Late => self.meet_absence(),
            }
            return;
        }
    }

    /// Takes over that another kind has found the server unreachable.
    fn meet_absence(&mut self) {
        if self.turns.absences() != self.absences {
            self.plan.missed();
        }
    }

    /// Takes over that another kind has found the server back.
    async fn resume_after(&mut self, Back { oldest }: Back) {
        self.meet_absence();
        let pause = oldest.and_then(|oldest| self.plan.forgotten(&oldest, Instant::now()));
        sleep(pause.unwrap_or_default()).await;
    }

    /// Ends the turn: the server is back, versions before `oldest` are too old for it, and the other kinds continue.
    pub(super) fn pass_turn(&mut self, oldest: Option<Box<str>>) {
        if let Some(turn) = self.turn.take() {
            self.turns.is_back(turn, oldest);
        }
    }

    /// Passes a step's failure on to the kinds that wait for their turn.
    fn turn_after(&mut self, failure: &RequestFailure) {
        match failure.cause {
            FailureCause::Unreached => {
                self.turns.unreached(failure);
                if !self.is_best() {
                    self.turn = None;
                }
            }
            FailureCause::Expired if self.is_best() => {
                self.pass_turn(failure.oldest().map(Into::into));
            }
            // The watch caches of other kinds may reach further back: the next kind gets the turn.
            FailureCause::Expired => self.turn = None,
            FailureCause::Future | FailureCause::Behind => self.pass_turn(None),
            _ => {
                let is_best = self.is_best();
                let turns = &self.turns;
                self.turn.take_if(|turn| turns.is_over_after(turn, failure, is_best));
            }
        }
    }

    /// True for Services, the best kind to ask first. They change rarely: if their version is too old, the server has restarted,
    /// and the versions of all kinds are too old. Other kinds' watch caches may be short because of their many changes.
    fn is_best(&self) -> bool {
        self.kind() == Kind::Service
    }

    pub(super) fn kind(&self) -> Kind {
        self.resource.kind
    }

    /// Logs the end of a step; returns the pause before the next one.
    async fn conclude(&mut self, verb: Verb, failure: Option<RequestFailure>) -> Result<Duration, Closed> {
        let now = Instant::now();
        let refusal = failure.as_ref().filter(|_| self.resource.optional).and_then(|failure| failure.cause.code());
        if let (Some(failure), Some(code @ (403 | 404))) = (&failure, refusal)
            && (code == 404 || self.plan.is_refused(now))
        {
            return self.rest(code, failure).await;
        }
        if let (Some(403), Some(failure), false) = (refusal, &failure, self.plan.has_listed())
            && self.do_without(403, failure)
        {
            // The core doesn't wait for a kind that may never be allowed.
            self.outlet.complete_without();
            self.outlet.deliver().await?;
        }
        Ok(match self.plan.ended(failure, now) {
            AttemptResult::GoOn(pause) => {
                if !self.plan.is_checking() {
                    self.report.works();
                }
                pause
            }
            AttemptResult::Failed { failure, pause, quiet, answered } => {
                if quiet || refusal == Some(403) {
                    self.report.passed(verb, &failure);
                } else {
                    self.report.failed(verb, &failure, answered);
                }
                pause
            }
        })
    }

    /// Pauses an optional kind that the server doesn't serve, or not to this client.
    async fn rest(&mut self, code: u16, failure: &RequestFailure) -> Result<Duration, Closed> {
        if code == 404 {
            self.outlet.begin();
            self.outlet.complete();
            self.outlet.deliver().await?;
            self.freshness.synced(self.kind());
        }
        self.do_without(code, failure);
        Ok(self.plan.rest())
    }

    /// Logs once that the kind is missing; true if it did.
    fn do_without(&mut self, code: u16, failure: &RequestFailure) -> bool {
        let is_news = self.absence.replace(code) != Some(code);
        if is_news {
            let resource = self.resource.name;
            tracing::info!(resource, err = %failure, "API server doesn't serve this resource, continuing without it");
        }
        is_news
    }

    /// Notes a list that is complete and delivered; `witnesses` are its objects that changed last.
    pub(super) fn listed(&mut self, version: Box<str>, witnesses: Witnesses) {
        let (resource, objects) = (self.resource.name, self.outlet.listed());
        if self.absence.take().is_some() {
            tracing::info!(resource, objects, "API server serves this resource now");
        } else {
            tracing::debug!(resource, objects, version = &*version, "List complete");
        }
        self.plan.listed(version, witnesses);
        self.freshness.synced(self.kind());
        self.report.works();
    }

    /// Checks the number of objects of the current list.
    pub(super) fn check_size(&self) -> Result<(), RequestFailure> {
        let most = self.timing.most_objects;
        if self.outlet.listed() <= most {
            return Ok(());
        }
        Err(RequestFailure::new(FailureCause::Endless, format!("endless list: over {most} objects")))
    }

    /// Sends a request; returns the body of a successful response.
    pub(super) async fn open(
        &mut self,
        verb: Verb,
        path_and_query: String,
    ) -> Result<(Body, Encoding), RequestFailure> {
        let call = Call { verb, resource: self.resource.name, path_and_query, body: Bytes::new() };
        let answer = self.client.send(&call).await?;
        if answer.status != 200 {
            return Err(self.refusal(answer).await);
        }
        let Some(encoding) = answer.encoding else {
            let content_type = answer.content_type.escape_debug();
            let text = format!("the response's content type is neither JSON nor protobuf: \"{content_type}\"");
            return Err(RequestFailure::new(FailureCause::Foreign, text));
        };
        let now = Instant::now();
        self.plan.answered(now);
        // A check doesn't prove that lists and watches work.
        if !self.plan.is_checking() {
            self.freshness.connected(self.kind(), now);
            self.report.answered();
        }
        Ok((answer.body, encoding))
    }

    /// Reads an unsuccessful response.
    async fn refusal(&self, answer: Answer) -> RequestFailure {
        let retry_after = answer.retry_after;
        let status = answer.refusal(self.timing.refusal).await;
        RequestFailure::status(&status, false).after(retry_after)
    }

    /// The next bytes of a body. While the core is busy, this kind waits and reads nothing; that doesn't count as the server's
    /// silence, which is measured from this call.
    pub(super) async fn chunk(&mut self, body: &mut Body, silence: Duration) -> Result<Option<Bytes>, RequestFailure> {
        let is_first = self.turn.is_some() && !self.plan.is_checking() && !self.plan.has_first_byte();
        let early = if is_first { timeout(self.timing.verdict.min(silence), body.chunk()).await.ok() } else { None };
        let chunk = if let Some(chunk) = early {
            Ok(chunk)
        } else {
            if !self.plan.is_checking() {
                self.pass_turn(None);
            }
            timeout(silence, body.chunk()).await
        };
        let Ok(chunk) = chunk else {
            return Err(RequestFailure::new(FailureCause::Silent, format!("no data for {} s", silence.as_secs_f32())));
        };
        let chunk = chunk?;
        if chunk.is_some() {
            let now = Instant::now();
            self.plan.received_bytes(now);
            self.freshness.contact(self.resource.kind, now);
        }
        Ok(chunk)
    }
}

// === impl Stop ===

impl From<Closed> for Stop {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl From<RequestFailure> for Stop {
    fn from(failure: RequestFailure) -> Self {
        Self::Failed(failure)
    }
}

impl From<StreamError> for Stop {
    fn from(error: StreamError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        Self::Failed(error.into())
    }
}
