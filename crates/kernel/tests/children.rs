//! The gate for child processes is one of the whole process: this test has a process of its own.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ferry_kernel::children::{ChildProcess, NoChildren};

const MOMENT: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn none_starts_until_the_running_ones_have_ended_and_the_wait_is_over() {
    let running = ChildProcess::begin();
    assert!(NoChildren::within(MOMENT).is_none(), "one runs");
    let ends = thread::spawn(move || {
        thread::sleep(MOMENT);
        drop(running);
    });
    let none = NoChildren::within(PATIENCE).expect("it ends");
    ends.join().unwrap();
    assert!(NoChildren::within(MOMENT).is_none(), "somebody has it");
    let (sender, begun) = channel();
    let starts = thread::spawn(move || {
        let child = ChildProcess::begin();
        sender.send(()).unwrap();
        drop(child);
    });
    assert!(begun.recv_timeout(MOMENT).is_err(), "it waits");
    drop(none);
    begun.recv_timeout(PATIENCE).unwrap();
    starts.join().unwrap();
}
