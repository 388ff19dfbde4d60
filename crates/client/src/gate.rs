//! Paces attempts to connect: one at a time for all requests, one a second while the server is unreachable, with growing
//! backoff while it answers and fails.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::TimeLimits;
use super::connect::ConnectError;
use crate::backoff::{Backoff, Jitter};

/// Pacing of attempts to connect, shared by all requests.
pub(super) struct ConnectGate {
    /// held during an attempt
    turn: tokio::sync::Mutex<()>,
    state: Mutex<GateState>,
    /// least interval of attempts while the server is unreachable
    probe: Duration,
    /// limit of the backoff, before jitter
    limit: Duration,
}

struct GateState {
    /// failed attempts
    failures: u64,
    /// error of the last failed attempt
    error: String,
    /// earliest time of the next attempt
    next: Option<Instant>,
    /// backoff of a server that answers and fails
    failing: Backoff,
    /// consecutive attempts at an unreachable server
    absent: u32,
    jitter: Jitter,
}

/// Every eighth attempt has the long TCP timeout: a distant server may need it.
const PATIENT: u32 = 8;

// === impl ConnectGate ===

impl ConnectGate {
    pub(super) fn new(timing: &TimeLimits) -> Self {
        let state = GateState {
            failures: 0,
            error: String::new(),
            next: None,
            failing: Backoff::new(timing.backoff),
            absent: 0,
            jitter: Jitter::random(),
        };
        Self {
            turn: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            probe: timing.probe,
            limit: timing.backoff_limit,
        }
    }

    /// Failed attempts so far.
    pub(super) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// If an attempt has failed since the caller saw this number of failures: all waiting requests share its error.
    pub(super) async fn turn(&self, failures: u64) -> Result<MutexGuard<'_, ()>, String> {
        let turn = self.turn.lock().await;
        let state = self.state();
        if state.failures == failures { Ok(turn) } else { Err(state.error.clone()) }
    }

    /// Time until the next attempt.
    pub(super) fn wait(&self) -> Duration {
        self.state().next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// True if the next attempt has the short TCP timeout.
    pub(super) fn is_brisk(&self) -> bool {
        self.state().absent % PATIENT != PATIENT - 1
    }

    /// Notes the failure of an attempt that began at `begun`.
    pub(super) fn failed(&self, error: &ConnectError, begun: Instant) {
        let mut state = self.state();
        if error.answered {
            return state.back_off(error.to_string(), self.limit);
        }
        state.absent = state.absent.wrapping_add(1);
        // Up to 1.7 times as long, so that a server that is back is found within two intervals.
        let wait = self.probe.mul_f64(1.0 + 0.7 * state.jitter.fraction());
        state.fail(error.to_string(), begun.checked_add(wait));
    }

    /// Notes the end of a connection over which no request was answered; `failures` counts the failed attempts before it. Several
    /// HTTP/1.1 connections that end for one reason count once.
    pub(super) fn unanswered(&self, error: &str, failures: u64) {
        let mut state = self.state();
        if state.failures == failures {
            state.back_off(error.to_owned(), self.limit);
        }
    }

    /// Notes a new connection. The backoff stays until a request is answered over it.
    pub(super) fn connected(&self) {
        self.state().absent = 0;
    }

    /// Resets the backoff: the server has answered a request.
    pub(super) fn works(&self) {
        let mut state = self.state();
        state.next = None;
        state.failing.reset();
    }

    /// Resets the backoff: other certificates are in use.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.next = None;
        state.failing.reset();
    }

    fn state(&self) -> std::sync::MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl GateState ===

impl GateState {
    /// Notes a failure after an answer of the server or of a proxy.
    fn back_off(&mut self, error: String, limit: Duration) {
        self.absent = 0;
        let wait = self.failing.next(limit, &mut self.jitter);
        self.fail(error, Instant::now().checked_add(wait));
    }

    fn fail(&mut self, error: String, next: Option<Instant>) {
        self.failures += 1;
        self.error = error;
        self.next = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> ConnectGate {
        ConnectGate::new(&TimeLimits::default())
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_there_is_asked_once_a_second() {
        let gate = gate();
        for _ in 0..100 {
            let begun = Instant::now();
            gate.failed(&ConnectError::unreachable("refused".to_owned()), begun);
            let wait = gate.wait();
            assert!((Duration::from_secs(1)..Duration::from_millis(1700)).contains(&wait), "{wait:?}");
            tokio::time::sleep(wait).await;
            assert_eq!(gate.wait(), Duration::ZERO);
        }
        // the duration of the attempt counts as part of the pause
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        gate.failed(&ConnectError::unreachable("timed out".to_owned()), begun);
        assert_eq!(gate.wait(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_fails_is_asked_ever_more_seldom() {
        let gate = gate();
        let mut waits = Vec::new();
        for _ in 0..10 {
            gate.failed(&ConnectError::failing("certificate".to_owned()), Instant::now());
            waits.push(gate.wait());
            tokio::time::sleep(gate.wait()).await;
            gate.connected();
        }
        assert!(waits[0] < Duration::from_secs(1), "{waits:?}");
        assert!((Duration::from_secs(15)..Duration::from_secs(30)).contains(&waits[9]), "{waits:?}");
        gate.works();
        gate.unanswered("alert", gate.failures());
        assert!(gate.wait() < Duration::from_secs(1));
        gate.forget();
        assert_eq!(gate.wait(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_answer_nothing_are_made_ever_more_seldom() {
        let gate = gate();
        let mut waits = Vec::new();
        for _ in 0..10 {
            let made = gate.failures();
            gate.connected();
            gate.unanswered("closed", made);
            // the others of one attempt, and one that is made meanwhile
            (0..3).for_each(|_| gate.unanswered("closed", made));
            gate.connected();
            waits.push(gate.wait());
            tokio::time::sleep(gate.wait()).await;
        }
        assert_eq!(gate.failures(), 10);
        assert!((Duration::from_millis(500)..Duration::from_secs(1)).contains(&waits[0]), "{waits:?}");
        assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&waits[1]), "{waits:?}");
        assert!(waits[9] >= Duration::from_secs(15), "{waits:?}");
        gate.unanswered("closed", gate.failures());
        gate.works();
        assert_eq!(gate.wait(), Duration::ZERO, "an answer ends it");
        gate.unanswered("closed", gate.failures());
        assert!(gate.wait() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_is_that_of_all_who_wait() {
        let gate = gate();
        let failures = gate.failures();
        let turn = gate.turn(failures).await.ok();
        assert!(turn.is_some());
        let (second, third) = (gate.turn(failures), gate.turn(failures));
        gate.failed(&ConnectError::unreachable("refused".to_owned()), Instant::now());
        drop(turn);
        assert_eq!(second.await.map(drop), Err("refused".to_owned()));
        assert_eq!(third.await.map(drop), Err("refused".to_owned()));
        assert!(gate.turn(gate.failures()).await.is_ok(), "who comes later tries again");
    }

    #[test]
    fn now_and_then_tcp_gets_all_its_time() {
        let gate = gate();
        let brisk: Vec<bool> = (0..16)
            .map(|_| {
                let brisk = gate.is_brisk();
                gate.failed(&ConnectError::unreachable("timed out".to_owned()), Instant::now());
                brisk
            })
            .collect();
        assert_eq!(brisk.iter().filter(|brisk| !**brisk).count(), 2);
        assert!(brisk[0]);
    }
}
