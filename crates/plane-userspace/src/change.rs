//! The comparison that leaves out a Service's frontends, which may be many thousands, where only its endpoints change.

use ferry_model::{Context, PortState, ServiceState};
use ferry_plane::{Compile, Unit};

#[cfg(test)]
pub(crate) mod tests;

/// Compiles both sides of a change. If they have the same frontends, only what `ports` writes for each: the objects of a Service without those
/// of its frontends.
pub(crate) fn compile<C: Compile>(
    compiler: &C,
    context: &Context,
    units: (&Unit, &Unit),
    (before, after): (&mut Vec<C::Object>, &mut Vec<C::Object>),
    ports: impl Fn(&ServiceState, &mut Vec<C::Object>),
) {
    match units {
        (Unit::Service(old), Unit::Service(new)) if leads_alike(old, new) => {
            ports(old, before);
            ports(new, after);
        }
        (old, new) => {
            compiler.compile(context, old, before);
            compiler.compile(context, new, after);
        }
    }
}

/// True if the frontends of two states of a Service compile to the same objects, whatever the endpoints are. As a whole: those of two ports may
/// share an object.
fn leads_alike(one: &ServiceState, other: &ServiceState) -> bool {
    let of_port = |(one, other): (&PortState, &PortState)| {
        (one.protocol, &one.name, &one.frontends, &one.shadowed)
            == (other.protocol, &other.name, &other.frontends, &other.shadowed)
    };
    one.name == other.name && one.ports.len() == other.ports.len() && one.ports.iter().zip(&other.ports).all(of_port)
}
