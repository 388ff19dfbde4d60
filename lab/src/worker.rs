//! A thread that runs closures for others, one after another.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// A thread with properties of its own, such as a namespace, which its jobs and all that they start share. It ends when dropped.
pub(crate) struct Worker {
    thread_id: i32,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

// === impl Worker ===

impl Worker {
    /// Starts the thread. `prepare` gives it its properties, then calls its argument, which runs the jobs.
    pub(crate) fn start(name: &str, prepare: impl FnOnce(Box<dyn FnOnce() + Send>) + Send + 'static) -> Self {
        let (jobs, inbox) = channel::<Job>();
        let (ready, is_ready) = channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || prepare(Box::new(move || work(&ready, inbox))))
            .expect("starting a thread");
        let thread_id = is_ready.recv().expect("a thread that could be prepared");
        Self { thread_id, jobs: Some(jobs), thread: Some(thread) }
    }

    /// The id of the thread that runs the jobs.
    pub(crate) fn thread_id(&self) -> i32 {
        self.thread_id
    }

    /// Runs a closure on the thread. A panic is resumed on the calling thread.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (result, answer) = channel();
        let job = move || {
            let outcome = catch_unwind(AssertUnwindSafe(job));
            result.send(outcome).expect("the caller waits for the result");
        };
        let jobs = self.jobs.as_ref().expect("only dropping takes it");
        jobs.send(Box::new(job)).expect("the thread runs until it is dropped");
        match answer.recv().expect("every job answers") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // a panic of the thread was reported to the caller of `run`
            let _ = thread.join();
        }
    }
}

fn work(ready: &Sender<i32>, inbox: Receiver<Job>) {
    let id = rustix::thread::gettid().as_raw_nonzero().get();
    ready.send(id).expect("the maker of the worker waits");
    for job in inbox {
        job();
    }
}
