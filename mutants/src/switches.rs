//! Puts mutants of a source file behind switches: the changed code runs if the mutant's switch is on, the original code otherwise.
//!
//! Each mutant costs a call of the switch where its code runs. No part of the source is repeated, so that mutants nest: an operator's
//! operands are evaluated first, then the switch selects the operator. An operator is changed in the syntax tree, not in the text: its
//! operands stay the same where the other operator would bind less tightly.

use crate::catalogue::{Genre, Mutant, TextPlace};
use crate::edits::{EditGroup, EditedText, Edits, Piece};
use anyhow::{Context, Result};
use proc_macro2::{LineColumn, Span};
use std::collections::BTreeSet;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Block, Expr, ExprBinary, ExprStruct, ExprUnary, FieldValue, Member};

/// Name of the module in the mutated package that has the switches (`switch.rs`).
pub(crate) const MODULE: &str = "mutant_switch";

/// A source file with its mutants.
#[derive(Debug)]
pub(crate) struct SwitchedFile {
    pub(crate) edited: EditedText,
    /// the mutants that have a switch
    pub(crate) switched: BTreeSet<u32>,
}

/// Where the lines of a text begin.
pub(crate) struct LineIndex<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

/// Writes the edits of one file while it walks through the syntax tree.
struct Rewriter<'a> {
    lines: LineIndex<'a>,
    mutants: Vec<(Range<usize>, &'a Mutant)>,
    edits: Edits,
    switched: BTreeSet<u32>,
}

/// Puts these mutants of a file behind switches. Those without a form for it are left out.
///
/// # Errors
/// If the source can't be parsed.
pub(crate) fn switch(source: &str, mutants: &[&Mutant]) -> Result<SwitchedFile> {
    let file = syn::parse_file(source).context("parsing the source")?;
    let lines = LineIndex::new(source);
    let mutants = mutants.iter().map(|mutant| (lines.range(mutant), *mutant)).collect();
    let mut rewriter = Rewriter { lines, mutants, edits: Edits::default(), switched: BTreeSet::new() };
    rewriter.visit_file(&file);
    Ok(SwitchedFile { edited: rewriter.edits.apply(source), switched: rewriter.switched })
}

/// The condition that a mutant is on.
fn is_on(mutant: &Mutant) -> String {
    format!("crate::{MODULE}::is_on({})", mutant.number)
}

fn common(text: impl Into<String>) -> Vec<Piece> {
    vec![Piece::Common(text.into())]
}

/// The arms of an `if` for each mutant, up to the last `else`.
fn each(mutants: &[&Mutant], code: impl Fn(&Mutant) -> String) -> Vec<Piece> {
    let arm =
        |mutant: &&Mutant| Piece::Own(mutant.number, format!("if {} {{ {} }} else ", is_on(mutant), code(mutant)));
    mutants.iter().map(arm).collect()
}

/// True for a chain of conditions that has a `let`: it has no value, and its operators can't be changed.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

// === impl LineIndex ===

impl<'a> LineIndex<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The bytes of the text that a mutant changes.
    pub(crate) fn range(&self, mutant: &Mutant) -> Range<usize> {
        let offset = |place: TextPlace| self.offset(place.line, place.column.saturating_sub(1));
        offset(mutant.span.start)..offset(mutant.span.end)
    }

    /// The byte of a line, counted from 1, and a column, counted in characters from 0.
    fn offset(&self, line: usize, column: usize) -> usize {
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or(self.text.len());
        let rest = self.text.get(start..).unwrap_or_default();
        rest.char_indices().nth(column).map_or(self.text.len(), |(at, _)| start + at)
    }

    fn of(&self, span: Span) -> Range<usize> {
        let offset = |at: LineColumn| self.offset(at.line, at.column);
        offset(span.start())..offset(span.end())
    }

    fn text(&self, span: Span) -> &'a str {
        self.text.get(self.of(span)).unwrap_or_default()
    }
}

// === impl Rewriter ===

