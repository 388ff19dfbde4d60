//! Waits for this node's Node alone, as `--init-only` does.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use ferry_api::object::Kind;
use ferry_model::store::Store;

use super::gate::{Gate, Readiness};
use super::{NeverReady, NodeFacts};
use crate::input::Input;

/// Takes the inputs of a source until the Node of this name is known, or the wait for it has ended as at any start.
///
/// # Errors
/// If what the configuration needs of the Node doesn't arrive in time, or the source has ended.
pub fn await_node(name: &str, node: NodeFacts, inputs: &Receiver<Input>) -> Result<(), NeverReady> {
    let NodeFacts::Cluster(wait) = node else { return Ok(()) };
    let (mut gate, mut store) = (Gate::new(vec![Kind::Node], Some(wait), name), Store::new(name));
    loop {
        let now = Instant::now();
        let due = match gate.readiness(&store, now, || false) {
            Readiness::Ready => return Ok(()),
            Readiness::Failed(reason) => return Err(NeverReady(reason)),
            Readiness::Waiting(due) => due,
        };
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
    use std::time::Duration;

    use ferry_model::store::Event;

    use super::*;
    use crate::core::NodeWait;

    const SOON: NodeFacts =
        NodeFacts::Cluster(NodeWait { address: Duration::from_millis(20), pod_range: Some(Duration::from_millis(20)) });

    #[test]
    fn manifests_need_no_lookup() {
        let (_inputs, input) = channel();
        assert_eq!(await_node("here", NodeFacts::Local, &input), Ok(()));
    }

    #[test]
    fn what_does_not_arrive_is_named() {
        let (inputs, input) = channel();
        inputs.send(Input::Events(vec![Event::Synced(Kind::Node)])).unwrap();
        let error = await_node("here", SOON, &input).unwrap_err();
        assert_eq!(error.to_string(), "timeout waiting for node \"here\" to exist");
        drop(inputs);
        assert_eq!(await_node("here", SOON, &input).unwrap_err().to_string(), "the source has ended");
    }
}
