//! Fuzzes the parser of `iptables-save` output, with our own and foreign rules: a rule recognised as ours is written on one
//! line and parses back to the same rule.
#![no_main]

use ferry_api::object::Family;
use ferry_kernel::iptables::{IptablesChainName, Match, OutputLine, Restore, Rule, read_lines};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|output: &[u8]| {
    for family in [Family::V4, Family::V6] {
        let mut restore = Restore::new(family);
        let result = read_lines(output, &mut |line| {
            let OutputLine::Rule { chain, text } = line else { return };
            let Some(rule) = Rule::parse(family, text) else { return };
            assert_eq!(Rule::parse(family, &printed(family, &rule)).as_ref(), Some(&rule), "{text}");
            if let Some(chain) = IptablesChainName::new(chain) {
                restore.append(chain, &rule);
                restore.append_uncommented(chain, &rule);
            }
        });
        assert_eq!(restore.lines(), restore.text().lines().count());
        if let Err(garbage) = result {
            assert!(garbage.line > 0 && !garbage.to_string().contains(char::is_control));
        }
    }
    if let Ok(text) = std::str::from_utf8(output) {
        let rule = Rule { matches: [Match::comment(text)].into(), ..Rule::default() };
        assert_eq!(Rule::parse(Family::V4, &printed(Family::V4, &rule)), Some(rule), "any text can be a comment");
    }
});

fn printed(family: Family, rule: &Rule) -> String {
    let mut text = String::new();
    rule.print(family, &mut text);
    text
}
