//! The way of a packet through a mode's objects: for people, who see which object led it where.

use std::collections::HashMap;
use std::fmt::Display;

use ferry_model::{Packet, Verdict};

/// An object that a packet meets, or a place where its way goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// 0 for a hook, higher for what is met there
    pub depth: usize,
    /// one line
    pub text: String,
}

/// The way of a packet so far. Its steps are kept only if they are recorded: most packets are traced for their verdict alone.
#[derive(Clone, Debug, Default)]
pub struct Way(Option<Vec<Step>>);

/// The compiler's text of what the kernel reports by its content alone, such as a rule, by the text that this has otherwise.
pub type Words = HashMap<String, String>;

/// What objects do with a packet.
#[derive(Clone, Debug)]
pub struct Traced {
    /// the verdict, with all endpoints that chance may choose
    pub verdict: Verdict,
    /// each way that chance may take, with its end; an unrecorded way has no steps
    pub ways: Vec<(Way, Verdict)>,
}

/// Simulates some objects on the first packets of connections.
pub trait Tracer {
    /// What happens to a packet. Each of its ways continues a copy of this one.
    fn trace(&self, packet: &Packet, way: &Way) -> Traced;

    /// The verdict alone.
    fn verdict(&self, packet: &Packet) -> Verdict {
        self.trace(packet, &Way::default()).verdict
    }
}

// === impl Way ===

impl Way {
    /// A way whose steps are recorded.
    pub const fn recorded() -> Self {
        Self(Some(Vec::new()))
    }

    /// True if its steps are recorded, and worth being described.
    pub const fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Adds a step.
    pub fn step(&mut self, depth: usize, text: impl Display) {
        if let Some(steps) = &mut self.0 {
            steps.push(Step { depth, text: text.to_string() });
        }
    }

    /// Its steps so far.
    pub fn steps(&self) -> &[Step] {
        self.0.as_deref().unwrap_or_default()
    }
}

// === impl Traced ===

impl Traced {
    /// The result of a single way.
    pub fn one(way: Way, verdict: Verdict) -> Self {
        Self { verdict: verdict.clone(), ways: vec![(way, verdict)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unrecorded_way_describes_nothing() {
        struct Undescribed;
        impl Display for Undescribed {
            fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                unreachable!("nobody reads it")
            }
        }
        let mut way = Way::default();
        way.step(0, Undescribed);
        assert!(way.steps().is_empty() && !way.is_recorded());
    }

    #[test]
    fn a_recorded_way_has_its_steps_in_order() {
        let mut way = Way::recorded();
        way.step(0, "hook");
        let mut other = way.clone();
        other.step(1, "rule");
        assert_eq!(way.steps(), [Step { depth: 0, text: "hook".to_owned() }]);
        assert_eq!(other.steps().len(), 2);
    }
}
