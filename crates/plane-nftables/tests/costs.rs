//! The cost of a repair, and of a change of a large Service, in this mode.

use std::time::Instant;

use crate::mode::ThisMode;
use ferry_api::object::{Family, Protocol};
use ferry_conformance::{Mode as _, costs, good, states};
use ferry_model::{FrontendAddr, FrontendKind, Pool};
use ferry_plane::engine::Engine;
use ferry_plane::memory::MemoryKernel;
use ferry_plane::{Delta, SyncEngine as _};

#[test]
fn a_repair_of_one_key_compiles_few_units() {
    costs::a_repair_of_one_key_compiles_few_units::<ThisMode>();
}

#[test]
fn hints_lead_to_the_units() {
    costs::hints_lead_to_the_units::<ThisMode>();
}

/// A Service as wide as an API server admits has 16,000 frontends. A changed endpoint must not be an operation for each of them, behind
/// which all other Services wait.
#[test]
fn an_endpoint_of_the_widest_service_is_a_few_operations_for_each_port() {
    const PORTS: u16 = 250;
    let wide = |endpoints: &[u8]| {
        let port = |number: u16| {
            let at = |ip| FrontendAddr::Vip(states::address(Family::V4, 96, ip), 1000 + number);
            let frontends = (1..=64).map(|ip| states::frontend(FrontendKind::ExternalIp, at(ip), states::EXTERNAL));
            let pool = states::pool(Family::V4, endpoints);
            let mut port = states::port(Protocol::Tcp, pool, Pool::default(), frontends.collect());
            port.name = number.to_string().into();
            port
        };
        states::service("widest", (0..PORTS).map(port).collect())
    };
    let (mut engine, now) =
        (Engine::new(ThisMode::compiler(Family::V4, false), MemoryKernel::default()), Instant::now());
    let (all, replaced): (Vec<u8>, Vec<u8>) = ((1..=64).collect(), (2..=65).collect());
    let more: Vec<u8> = (1..=65).collect();
    let mut delta = states::everything(Family::V4);
    delta.units.extend([wide(&all)]);
    engine.offer(delta);
    good(engine.sync(now));
    // Where one is removed, the last one takes its slot: an element replaced, one deleted, and a rule.
    for (what, endpoints, most) in [("replaced", replaced, 1), ("added", more, 2), ("removed", all, 3)] {
        engine.offer(Delta { context: None, units: [wide(&endpoints)].into() });
        let operations = good(engine.sync(now)).ops;
        assert!((1..=most * usize::from(PORTS)).contains(&operations), "{what}: {operations} operations");
    }
}
