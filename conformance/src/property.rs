//! The configuration of properties: the number of random inputs that each is tried with.

use proptest::test_runner::Config;

/// The environment variable that divides the number of inputs of each property. `cargo xt mutants` sets it: its tests run thousands of times,
/// and a mutant that fewer inputs kill is killed by all of them.
const DIVISOR: &str = "FERRY_INPUTS_DIVISOR";

/// The configuration of a property that is tried with this many random inputs. Failing ones are printed, and stored nowhere.
///
/// # Panics
/// If the divisor in the environment is no number from 1 on.
pub fn inputs(count: u32) -> Config {
    let divisor = std::env::var(DIVISOR).map_or(1, |text| divisor(&text));
    Config { cases: count.div_ceil(divisor), failure_persistence: None, ..Config::default() }
}

fn divisor(text: &str) -> u32 {
    text.parse().ok().filter(|divisor| *divisor > 0).unwrap_or_else(|| panic!("{DIVISOR}: {text:?} is no divisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_has_an_input_at_least() {
        assert_eq!(["1", "3", "1000"].map(|text| 100_u32.div_ceil(divisor(text))), [100, 34, 1]);
        assert!(["0", "-1", "all"].iter().all(|text| std::panic::catch_unwind(|| divisor(text)).is_err()));
    }
}