impl<'a> Rewriter<'a> {
    /// The mutants of a genre whose text is in this place.
    fn within(&self, place: &Range<usize>, genre: Genre) -> Vec<&'a Mutant> {
        let is_within = |at: &Range<usize>| place.start <= at.start && at.end <= place.end;
        let found = self.mutants.iter().filter(|(at, mutant)| is_within(at) && mutant.genre == genre);
        found.map(|(_, mutant)| *mutant).collect()
    }

    /// The mutants of a genre that begin at this place's begin and end in it.
    fn starting(&self, place: &Range<usize>, genre: Genre) -> Vec<&'a Mutant> {
        let begins = |mutant: &&Mutant| self.lines.range(mutant).start == place.start;
        self.within(place, genre).into_iter().filter(begins).collect()
    }

    /// Begins the group of mutants that get switches there.
    fn begin(&mut self, span: Span, mutants: &[&Mutant], pieces: Vec<Piece>) -> EditGroup {
        let numbers: Vec<u32> = mutants.iter().map(|mutant| mutant.number).collect();
        self.switched.extend(&numbers);
        self.edits.begin(self.lines.of(span).start, numbers, pieces)
    }

    /// Adds text behind a node.
    fn end(&mut self, group: EditGroup, span: Span, pieces: Vec<Piece>) {
        self.edits.add(group, self.lines.of(span).end, pieces);
    }

    /// Replaces an operator by this text.
    fn operator(&mut self, group: EditGroup, operator: Span, text: &str) {
        let place = self.lines.of(operator);
        self.edits.add(group, place.start, common(text));
        self.edits.delete(place);
    }

    /// Begins a function: its body can be replaced, and an error that no smaller part explains is put down to all mutants in it.
    fn function(&mut self, item: Span, body: Option<&Block>) -> EditGroup {
        let place = self.lines.of(item);
        let all = self.mutants.iter().filter(|(at, _)| place.start <= at.start && at.end <= place.end);
        let group = self.edits.begin(place.start, all.map(|(_, mutant)| mutant.number).collect(), Vec::new());
        if let Some(body) = body {
            self.body(body);
        }
        group
    }

    fn body(&mut self, body: &Block) {
        let open = self.lines.of(body.brace_token.span.open());
        let end = self.lines.of(body.span()).end;
        let start = body.stmts.first().map_or(open.start, |first| self.lines.of(first.span()).start);
        let mut values = self.starting(&(start..end), Genre::FnValue);
        if start != open.start {
            values.extend(self.starting(&(open.start..end), Genre::FnValue));
        }
        let code = |mutant: &&Mutant| {
            // The body must have the same hidden type.
            if mutant.returns_hidden_type() {
                format!(" let _ = {};", is_on(mutant))
            } else {
                format!(" if {} {{ return {}; }}", is_on(mutant), mutant.replacement)
            }
        };
        let pieces = values.iter().map(|mutant| Piece::Own(mutant.number, code(mutant))).collect();
        let numbers: Vec<u32> = values.iter().map(|mutant| mutant.number).collect();
        self.switched.extend(&numbers);
        self.edits.begin(open.end, numbers, pieces);
    }

    /// `&&` and `||`: the right operand is evaluated where the operator that is selected needs it.
    fn lazy(&mut self, binary: &ExprBinary, mutant: &Mutant, is_and: bool) {
        let sign = if is_and { "!=" } else { "==" };
        let group = self.begin(binary.left.span(), &[mutant], common("(match ("));
        self.operator(group, binary.op.span(), &format!(") {{ left => if left {sign} {} {{ ", is_on(mutant)));
        self.end(group, binary.right.span(), common(" } else { left } })"));
    }

    /// `==` and `!=`: the mutant is the opposite.
    fn equality(&mut self, binary: &ExprBinary, mutant: &Mutant, sign: &str) {
        let group = self.begin(binary.left.span(), &[mutant], common("((("));
        self.operator(group, binary.op.span(), &format!(") {sign} ("));
        self.end(group, binary.right.span(), common(format!(")) != {})", is_on(mutant))));
    }

    /// Operators whose operands are both evaluated, `borrow`ed if they are compared.
    fn eager(&mut self, binary: &ExprBinary, mutants: &[&Mutant], sign: &str, borrow: &str) {
        let group = self.begin(binary.left.span(), mutants, common(format!("(match ({borrow}(")));
        self.operator(group, binary.op.span(), &format!("), {borrow}("));
        let mut pieces = common(")) { (left, right) => ");
        pieces.extend(each(mutants, |mutant| format!("left {} right", mutant.replacement)));
        pieces.extend(common(format!("{{ left {sign} right }} }})")));
        self.end(group, binary.right.span(), pieces);
    }

    /// `+=` and the like; the left side is a place, which is written again for each.
    fn assignment(&mut self, binary: &ExprBinary, mutants: &[&Mutant], sign: &str) {
        let left = self.lines.text(binary.left.span());
        let group = self.begin(binary.left.span(), mutants, common("(match ("));
        let operands = self.lines.of(binary.left.span()).start..self.lines.of(binary.right.span()).start;
        self.edits.delete(operands);
        let mut pieces = common(") { right => { ");
        pieces.extend(each(mutants, |mutant| format!("{left} {} right;", mutant.replacement)));
        pieces.extend(common(format!("{{ {left} {sign} right; }} }} }})")));
        self.end(group, binary.right.span(), pieces);
    }

    /// An arm's guard with its own mutants, and those that delete the arm: it matches nothing then.
    fn arm(&mut self, arm: &Arm) {
        let deleted = self.deleting(arm);
        let stays: Vec<String> = deleted.iter().map(|mutant| format!("!{}", is_on(mutant))).collect();
        let Some((_, guard)) = &arm.guard else {
            if !deleted.is_empty() {
                let group = self.begin(arm.pat.span(), &deleted, Vec::new());
                self.end(group, arm.pat.span(), common(format!(" if {}", stays.join(" && "))));
            }
            return;
        };
        let guards = self.starting(&self.lines.of(guard.span()), Genre::MatchArmGuard);
        if has_let(guard) || guards.is_empty() && deleted.is_empty() {
            return;
        }
        let with = |value: &'static str| guards.iter().filter(move |mutant| mutant.replacement == value);
        let always: String = with("true").map(|mutant| format!("{} || ", is_on(mutant))).collect();
        let never: String = with("false").map(|mutant| format!("!{} && ", is_on(mutant))).collect();
        let stays: String = stays.iter().map(|stays| format!("{stays} && ")).collect();
        let group = self.begin(
            guard.span(),
            &[guards.as_slice(), &deleted].concat(),
            common(format!("{stays}({always}{never}(")),
        );
        self.end(group, guard.span(), common("))"));
    }

    /// The mutants that delete an arm; their text ends at its end, or at the comma behind it.
    fn deleting(&self, arm: &Arm) -> Vec<&'a Mutant> {
        let place = self.lines.of(arm.span());
        self.starting(&(place.start..place.end + 1), Genre::MatchArm)
    }

    /// A field's value, or the base's if the field is deleted.
    fn field(&mut self, expression: &ExprStruct, field: &FieldValue, rest: &Expr) {
        let place = self.lines.of(field.span());
        let found = self.starting(&(place.start..place.end + 1), Genre::StructField);
        let (Some(mutant), Member::Named(name), Some(_)) = (found.first(), &field.member, &field.colon_token) else {
            return;
        };
        let (path, rest) = (self.lines.text(expression.path.span()), self.lines.text(rest.span()));
        let own = format!("if {} {{ let base: {path} = {rest}; base.{name} }} else {{ ", is_on(mutant));
        let group = self.begin(field.expr.span(), &[mutant], vec![Piece::Own(mutant.number, own)]);
        self.end(group, field.expr.span(), common(" }"));
    }
}

