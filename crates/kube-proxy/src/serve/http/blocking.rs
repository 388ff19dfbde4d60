//! Answers that would block the main thread, which answers probes.

use std::sync::Arc;

use hyper::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

use super::{Answer, Deferred, DeferredAnswer};

/// Makes answers on another thread, one at a time: a closed connection doesn't end the work of its request, so that a client that opens and
/// closes connections would otherwise occupy a thread for each of them.
#[derive(Clone, Debug)]
pub struct BlockingAnswers(Arc<Semaphore>);

// === impl BlockingAnswers ===

impl BlockingAnswers {
    /// The answer that this closure returns.
    pub fn answer<T: Into<DeferredAnswer> + Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Deferred {
        let turn = Arc::clone(&self.0);
        Box::pin(async move {
            // The semaphore is never closed.
            let turn = turn.acquire_owned().await;
            let made = spawn_blocking(move || {
                let made = make();
                drop(turn);
                made
            });
            made.await.map_or_else(failed, Into::into)
        })
    }
}

/// The other thread has ended early: a panic ends the program, so that this is the end of the runtime.
fn failed(error: JoinError) -> DeferredAnswer {
    Answer::text(format!("{error}\n")).with_status(StatusCode::INTERNAL_SERVER_ERROR).into()
}

impl Default for BlockingAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
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
            Answer::text("first")
        });
        tokio::select! {
            answer = first => panic!("it is not finished: {answer:?}"),
            _ = begun.recv() => {}
        }
        let mut second = answers.answer(move || Answer::text(done.load(Ordering::SeqCst).to_string()));
        assert!(poll_fn(|context| Poll::Ready(second.as_mut().poll(context).is_pending())).await);
        go.send(()).unwrap();
        assert_eq!(second.await, DeferredAnswer::Answer(Answer::text("true")));
    }
}
