//! The tool: which one is installed, and its runs.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferry_family::Family;
use rustix::fs::{Access, access};

use super::failure::{Complaint, shortened};
use super::lock::Lock;
use super::run::{Ended, Process};
use super::{Backend, ChainName, Failure, Line, Table, Version, legacy, nft, read_lines};
use crate::capability;

/// Where the lock is that everybody takes.
const LOCK_FILE: &str = "/run/xtables.lock";

/// Its name in the environment. The tool, too, reads it.
const LOCK_FILE_VARIABLE: &str = "XTABLES_LOCKFILE";

/// What the tool is told to lock while this process has the real lock: its own standard input, a pipe that nobody else has.
const OWN_LOCK: &str = "/proc/self/fd/0";

/// Bytes that are read at a time from a list.
const BUFFER: usize = 64 << 10;

/// Bytes that are read of a version.
const SAID: u64 = 1 << 10;

/// A tool that prints garbage has this long to say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What runs depend on beside the network namespace.
#[derive(Clone, Debug)]
pub struct Environment {
    /// where programs are looked for: absolute folders, with `:` between them
    pub path: OsString,
    /// what is locked while the legacy variant writes
    pub lock_file: PathBuf,
    /// how long the lock is waited for
    pub lock_wait: Duration,
    /// how long a run may take, whatever it prints; each byte that it reads adds 5 µs to that
    pub run_time: Duration,
}

/// The tool of one family, in one variant: the programs that restore, that save, and that list a single chain.
///
/// Each run is a child process in the network namespace of the thread that starts it.
#[derive(Clone, Debug)]
pub struct Tool {
    family: Family,
    backend: Backend,
    version: Version,
    environment: Environment,
    restore: PathBuf,
    save: PathBuf,
    plain: PathBuf,
}

/// What the tool reads.
#[derive(Debug)]
pub struct Stdin<'a>(&'a mut Process);

/// How a restore went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// how long the lock was waited for; nothing in the nft variant, which has none
    pub lock_wait: Duration,
}

// === impl Stdin ===

impl Stdin<'_> {
    /// Writes a part of the text. A tool that does not read it all is no error here: it says why itself.
    ///
    /// # Errors
    /// What the system says; `TimedOut` at the bound.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.write(text.as_bytes())
    }
}

// === impl Environment ===

impl Environment {
    /// This process's: `PATH` and `XTABLES_LOCKFILE`, `/run/xtables.lock` by default. The lock is waited for 5 s, and a run
    /// may take 60 s and what its text adds.
    pub fn of_process() -> Self {
        let lock_file = std::env::var_os(LOCK_FILE_VARIABLE).filter(|name| !name.is_empty());
        Self {
            path: std::env::var_os("PATH").unwrap_or_default(),
            lock_file: lock_file.map_or_else(|| LOCK_FILE.into(), PathBuf::from),
            lock_wait: Duration::from_secs(5),
            run_time: Duration::from_secs(60),
        }
    }

    /// The program of that name. Folders that are not absolute do not count.
    fn program(&self, name: &str) -> Option<PathBuf> {
        let folders = std::env::split_paths(&self.path).filter(|folder| folder.is_absolute());
        folders.map(|folder| folder.join(name)).find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
    }
}

// === impl Tool ===

impl Tool {
    /// Looks for the programs of a family in the environment of this process: see [`Tool::find_in`].
    ///
    /// # Errors
    /// As there.
    pub fn find(family: Family, backend: Option<Backend>) -> Result<Self, Failure> {
        Self::find_in(&Environment::of_process(), family, backend)
    }

    /// Looks for the programs of a family. Those that have the variant's name come first, then those with plain names if
    /// they are of the variant. Any variant: those with plain names, then those of nft, then those of legacy.
    ///
    /// # Errors
    /// [`Failure::Missing`], [`Failure::TooOld`], and whatever else goes wrong when they are asked for their version.
    pub fn find_in(environment: &Environment, family: Family, backend: Option<Backend>) -> Result<Self, Failure> {
        let (stem, plain) = match family {
            Family::V4 => ("iptables", "iptables".to_owned()),
            Family::V6 => ("ip6tables", "ip6tables".to_owned()),
        };
        let named = |backend: Backend| format!("{stem}-{backend}");
        let names = match backend {
            Some(backend) => vec![named(backend), plain],
            None => vec![plain, named(Backend::Nft), named(Backend::Legacy)],
        };
        let mut worst = None;
        for name in &names {
            match Self::probe(environment, family, name) {
                Ok(tool) if backend.is_none_or(|backend| backend == tool.backend) => return Ok(tool),
                // of the other variant
                Ok(_) | Err(Failure::Missing { .. }) => {}
                Err(failure) => worst = worst.or(Some(failure)),
            }
        }
        Err(worst.unwrap_or_else(|| {
            let of = backend.map(|backend| format!(" of the {backend} variant")).unwrap_or_default();
            let all: Vec<String> = names.iter().flat_map(|name| programs(name)).collect();
            Failure::Missing { tool: format!("{stem}-restore{of} (looked for {})", all.join(", ")) }
        }))
    }

