//! The gate for child processes is one of the whole process: this test has a process of its own.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ferry_family::Family;
use ferry_kernel::children::{ChildProcess, IdleChild, NoChildren};
use ferry_kernel::iptables::{Backend, Restorer, Tool};
use ferry_kernel::netns::Namespace;

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
    let idle = IdleChild::new(());
    assert!(idle.take().is_none(), "it ends at once");
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

    let taken = IdleChild::new(ChildProcess::begin()).take();
    assert!(NoChildren::within(MOMENT).is_none(), "one has a task again");
    drop(taken);
    let idle = IdleChild::new(ChildProcess::begin());
    let dropped = IdleChild::new(ChildProcess::begin());
    drop(dropped);
    let none = NoChildren::within(PATIENCE).expect("those that wait for a task end");
    assert!(idle.take().is_none());
    drop(none);

    let a_tool_that_waits_for_a_text = || {
        let mut restorer = Restorer::new(Tool::find(Family::V4, Some(Backend::Nft)).unwrap());
        let mut restore = || restorer.restore_by(&mut |stdin| stdin.write("*nat\n:A - [0:0]\nCOMMIT\n")).map(drop);
        restore().unwrap();
        drop(NoChildren::within(PATIENCE).expect("it ends"));
        restore().unwrap();
    };
    Namespace::new().unwrap().run(a_tool_that_waits_for_a_text).unwrap();
}
