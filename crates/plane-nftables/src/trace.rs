//! Simulates the objects on the first packet of a connection.

use std::collections::BTreeMap;

use ferry_api::object::Family;
use ferry_kernel::nft::{Hook, Verdict as Go};
use ferry_model::{Endpoint, Packet, Snat, Verdict};
use ferry_plane::{PacketPath, RuleTexts, Trace, Traced};
use ferry_ruleset::trace::{Data, End, Walk, World};
use ferry_ruleset::{Rules, fields};

use crate::compile::Nftables;
use crate::names::SetName;
use crate::object::{NftObject, Value};
use crate::wire;

/// Traces many packets through the same objects.
#[derive(Debug)]
struct Tracer<'a>(World<'a>);

impl Trace for Nftables {
    fn tracer<'a>(&self, objects: &'a [NftObject]) -> Box<dyn ferry_plane::Tracer + 'a> {
        Box::new(Tracer::new(self.family(), objects))
    }

    fn texts(&self, objects: &[NftObject]) -> RuleTexts {
        let chains = objects.iter().filter_map(|object| match object {
            NftObject::Chain(_, rules) => Some(rules),
            NftObject::Table(_) | NftObject::Set(_) | NftObject::Ranges(..) | NftObject::Element(..) => None,
        });
        chains.flat_map(Rules::texts).collect()
    }
}

// === impl Tracer ===

impl<'a> Tracer<'a> {
    /// A tracer of one family's objects.
    fn new(family: Family, objects: &'a [NftObject]) -> Self {
        let mut world = World::new(family);
        for object in objects {
            match object {
                NftObject::Table(_) | NftObject::Set(_) => {}
                NftObject::Ranges(id, ranges) => world.ranges(SetName::Sources(*id), ranges),
                NftObject::Chain(name, rules) => world.chain(name, name.chain().hook, rules),
                NftObject::Element(key, value) => {
                    world.element(key.set(), wire::key_bytes(key).as_slice(), data(value), object);
                }
            }
        }
        Self(world)
    }
}

impl ferry_plane::Tracer for Tracer<'_> {
    /// With all endpoints that random numbers may yield.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced {
        let (mut endpoints, mut paths) = (BTreeMap::new(), Vec::new());
        for draw in 0.. {
            let mut walk = Walk::new(&self.0, packet, draw, path.clone());
            let verdict = run(&mut walk, packet);
            let is_last = walk.drawn().is_none_or(|of| draw + 1 >= of);
            let Verdict::Forward(to) = &verdict else { return Traced::one(walk.into_path(), verdict) };
            endpoints.extend(to.clone());
            paths.push((walk.into_path(), verdict));
            if is_last {
                break;
            }
        }
        Traced { verdict: Verdict::Forward(endpoints), paths }
    }
}

/// Value of an element in the kernel's form.
fn data(value: &Value) -> Data {
    match value {
        Value::None | Value::Foreign => Data::None,
        Value::Endpoint(endpoint) => Data::Value(fields::endpoint_bytes(*endpoint).as_slice().to_vec()),
        Value::Drop => Data::Go(Go::Drop),
        Value::Goto(chain) => Data::Go(Go::Goto(chain.to_string())),
    }
}

fn run(walk: &mut Walk<'_>, packet: &Packet) -> Verdict {
    let entry = if packet.interface.is_some() { Hook::Prerouting } else { Hook::Output };
    match walk.hook(entry) {
        End::Drop => return Verdict::Drop,
        End::Reject => return Verdict::Reject,
        End::Accept | End::Return => {}
    }
    if !walk.is_translated() {
        return Verdict::Pass;
    }
    match walk.hook(Hook::Postrouting) {
        End::Drop => Verdict::Drop,
        End::Reject => Verdict::Reject,
        End::Accept | End::Return => {
            let snat = if walk.is_masqueraded() { Snat::Masquerade } else { Snat::Keep };
            Verdict::Forward([(Endpoint { address: walk.destination(), port: walk.port() }, snat)].into())
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_conformance::states;
    use ferry_plane::{Compile as _, Unit};
    use ferry_ruleset::TableRule;

    use super::*;

    #[test]
    fn a_rule_that_was_read_back_is_known_by_its_expressions() {
        let compiler = Nftables::new(Family::V4);
        let mut objects = Vec::new();
        let base = Unit::Base(states::base(Family::V4, true));
        compiler.compile(&states::context(Family::V4), &base, &mut objects);
        let texts = compiler.texts(&objects);
        let mut known = Vec::new();
        for object in &objects {
            let NftObject::Chain(_, rules) = object else { continue };
            for TableRule { exprs, text } in rules.0.iter().cloned() {
                let read_back = TableRule { exprs, text: String::new() };
                assert_eq!(texts.get(&read_back.to_string()), Some(&text));
                known.push(text);
            }
        }
        known.sort_unstable();
        known.dedup();
        assert_eq!(texts.len(), known.len(), "there is no other text");
        assert!(known.iter().any(|text| text == "jump services"), "{known:?}");
        assert!(compiler.texts(&[]).is_empty());
    }
}
