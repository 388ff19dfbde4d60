//! Parses the command line like upstream's flag library, with its error texts, output streams and exit codes.

mod describe;
mod inspections;
mod overlay;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use ferry_api::config::{GoDuration, VModule};

pub use inspections::{INSPECTIONS, Inspected, Inspection};
pub use overlay::{apply, apply_logging, apply_own};
pub use table::{Effect, FLAGS, Flag, ValueKind};

/// The given flags by name, each with its values in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags(BTreeMap<&'static str, Vec<String>>);

/// The requested action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedAction {
    /// run, or a command flag
    Run(Flags),
    /// show something, with what is asked
    Inspect(Inspection, Flags, String),
    /// print this on stdout and exit 0
    Print(String),
}

/// An invalid command line: the text for stderr, before exit 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// The id of positional arguments.
const POSITIONALS: &str = "args";

/// Parses a command line, including the program's name.
///
/// # Errors
/// If a flag is unknown, a value is invalid, or there are positional arguments.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<RequestedAction, UsageError> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let inspected = args.get(1).and_then(|name| name.to_str()).and_then(Inspected::named);
    if inspected.is_some() {
        args.remove(1);
        join_arrow(&mut args);
    }
    let mut command = command(inspected);
    let matches = match command.try_get_matches_from_mut(&args) {
        Ok(matches) => matches,
        Err(error) => return Err(usage(&mut command, &message(&error, &args))),
    };
    let flags = given(&matches, inspected).map_err(|error| usage(&mut command, &error))?;
    if matches.get_flag("help") {
        return Ok(RequestedAction::Print(command.render_help().to_string()));
    }
    let positionals: Vec<&String> = matches.get_many(POSITIONALS).into_iter().flatten().collect();
    let takes_arguments = inspected.is_some_and(|inspected| !inspected.arguments.is_empty());
    if positionals.iter().any(|text| !text.is_empty()) && !takes_arguments {
        let list: Vec<String> = positionals.iter().map(|text| format!("{text:?}")).collect();
        let name =
            inspected.map_or_else(|| "kube-proxy".to_owned(), |inspected| format!("kube-proxy {}", inspected.name));
        let message = format!("{name:?} does not take any arguments, got [{}]", list.join(" "));
        return Err(UsageError(format!("Error: {message}\n")));
    }
    version_asked(&flags).map_err(|error| usage(&mut command, &error)).map(|asked| match asked {
        Some(text) => RequestedAction::Print(text),
        None => match inspected {
            Some(inspected) => {
                let asked: Vec<&str> = positionals.iter().map(|text| text.as_str()).collect();
                RequestedAction::Inspect(inspected.inspection, flags, asked.join(" "))
            }
            None => RequestedAction::Run(flags),
        },
    })
}

/// The output of `--version`, if it was given and isn't false.
fn version_asked(flags: &Flags) -> Result<Option<String>, String> {
    match flags.text("version") {
        None => Ok(None),
        Some("raw") => Ok(Some(format!("{}\n", crate::version::raw()))),
        Some(text) if text.starts_with('v') => match crate::version::reported_as(text) {
            Some(version) => Ok(Some(format!("Kubernetes {version}\n"))),
            None => Err(format!(
                "invalid argument {text:?} for \"--version\" flag: {text:?} is not {} with a suffix",
                crate::version::UPSTREAM
            )),
        },
        Some(text) => {
            Ok(value::boolean(text).unwrap_or(false).then(|| format!("Kubernetes {}\n", crate::version::UPSTREAM)))
        }
    }
}

/// Joins the arguments around an arrow, which would be taken for a flag.
pub(crate) fn join_arrow(args: &mut Vec<OsString>) {
    let arrow = args.windows(3).position(|window| matches!(window, [_, arrow, _] if arrow.to_str() == Some("->")));
    let Some(at) = arrow else { return };
    let joined: Vec<OsString> = args.drain(at..at + 3).collect();
    args.insert(at, joined.join(&OsString::from(" ")));
}

/// True for a flag that sets a field of the configuration.
fn sets_configuration(name: &str) -> bool {
    let own = ["hostname-override", "proxy-mode-fallback", "udp-timeout"];
    let is_set = |flag: &&Flag| flag.name == name && matches!(flag.effect, Effect::Config | Effect::Deprecated);
    own.contains(&name) || FLAGS.iter().any(|flag| is_set(&flag))
}

