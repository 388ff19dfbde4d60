//! A relay with its threads, and waiting for a state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferry_relay::{Bind, Listener, ListenerId, ListenerState, Port, Protocol, Relay, RelayConfig};

/// After this a state that is waited for never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a state.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Few threads, so that connections share one and go from one to another.
pub(crate) fn config() -> RelayConfig {
    RelayConfig { workers: 2, ..RelayConfig::default() }
}

/// A relay with its threads.
pub(crate) struct Running {
    relay: Option<Relay>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn new(config: RelayConfig) -> Self {
        let (relay, workers) = Relay::new(config).unwrap();
        let threads = workers.into_iter().map(|worker| std::thread::spawn(|| worker.run())).collect();
        Self { relay: Some(relay), threads }
    }

    /// Listens at an address, and returns the one that was bound.
    pub(crate) fn listen(&self, id: u64, protocol: Protocol, address: SocketAddr, port: &Arc<Port>) -> SocketAddr {
        let bind = Bind::Address { address, reuse_port: false };
        match self.add(ListenerId(id), Listener { protocol, bind, port: Arc::clone(port) }) {
            ListenerState::Open(address) => address,
            failed => panic!("{failed:?}"),
        }
    }

    /// Ends the relay as a program would.
    pub(crate) fn drain(mut self, within: Duration) -> usize {
        self.relay.take().unwrap().drain(within)
    }
}

impl std::ops::Deref for Running {
    type Target = Relay;

    fn deref(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.relay = None;
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}
