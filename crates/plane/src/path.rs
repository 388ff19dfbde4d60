//! The path of a packet through a mode's objects, as `kube-proxy trace` prints it, and the traits of what traces packets.

use std::collections::HashMap;
use std::fmt::Display;

use ferry_model::{Packet, Verdict};

use crate::{CommitError, Compile, SyncEngine};

/// An object or hook that a packet reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// 0 for a hook, higher for the rules and elements there
    pub depth: usize,
    /// one line
    pub text: String,
}

/// The path of a packet so far. Its steps are kept only if they are recorded: most packets are traced for their verdict alone.
#[derive(Clone, Debug, Default)]
pub struct PacketPath(Option<Vec<PathStep>>);

/// The compiler's text of what the kernel reports by its content alone, such as a rule, by the text that this has otherwise.
pub type RuleTexts = HashMap<String, String>;

/// The verdict of some objects on a packet, and the paths that led there.
#[derive(Clone, Debug)]
pub struct Traced {
    /// the verdict, with all endpoints that random choices may yield
    pub verdict: Verdict,
    /// each path that random choices may take, with its verdict; an unrecorded one has no steps
    pub paths: Vec<(PacketPath, Verdict)>,
}

/// Simulates some objects on the first packets of connections.
pub trait Tracer {
    /// Traces a packet. Each of its paths continues a copy of this one.
    fn trace(&self, packet: &Packet, path: &PacketPath) -> Traced;

    /// The verdict alone.
    fn verdict(&self, packet: &Packet) -> Verdict {
        self.trace(packet, &PacketPath::default()).verdict
    }
}

/// Simulates a mode's objects on the first packets of connections.
pub trait Trace: Compile {
    /// Prepares these objects, all of one family, for many packets.
    fn tracer<'a>(&self, objects: &'a [Self::Object]) -> Box<dyn Tracer + 'a>;

    /// The texts of these objects' rules, for modes whose rules the kernel can report.
    fn texts(&self, objects: &[Self::Object]) -> RuleTexts {
        let _ = objects;
        RuleTexts::new()
    }
}

/// An engine that shows what is in the kernel.
pub trait Inspector: SyncEngine {
    /// Reads all objects back, changes nothing, and lets `see` trace packets through them. Those that equal an offered one are described
    /// in its words.
    ///
    /// # Errors
    /// If they can't be read back.
    fn trace(&mut self, see: &mut dyn FnMut(&dyn Tracer)) -> Result<(), CommitError>;

    /// The texts of the rules that were offered.
    fn texts(&self) -> RuleTexts;
}

// === impl PacketPath ===

impl PacketPath {
    /// A path whose steps are recorded.
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
            steps.push(PathStep { depth, text: text.to_string() });
        }
    }

    /// Its steps so far.
    pub fn steps(&self) -> &[PathStep] {
        self.0.as_deref().unwrap_or_default()
    }
}

// === impl Traced ===

impl Traced {
    /// The result of a single path.
    pub fn one(path: PacketPath, verdict: Verdict) -> Self {
        Self { verdict: verdict.clone(), paths: vec![(path, verdict)] }
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
        let mut path = PacketPath::default();
        path.step(0, Undescribed);
        assert!(path.steps().is_empty() && !path.is_recorded());
    }

    #[test]
    fn a_recorded_way_has_its_steps_in_order() {
        let mut path = PacketPath::recorded();
        path.step(0, "hook");
        let mut other = path.clone();
        other.step(1, "rule");
        assert_eq!(path.steps(), [PathStep { depth: 0, text: "hook".to_owned() }]);
        assert_eq!(other.steps().len(), 2);
    }
}