/// The parser of a subcommand, or of the program itself.
fn command(inspected: Option<&Inspected>) -> Command {
    let about = "Programs this node's kernel so that the addresses of Kubernetes Services lead to their endpoints.";
    let mut command = Command::new("kube-proxy")
        .about(inspected.map_or(about, |inspected| inspected.about))
        .help_template(help_template(inspected))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .term_width(120)
        .arg(Arg::new(POSITIONALS).num_args(0..).action(ArgAction::Append).hide(true))
        .arg(Arg::new("help").short('h').long("help").action(ArgAction::SetTrue).help("help for kube-proxy"));
    for flag in flags_of(inspected) {
        command = command.arg(argument(flag));
    }
    command
}

/// All flags of a subcommand, its own first, or of the program itself.
fn flags_of(inspected: Option<&Inspected>) -> impl Iterator<Item = &'static Flag> {
    let own = inspected.map_or(&[][..], |inspected| inspected.flags);
    own.iter().chain(FLAGS)
}

fn help_template(inspected: Option<&Inspected>) -> String {
    let flags = "Flags:\n{options}\n";
    let Some(Inspected { name, arguments, examples, .. }) = inspected else {
        let names: Vec<String> =
            INSPECTIONS.iter().map(|inspected| format!("  {:<8}{}", inspected.name, inspected.about)).collect();
        let commands = format!("Subcommands:\n{}\n", names.join("\n"));
        return format!("{{about}}\n\nUsage:\n  kube-proxy [flags]\n\n{flags}\n{commands}");
    };
    let examples: Vec<String> = examples.iter().map(|(line, what)| format!("  # {what}\n  {line}")).collect();
    let examples = format!("Examples:\n{}\n", examples.join("\n"));
    let usage = format!("kube-proxy {name} [flags] {arguments}");
    format!("{{about}}\n\nUsage:\n  {}\n\n{examples}\n{flags}", usage.trim_end())
}

fn argument(flag: &Flag) -> Arg {
    let default = if flag.default.is_empty() { String::new() } else { format!(" (default {})", flag.default) };
    let argument = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .value_name(flag.kind.word())
        .hide(flag.is_of_older_releases())
        .help(format!("{}{default}", flag.help));
    let argument = if flag.kind.is_optional() {
        argument.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        argument.num_args(1).allow_hyphen_values(true)
    };
    let argument = if flag.name == "v" { argument.short('v') } else { argument };
    // Upstream's flag library treats underscores as dashes.
    if flag.name.contains('-') { argument.alias(flag.name.replace('-', "_")) } else { argument }
}

/// All given values, checked in the order of the command line.
fn given(matches: &ArgMatches, inspected: Option<&Inspected>) -> Result<Flags, String> {
    let mut values: Vec<(usize, &Flag, &String)> = Vec::new();
    for flag in flags_of(inspected) {
        let indices = matches.indices_of(flag.name).into_iter().flatten();
        let texts = matches.get_many::<String>(flag.name).into_iter().flatten();
        values.extend(indices.zip(texts).map(|(index, text)| (index, flag, text)));
    }
    values.sort_by_key(|(index, ..)| *index);
    let mut flags = Flags::default();
    for (_, flag, text) in values {
        value::check(flag.kind, text).map_err(|cause| {
            let name = if flag.name == "v" { "-v, --v".to_owned() } else { format!("--{}", flag.name) };
            format!("invalid argument {text:?} for {name:?} flag: {cause}")
        })?;
        flags.0.entry(flag.name).or_default().push(text.clone());
    }
    Ok(flags)
}

/// The usage text, a blank line, `Error: …`.
fn usage(command: &mut Command, message: &str) -> UsageError {
    UsageError(format!("{}\nError: {message}\n", command.render_help()))
}

/// The flag library's text for an error of clap.
fn message(error: &clap::Error, args: &[OsString]) -> String {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        _ => String::new(),
    };
    let flag = context(ContextKind::InvalidArg);
    // clap names an argument by its usage: "--config <string>".
    let name = flag.split([' ', '=', '[']).next().unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => unknown(name, args),
        ErrorKind::InvalidValue | ErrorKind::NoEquals | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            match name {
                "-v" | "--v" => "flag needs an argument: 'v' in -v".to_owned(),
                _ => format!("flag needs an argument: {name}"),
            }
        }
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    }
}

