//! Generates histories of plausible clusters, one change after another.

use ferry_api::object::{Kind, ObjectName};

use super::{Cluster, Random, SERVICES};

/// Makes one random change to a cluster; returns the object that was changed or deleted.
pub fn happens(cluster: &mut Cluster, random: &mut Random) -> (Kind, ObjectName) {
    let slot = random.below(SERVICES.len());
    let kind = match random.below(100) {
        0..=41 => {
            let (part, v4) = (random.below(3), random.chance(50));
            return cluster.put_slice(slot, part, v4, random);
        }
        42..=67 => return cluster.put_service(slot, random),
        68..=71 => return cluster.put_node(random),
        72..=75 => return cluster.put_service_cidr(random.pick(&["kubernetes", "more"]), random),
        76..=86 => Kind::EndpointSlice,
        87..=95 => Kind::Service,
        96..=97 => Kind::Node,
        _ => Kind::ServiceCidr,
    };
    let known: Vec<ObjectName> =
        cluster.objects.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone()).collect();
    let Some(name) = known.get(random.below(known.len())) else { return cluster.put_service(slot, random) };
    cluster.objects.remove(&(kind, name.clone()));
    (kind, name.clone())
}
