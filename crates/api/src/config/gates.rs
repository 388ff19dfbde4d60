//! Checks feature gates: the gates of upstream 1.36 that affect a kube-proxy, with their maturity; some are locked. The others are
//! accepted.

mod others;

use std::collections::BTreeMap;
use std::fmt;

use super::{DecodeError, KubeProxyConfiguration};

/// Maturity of a feature gate in upstream 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maturity {
    /// off by default; `AllAlpha` switches it
    Alpha,
    /// `AllBeta` switches it
    Beta,
    /// generally available: setting it has a warning
    Stable,
    /// about to go: setting it has a warning
    Deprecated,
}

/// One of upstream 1.36's feature gates, with the value that a configuration sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenGate {
    /// its name
    pub name: &'static str,
    /// its maturity
    pub maturity: Maturity,
    /// the value that the configuration sets
    pub value: bool,
}

/// A feature gate and its value in a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// its name
    pub name: &'static str,
    /// its maturity
    pub maturity: Maturity,
    /// true if it is on
    pub enabled: bool,
}

/// A feature gate of upstream 1.36.
struct FeatureGate {
    name: &'static str,
    maturity: Maturity,
    default: bool,
    is_locked: bool,
}

const fn gate(name: &'static str, maturity: Maturity, default: bool) -> FeatureGate {
    FeatureGate { name, maturity, default, is_locked: false }
}

const fn locked(name: &'static str, maturity: Maturity) -> FeatureGate {
    FeatureGate { name, maturity, default: true, is_locked: true }
}

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";
/// The gate of `/flagz`.
pub const COMPONENT_FLAGZ: &str = "ComponentFlagz";
/// The gate of `/statusz`.
pub const COMPONENT_STATUSZ: &str = "ComponentStatusz";

/// The gates that change what a kube-proxy does, and the two that switch groups of them.
const GATES: &[FeatureGate] = &[
    gate(ALL_ALPHA, Maturity::Alpha, false),
    gate(ALL_BETA, Maturity::Beta, false),
    gate("AllowServiceExternalIPs", Maturity::Stable, true),
    gate(COMPONENT_FLAGZ, Maturity::Beta, true),
    gate(COMPONENT_STATUSZ, Maturity::Beta, true),
    gate("ContextualLogging", Maturity::Beta, true),
    locked("DisableNodeKubeProxyVersion", Maturity::Deprecated),
    gate("LoggingAlphaOptions", Maturity::Alpha, false),
    gate("LoggingBetaOptions", Maturity::Beta, true),
    locked("MultiCIDRServiceAllocator", Maturity::Stable),
    locked("NFTablesProxyMode", Maturity::Stable),
    gate("NativeHistograms", Maturity::Alpha, false),
    locked("PreferSameTrafficDistribution", Maturity::Stable),
    gate("WatchListClient", Maturity::Beta, true),
    locked("WinDSR", Maturity::Stable),
    locked("WinOverlay", Maturity::Stable),
];

/// Gates of older releases that upstream has removed since their features are always on.
const ALWAYS_ON: &[&str] = &[
    "ComponentSLIs",
    "EndpointSliceProxying",
    "IPv6DualStack",
    "KubeProxyDrainingTerminatingNodes",
    "LoadBalancerIPMode",
    "ServiceTrafficDistribution",
    "SupportIPVSProxyMode",
    "TopologyAwareHints",
];

// === impl Maturity ===

impl fmt::Display for Maturity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Stable => "GA",
            Self::Deprecated => "DEPRECATED",
        })
    }
}

// === impl KubeProxyConfiguration ===

impl KubeProxyConfiguration {
    /// Checks feature gates that come from flags; [`decode()`](super::decode()) checks those of a file itself. Returns the
    /// warnings, or the first gate that is locked to the other value.
    pub fn check_feature_gates(&self) -> Result<Vec<String>, DecodeError> {
        check(&self.feature_gates)
    }

    /// The known gates that are set, by name.
    pub fn given_feature_gates(&self) -> impl Iterator<Item = GivenGate> {
        self.feature_gates.iter().filter_map(|(name, &value)| {
            let own = find(name).map(|gate| (gate.name, gate.maturity));
            let (name, maturity) = own.or_else(|| others::find(name))?;
            Some(GivenGate { name, maturity, value })
        })
    }

    /// All known gates with their values, in the order of their names.
    pub fn features(&self) -> impl Iterator<Item = Feature> {
        let feature = |gate: &'static FeatureGate| {
            let FeatureGate { name, maturity, .. } = *gate;
            Feature { name, maturity, enabled: self.has_feature(name) }
        };
        GATES.iter().map(feature)
    }

    /// True if a feature is on: by its own gate, the gate of its maturity, or default. False for an unknown gate.
    pub fn has_feature(&self, name: &str) -> bool {
        let Some(gate) = find(name) else { return false };
        let group = match gate.maturity {
            Maturity::Alpha => self.feature_gates.get(ALL_ALPHA),
            Maturity::Beta => self.feature_gates.get(ALL_BETA),
            Maturity::Stable | Maturity::Deprecated => None,
        };
        self.feature_gates.get(name).or(group).copied().unwrap_or(gate.default)
    }
}

