//! In a user namespace the send buffer of a netlink socket can't exceed the system's limit (`net.core.wmem_max`), so a
//! transaction that is larger fails with EMSGSIZE. The engine splits it, and sets apart a Service that alone is too large.

#![expect(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panic")]

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_api::object::{Family, Protocol};
use ferry_conformance::states::{self, base, context, frontend, port, service};
use ferry_model::{Endpoint, FrontendAddr, FrontendKind, Pool};
use ferry_plane::{CommitError, Delta, Extent, Kernel, SyncEngine, Unit, UnitId};
use ferry_plane_nftables::object::ElementKey;
use ferry_plane_nftables::{NftKey, NftablesCommitLock, NftablesKernel, engine};

/// Environment variable that is set in the process within the namespaces.
const INSIDE: &str = "FERRY_TEST_INSIDE_USER_NAMESPACE";
const TEST: &str = "a_batch_that_no_send_buffer_holds_is_split";
/// Minimum bytes of one slot in a message.
const SLOT_BYTES: usize = 64;
/// Endpoints of each Service of common size.
const ENDPOINTS: usize = 2000;

/// The largest datagram that can be sent: the kernel doubles the requested buffer size.
fn largest_datagram() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
    2 * limit.trim().parse::<usize>().unwrap()
}

/// A Service with this number of cluster IPs, each with this number of slots.
fn with_slots(name: &str, number: u16, vips: u8, endpoints: usize) -> (UnitId, Option<std::sync::Arc<Unit>>) {
    let address = |index: u32| IpAddr::from(Ipv4Addr::from_bits(u32::from_be_bytes([10, 128, 0, 1]) + index));
    let pool = (0..u32::try_from(endpoints).unwrap()).map(|index| Endpoint { address: address(index), port: 8080 });
    let frontends = (0..vips).map(|vip| {
        let at = FrontendAddr::Vip(states::address(Family::V4, 96, vip), number);
        frontend(FrontendKind::ExternalIp, at, states::EXTERNAL)
    });
    service(name, vec![port(Protocol::Tcp, Pool::new(pool.collect::<Vec<_>>()), Pool::default(), frontends.collect())])
}

#[test]
fn a_batch_that_no_send_buffer_holds_is_split() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let test = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(test)
        .args(["--exact", TEST, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("the tool unshare is needed");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{}: {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn inside() {
    let largest = largest_datagram();
    let common = (largest + largest / 10) / SLOT_BYTES / ENDPOINTS;
    let most = ferry_model::MAX_ENDPOINTS;
    // Fewer frontends than share a pool.
    let vips = largest.div_ceil(SLOT_BYTES * most) + 1;
    assert!(vips <= ferry_model::MAX_COPIES, "a Service that is too large for {largest} bytes");
    let services = (0..common)
        .map(|index| with_slots(&format!("common-{index}"), 1000 + u16::try_from(index).unwrap(), 1, ENDPOINTS));
    let large = with_slots("large", 80, u8::try_from(vips).unwrap(), most);
    let base = (UnitId::Base, Some(std::sync::Arc::new(Unit::Base(base(Family::V4, false)))));
    let units = services.chain([large, base]).collect();
    let delta = Delta { context: Some(std::sync::Arc::new(context(Family::V4))), units };

    let mut now = Instant::now();
    let mut engine = engine(Family::V4, NftablesCommitLock::default()).unwrap();
    engine.offer(delta);
    let error = engine.sync(now).error.expect("it does not fit");
    assert!(matches!(*error, CommitError::Resources(_)), "{error:?}");
    now += Duration::from_millis(50);
    let outcome = engine.sync(now);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let apart: Vec<String> = outcome.quarantined.iter().map(|(id, error)| format!("{id}: {error}")).collect();
    assert!(apart.len() == 1 && apart[0].starts_with("service demo/large: no resources"), "{apart:?}");
    assert_eq!(engine.acked().len(), common + 1);

    let mut kernel = NftablesKernel::open(Family::V4, NftablesCommitLock::default()).unwrap();
    let slots = (0..common).flat_map(|index| {
        let number = 1000 + u16::try_from(index).unwrap();
        let vip = states::address(Family::V4, 96, 0);
        let last = u32::try_from(ENDPOINTS).unwrap() - 1;
        [0, last].map(|slot| NftKey::Element(ElementKey::Slot { vip, protocol: Protocol::Tcp, port: number, slot }))
    });
    let slots: Vec<NftKey> = slots.collect();
    assert_eq!(kernel.read_back(&Extent::Keys(slots.clone())).unwrap().len(), slots.len());
}
