//! Waits for this node's Node alone, as `--init-only` does.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ferry_api::object::Kind;
use ferry_model::store::Store;

use super::gate::{StartGate, StartReadiness};
use super::{NeverReady, NodeFacts};
use crate::input::Input;

/// Takes the inputs of a source until the Node of this name is known, or the wait for it has ended as at any start. With a
/// `limit` it ends after that time in any case.
///
/// # Errors
/// If what the configuration needs of the Node doesn't arrive in time, or the source has ended.
pub fn await_node(
    name: &str,
    node: NodeFacts,
    inputs: &Receiver<Input>,
    limit: Option<Duration>,
) -> Result<(), NeverReady> {
    let end = limit.map(|limit| Instant::now() + limit);
    let NodeFacts::Cluster(wait) = node else { return Ok(()) };
    let (mut gate, mut store) = (StartGate::new(vec![Kind::Node], Some(wait), name), Store::new(name));
    loop {
        let now = Instant::now();
        let due = match gate.readiness(&store, now, || false) {
            StartReadiness::Ready => return Ok(()),
            StartReadiness::Failed(reason) => return Err(NeverReady(reason)),
            StartReadiness::Waiting(due) => due,
        };
        if end.is_some_and(|end| end <= now) {
            tracing::warn!(node = name, "Node is unknown, continuing without it");
            return Ok(());
        }
        let due = [due, end].into_iter().flatten().min();
        let input = match due {
            None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => inputs.recv_timeout(due.saturating_duration_since(now)),
        };
        match input {
            Ok(Input::Events(events)) => events.into_iter().for_each(|event| drop(store.apply(event))),
            // Everything else is of no use before there are engines.
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(NeverReady("the source has ended".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use ferry_model::store::Event;

    use super::*;
    use crate::core::NodeWait;

    const SOON: NodeFacts =
        NodeFacts::Cluster(NodeWait { address: Duration::from_millis(20), pod_range: Some(Duration::from_millis(20)) });

    #[test]
    fn manifests_need_no_lookup() {
        let (_inputs, input) = channel();
        assert_eq!(await_node("here", NodeFacts::Local, &input, None), Ok(()));
    }

    #[test]
    fn a_limit_ends_the_wait_for_a_silent_server() {
        let (_inputs, input) = channel();
        let limit = Duration::from_millis(20);
        let begun = Instant::now();
        assert_eq!(await_node("here", SOON, &input, Some(limit)), Ok(()));
        assert!(begun.elapsed() >= limit);
    }

    #[test]
    fn what_does_not_arrive_is_named() {
        let (inputs, input) = channel();
        inputs.send(Input::Events(vec![Event::Synced(Kind::Node)])).unwrap();
        let error = await_node("here", SOON, &input, None).unwrap_err();
        assert_eq!(error.to_string(), "timeout waiting for node \"here\" to exist");
        drop(inputs);
        assert_eq!(await_node("here", SOON, &input, None).unwrap_err().to_string(), "the source has ended");
    }
}
