//! No text makes the parser panic; every accepted rule is equal after printing and parsing.

use super::*;

fn check(family: Family, text: &str) {
    if let Some(rule) = Rule::parse(family, text) {
        let again = printed(family, &rule);
        assert_eq!(parsed(family, &again), rule, "{text}");
    }
}

#[test]
fn truncated_at_every_character() {
    for family in Family::ALL {
        for (_, text) in samples::rules(family) {
            text.char_indices().for_each(|(end, _)| check(family, &text[..end]));
            text.char_indices().for_each(|(start, _)| check(family, &text[start..]));
        }
    }
}

#[test]
fn every_character_changed() {
    for family in Family::ALL {
        for (_, text) in samples::rules(family) {
            for (at, character) in text.char_indices() {
                for other in ["", " ", "\"", "\\", "!", "-", "0", "é", "\0"] {
                    check(family, &format!("{}{other}{}", &text[..at], &text[at + character.len_utf8()..]));
                }
            }
        }
    }
}

#[test]
fn words_in_any_order() {
    let words: Vec<String> = samples::rules(Family::V4)
        .iter()
        .flat_map(|(_, text)| text.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    // a linear congruential generator: the same noise each time
    let mut state = 1_u64;
    for length in (0..12).cycle().take(200_000) {
        let noise: Vec<&str> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                words[usize::try_from(state >> 33).unwrap() % words.len()].as_str()
            })
            .collect();
        check(Family::V4, &noise.join(" "));
    }
}
