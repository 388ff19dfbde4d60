//! Parses the parts of a source file that the checks of the workspace need: child modules, imports, paths and defined types.

use std::collections::BTreeMap;

/// A parsed source file.
#[derive(Debug, Default)]
pub(crate) struct SourceFile {
    /// child modules in separate files
    pub(crate) children: Vec<String>,
    /// paths that begin with `crate`, `super` or `self`
    pub(crate) paths: Vec<Vec<String>>,
    /// names imported by `use`, each with its path
    pub(crate) imports: BTreeMap<String, Vec<String>>,
    /// names of structs, enums, unions and traits
    pub(crate) types: Vec<String>,
}

// === impl SourceFile ===

impl SourceFile {
    /// Parses the text of a valid source file.
    pub(crate) fn read(text: &str) -> Self {
        let tokens = without_tests(&tokens(text));
        let mut source = Self::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = |ahead: usize| tokens.get(at + ahead).map_or("", String::as_str);
            match token.as_str() {
                // The file of another folder, which has the paths of that one.
                "mod" if next(2) == ";" && has_path(&tokens, at) => {}
                "mod" if next(2) == ";" => source.children.push(next(1).to_owned()),
                "struct" | "enum" | "union" | "trait" if begins_type(next(1)) => source.types.push(next(1).to_owned()),
                "use" => {
                    let mut paths = Vec::new();
                    tree(&tokens, &mut (at + 1), &[], &mut paths);
                    for (path, name) in paths {
                        source.imports.insert(name, path);
                    }
                }
                "crate" | "super" | "self"
                    if next(1) == "::" && tokens.get(at.wrapping_sub(1)).is_none_or(|t| t != "::") =>
                {
                    let mut paths = Vec::new();
                    tree(&tokens, &mut at.clone(), &[], &mut paths);
                    source.paths.extend(paths.into_iter().map(|(path, _)| path));
                }
                _ => {}
            }
            at += 1;
        }
        source
    }
}

/// True if `#[path = …]` is among the attributes of the item at this position.
fn has_path(tokens: &[String], at: usize) -> bool {
    let before = tokens.get(..at).unwrap_or_default();
    let begin = before.iter().rposition(|token| matches!(token.as_str(), ";" | "}")).map_or(0, |end| end + 1);
    let own = before.get(begin..).unwrap_or_default();
    own.windows(3).any(|three| three.iter().eq(["#", "[", "path"]))
}

/// Parses a path, or several in braces, each with its imported name.
fn tree(tokens: &[String], at: &mut usize, before: &[String], paths: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.as_str() {
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    let start = *at;
                    tree(tokens, at, &path, paths);
                    // Skips an unexpected token.
                    *at += usize::from(*at == start || tokens.get(*at).is_some_and(|token| token == ","));
                }
                *at += 1;
                return;
            }
            name if is_name(name) => {
                // `a::{self}` is `a`.
                if name != "self" || path.is_empty() {
                    path.push(name.to_owned());
                }
            }
            _ => break,
        }
        match tokens.get(*at).map(String::as_str) {
            Some("::") => *at += 1,
            Some("as") => {
                let name = tokens.get(*at + 1).cloned().unwrap_or_default();
                *at += 2;
                return paths.push((path, name));
            }
            _ => break,
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    paths.push((path, name));
}

/// True for the name of a type: `union` is also an ordinary word.
fn begins_type(name: &str) -> bool {
    name.starts_with(char::is_uppercase)
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphanumeric() || first == '_')
}

/// Removes every item after `#[cfg(test)]`, up to its semicolon or closing brace.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut rest = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if !tokens.iter().skip(at).take(MARK.len()).eq(MARK) {
            rest.push(token.clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let mut depth = 0_usize;
        for token in tokens.iter().skip(at) {
            at += 1;
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(token.as_str(), ";" | "}") {
                break;
            }
        }
    }
    rest
}

/// Splits a text into names, `::` and single signs, without comments, strings and characters.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if is_name(rest) {
            let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    tokens
}

/// Length of the string or character literal at the start of the text, if any.
fn literal(text: &str) -> Option<usize> {
    let plain = text.strip_prefix('b').unwrap_or(text);
    let prefix = text.len() - plain.len();
    if let Some(raw) = plain.strip_prefix('r').filter(|raw| raw.trim_start_matches('#').starts_with('"')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let body = raw.get(hashes + 1..)?;
        return Some(text.len() - body.len() + body.find(&end).map_or(body.len(), |at| at + end.len()));
    }
    let quote = plain.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let body = plain.get(1..)?;
    // A lifetime has no second quote after its first character.
    let second = body.chars().nth(1);
    if quote == '\'' && !body.starts_with('\\') && second != Some('\'') {
        return None;
    }
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(prefix + 1 + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        SourceFile::read(text).paths.iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn paths_of_imports_and_of_code_are_read() {
        assert_eq!(paths("use crate::{a::{self, B as C}, d};"), ["crate::a", "crate::a::B", "crate::d"]);
        assert_eq!(
            paths("fn f<'a>(x: &'a super::super::X) { crate::y::z(self.w, '{') }"),
            ["super::super::X", "crate::y::z"]
        );
        assert_eq!(paths("use std::{io, fmt}; pub(crate) fn f() { other::g() }"), [""; 0]);
    }

    #[test]
    fn children_are_those_in_files_of_their_names() {
        let text = "mod a; #[path = \"../b.rs\"] #[expect(x)] mod b; #[cfg(unix)] mod c; mod d { mod e {} }";
        let source = SourceFile::read(text);
        assert_eq!(source.children, ["a", "c"]);
    }

    #[test]
    fn comments_strings_and_tests_are_none() {
        let text = r###"
            //! [`crate::a`]
            /* crate::b */ const C: &str = "crate::c \" crate::d"; const D: &str = r#"crate::e " crate::f"#;
            #[cfg(test)]
            mod tests;
            #[cfg(test)]
            #[expect(lint, reason = "it {")]
            mod more { use crate::g; fn f() { crate::h::i() } }
            const Q: [u8; 2] = [b'"', b'\''];
            mod child;
            mod inline { use crate::j; }
        "###;
        assert_eq!(paths(text), ["crate::j"]);
        assert_eq!(SourceFile::read(text).children, ["child"]);
    }

    #[test]
    fn types_are_those_that_are_defined() {
        let text = "pub struct A(B); pub(crate) enum C<D: E> { F } trait G: H { type I; } impl J for K {} type L = M; fn f(union: N) {}
            #[cfg(test)] mod tests { struct O; }";
        assert_eq!(SourceFile::read(text).types, ["A", "C", "G"]);
    }

    #[test]
    fn imports_are_known_by_their_names() {
        let source = SourceFile::read("pub use a::{B, c::{self, D as E}}; use super::f;");
        let imports: Vec<String> =
            source.imports.iter().map(|(name, path)| format!("{name}={}", path.join("::"))).collect();
        assert_eq!(imports, ["B=a::B", "E=a::c::D", "c=a::c", "f=super::f"]);
    }
}
