//! Measures a restart with many services and many flows: changes during the downtime are unknown, so all flows are checked
//! for staleness.

use std::path::Path;
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::conntrack::testing::create;
use ferry_lab::Mode;

use super::{ALL_PASSES, PASSES, PATIENCE, REMOVED, UDP, between, clear, manifests, sum};
use crate::process::{ProxyChild, ScratchDirectory};
use crate::stats::{memory_mib, thread_of};

/// Number of services, each with a UDP port and endpoints.
const SERVICES: usize = 10_000;
const ENDPOINTS: u8 = 10;

/// Measures with `flows` flows in the table, one of ten to a removed endpoint.
pub(super) fn run(program: &Path, flows: usize) -> anyhow::Result<()> {
    let all = manifests(Family::V4, SERVICES, |_| 0..ENDPOINTS);
    let directory = ScratchDirectory::new(Mode::NFTABLES, vec![("all.yaml".to_owned(), all)])?;
    let mut proxy = ProxyChild::start(program, &directory.0)?;
    proxy.wait_for_sync(SERVICES)?;
    for flows in [0, flows] {
        drop(proxy);
        // the eleventh endpoint doesn't exist
        let all = (0..flows).map(|n| between(UDP, n, n % SERVICES, u8::try_from(n / 7 % 10 + 1).unwrap_or(0)));
        create(all, Duration::from_secs(600))?;
        proxy = ProxyChild::start(program, &directory.0)?;
        proxy.wait_for_sync(SERVICES)?;
        let (start, wrong) = (Instant::now(), flows / 10);
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        while sum(PASSES)? < 1.0 || sum(REMOVED)? < 0.9 * wrong as f64 {
            anyhow::ensure!(start.elapsed() < PATIENCE, "stale conntrack entries remain");
            std::thread::sleep(Duration::from_millis(2));
        }
        let (took, first) = (start.elapsed(), thread_of(proxy.id(), "flows")?);
        std::thread::sleep(ALL_PASSES);
        let both = thread_of(proxy.id(), "flows")?;
        println!(
            "restart over {SERVICES} services, {flows} flows, {} removed {:.0} ms after the first sync: {:.0} ms cpu, second \
             pass {:.0} ms; {:.0} ms in total; peak {:.1} MiB",
            sum(REMOVED)?,
            took.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            both.saturating_sub(first).as_secs_f64() * 1e3,
            proxy.cpu()?.as_secs_f64() * 1e3,
            memory_mib(&proxy.id().to_string(), "VmHWM")?,
        );
        clear(UDP)?;
    }
    Ok(())
}
