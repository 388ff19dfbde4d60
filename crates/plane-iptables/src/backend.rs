//! Chooses the variant of the tool: that of the kubelet and of the other programs of this machine, since otherwise packets would
//! traverse two independent rule sets. One choice for both families.

use std::cmp::Ordering;
use std::io;

use ferry_api::object::Family;
use ferry_kernel::iptables::nft::IptablesChain;
use ferry_kernel::iptables::{
    Backend, Environment, IptablesChainName, OutputLine, Table, Tool, ToolFailure, legacy, nft,
};
use ferry_kernel::module::{self, ModuleState};
use ferry_kernel::nft::NftSocket;

use crate::names;

/// Chains that the kubelet makes in mangle, in the variant that the node uses, better hints first.
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// The variant, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantChoice {
    /// the variant
    pub backend: Backend,
    /// the reason for the choice
    pub why: String,
    /// a warning for the operator: both variants have rules, or the preferred one is not installed
    pub warning: Option<String>,
}

/// The contents of one variant's tables.
#[derive(Clone, Copy, Debug, Default)]
struct VariantTables {
    /// which of [`HINTS`]
    hint: Option<usize>,
    /// there are chains or rules of some program
    used: bool,
}

/// Chooses in the environment of this process: see [`choose_in`].
///
/// # Errors
/// As there.
pub fn choose() -> Result<VariantChoice, ToolFailure> {
    choose_in(&Environment::of_process())
}

/// Chooses, in this order: where the kubelet's hints are; where more rules are; what the plain `iptables` is, unless that is nft, which
/// the kernel lacks, and legacy may work. If that variant's tool cannot be used, the other one. Makes no table.
///
/// # Errors
/// [`ToolFailure`] if neither variant can be used; [`ToolFailure::NoPermission`] if what is there may not be read.
pub fn choose_in(environment: &Environment) -> Result<VariantChoice, ToolFailure> {
    let plain = Tool::find_in(environment, Family::V4, None)?;
    let seen = [see_nft()?, see_legacy(environment)?];
    let evidence = match by_hint(seen) {
        None => by_rules(environment, seen)?,
        hint => hint,
    };
    let (wanted, why) = evidence.unwrap_or_else(|| without_evidence(environment, plain.backend()));
    let (used, unused) = match Tool::find_in(environment, Family::V4, Some(wanted)) {
        Ok(_) => (wanted, other(wanted)),
        Err(failure) if plain.backend() == wanted => return Err(failure),
        Err(failure) => {
            let used = plain.backend();
            let warning = format!(
                "iptables-{wanted} is the right variant ({why}), but it can't be used: {failure}; using iptables-{used}, whose \
                 rules may conflict with those that are there; install iptables-{wanted}"
            );
            let why = format!("iptables-{wanted} can't be used");
            return Ok(VariantChoice { backend: used, why, warning: Some(warning) });
        }
    };
    let warning = seen.iter().all(|seen| seen.used).then(|| {
        format!(
            "iptables-{unused} has rules, too, and packets traverse both variants: kube-proxy removes its own rules there once \
             those of this variant are in force; remove the others if nothing needs them"
        )
    });
    Ok(VariantChoice { backend: used, why, warning })
}

/// True if there may be rules of this mode in a variant's tables. Runs no tool and creates no table. In those of nft, it searches
/// for chains with this mode's names; of the legacy variant it is only known that there are chains or rules of some program.
///
/// # Errors
/// The system's error; `PermissionDenied` without `CAP_NET_ADMIN`.
pub fn holds(backend: Backend, family: Family) -> io::Result<bool> {
    let ours = |chain: &IptablesChain| {
        IptablesChainName::new(&chain.name).is_some_and(|name| names::is_ours(chain.table, name))
    };
    match backend {
        Backend::Nft => Ok(nft::chains(family)?.iter().any(ours)),
        Backend::Legacy => legacy_used(family),
    }
}

fn other(backend: Backend) -> Backend {
    match backend {
        Backend::Nft => Backend::Legacy,
        Backend::Legacy => Backend::Nft,
    }
}

/// The variant with the better hint.
fn by_hint(seen: [VariantTables; 2]) -> Option<(Backend, String)> {
    let hints = Backend::ALL.into_iter().zip(seen).filter_map(|(backend, seen)| Some((seen.hint?, backend)));
    let mut hints: Vec<_> = hints.collect();
    hints.sort_unstable();
    let because = |backend, hint: usize| {
        let name = HINTS.get(hint).copied().unwrap_or_default();
        Some((backend, format!("it has the kubelet's chain {name}")))
    };
    match *hints {
        [(hint, backend)] => because(backend, hint),
        [(better, backend), (worse, _)] if better < worse => because(backend, better),
        _ => None,
    }
}

