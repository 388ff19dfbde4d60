//! The engine as an inspector: packets are traced through what is read back, in the words of what was offered.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::toy::{Toy, ToyCompile, context, service};
use ferry_api::object::Protocol;
use ferry_model::{Context, Packet, Profile, Verdict};
use ferry_plane::engine::Engine;
use ferry_plane::memory::{MemoryKernel, Refers};
use ferry_plane::{
    Compile, Delta, Inspector, Object, PacketPath, PathStep, RuleTexts, SyncEngine, Trace, Traced, Tracer, Unit, UnitId,
};

/// A text that makes no difference between two rules.
#[derive(Clone, Copy, Debug)]
struct Words(&'static str);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    vip: u8,
    endpoint: u8,
    words: Words,
}

/// One rule for each frontend.
#[derive(Debug)]
struct Rules;

struct RuleTracer<'a>(&'a [Rule]);

impl PartialEq for Words {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Words {}

impl PartialOrd for Words {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Words {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}, {}", self.vip, self.endpoint, self.words.0)
    }
}

impl Object for Rule {
    type Key = u8;
    type Shared = ();

    fn key(&self) -> u8 {
        self.vip
    }

    fn rank(&self) -> u8 {
        0
    }
}

impl Refers for Rule {
    fn refers_to(&self) -> Vec<u8> {
        Vec::new()
    }
}

impl Compile for Rules {
    type Object = Rule;
    type Hint = ();
    const PROFILE: Profile = Profile::NFTABLES;

    fn compile(&self, context: &Context, unit: &Unit, out: &mut Vec<Rule>) {
        let mut toys = Vec::new();
        ToyCompile.compile(context, unit, &mut toys);
        out.extend(toys.iter().filter_map(|toy| match toy {
            Toy::Frontend { vip, slots } => Some(Rule { vip: *vip, endpoint: slots[0], words: Words("offered") }),
            _ => None,
        }));
    }
}

impl Trace for Rules {
    fn tracer<'a>(&self, objects: &'a [Rule]) -> Box<dyn Tracer + 'a> {
        Box::new(RuleTracer(objects))
    }

    fn texts(&self, objects: &[Rule]) -> RuleTexts {
        objects.iter().map(|rule| (rule.vip.to_string(), rule.to_string())).collect()
    }
}

impl Tracer for RuleTracer<'_> {
    /// Past all rules.
    fn trace(&self, _: &Packet, path: &PacketPath) -> Traced {
        let mut path = path.clone();
        self.0.iter().for_each(|rule| path.step(1, rule));
        Traced::one(path, Verdict::Pass)
    }
}

fn packet() -> Packet {
    Packet {
        source: IpAddr::V4(Ipv4Addr::LOCALHOST),
        source_local: true,
        interface: None,
        destination: IpAddr::V4(Ipv4Addr::LOCALHOST),
        destination_local: true,
        protocol: Protocol::Tcp,
        port: 80,
    }
}

/// An engine over rules that were read back, to which two services are offered.
fn inspector() -> Engine<Rules, MemoryKernel<Rule>> {
    let read = [(1, 5), (2, 6), (3, 7)].map(|(vip, endpoint)| (vip, Rule { vip, endpoint, words: Words("read") }));
    let mut engine = Engine::new(Rules, MemoryKernel { objects: read.into(), ..MemoryKernel::default() });
    let units = [service(1, &[1], &[5]), service(2, &[2], &[8])];
    let units = units.map(|(name, unit)| (UnitId::Service(name), unit.map(Arc::new)));
    engine.offer(Delta { context: Some(Arc::new(context(1))), units: units.into() });
    engine
}

#[test]
fn what_equals_an_offered_object_is_described_in_its_words() {
    let mut engine = inspector();
    let mut steps: Vec<PathStep> = Vec::new();
    let mut see = |tracer: &dyn Tracer| {
        let traced = tracer.trace(&packet(), &PacketPath::recorded());
        steps.extend(traced.paths.iter().flat_map(|(path, _)| path.steps().to_vec()));
    };
    engine.trace(&mut see).unwrap();
    let texts: Vec<&str> = steps.iter().map(|step| &*step.text).collect();
    assert_eq!(texts, ["1 to 5, offered", "2 to 6, read", "3 to 7, read"]);
    assert_eq!(engine.kernel().attempts, 0);
}

#[test]
fn the_texts_are_those_of_what_was_offered() {
    let text = |key: &str, text: &str| (key.to_owned(), text.to_owned());
    assert_eq!(inspector().texts(), [text("1", "1 to 5, offered"), text("2", "2 to 8, offered")].into());
}