impl<'ast> Visit<'ast> for Rewriter<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let group = self.function(item.span(), Some(&item.block));
        visit::visit_item_fn(self, item);
        self.end(group, item.span(), Vec::new());
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let group = self.function(item.span(), Some(&item.block));
        visit::visit_impl_item_fn(self, item);
        self.end(group, item.span(), Vec::new());
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let group = self.function(item.span(), item.default.as_ref());
        visit::visit_trait_item_fn(self, item);
        self.end(group, item.span(), Vec::new());
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let mutants = self.starting(&self.lines.of(binary.op.span()), Genre::BinaryOperator);
        let is_chain = has_let(&binary.left) || has_let(&binary.right);
        if let (Some(first), false) = (mutants.first(), is_chain) {
            let sign = self.lines.text(binary.op.span());
            match binary.op {
                BinOp::And(_) | BinOp::Or(_) => self.lazy(binary, first, sign == "&&"),
                BinOp::Eq(_) | BinOp::Ne(_) => self.equality(binary, first, sign),
                BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => self.eager(binary, &mutants, sign, "&"),
                _ if sign.ends_with('=') => self.assignment(binary, &mutants, sign),
                _ => self.eager(binary, &mutants, sign, ""),
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        let mutants = self.starting(&self.lines.of(unary.op.span()), Genre::UnaryOperator);
        if let Some(mutant) = mutants.first() {
            let sign = self.lines.text(unary.op.span());
            let group = self.begin(unary.op.span(), &mutants, common("(match ("));
            self.edits.delete(self.lines.of(unary.op.span()));
            let selected = format!(") {{ operand => if {} {{ operand }} else {{ {sign}operand }} }})", is_on(mutant));
            self.end(group, unary.expr.span(), common(selected));
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.arm(arm);
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expression: &'ast ExprStruct) {
        if let Some(rest) = &expression.rest {
            for field in &expression.fields {
                self.field(expression, field, rest);
            }
        }
        visit::visit_expr_struct(self, expression);
    }
}

#[cfg(test)]
mod tests;
