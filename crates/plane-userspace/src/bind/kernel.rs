//! The kernel half of the way: two layers under one engine. Creations go from the addresses to the listeners, deletions come back.

#[cfg(target_os = "linux")]
use std::io;

use ferry_api::object::Family;
use ferry_kernel::interface::InterfaceAddresses;
use ferry_plane::engine::Engine;
use ferry_plane::layered::{Layer, Layered};

use super::compile::Binding;
use super::interface::{InterfaceLayer, ServiceAddresses};
use super::listeners::ListenerLayer;
use super::object::BindObject;
#[cfg(target_os = "linux")]
use super::routes::RouteLayer;
use crate::failing::ListenerReports;
use crate::shared::SharedRelay;

/// The engine of this way.
pub type BindEngine = Engine<Binding, Layered<BindObject>>;

/// Opens the engine of one family that makes addresses local by routes, in the network namespace of this thread, with which the relay's
/// threads share it; and the body of a thread that wakes it when routes change. It ends only if waiting fails, with that error.
///
/// # Errors
/// The system's error of opening a socket.
#[cfg(target_os = "linux")]
pub fn engine(
    family: Family,
    relay: &SharedRelay,
    reports: ListenerReports,
) -> io::Result<(BindEngine, impl FnOnce() -> io::Error + Send + use<>)> {
    let routes = RouteLayer::open(family)?;
    let listener = routes.listener()?;
    Ok((over(routes, Binding::new(family, true), relay, reports), listener))
}

/// The engine of one family that serves at addresses that interfaces have.
pub fn engine_without_addresses(family: Family, relay: &SharedRelay, reports: ListenerReports) -> BindEngine {
    let listeners = ListenerLayer::new(family, relay.clone(), reports);
    Engine::new(Binding::new(family, false), Layered::new(vec![Box::new(listeners)]))
}

/// The engine of one family that adds addresses to an interface.
pub fn engine_of_interface<I: InterfaceAddresses + Send + 'static>(
    family: Family,
    addresses: ServiceAddresses<I>,
    relay: &SharedRelay,
    reports: ListenerReports,
) -> BindEngine {
    over(InterfaceLayer::new(family, addresses), Binding::new(family, true), relay, reports)
}

fn over(
    addresses: impl Layer<BindObject> + 'static,
    compiler: Binding,
    relay: &SharedRelay,
    reports: ListenerReports,
) -> BindEngine {
    let listeners = ListenerLayer::new(compiler.family(), relay.clone(), reports);
    Engine::new(compiler, Layered::new(vec![Box::new(addresses), Box::new(listeners)]))
}
