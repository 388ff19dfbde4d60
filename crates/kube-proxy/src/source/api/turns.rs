//! Lets one kind ask for all while the server is away: a server that has just started refuses every kind for a moment, and
//! its watch caches of all kinds begin with its start.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};

use super::failure::Failure;

/// The turn, and the result of the last one.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lock: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
    unreached: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// number of the server's returns
    returns: u64,
    /// the state of the server at the last one
    back: Back,
    /// why the last attempt to connect failed
    failure: Option<Failure>,
}

/// State of a server that has come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Back {
    /// versions before this one are too old for it
    pub(super) oldest: Option<Box<str>>,
}

/// The right to ask while the server is away. Dropping it passes it on.
#[derive(Debug)]
pub(super) struct Turn {
    _guard: OwnedMutexGuard<()>,
    /// answers in a row that were no success
    failures: u32,
}

/// Result of waiting for a turn.
#[derive(Debug)]
pub(super) enum Outcome {
    /// this kind is the one that asks
    Turn(Turn),
    /// another kind has found the server back
    Back(Back),
    /// another kind has failed to connect
    Unreached(Failure),
    /// another kind has come to no end for too long
    Late,
}

/// No kind waits longer for another one: it may be that one alone which is refused.
const PATIENCE: Duration = Duration::from_secs(5);
/// Delay of the other kinds, so that the best one comes first where all begin to wait.
const COURTESY: Duration = Duration::from_millis(20);
/// Failed answers in a row after which the turn passes to the next kind.
const FAILURES: u32 = 3;

impl Turns {
    /// Waits for the turn. The best kind goes before others.
    pub(super) async fn take(&self, is_best: bool) -> Outcome {
        let returns = self.state().returns;
        let unreached = self.unreached.notified();
        let lock = async {
            if !is_best {
                tokio::time::sleep(COURTESY).await;
            }
            Arc::clone(&self.lock).lock_owned().await
        };
        tokio::select! {
            // In this order: all that wait when a connection fails wait anew, so that the best kind comes first.
            biased;
            () = unreached => match self.state().failure.clone() {
                Some(failure) => Outcome::Unreached(failure),
                None => Outcome::Late,
            },
            guard = lock => {
                let state = self.state();
                if state.returns == returns {
                    Outcome::Turn(Turn { _guard: guard, failures: 0 })
                } else {
                    Outcome::Back(state.back.clone())
                }
            }
            () = tokio::time::sleep(PATIENCE) => Outcome::Late,
        }
    }

    /// The server is back, which all waiting kinds are to see. To be called before the turn is dropped.
    pub(super) fn is_back(&self, back: Back) {
        let mut state = self.state();
        state.returns += 1;
        state.back = back;
    }

    /// There is no connection: all waiting kinds get the failure.
    pub(super) fn unreached(&self, failure: &Failure) {
        self.state().failure = Some(failure.clone());
        self.unreached.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// The server has answered, and not as it should. True if another kind may do better: not at once for one whose watch
    /// is the best evidence of what the server has forgotten.
    pub(super) fn is_over_after_failure(&mut self, is_best: bool) -> bool {
        self.failures += 1;
        !is_best || self.failures >= FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::Cause;
    use super::*;

    async fn turn(turns: &Turns) -> Turn {
        match turns.take(false).await {
            Outcome::Turn(turn) => turn,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_learns_how_the_server_is_back() {
        let turns = Turns::default();
        let first = turn(&turns).await;
        let back = Back { oldest: Some("7".into()) };
        let (second, third, ()) = tokio::join!(turns.take(false), turns.take(false), async {
            turns.is_back(back.clone());
            drop(first);
        });
        assert!(matches!(&second, Outcome::Back(known) if *known == back), "{second:?}");
        assert!(matches!(&third, Outcome::Back(known) if *known == back), "{third:?}");
        turn(&turns).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_passed_on_and_a_failure_to_connect_is_everybodys() {
        let turns = Turns::default();
        let mut first = turn(&turns).await;
        assert!(matches!(turns.take(false).await, Outcome::Late));
        let failure = Failure::new(Cause::Unreached, "refused");
        let (second, ()) = tokio::join!(turns.take(false), async { turns.unreached(&failure) });
        assert!(matches!(&second, Outcome::Unreached(known) if *known == failure), "{second:?}");
        assert!(!first.is_over_after_failure(true) && !first.is_over_after_failure(true));
        assert!(first.is_over_after_failure(true));
        let (mut second, ()) = tokio::join!(turn(&turns), async { drop(first) });
        assert!(second.is_over_after_failure(false));
        // All waited when the connection failed, and the best one is the next.
        let (other, best, ()) = tokio::join!(turns.take(false), turns.take(true), async {
            turns.unreached(&failure);
            drop(second);
        });
        assert!(matches!((&other, &best), (Outcome::Unreached(_), Outcome::Unreached(_))), "{other:?} {best:?}");
        let (other, best) = tokio::join!(turns.take(false), async {
            let best = turns.take(true).await;
            assert!(matches!(best, Outcome::Turn(_)), "{best:?}");
            turns.is_back(Back::default());
        });
        assert!(matches!(&other, Outcome::Back(_)), "{other:?} {best:?}");
        let (third, best) = tokio::join!(turns.take(false), async {
            let best = turns.take(true).await;
            assert!(matches!(best, Outcome::Turn(_)), "{best:?}");
            turns.is_back(Back::default());
        });
        assert!(matches!(&third, Outcome::Back(_)), "{third:?} {best:?}");
    }
}