    /// The tool whose programs have names that begin so.
    fn probe(environment: &Environment, family: Family, name: &str) -> Result<Self, Failure> {
        let find = |name: String| environment.program(&name).ok_or(Failure::Missing { tool: name });
        let [restore, save, plain] = programs(name).map(find);
        let (restore, save, plain) = (restore?, save?, plain?);
        let (version, backend) = ask_version(environment, &restore)?;
        for other in [&save, &plain] {
            let (_, its) = ask_version(environment, other)?;
            if its != backend {
                let text = format!("it is of the {its} variant, and {} of the {backend} variant", name_of(&restore));
                return Err(Failure::Garbage { tool: name_of(other), line: 1, text });
            }
        }
        if version < backend.needs() {
            return Err(Failure::TooOld { tool: name_of(&restore), version, needs: backend.needs() });
        }
        Ok(Self { family, backend, version, environment: environment.clone(), restore, save, plain })
    }

    /// Whose tables.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The variant.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The release.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Does what a text says that is made while it is written, one section after the other, and leaves everything else alone.
    ///
    /// The legacy variant's lock is held meanwhile, by this process, so that the wait has an exact bound and is known, and by
    /// the tool, which may outlive this process: it gets another file to lock by itself.
    ///
    /// # Errors
    /// [`Failure`]. All sections before the line that it names are done; which ones is not known if it names none, or if the
    /// tool was killed.
    pub fn restore_by(&self, write: &mut dyn FnMut(&mut Stdin<'_>) -> io::Result<()>) -> Result<Run, Failure> {
        let (lock, lock_wait) = match self.backend {
            Backend::Nft => (None, Duration::ZERO),
            Backend::Legacy => {
                let (lock, waited) = Lock::take(&self.environment.lock_file, self.environment.lock_wait)?;
                (Some(lock), waited)
            }
        };
        let call = Call { lock: lock.as_ref(), ..Call::new(&self.environment, &self.restore) };
        let ended = call.run(&["--noflush"], |process| write(&mut Stdin(process)))?;
        call.judge(&ended)?;
        Ok(Run { lock_wait })
    }

    /// Gives the tool a text that changes nothing, to see whether it can do anything with this table.
    ///
    /// # Errors
    /// [`Failure`], [`Failure::NoTable`] and [`Failure::NoPermission`] above all.
    pub fn try_table(&self, table: Table) -> Result<(), Failure> {
        let text = format!("*{}\nCOMMIT\n", table.name());
        let call = Call::new(&self.environment, &self.restore);
        let ended = call.run(&["--noflush", "--test"], |process| process.feed(text.as_bytes()))?;
        call.judge(&ended)
    }

    /// Shows a table as the tool saves it, line by line. A table that the kernel does not have has no lines.
    ///
    /// # Errors
    /// [`Failure`]; what was shown until then is right, but not all.
    pub fn save(&self, table: Table, each: &mut dyn FnMut(Line<'_>)) -> Result<(), Failure> {
        self.save_within(self.environment.run_time, table, each)
    }

    /// As [`Tool::save`], with a bound of its own if that is shorter: the nft variant begins anew whenever somebody commits to
    /// nf_tables meanwhile, and so may never come to an end.
    ///
    /// # Errors
    /// As there.
    pub fn save_within(&self, bound: Duration, table: Table, each: &mut dyn FnMut(Line<'_>)) -> Result<(), Failure> {
        let environment = Environment { run_time: bound.min(self.environment.run_time), ..self.environment.clone() };
        let call = Call::new(&environment, &self.save);
        if self.lacks(&call, table)? {
            return Ok(());
        }
        call.lines(&["-t", table.name()], each)
    }

    /// Shows a chain as the tool lists it; whether there is one.
    ///
    /// # Errors
    /// [`Failure`]; what was shown until then is right, but not all.
    pub fn list(&self, table: Table, chain: ChainName, each: &mut dyn FnMut(Line<'_>)) -> Result<bool, Failure> {
        let call = Call::new(&self.environment, &self.plain);
        if self.lacks(&call, table)? {
            return Ok(false);
        }
        match call.lines(&["-t", table.name(), "-S", chain.as_str()], each) {
            Ok(()) => Ok(true),
            Err(Failure::Refused { missing: true, .. }) => Ok(false),
            // What 1.8.9 says of a chain that does not exist, too.
            Err(Failure::Refused { text, .. })
                if text.contains("is incompatible") && !self.has_nft_chain(&call, table, chain)? =>
            {
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether a chain holds this rule, also where it holds others that the tool can't show; the rule is one line, as the
    /// tool prints it.
    ///
    /// # Errors
    /// [`Failure`]
    pub fn check(&self, table: Table, chain: ChainName, rule: &str) -> Result<bool, Failure> {
        let call = Call::new(&self.environment, &self.plain);
        if self.lacks(&call, table)? {
            return Ok(false);
        }
        let words = words(rule);
        let mut arguments = vec!["-t", table.name(), "-C", chain.as_str()];
        arguments.extend(words.iter().map(String::as_str));
        match call.run(&arguments, |process| process.feed(&[])).and_then(|ended| call.judge(&ended)) {
            Ok(()) => Ok(true),
            Err(Failure::Refused { .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Whether the table does not exist; the legacy variant would create it.
    fn lacks(&self, call: &Call<'_>, table: Table) -> Result<bool, Failure> {
        match self.backend {
            Backend::Nft => Ok(false),
            Backend::Legacy => {
                let tables = legacy::tables(self.family).map_err(|error| call.io(error))?;
                Ok(!tables.iter().any(|name| name == table.name()))
            }
        }
    }

    fn has_nft_chain(&self, call: &Call<'_>, table: Table, chain: ChainName) -> Result<bool, Failure> {
        let chains = nft::chains(self.family).map_err(|error| call.io(error))?;
        Ok(chains.iter().any(|found| found.table == table && found.name == chain.as_str()))
    }
}

/// The words of a rule as the tool prints it: some are in quotes, with a backslash before what would end them.
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

/// A program that is run.
#[derive(Debug)]
struct Call<'a> {
    environment: &'a Environment,
    program: &'a Path,
    /// held by the child, too
    lock: Option<&'a Lock>,
}

// === impl Call ===

impl<'a> Call<'a> {
    fn new(environment: &'a Environment, program: &'a Path) -> Self {
        Self { environment, program, lock: None }
    }

    /// Starts it, serves it and waits for its end.
    fn run(&self, arguments: &[&str], serve: impl FnOnce(&mut Process) -> io::Result<()>) -> Result<Ended, Failure> {
        let mut process = self.start(arguments)?;
        serve(&mut process).and_then(|()| process.finish()).map_err(|error| self.io(error))
    }

    fn start(&self, arguments: &[&str]) -> Result<Process, Failure> {
        let mut command = Command::new(self.program);
        command.args(arguments).env("PATH", &self.environment.path);
        command.env("LC_ALL", "C").env(LOCK_FILE_VARIABLE, OWN_LOCK);
        self.lock.map_or(Ok(()), |lock| lock.lend(&mut command)).map_err(|error| self.io(error))?;
        Process::start(&mut command, self.environment.run_time).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::Missing { tool: self.name() },
            _ => self.io(error),
        })
    }

    /// Runs it and shows what it prints.
    fn lines(&self, arguments: &[&str], each: &mut dyn FnMut(Line<'_>)) -> Result<(), Failure> {
        let mut process = self.start(arguments)?;
        process.feed(&[]).map_err(|error| self.io(error))?;
        let Err(garbage) = read_lines(BufReader::with_capacity(BUFFER, &mut process), each) else {
            return self.judge(&process.finish().map_err(|error| self.io(error))?);
        };
        if let Some(error) = process.trouble().filter(|error| error.kind() != io::ErrorKind::InvalidData) {
            return Err(self.io(error));
        }
        // It may have been killed in the middle of a line, or say why it stopped there.
        process.hurry(LAST_WORDS);
        match process.finish() {
            Ok(ended) => self.judge(&ended)?,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => return Err(self.io(error)),
        }
        Err(Failure::Garbage { tool: self.name(), line: garbage.line, text: garbage.text })
    }

    /// What became of it.
    fn judge(&self, ended: &Ended) -> Result<(), Failure> {
        if ended.status.success() {
            return Ok(());
        }
        if let Some(signal) = ended.status.signal() {
            return Err(Failure::Killed { tool: self.name(), signal });
        }
        let privileged = capability::net_admin().unwrap_or(true);
        let tool = self.name();
        let code = ended.status.code();
        Err(Complaint { tool: &tool, text: &ended.complaints, code, privileged }.failure())
    }

    fn io(&self, error: io::Error) -> Failure {
        let tool = self.name();
        match error.kind() {
            io::ErrorKind::TimedOut => Failure::TimedOut { tool, after: self.environment.run_time },
            _ => Failure::Io { tool, error },
        }
    }

    fn name(&self) -> String {
        name_of(self.program)
    }
}

/// Restores, saves, and lists a chain.
fn programs(name: &str) -> [String; 3] {
    [format!("{name}-restore"), format!("{name}-save"), name.to_owned()]
}

fn name_of(program: &Path) -> String {
    program.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

fn ask_version(environment: &Environment, program: &Path) -> Result<(Version, Backend), Failure> {
    let call = Call::new(environment, program);
    let mut said = String::new();
    let ended = call.run(&["--version"], |process| {
        process.feed(&[])?;
        process.take(SAID).read_to_string(&mut said).map(|_| ())
    })?;
    call.judge(&ended)?;
    Version::read(&said).ok_or_else(|| Failure::Garbage { tool: call.name(), line: 1, text: shortened(&said) })
}

#[cfg(test)]
mod tests;