/// The variant with more rules; they are not counted if only one has any, or if one is unusable anyway.
fn by_rules(environment: &Environment, seen: [VariantTables; 2]) -> Result<Option<(Backend, String)>, ToolFailure> {
    let [nft, legacy] = seen.map(|seen| seen.used);
    Ok(match (nft, legacy) {
        (false, false) => None,
        (true, false) => Some((Backend::Nft, "only this variant has rules".to_owned())),
        (false, true) => Some((Backend::Legacy, "only this variant has rules".to_owned())),
        (true, true) => {
            let (nft, legacy) = (count(environment, Backend::Nft)?, count(environment, Backend::Legacy)?);
            let because = |more, less| format!("it has {more} chains and rules, the other one {less}");
            match nft.cmp(&legacy) {
                Ordering::Greater => Some((Backend::Nft, because(nft, legacy))),
                Ordering::Less => Some((Backend::Legacy, because(legacy, nft))),
                Ordering::Equal => None,
            }
        }
    })
}

/// The variant where neither hints nor rules decide.
fn without_evidence(environment: &Environment, plain: Backend) -> (Backend, String) {
    let lacks_nft = || NftSocket::open_required().is_err_and(|error| error.kind() == io::ErrorKind::Unsupported);
    let has_tool = || Tool::find_in(environment, Family::V4, Some(Backend::Legacy)).is_ok();
    let may_work = || legacy_may_work(module::find("nf_tables").state, module::find("ip_tables").state);
    let (backend, why) = if plain == Backend::Nft && lacks_nft() && has_tool() && may_work() {
        (Backend::Legacy, "the plain iptables is of the nft variant, but the kernel offers no nf_tables")
    } else {
        (plain, "the plain iptables, or the only one installed, is of this variant")
    };
    (backend, format!("no hint of the kubelet and no rules decide; {why}"))
}

/// True if a kernel that offers no nf_tables has the tables of the legacy variant, or can load them. If it could load modules, it would have
/// loaded an installed nf_tables.
const fn legacy_may_work(nf_tables: ModuleState, ip_tables: ModuleState) -> bool {
    match ip_tables {
        ModuleState::Loaded | ModuleState::BuiltIn => true,
        ModuleState::Loadable => matches!(nf_tables, ModuleState::Absent),
        ModuleState::Absent | ModuleState::Unknown => false,
    }
}

/// The number of chains and rules of any program, in both families; none if no tool can list them.
fn count(environment: &Environment, backend: Backend) -> Result<usize, ToolFailure> {
    let mut count = 0;
    for family in Family::ALL {
        let Ok(tool) = Tool::find_in(environment, family, Some(backend)) else { continue };
        for table in Table::ALL {
            let saved = tool.save(table, &mut |line| match line {
                OutputLine::Chain { builtin: false, .. } | OutputLine::Rule { .. } => count += 1,
                OutputLine::Chain { builtin: true, .. }
                | OutputLine::Table(_)
                | OutputLine::Commit
                | OutputLine::Other => {}
            });
            match saved {
                // A table of this name that nft has made, with what iptables cannot show.
                Err(ToolFailure::UnexpectedOutput { .. }) => {}
                saved => as_far_as_it_came(saved)?,
            }
        }
    }
    Ok(count)
}

fn see_nft() -> Result<VariantTables, ToolFailure> {
    let mut seen = VariantTables::default();
    for family in Family::ALL {
        for chain in nft::chains(family).map_err(unreadable)? {
            seen.note(chain.table, &chain.name);
            // Some releases make a table's own chains when they only look.
            seen.used |= !chain.builtin || nft::has_rules(family, &chain).map_err(unreadable)?;
        }
    }
    Ok(seen)
}

fn see_legacy(environment: &Environment) -> Result<VariantTables, ToolFailure> {
    let mut seen = VariantTables::default();
    for family in Family::ALL {
        if !legacy_used(family).map_err(|error| ToolFailure::Io { tool: "iptables-legacy".to_owned(), error })? {
            continue;
        }
        seen.used = true;
        // One that cannot be used is not chosen for its hints.
        let Ok(tool) = Tool::find_in(environment, family, Some(Backend::Legacy)) else { continue };
        as_far_as_it_came(tool.save(Table::Mangle, &mut |line| {
            if let OutputLine::Chain { name, .. } = line {
                seen.note(Table::Mangle, name);
            }
        }))?;
    }
    Ok(seen)
}

/// A tool that fails may be that of the variant which isn't used; if it is needed, that shows soon enough.
fn as_far_as_it_came(saved: Result<(), ToolFailure>) -> Result<(), ToolFailure> {
    match saved {
        Err(failure @ ToolFailure::NoPermission { .. }) => Err(failure),
        Err(error) => {
            tracing::warn!(%error, "Reading all rules for the choice of the iptables variant failed");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn unreadable(error: io::Error) -> ToolFailure {
    let tool = "iptables".to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied => ToolFailure::NoPermission { tool },
        _ => ToolFailure::Io { tool, error },
    }
}

/// True if legacy tables hold more than new ones, which have the policy of each built-in chain and an end.
fn legacy_used(family: Family) -> io::Result<bool> {
    for table in Table::ALL {
        if legacy::info(family, table)?.is_some_and(|info| info.entries > legacy::empty(table)) {
            return Ok(true);
        }
    }
    Ok(false)
}

// === impl VariantTables ===

impl VariantTables {
    /// Looks whether a chain is a hint, and the best one.
    fn note(&mut self, table: Table, name: &str) {
        let hint = HINTS.iter().position(|hint| *hint == name && table == Table::Mangle);
        self.hint = [self.hint, hint].into_iter().flatten().min();
    }
}

#[cfg(test)]
mod tests;