/// A single dash begins shorthands: `-config` is the shorthands c, o, n, f, i, g.
fn unknown(name: &str, args: &[OsString]) -> String {
    match name.strip_prefix("--") {
        Some(_) => format!("unknown flag: {name}"),
        None => {
            let shorthand = name.trim_start_matches('-').chars().next().unwrap_or('-');
            let group = args
                .iter()
                .filter_map(|argument| argument.to_str())
                .find(|text| text.starts_with('-') && !text.starts_with("--") && text.contains(shorthand))
                .unwrap_or(name);
            format!("unknown shorthand flag: '{shorthand}' in {group}")
        }
    }
}

// === impl Flags ===

impl Flags {
    /// The last value of a flag, if it was given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str)
    }

    /// The last value of a text flag; the empty text counts as not given.
    pub fn path(&self, name: &str) -> Option<&str> {
        self.text(name).filter(|text| !text.is_empty())
    }

    /// True if a boolean flag was given and is true.
    pub fn is_true(&self, name: &str) -> bool {
        self.boolean(name).unwrap_or(false)
    }

    /// A boolean flag, if it was given.
    pub fn boolean(&self, name: &str) -> Option<bool> {
        self.text(name).and_then(|text| value::boolean(text).ok())
    }

    /// A number, if it was given.
    pub fn number(&self, name: &str) -> Option<i32> {
        self.text(name).and_then(|text| value::int32(text).ok())
    }

    /// A verbosity, if it was given.
    pub fn level(&self, name: &str) -> Option<u32> {
        self.text(name).and_then(|text| value::level(text).ok())
    }

    /// A floating-point number, if it was given.
    pub fn float(&self, name: &str) -> Option<f32> {
        self.text(name).and_then(|text| value::float32(text).ok())
    }

    /// A quantity in canonical form, if it was given.
    pub fn quantity(&self, name: &str) -> Option<String> {
        self.text(name).and_then(|text| value::quantity(text).ok())
    }

    /// Feature gates, if given: all uses, merged.
    pub fn gates(&self, name: &str) -> Option<BTreeMap<String, bool>> {
        let texts = self.0.get(name)?;
        Some(texts.iter().filter_map(|text| value::gates(text).ok()).flatten().collect())
    }

    /// Patterns of source files with their verbosity: all uses, joined.
    pub fn vmodule(&self, name: &str) -> Vec<VModule> {
        let texts = self.0.get(name).into_iter().flatten();
        texts.filter_map(|text| value::vmodule(text).ok()).flatten().collect()
    }

    /// A duration, if it was given.
    pub fn duration(&self, name: &str) -> Option<GoDuration> {
        self.text(name).and_then(|text| value::duration(text).ok())
    }

    /// A list, if given: all uses, joined.
    pub fn list(&self, name: &str) -> Option<Vec<String>> {
        let texts = self.0.get(name)?;
        Some(texts.iter().filter_map(|text| value::list(text).ok()).flatten().collect())
    }

    /// The given flags that set the configuration of a run, by name, without those of the log and those with credentials.
    pub fn of_configuration(&self) -> BTreeMap<String, Vec<String>> {
        let of = |(name, values): (&&'static str, &Vec<String>)| {
            sets_configuration(name).then(|| ((*name).to_owned(), values.clone()))
        };
        self.0.iter().filter_map(of).collect()
    }

    /// Adds the flags of another process, as [`Self::of_configuration`] returned them there. Unknown flags are left out.
    #[must_use]
    pub fn with_configuration(&self, given: &BTreeMap<String, Vec<String>>) -> Self {
        let known = FLAGS.iter().filter(|flag| sets_configuration(flag.name));
        let given = known.filter_map(|flag| Some((flag.name, given.get(flag.name)?.clone())));
        Self(self.0.clone().into_iter().chain(given).collect())
    }

    /// Sets the mode of a subcommand, unless a flag sets it.
    #[must_use]
    pub fn or_mode(mut self, mode: &str) -> Self {
        self.0.entry(inspections::MODE.name).or_insert_with(|| vec![mode.to_owned()]);
        self
    }

    /// What upstream's flag library prints for each given flag that is deprecated, a line each.
    pub fn deprecations(&self) -> impl Iterator<Item = String> {
        self.with_effect(Effect::Deprecated).map(|name| {
            let instead = name.replace("port", "bind-address");
            format!(
                "Flag --{name} has been deprecated, This flag is deprecated and will be removed in a future release. \
                 Please use --{instead} instead.\n"
            )
        })
    }

    /// The given flags with this effect, sorted by name.
    pub fn with_effect(&self, effect: Effect) -> impl Iterator<Item = &'static str> {
        let given = move |flag: &&Flag| flag.effect == effect && self.0.contains_key(flag.name);
        FLAGS.iter().filter(given).map(|flag| flag.name)
    }
}
