use super::*;
use crate::alone::mutated;
use crate::catalogue::TextSpan;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SAMPLE: &str = include_str!("sample.rs");

/// Mutants of the sample: the genre, a text that is there once, the part of it that changes, and the text in its place.
const MUTANTS: &[(Genre, &str, &str, &str)] = &[
    (Genre::FnValue, "a && b && !c", "a && b && !c", "true"),
    (Genre::BinaryOperator, "&& !c", "&&", "||"),
    (Genre::UnaryOperator, "!c", "!", ""),
    (Genre::BinaryOperator, "a.is_empty() || b", "||", "&&"),
    (Genre::BinaryOperator, "b == \"x\"", "==", "!="),
    (Genre::BinaryOperator, "a < b", "<", "=="),
    (Genre::BinaryOperator, "a < b", "<", ">"),
    (Genre::BinaryOperator, "a < b", "<", "<="),
    (Genre::BinaryOperator, ">= b * 2", ">=", "<"),
    (Genre::BinaryOperator, "b * 2", "*", "+"),
    (Genre::BinaryOperator, "b * 2", "*", "/"),
    (Genre::BinaryOperator, "2 + 1)", "+", "-"),
    (Genre::BinaryOperator, "sum += number << 1", "+=", "*="),
    (Genre::BinaryOperator, "sum += number << 1", "+=", "-="),
    (Genre::BinaryOperator, "number << 1", "<<", ">>"),
    (Genre::MatchArmGuard, "number > 5 && number != 9", "number > 5 && number != 9", "true"),
    (Genre::MatchArmGuard, "number > 5 && number != 9", "number > 5 && number != 9", "false"),
    (Genre::BinaryOperator, "5 && number", "&&", "||"),
    (Genre::BinaryOperator, "number != 9", "!=", "=="),
    (Genre::MatchArm, "Some(0) => \"zero\",", "Some(0) => \"zero\",", ""),
    (Genre::StructField, "left: pair.left - 1,", "left: pair.left - 1,", ""),
    (Genre::BinaryOperator, "pair.left - 1", "-", "/"),
    (Genre::StructField, "right: \"other\".into(),", "right: \"other\".into(),", ""),
    (Genre::BinaryOperator, "number % 2 == 0)", "%", "+"),
];

/// Mutants that can't have a switch.
const OTHERS: &[(Genre, &str, &str, &str)] = &[(Genre::BinaryOperator, "= value\n        && flag", "&&", "||")];

fn mutants(listed: &[(Genre, &str, &str, &str)]) -> Vec<Mutant> {
    let place = |at: usize| {
        let before = &SAMPLE[..at];
        let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
        TextPlace { line: before.matches('\n').count() + 1, column }
    };
    let mutant = |(number, (genre, context, text, replacement)): (u32, &(Genre, &str, &str, &str))| {
        assert_eq!(SAMPLE.matches(context).count(), 1, "{context}");
        let at = SAMPLE.find(context).unwrap() + context.find(text).unwrap();
        let span = TextSpan { start: place(at), end: place(at + text.len()) };
        Mutant::new(number, *genre, span, replacement)
    };
    (1..).zip(listed).map(mutant).collect()
}

/// Compiles a program in a folder of its own, and returns its path.
fn compile(folder: &Path, text: &str) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let (source, program) = (folder.join("main.rs"), folder.join("program"));
    fs::write(&source, text).unwrap();
    fs::write(folder.join(MODULE).with_extension("rs"), include_str!("../switch.rs")).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "--cap-lints", "allow", "-o"]).args([&program, &source]);
    let output = rustc.output().unwrap();
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    program
}

/// What a program prints with this mutant on, and how it ends.
fn prints(program: &Path, mutant: u32) -> (String, bool) {
    let output = Command::new(program).env("FERRY_MUTANT", mutant.to_string()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

#[test]
fn a_mutant_with_its_switch_on_does_what_it_does_alone() {
    let folder = std::env::temp_dir().join(format!("ferry-mutants-{}", std::process::id()));
    let mutants = mutants(MUTANTS);
    let switched = switch(SAMPLE, &mutants.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(switched.switched.len(), mutants.len());
    let program = compile(&folder, &format!("{}\nmod {MODULE};\n", switched.edited.text));
    let original = prints(&program, 0);
    assert_eq!(original, prints(&compile(&folder.join("original"), SAMPLE), 0));
    for mutant in &mutants {
        let alone = prints(&compile(&folder.join("alone"), &mutated(SAMPLE, mutant)), 0);
        assert_eq!(prints(&program, mutant.number), alone, "{mutant:?}");
        assert_ne!(alone, original, "{mutant:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_operator_keeps_its_operands() {
    let folder = std::env::temp_dir().join(format!("ferry-mutants-operands-{}", std::process::id()));
    let first = mutants(&[(Genre::BinaryOperator, "a && b && !c", "&&", "||")]);
    let switched = switch(SAMPLE, &first.iter().collect::<Vec<_>>()).unwrap();
    let program = compile(&folder, &format!("{}\nmod {MODULE};\n", switched.edited.text));
    let grouped = SAMPLE.replace("a && b && !c", "(a || b) && !c");
    assert_eq!(prints(&program, 1), prints(&compile(&folder.join("grouped"), &grouped), 0));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn places_that_run_are_recorded() {
    let folder = std::env::temp_dir().join(format!("ferry-mutants-reached-{}", std::process::id()));
    let mutants = mutants(&[MUTANTS[1], MUTANTS[19]]);
    let switched = switch(SAMPLE, &mutants.iter().collect::<Vec<_>>()).unwrap();
    let text = switched.edited.text.replace("fn main() {", "fn main() { all(true, true, true); } fn unused() {");
    let program = compile(&folder, &format!("{text}\nmod {MODULE};\n"));
    let reached = folder.join("reached");
    assert!(Command::new(program).env("FERRY_MUTANTS_REACHED", &reached).status().unwrap().success());
    assert_eq!(fs::read_to_string(&reached).unwrap(), "1\n");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_chain_with_a_let_gets_no_switch() {
    let mutants = mutants(OTHERS);
    let switched = switch(SAMPLE, &mutants.iter().collect::<Vec<_>>()).unwrap();
    assert!(switched.switched.is_empty());
    assert_eq!(switched.edited.text, SAMPLE);
}

#[test]
fn a_constant_function_and_a_hidden_type_are_known_by_their_errors_and_signature() {
    let mutants = mutants(&[(Genre::FnValue, "number * 2", "number * 2", "0")]);
    let switched = switch(SAMPLE, &mutants.iter().collect::<Vec<_>>()).unwrap();
    let at = switched.edited.text.find("is_on(1)").unwrap();
    assert_eq!(switched.edited.culprits(at), Some(crate::edits::Culprits::Mutant(1)));
}
