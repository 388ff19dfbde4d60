//! The kernel half of the way: two layers under one engine. Creations go from the addresses to the listeners, deletions come back.

use std::io;

use ferry_api::object::Family;
use ferry_plane::engine::Engine;
use ferry_plane::layered::Layered;

use super::addresses::AddressLayer;
use super::compile::Binding;
use super::listeners::ListenerLayer;
use super::object::BindObject;
use crate::failing::ListenerReports;
use crate::shared::SharedRelay;

/// The engine of this way.
pub type BindEngine = Engine<Binding, Layered<BindObject>>;

/// Opens the engine of one family, in the network namespace of this thread, with which the relay's threads share it; and the body of a
/// thread that wakes it when routes change. It ends only if waiting fails, with that error.
///
/// # Errors
/// The system's error of opening a socket.
pub fn engine(
    family: Family,
    binds: bool,
    relay: &SharedRelay,
    reports: ListenerReports,
) -> io::Result<(BindEngine, impl FnOnce() -> io::Error + Send + use<>)> {
    let addresses = AddressLayer::open(family)?;
    let listener = addresses.listener()?;
    let listeners = ListenerLayer::new(family, relay.clone(), reports);
    let layers = Layered::new(vec![Box::new(addresses), Box::new(listeners)]);
    Ok((Engine::new(Binding::new(family, binds), layers), listener))
}
