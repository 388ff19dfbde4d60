//! Finds circular dependencies between modules, for `cargo xt layers`.
//!
//! A dependency (arrow) connects two modules of one parent, each including everything below it: the folders of a crate, and the
//! files of a folder. The paths `crate::…`, `super::…` and `self::…` count, in `use` and in code, followed through the `use`s
//! of the modules on their way. Test modules are left out. Method calls don't count, since only the compiler resolves them.

use crate::rust::SourceFile;
use crate::shell::CargoMetadata;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path from the crate's root, which has the empty path.
type Module = Vec<String>;

/// All modules of a crate.
type Modules = BTreeMap<Module, SourceFile>;

/// Most `use`s that a name is followed through.
const REEXPORTS: usize = 8;

/// Finds the circles between modules of all packages: of each library, program and program of tests.
///
/// # Errors
/// If a source file can't be read.
pub(crate) fn faults(metadata: &CargoMetadata) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for target in metadata.packages.iter().flat_map(|package| &package.targets) {
        let root = &target.src_path;
        let mut modules = Modules::new();
        read(root, root.parent().unwrap_or(root), Module::new(), &mut modules)?;
        faults.extend(circles(&modules).into_iter().map(|circle| format!("{}: {circle}", root.display())));
    }
    Ok(faults)
}

/// Reads a module's file, and those of its children in this folder.
fn read(file: &Path, folder: &Path, name: Module, modules: &mut Modules) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let source = SourceFile::read(&text);
    for child in &source.children {
        let below = folder.join(child);
        let beside = folder.join(format!("{child}.rs"));
        let file = if beside.is_file() { beside } else { below.join("mod.rs") };
        read(&file, &below, [name.as_slice(), std::slice::from_ref(child)].concat(), modules)?;
    }
    modules.insert(name, source);
    Ok(())
}

/// Describes every circle, with an example of each of its arrows.
fn circles(modules: &Modules) -> Vec<String> {
    let mut parents: BTreeMap<Module, Arrows> = BTreeMap::new();
    for (from, source) in modules {
        for path in &source.paths {
            let to = target(modules, from, path, REEXPORTS);
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(shared), to.get(shared)) {
                let arrows = parents.entry(from.iter().take(shared).cloned().collect()).or_default();
                let example = format!("{} -> {}", from.join("::"), to.join("::"));
                arrows.entry(one.clone()).or_default().entry(other.clone()).or_insert(example);
            }
        }
    }
    parents.values().flat_map(around).collect()
}

/// Dependencies from child to child, each with an example.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The circles of one parent's children: all arrows between modules that reach each other.
fn around(arrows: &Arrows) -> Vec<String> {
    let mut done = BTreeSet::new();
    let mut faults = Vec::new();
    for start in arrows.keys() {
        let knot: BTreeSet<String> =
            reached(arrows, start).into_iter().filter(|other| reached(arrows, other).contains(start)).collect();
        if knot.is_empty() || !done.insert(knot.clone()) {
            continue;
        }
        let examples = knot.iter().filter_map(|from| arrows.get(from)).flatten();
        let examples: Vec<&str> =
            examples.filter(|(to, _)| knot.contains(*to)).map(|(_, example)| example.as_str()).collect();
        faults.push(format!("modules in a circle: {}", examples.join(", ")));
    }
    faults
}

/// The modules that one or more arrows lead to from a module.
fn reached(arrows: &Arrows, start: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(from) = open.pop() {
        for to in arrows.get(&from).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// Resolves a path to a module: along its modules, and through the `use`s of the last one.
fn target(modules: &Modules, from: &[String], path: &[String], reexports: usize) -> Module {
    let mut at = from.to_vec();
    for (index, segment) in path.iter().enumerate() {
        match segment.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            name => {
                let child = [at.as_slice(), &[name.to_owned()]].concat();
                if modules.contains_key(&child) {
                    at = child;
                    continue;
                }
                let source = modules.get(&at).filter(|_| reexports > 0 && at.as_slice() != from);
                let Some(import) = source.and_then(|source| source.imports.get(name)) else { return at };
                let rest = [import.as_slice(), path.get(index + 1..).unwrap_or_default()].concat();
                return target(modules, &at, &rest, reexports - 1);
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sources: &[(&str, &str)], wanted: &[&str]) {
        let module = |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let modules = sources.iter().map(|(name, text)| (module(name), SourceFile::read(text))).collect();
        assert_eq!(circles(&modules), wanted);
    }

    #[test]
    fn arrows_one_way_and_to_parents_are_none() {
        check(
            &[
                ("", "mod a; mod b; pub use a::Thing;"),
                ("a", "use crate::Other; mod x; use x::Y;"),
                ("a::x", "use super::Thing; use crate::b::Deep;"),
                ("b", "fn f() -> crate::c::D {}"),
                ("c", ""),
            ],
            &[],
        );
    }

    #[test]
    fn folders_that_import_each_other_are_found() {
        check(
            &[
                ("", "mod a; mod b;"),
                ("a", "mod x;"),
                ("a::x", "use crate::{b::B, c};"),
                ("b", "fn f() { super::a::g(); }"),
                ("c", ""),
            ],
            &["modules in a circle: a::x -> b, b -> a"],
        );
    }

    #[test]
    fn files_of_a_folder_are_siblings_too_and_imports_are_followed() {
        check(
            &[
                ("", "mod a;"),
                ("a", "mod x; mod y; pub use y::{Y as Z, more};"),
                ("a::x", "use super::Z;"),
                ("a::y", "use crate::a::x::X;"),
            ],
            &["modules in a circle: a::x -> a::y, a::y -> a::x"],
        );
    }

    #[test]
    fn longer_ways_round_are_found_once() {
        check(
            &[
                ("", "mod a; mod b; mod c; mod d;"),
                ("a", "use crate::b;"),
                ("b", "use crate::c::C; use crate::d;"),
                ("c", "type A = crate::a::A;"),
                ("d", ""),
            ],
            &["modules in a circle: a -> b, b -> c, c -> a"],
        );
    }
}
