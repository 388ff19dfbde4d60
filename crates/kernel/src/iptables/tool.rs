//! Finds the installed iptables tools and runs them.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferry_family::Family;

use super::call::{Call, name_of};
use super::environment::Environment;
use super::failure::shortened;
use super::lock::Lock;
use super::run::Process;
use super::{Backend, IptablesChainName, OutputLine, Table, ToolFailure, Version, legacy, nft};
use crate::children::ChildProcess;

/// Maximum number of bytes read of the version.
const VERSION_BYTES: u64 = 1 << 10;

/// The tools of one IP family and one variant: the programs that restore, save, and list a single chain.
///
/// Each run is a child process in the network namespace of the thread that starts it.
#[derive(Clone, Debug)]
pub struct Tool {
    family: Family,
    backend: Backend,
    version: Version,
    pub(super) environment: Environment,
    pub(super) restore: PathBuf,
    save: PathBuf,
    plain: PathBuf,
}

/// The tool's standard input.
#[derive(Debug)]
pub struct Stdin<'a> {
    process: &'a mut Process,
    /// what was written
    pub(super) written: TextSize,
}

/// The size of a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TextSize {
    pub(super) lines: usize,
    pub(super) bytes: usize,
}

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    /// time waited for the lock; zero with the nft variant, which has none
    pub lock_wait: Duration,
    /// set where a [`Restorer`](super::Restorer) gives up keeping a process: for this time it starts the tool for each text
    pub gave_up: Option<Duration>,
}

// === impl TextSize ===

impl TextSize {
    pub(super) fn add(&mut self, more: Self) {
        self.lines += more.lines;
        self.bytes += more.bytes;
    }
}

// === impl Stdin ===

impl<'a> Stdin<'a> {
    pub(super) fn new(process: &'a mut Process) -> Self {
        Self { process, written: TextSize::default() }
    }

    /// Writes a part of the text. It is no error here if the tool does not read it all: it reports the cause itself.
    ///
    /// # Errors
    /// The system's error; `TimedOut` at the deadline.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.written.lines += text.bytes().filter(|byte| *byte == b'\n').count();
        self.written.bytes += text.len();
        self.process.write(text.as_bytes())
    }
}

// === impl Tool ===

impl Tool {
    /// Finds the programs of a family in the environment of this process: see [`Tool::find_in`].
    ///
    /// # Errors
    /// As [`Tool::find_in`].
    pub fn find(family: Family, backend: Option<Backend>) -> Result<Self, ToolFailure> {
        Self::find_in(&Environment::of_process(), family, backend)
    }

