//! Answers that would block the main thread, which answers probes.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::{Deferred, DeferredAnswer, HttpResponse};

/// Makes answers on another thread, one at a time: a closed connection doesn't end the work of its request, so that a client that opens and
/// closes connections would otherwise occupy a thread for each of them.
#[derive(Clone, Debug)]
pub struct BlockingAnswers {
    /// held while an answer is made; the earliest begin of the next one
    turn: Arc<Mutex<Instant>>,
    /// length of the pause behind each answer, as a multiple of the time that it took
    pause: u32,
}

/// Length of a pause: answers take a tenth of a core together, unless one takes more than a second.
const PAUSE: u32 = 9;
/// Longest pause, since a client waits for it.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

// === impl BlockingAnswers ===

impl BlockingAnswers {
    /// Answers with a pause after each, so that clients can't keep a core busy.
    pub fn with_pauses() -> Self {
        Self { pause: PAUSE, ..Self::default() }
    }

    /// The answer that this closure returns.
    pub fn answer<T: Into<DeferredAnswer> + Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Deferred {
        let Self { turn, pause } = self.clone();
        Box::pin(async move {
            let mut turn = turn.lock_owned().await;
            sleep_until(*turn).await;
            let begun = Instant::now();
            let made = spawn_blocking(move || {
                let made = make();
                *turn = Instant::now() + begun.elapsed().saturating_mul(pause).min(LONGEST_PAUSE);
                drop(turn);
                made
            });
            made.await.map_or_else(failed, Into::into)
        })
    }
}

/// The other thread has ended early: a panic ends the program, so that this is the end of the runtime.
fn failed(error: JoinError) -> DeferredAnswer {
    HttpResponse::text(format!("{error}\n")).with_status(StatusCode::INTERNAL_SERVER_ERROR).into()
}

impl Default for BlockingAnswers {
    fn default() -> Self {
        Self { turn: Arc::new(Mutex::new(Instant::now())), pause: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::task::Poll;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn an_abandoned_answer_is_finished_before_the_next_one_begins() {
        let (answers, done) = (BlockingAnswers::default(), Arc::new(AtomicBool::new(false)));
        let (started, mut begun) = unbounded_channel();
        let (go, proceed) = mpsc::channel();
        let of_first = Arc::clone(&done);
        let first = answers.answer(move || {
            started.send(()).unwrap();
            proceed.recv().unwrap();
            of_first.store(true, Ordering::SeqCst);
            HttpResponse::text("first")
        });
        tokio::select! {
            answer = first => panic!("it is not finished: {answer:?}"),
            _ = begun.recv() => {}
        }
        let mut second = answers.answer(move || HttpResponse::text(done.load(Ordering::SeqCst).to_string()));
        assert!(poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await);
        go.send(()).unwrap();
        assert_eq!(second.await, DeferredAnswer::Answer(HttpResponse::text("true")));
    }

    #[tokio::test]
    async fn a_pause_is_as_long_as_nine_answers() {
        let (answers, took) = (BlockingAnswers::with_pauses(), Duration::from_millis(20));
        let begun = Instant::now();
        for _ in 0..3 {
            let answer = answers.answer(move || {
                std::thread::sleep(took);
                HttpResponse::text("done")
            });
            assert_eq!(answer.await, DeferredAnswer::Answer(HttpResponse::text("done")));
        }
        assert!(begun.elapsed() >= took * (3 + 2 * PAUSE), "{:?}", begun.elapsed());
    }
}
