//! Lets one kind at a time send requests while the server is unreachable: a server that has just started rejects every kind for a
//! moment, and its watch caches of all kinds begin with its start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};

use super::failure::RequestFailure;

/// The turn, and the last one's result.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lock: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<TurnState>,
    unreached: Notify,
}

#[derive(Debug, Default)]
struct TurnState {
    /// number of the server's returns
    returns: u64,
    /// the server's state at the last return
    back: Back,
    /// number of times that a kind found the server unreachable
    absences: u64,
    /// failure of the last attempt to connect
    failure: Option<RequestFailure>,
}

/// State of a server that is back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Back {
    /// versions before this one are too old for it
    pub(super) oldest: Option<Box<str>>,
}

/// The right to send requests while the server is unreachable. Dropping it passes it on.
#[derive(Debug)]
pub(super) struct Turn {
    _guard: OwnedMutexGuard<()>,
    /// consecutive unsuccessful responses
    failures: u32,
}

/// Result of waiting for a turn.
#[derive(Debug)]
pub(super) enum TurnOutcome {
    /// this kind has the turn
    Turn(Turn),
    /// another kind has found the server back
    Back(Back),
    /// another kind has failed to connect
    Unreached(RequestFailure),
    /// the kind that has the turn took too long
    Late,
}

/// Longest wait for another kind: the server may reject only that one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Consecutive unsuccessful responses after which the turn passes to the next kind.
const FAILURES: u32 = 3;

impl Turns {
    /// The number of the server's returns so far.
    pub(super) fn returns(&self) -> u64 {
        self.state().returns
    }

    /// Waits for the turn, or for the server's return after `returns`, which may have happened already. A delay lets the best
    /// kind go first if all begin to wait.
    pub(super) async fn take(&self, returns: u64, courtesy: Duration) -> TurnOutcome {
        let unreached = self.unreached.notified();
        let lock = async {
            if !courtesy.is_zero() {
                tokio::time::sleep(courtesy).await;
            }
            Arc::clone(&self.lock).lock_owned().await
        };
        tokio::select! {
            // In this order: all kinds that wait when a connection fails wait anew, so that the best kind comes first.
            biased;
            () = unreached => match self.state().failure.clone() {
                Some(failure) => TurnOutcome::Unreached(failure),
                None => TurnOutcome::Late,
            },
            guard = lock => {
                let state = self.state();
                if state.returns == returns {
                    TurnOutcome::Turn(Turn { _guard: guard, failures: 0 })
                } else {
                    TurnOutcome::Back(state.back.clone())
                }
            }
            () = tokio::time::sleep(PATIENCE) => TurnOutcome::Late,
        }
    }

    /// Announces the server's return to all waiting kinds: versions before `oldest` are too old for it.
    pub(super) fn is_back(&self, turn: Turn, oldest: Option<Box<str>>) {
        let mut state = self.state();
        state.returns += 1;
        state.back = Back { oldest };
        drop(state);
        drop(turn);
    }

    /// The number of the server's absences so far. A server that is back may be another one, or restored from a backup.
    pub(super) fn absences(&self) -> u64 {
        self.state().absences
    }

    /// Counts an unsuccessful response to the kind that has the turn. True if the next kind gets the turn: not at once if this
    /// one is the best kind, whose watch shows most reliably which versions are too old.
    pub(super) fn is_over_after(&self, turn: &mut Turn, failure: &RequestFailure, is_best: bool) -> bool {
        self.state().absences += u64::from(failure.cause.is_absence());
        turn.failures += 1;
        !is_best || turn.failures >= FAILURES
    }

    /// Notes a failed attempt to connect: all waiting kinds get the failure.
    pub(super) fn unreached(&self, failure: &RequestFailure) {
        let mut state = self.state();
        state.failure = Some(failure.clone());
        state.absences += 1;
        drop(state);
        self.unreached.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::FailureCause;
    use super::*;

    /// The delay of kinds that are not the best.
    const COURTESY: Duration = Duration::from_millis(120);

    async fn turn(turns: &Turns) -> Turn {
        match turns.take(turns.returns(), COURTESY).await {
            TurnOutcome::Turn(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_learns_how_the_server_is_back() {
        let turns = Turns::default();
        let mut first = turn(&turns).await;
        let refused = RequestFailure::new(FailureCause::Refused { code: 403, within: false }, "refused");
        assert!(turns.is_over_after(&mut first, &refused, false));
        let (second, third, ()) = tokio::join!(turns.take(0, COURTESY), turns.take(0, Duration::ZERO), async {
            turns.is_back(first, Some("7".into()));
        });
        let back = Back { oldest: Some("7".into()) };
        assert!(matches!(&second, TurnOutcome::Back(known) if *known == back), "{second:?}");
        assert!(matches!(&third, TurnOutcome::Back(known) if *known == back), "{third:?}");
        // A kind that begins to wait later, and knew of the absence before, gets the result, too.
        let fourth = turns.take(0, COURTESY).await;
        assert!(matches!(&fourth, TurnOutcome::Back(known) if *known == back), "{fourth:?}");
        turn(&turns).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_passed_on_and_a_failure_to_connect_is_everybodys() {
        let turns = Turns::default();
        let mut first = turn(&turns).await;
        assert!(matches!(turns.take(0, COURTESY).await, TurnOutcome::Late));
        let failure = RequestFailure::new(FailureCause::Unreached, "refused");
        let (second, ()) = tokio::join!(turns.take(0, COURTESY), async { turns.unreached(&failure) });
        assert!(matches!(&second, TurnOutcome::Unreached(known) if *known == failure), "{second:?}");
        let mut is_over = || turns.is_over_after(&mut first, &failure, true);
        assert!(!is_over() && !is_over() && is_over());
        let (mut second, ()) = tokio::join!(turn(&turns), async { drop(first) });
        assert!(turns.is_over_after(&mut second, &failure, false));
        // All waited when the connection failed, and the best kind is the next.
        let (other, best, ()) = tokio::join!(turns.take(0, COURTESY), turns.take(0, Duration::ZERO), async {
            turns.unreached(&failure);
            drop(second);
        });
        assert!(
            matches!((&other, &best), (TurnOutcome::Unreached(_), TurnOutcome::Unreached(_))),
            "{other:?} {best:?}"
        );
        for returns in 0..2 {
            let (other, ()) = tokio::join!(turns.take(returns, COURTESY), async {
                match turns.take(returns, Duration::ZERO).await {
                    TurnOutcome::Turn(turn) => turns.is_back(turn, None),
                    other => panic!("{other:?}"),
                }
            });
            assert!(matches!(&other, TurnOutcome::Back(back) if *back == Back::default()), "{other:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_servers_absence_is_known_after_the_turn_has_passed_on() {
        let turns = Turns::default();
        let refused = RequestFailure::new(FailureCause::Refused { code: 403, within: false }, "refused");
        let mut best = turn(&turns).await;
        let mut is_over = || turns.is_over_after(&mut best, &refused, true);
        assert!(!is_over() && !is_over() && is_over());
        drop(best);
        assert_eq!(turns.absences(), 3, "who began to wait before is to check, too");
        let mut second = turn(&turns).await;
        assert!(turns.is_over_after(&mut second, &RequestFailure::new(FailureCause::Interrupted, "cut"), false));
        assert_eq!(turns.absences(), 3);
        turns.unreached(&refused);
        assert_eq!(turns.absences(), 4);
    }
}