fn find(name: &str) -> Option<&'static FeatureGate> {
    GATES.iter().find(|gate| gate.name == name)
}

/// Checks the gates of a configuration in the order of their names: returns the warnings, or the first gate that is locked to
/// the other value. Gates that affect no kube-proxy are accepted with any value: a whole cluster may have one list. An unknown
/// name is only a warning (upstream exits), since files in use contain gates of old releases.
pub(super) fn check(gates: &BTreeMap<String, bool>) -> Result<Vec<String>, DecodeError> {
    let mut warnings = Vec::new();
    for (name, &value) in gates {
        match find(name) {
            None if others::find(name).is_some() => {}
            None => warnings.push(format!("unrecognized feature gate: {name} ({})", fate(name))),
            Some(gate) if gate.is_locked && gate.default != value => {
                return Err(DecodeError::Gate { name: name.clone(), value, locked: gate.default });
            }
            Some(FeatureGate { maturity: Maturity::Stable, .. }) => warnings
                .push(format!("Setting GA feature gate {name}={value}. It will be removed in a future release.")),
            Some(FeatureGate { maturity: Maturity::Deprecated, .. }) => warnings.push(format!(
                "Setting deprecated feature gate {name}={value}. It will be removed in a future release."
            )),
            Some(FeatureGate { maturity: Maturity::Alpha | Maturity::Beta, .. }) => {}
        }
    }
    Ok(warnings)
}

/// The consequence of an unknown gate, for the warning.
fn fate(name: &str) -> &'static str {
    if ALWAYS_ON.contains(&name) { "ignored: removed upstream, its feature is always on" } else { "ignored" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_unique() {
        assert!(GATES.is_sorted_by(|a, b| a.name < b.name));
        assert!(ALWAYS_ON.is_sorted_by(|a, b| a < b));
        assert!(ALWAYS_ON.iter().all(|name| find(name).is_none()));
    }

    fn config(gates: &[(&str, bool)]) -> KubeProxyConfiguration {
        let feature_gates = gates.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        KubeProxyConfiguration { feature_gates, ..KubeProxyConfiguration::default() }
    }

    #[test]
    fn features_follow_their_own_gate_then_that_of_their_maturity() {
        for (gates, [alpha, beta, stable]) in [
            (&[][..], [false, true, true]),
            (&[("AllAlpha", true)], [true, true, true]),
            (&[("AllBeta", false)], [false, false, true]),
            (&[("AllBeta", false), ("WatchListClient", true), ("AllAlpha", true)], [true, true, true]),
            (&[("AllAlpha", true), ("LoggingAlphaOptions", false)], [false, true, true]),
            (&[("WatchListClient", false), ("AllowServiceExternalIPs", false)], [false, false, false]),
        ] {
            let config = config(gates);
            let found = ["LoggingAlphaOptions", "WatchListClient", "AllowServiceExternalIPs"]
                .map(|name| config.has_feature(name));
            assert_eq!(found, [alpha, beta, stable], "{gates:?}");
            assert!(!config.has_feature("SupportIPVSProxyMode"));
        }
    }

    #[test]
    fn all_features_have_a_value() {
        let config = config(&[("WatchListClient", false)]);
        let value = |name| config.features().find(|feature| feature.name == name).map(|feature| feature.enabled);
        assert_eq!(config.features().count(), GATES.len());
        assert_eq!(value("WatchListClient"), Some(false));
        assert_eq!(value("DisableNodeKubeProxyVersion"), Some(true));
        assert_eq!(value("ComponentSLIs"), None, "upstream has no such gate any more");
    }

    #[test]
    fn gates_from_flags_are_checked_like_those_of_a_file() {
        let warnings = config(&[("AllAlpha", true), ("WinDSR", true), ("ServiceTopology", true)]).check_feature_gates();
        let wanted = [
            "unrecognized feature gate: ServiceTopology (ignored)",
            "Setting GA feature gate WinDSR=true. It will be removed in a future release.",
        ];
        assert_eq!(warnings, Ok(wanted.map(str::to_owned).to_vec()));
        assert_eq!(config(&[("WatchListClient", false)]).check_feature_gates(), Ok(vec![]));
        let locked = DecodeError::Gate { name: "WinDSR".to_owned(), value: false, locked: true };
        assert_eq!(config(&[("WinDSR", false)]).check_feature_gates(), Err(locked));
    }

    #[test]
    fn given_gates_are_named_with_their_maturity() {
        let config = config(&[
            ("WatchListClient", false),
            ("APIResponseCompression", true),
            ("Unknown", true),
            ("AllAlpha", false),
        ]);
        let given: Vec<String> = config
            .given_feature_gates()
            .map(|gate| format!("{} {} {}", gate.name, gate.maturity, gate.value))
            .collect();
        assert_eq!(given, ["APIResponseCompression BETA true", "AllAlpha ALPHA false", "WatchListClient BETA false"]);
        assert_eq!(check(&config.feature_gates).unwrap().len(), 1, "of the unknown one");
    }
}
