//! Tests with plausible clusters: the compiled objects have the model's verdict on every packet, and any history, resolved
//! event by event, ends in the objects of a full build.

use std::collections::BTreeSet;

use ferry_api::object::{Family, Protocol};
use ferry_model::{FrontendAddr, Packet};
use ferry_plane::{Compile, Delta, Trace as _};
use proptest::prelude::*;

use crate::case::Case;
use crate::cases::of_this_mode;
use crate::cluster::{Cluster, Random, happens};
use crate::costs::assert_found;
use crate::decided::Decided;
use crate::matrix;
use crate::mode::{Mode, ObjectOf};
use crate::property::inputs;
use crate::proxy::MemoryProxy;

/// Random clusters per test.
const CASES: u32 = 48;

/// A cluster as a case.
fn case_of<M: Mode>(cluster: &Cluster, seed: u64) -> Case {
    let config = M::varied(of_this_mode::<M>(&cluster.config), seed);
    Case::of(&format!("cluster {seed}"), &config, &[cluster.manifest()])
}

fn fresh<M: Mode>(family: Family, case: &Case, cluster: &Cluster) -> MemoryProxy<M> {
    let mut proxy = MemoryProxy::new(family, &case.settings, &case.local_addresses);
    for key in cluster.objects.keys() {
        proxy.apply(cluster.event(key));
    }
    proxy
}

/// Compares the verdicts of rules and model on a sample of packets.
fn the_rules_do_what_is_decided<M: Mode>(
    proxy: &MemoryProxy<M>,
    case: &Case,
    objects: &[ObjectOf<M>],
    sample: usize,
    random: &mut Random,
) {
    let decided = proxy.decided();
    let compiler = M::compiler(proxy.family, decided.base.localhost);
    let tracer = compiler.tracer(objects);
    let packets = matrix::packets(case, &decided);
    let frontends: BTreeSet<(FrontendAddr, Protocol)> = (decided.states.iter().flat_map(|state| &state.ports))
        .flat_map(|port| port.frontends.iter().map(|frontend| (frontend.at, port.protocol)))
        .collect();
    let is_served = |packet: &Packet| {
        let at = [FrontendAddr::Vip(packet.destination, packet.port), FrontendAddr::NodePort(packet.port)];
        at.iter().any(|at| frontends.contains(&(*at, packet.protocol)))
    };
    let (served, others): (Vec<Packet>, Vec<Packet>) = packets.into_iter().partition(is_served);
    for _ in 0..sample {
        // Most packets of the matrix go to unserved ports.
        let packets = if served.is_empty() || random.chance(20) { &others } else { &served };
        let packet = &packets[random.below(packets.len())];
        let wanted = decided.decide(packet, &M::Compiler::PROFILE);
        assert_eq!(tracer.verdict(packet), wanted, "{} {}: {packet:?}", case.name, proxy.family);
    }
}

fn hints_lead_to_the_units<M: Mode>(decided: &Decided) {
    let compiler = M::compiler(decided.family, decided.base.localhost);
    for (id, unit) in decided.delta(&Delta::default()).units {
        assert_found(&compiler, &decided.context, &id, &unit.unwrap());
    }
}

/// In 48 clusters, with 2,000 packets in each family.
pub fn the_rules_do_what_the_model_decides<M: Mode>() {
    proptest!(inputs(CASES), |(seed in any::<u64>())| {
        let cluster = Cluster::random(seed);
        let case = case_of::<M>(&cluster, seed);
        let mut random = Random::new(seed);
        for family in Family::ALL {
            let proxy = fresh::<M>(family, &case, &cluster);
            let objects = proxy.decided().compiled::<M>();
            M::well_made(&objects, &case.name);
            hints_lead_to_the_units::<M>(&proxy.decided());
            the_rules_do_what_is_decided(&proxy, &case, &objects, 2_000, &mut random);
        }
    });
}

/// Histories that once ended otherwise: a deletion that a full sync had left out, since the kernel was short of memory, was no
/// longer known as this engine's; the node port of a deleted Service stayed for a new one that was refused, and referred to a
/// chain of the deleted one; chains of a base that was never accepted stayed, without one that they referred to; a route stayed, and
/// its port was deleted later; a shared object stayed after the last unit without an acknowledged state had one.
const FOUND: [(u64, usize); 7] = [
    (5_322_378_970_428_541_926, 8),
    (9_058_216_212_364_261_364, 28),
    (6_175_790_601_384_144_562, 5),
    (834_367_298_987_997_754, 10),
    (2_083_896_154_029_606_430, 15),
    (1_775_695_998_490_790_966, 19),
    (7_260_702_749_703_468_802, 41),
];

/// With 48 histories, in half of which commits fail half-way; their end states also have the model's verdict on packets.
pub fn any_history_ends_as_one_full_build_does<M: Mode>() {
    FOUND.into_iter().for_each(|(seed, moments)| history_ends_as_one_full_build_does::<M>(seed, moments));
    proptest!(inputs(CASES), |(seed in any::<u64>(), moments in 1..60usize)| {
        history_ends_as_one_full_build_does::<M>(seed, moments);
    });
}

fn history_ends_as_one_full_build_does<M: Mode>(seed: u64, moments: usize) {
    for family in Family::ALL {
        let mut cluster = Cluster::random(seed);
        let fails = seed.is_multiple_of(2);
        let mut random = Random::new(seed);
        let case = case_of::<M>(&cluster, seed);
        let mut proxy = fresh::<M>(family, &case, &cluster);
        for _ in 0..moments {
            let key = happens(&mut cluster, &mut random);
            proxy.apply(cluster.event(&key));
            if fails && random.chance(30) {
                proxy.fail_half_way(&mut random);
            }
            // Some changes share one transaction.
            if random.chance(60) {
                proxy.sync();
            }
        }
        assert_eq!(proxy.settle(), fresh::<M>(family, &case, &cluster).settle());
        the_rules_do_what_is_decided(&proxy, &case, &proxy.engine.objects(), 300, &mut random);
    }
}