    /// Finds the programs of a family. For a given variant, programs with the variant in their name are tried first, then those
    /// with plain names, if they are of the variant. For any variant: plain names, then nft, then legacy.
    ///
    /// # Errors
    /// [`ToolFailure::Missing`], [`ToolFailure::TooOld`], and every other failure of querying their versions.
    pub fn find_in(environment: &Environment, family: Family, backend: Option<Backend>) -> Result<Self, ToolFailure> {
        let (stem, plain) = match family {
            Family::V4 => ("iptables", "iptables".to_owned()),
            Family::V6 => ("ip6tables", "ip6tables".to_owned()),
        };
        let named = |backend: Backend| format!("{stem}-{backend}");
        let names = match backend {
            Some(backend) => vec![named(backend), plain],
            None => vec![plain, named(Backend::Nft), named(Backend::Legacy)],
        };
        let mut failed = None;
        for name in &names {
            match Self::probe(environment, family, name) {
                Ok(tool) if backend.is_none_or(|backend| backend == tool.backend) => return Ok(tool),
                // not installed, or of the other variant
                Ok(_) | Err(ToolFailure::Missing { .. }) => {}
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        Err(failed.unwrap_or_else(|| {
            let of = backend.map(|backend| format!(" of the {backend} variant")).unwrap_or_default();
            let all: Vec<String> = names.iter().flat_map(|name| programs(name)).collect();
            ToolFailure::Missing { tool: format!("{stem}-restore{of} (looked for {})", all.join(", ")) }
        }))
    }

    /// Checks the programs whose names begin with `name`.
    fn probe(environment: &Environment, family: Family, name: &str) -> Result<Self, ToolFailure> {
        let find = |name: String| environment.program(&name).ok_or(ToolFailure::Missing { tool: name });
        let [restore, save, plain] = programs(name).map(find);
        let (restore, save, plain) = (restore?, save?, plain?);
        let (version, backend) = ask_version(environment, &restore)?;
        for other in [&save, &plain] {
            let (_, its) = ask_version(environment, other)?;
            if its != backend {
                let text = format!("it is of the {its} variant, but {} of the {backend} variant", name_of(&restore));
                return Err(ToolFailure::UnexpectedOutput { tool: name_of(other), line: 1, text });
            }
        }
        if version < backend.needs() {
            return Err(ToolFailure::TooOld { tool: name_of(&restore), version, needs: backend.needs() });
        }
        Ok(Self { family, backend, version, environment: environment.clone(), restore, save, plain })
    }

    /// The IP family of its tables.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The variant.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The version of the tool.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Runs the tool once on a text that `write` generates, section by section, without changes to anything else (`--noflush`).
    /// [`super::Restorer`] is faster for many texts.
    ///
    /// During the run the legacy variant's lock is held by this process, so that the wait has an exact bound and is measured, and
    /// by the tool, which may outlive this process; the tool's own locking is directed to another file.
    ///
    /// # Errors
    /// [`ToolFailure`]. All sections before the line that it names are committed; which ones is unknown if it names none, or if the
    /// tool was killed.
    pub fn restore_by(
        &self,
        write: &mut dyn FnMut(&mut Stdin<'_>) -> io::Result<()>,
    ) -> Result<RestoreOutcome, ToolFailure> {
        // It may have to wait, which it must not do with the lock.
        let counted = ChildProcess::begin();
        let (lock, lock_wait) = match self.backend {
            Backend::Nft => (None, Duration::ZERO),
            Backend::Legacy => {
                let (lock, waited) = Lock::take(&self.environment.lock_file, self.environment.lock_wait)?;
                (Some(lock), waited)
            }
        };
        let call = Call { lock: lock.as_ref(), ..Call::new(&self.environment, &self.restore) };
        let process = call.start_counted(&["--noflush"], counted)?;
        let ended = call.serve(process, |process| write(&mut Stdin::new(process)))?;
        call.check_exit(&ended)?;
        Ok(RestoreOutcome { lock_wait, gave_up: None })
    }

    /// Tests whether the tool can use this table, with a run that changes nothing.
    ///
    /// # Errors
    /// [`ToolFailure`], in particular [`ToolFailure::NoTable`] and [`ToolFailure::NoPermission`].
    pub fn try_table(&self, table: Table) -> Result<(), ToolFailure> {
        let text = format!("*{}\nCOMMIT\n", table.name());
        let call = Call::new(&self.environment, &self.restore);
        let ended = call.run(&["--noflush", "--test"], |process| process.feed(text.as_bytes()))?;
        call.check_exit(&ended)
    }

    /// True if the tool and the kernel have this match extension. Changes nothing; may load a module of the kernel. What the extension needs
    /// beside that, such as a capability, is not tried.
    ///
    /// # Errors
    /// [`ToolFailure`] of a tool that can't be run.
    pub fn has_match(&self, name: &str) -> Result<bool, ToolFailure> {
        let call = Call::new(&self.environment, &self.plain);
        let ended = call.run(&["-m", name, "-h"], |_| Ok(()))?;
        match call.check_exit(&ended) {
            // From 1.8.8 on the tool takes revision 0 of an extension that the kernel lacks for usable, with a warning.
            Ok(()) => Ok(!ended.stderr.contains("missing kernel module")),
            Err(ToolFailure::Refused { .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Reads a table with `-save` and passes it on line by line. A table that does not exist has no lines.
    ///
    /// # Errors
    /// [`ToolFailure`]; lines passed on until then are valid, but incomplete.
    pub fn save(&self, table: Table, each: &mut dyn FnMut(OutputLine<'_>)) -> Result<(), ToolFailure> {
        self.save_within(self.environment.run_time, table, each)
    }

    /// As [`Tool::save`], with a shorter time limit: the nft variant starts again after each concurrent commit to nf_tables, and
    /// so may never finish.
    ///
    /// # Errors
    /// As [`Tool::save`].
    pub fn save_within(
        &self,
        bound: Duration,
        table: Table,
        each: &mut dyn FnMut(OutputLine<'_>),
    ) -> Result<(), ToolFailure> {
        let environment = Environment { run_time: bound.min(self.environment.run_time), ..self.environment.clone() };
        let call = Call::new(&environment, &self.save);
        if self.lacks(&call, table)? {
            return Ok(());
        }
        call.lines(&["-t", table.name()], each)
    }

    /// Reads a chain with `-S` and passes it on line by line. False if the chain does not exist.
    ///
    /// # Errors
    /// [`ToolFailure`]; lines passed on until then are valid, but incomplete.
    pub fn list(
        &self,
        table: Table,
        chain: IptablesChainName,
        each: &mut dyn FnMut(OutputLine<'_>),
    ) -> Result<bool, ToolFailure> {
        let call = Call::new(&self.environment, &self.plain);
        if self.lacks(&call, table)? {
            return Ok(false);
        }
        match call.lines(&["-t", table.name(), "-S", chain.as_str()], each) {
            Ok(()) => Ok(true),
            Err(ToolFailure::Refused { missing: true, .. }) => Ok(false),
            // 1.8.9 also reports this for a chain that does not exist.
            Err(ToolFailure::Refused { text, .. })
                if text.contains("is incompatible") && !self.has_nft_chain(&call, table, chain)? =>
            {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// True if a chain has this rule, given as one line in the tool's format. Works also if the chain has other rules that the
    /// tool can't show.
    ///
    /// # Errors
    /// [`ToolFailure`]
    pub fn check(&self, table: Table, chain: IptablesChainName, rule: &str) -> Result<bool, ToolFailure> {
        let call = Call::new(&self.environment, &self.plain);
        if self.lacks(&call, table)? {
            return Ok(false);
        }
        let words = words(rule);
        let mut arguments = vec!["-t", table.name(), "-C", chain.as_str()];
        arguments.extend(words.iter().map(String::as_str));
        match call.run(&arguments, |process| process.feed(&[])).and_then(|ended| call.check_exit(&ended)) {
            Ok(()) => Ok(true),
            Err(ToolFailure::Refused { .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// True if the table does not exist. Only checked for the legacy variant, whose tools would create it.
    fn lacks(&self, call: &Call<'_>, table: Table) -> Result<bool, ToolFailure> {
        match self.backend {
            Backend::Nft => Ok(false),
            Backend::Legacy => {
                let tables = legacy::tables(self.family).map_err(|error| call.io(error))?;
                Ok(!tables.iter().any(|name| name == table.name()))
            }
        }
    }

    fn has_nft_chain(&self, call: &Call<'_>, table: Table, chain: IptablesChainName) -> Result<bool, ToolFailure> {
        let chains = nft::chains(self.family).map_err(|error| call.io(error))?;
        Ok(chains.iter().any(|found| found.table == table && found.name == chain.as_str()))
    }
}

/// Splits a rule in the tool's format into words: some are in quotes, with backslashes as escapes.
fn words(rule: &str) -> Vec<String> {
    let (mut words, mut quoted, mut open) = (Vec::new(), false, false);
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        if character == ' ' && !quoted {
            open = false;
            continue;
        }
        if !std::mem::replace(&mut open, true) {
            words.push(String::new());
        }
        let literal = match character {
            '"' => {
                quoted = !quoted;
                continue;
            }
            '\\' => characters.next().unwrap_or(character),
            other => other,
        };
        words.iter_mut().rev().take(1).for_each(|word| word.push(literal));
    }
    words
}

/// The names of the programs that restore, save, and list a chain.
pub(super) fn programs(name: &str) -> [String; 3] {
    [format!("{name}-restore"), format!("{name}-save"), name.to_owned()]
}

fn ask_version(environment: &Environment, program: &Path) -> Result<(Version, Backend), ToolFailure> {
    let call = Call::new(environment, program);
    let mut output = String::new();
    let ended = call.run(&["--version"], |process| {
        process.feed(&[])?;
        process.take(VERSION_BYTES).read_to_string(&mut output).map(|_| ())
    })?;
    call.check_exit(&ended)?;
    Version::parse(&output).ok_or_else(|| ToolFailure::UnexpectedOutput {
        tool: call.name(),
        line: 1,
        text: shortened(&output),
    })
}

#[cfg(test)]
mod tests;
