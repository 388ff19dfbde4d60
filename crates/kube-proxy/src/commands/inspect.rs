//! The subcommands that show something instead of running.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ferry_api::wire::address::parse_ip;
use ferry_model::Settings;

use super::print;
use super::subject::Subject;
use crate::cli::{Flags, Inspection};
use crate::inspect::{
    Comparison, Connection, ExplainRequest, InspectedNode, LocalAddresses, PlanRequest, Question, RenderRequest,
    TraceRequest, VerifyRequest, explain, plan, render, service_name, trace, verify, wants_colours,
};
use crate::platform::WatchLimits;
use crate::self_test;

/// The value of `--local-addresses` for those of this machine.
const OF_MACHINE: &str = "machine";
/// The exit code where the kernel differs from what it should be.
const DIFFERS: u8 = 2;
/// The time limit of `trace --live` in seconds, and its number of packets, if none are given.
const LIVE_SECONDS: u64 = 10;
const LIVE_PACKETS: u64 = 1;
/// The most that can be asked for: all paths are kept until the end.
const MOST_SECONDS: u64 = 3600;
const MOST_PACKETS: u64 = 1000;

/// The output of a subcommand, and its exit code; `asked` are its arguments.
///
/// # Errors
/// If the configuration is invalid, the objects can't be read, or the subcommand fails.
pub(super) fn output(inspection: Inspection, flags: &Flags, asked: &str) -> anyhow::Result<(String, ExitCode)> {
    let subject = Subject::of(flags)?;
    if flags.is_true("connect") {
        return connect(flags, &subject);
    }
    if let Some(note) = &subject.note {
        print(&mut io::stderr(), note, ExitCode::SUCCESS);
    }
    answer(inspection, flags, asked, &subject)
}

/// Has the running proxy test its data path.
fn connect(flags: &Flags, subject: &Subject) -> anyhow::Result<(String, ExitCode)> {
    if flags.number("sample").is_some() || flags.is_true("all") {
        bail!("--connect is about a Service of the test's own: leave --sample and --all out");
    }
    let running = subject
        .running()
        .context("--connect is about a running kube-proxy: there is none, or flags name another source")?;
    let results = running.self_test()?;
    let text = self_test::text(&results).context("the running kube-proxy's answer is of another version")?;
    let text = if flags.is_true("json") { format!("{results}\n") } else { text };
    Ok((text, if self_test::fails(&results) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS }))
}

/// Runs a subcommand on this configuration and these objects.
pub(super) fn answer(
    inspection: Inspection,
    flags: &Flags,
    asked: &str,
    subject: &Subject,
) -> anyhow::Result<(String, ExitCode)> {
    let config = &subject.configured.config;
    let settings = &Settings::from_config(config, &subject.configured.node_name);
    let addresses = local_addresses(flags.list("local-addresses"), inspection, subject.running().is_some())?;
    let missing_schedulers = subject.missing_schedulers();
    let node = InspectedNode { config, settings, addresses, missing_schedulers };
    let (json, colours) = (flags.is_true("json"), wants_colours());
    match inspection {
        Inspection::Explain => {
            let question = question(flags, asked)?;
            let quarantined = subject.quarantined();
            let request = ExplainRequest { node, question, quarantined, json, colours };
            Ok((explain(subject.objects(settings)?, &request)?, ExitCode::SUCCESS))
        }
        Inspection::Plan => {
            let request = PlanRequest { node, json, colours };
            Ok(compared(plan(subject.objects(settings)?, &request)?))
        }
        Inspection::Trace => {
            let interface = flags.path("in").map(str::to_owned);
            let connection = Connection { interface, ..asked.parse()? };
            let live = live(flags)?;
            let request = TraceRequest { node, connection, live, json, colours };
            Ok(compared(trace(subject.objects(settings)?, &request)?))
        }
        Inspection::Verify => {
            let request = VerifyRequest { node, sample: sample(flags)?, json, colours };
            Ok(compared(verify(subject.objects(settings)?, &request)?))
        }
        Inspection::Render => {
            let service = flags.path("service").map(service_name).transpose().context("--service")?;
            let request = RenderRequest { node, service, part: flags.path("part"), json };
            Ok((render(subject.objects(settings)?, &request)?, ExitCode::SUCCESS))
        }
    }
}

/// Parses the question of `explain`.
///
/// # Errors
/// If the text is no question, or `--in` is given for a question that isn't about a connection.
pub(super) fn question(flags: &Flags, asked: &str) -> anyhow::Result<Question> {
    let mut question: Question = asked.parse()?;
    if let Question::Connection(connection) = &mut question {
        connection.interface = flags.path("in").map(str::to_owned);
    } else if flags.path("in").is_some() {
        bail!("--in is about a connection, CLIENT -> IP:PORT");
    }
    Ok(question)
}

fn compared(Comparison { text, differs, failed }: Comparison) -> (String, ExitCode) {
    let code = match (failed, differs) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(DIFFERS),
        (false, false) => ExitCode::SUCCESS,
    };
    (text, code)
}

/// The number of Services to compare; `None` for all.
fn sample(flags: &Flags) -> anyhow::Result<Option<usize>> {
    let Some(number) = flags.number("sample") else { return Ok(None) };
    if flags.is_true("all") {
        bail!("--sample and --all exclude each other: give one");
    }
    match usize::try_from(number) {
        Ok(number) if number > 0 => Ok(Some(number)),
        Ok(_) | Err(_) => bail!("--sample {number}: give a number of Services from 1 on"),
    }
}

/// The limits of watching packets; `None` unless it is asked for.
fn live(flags: &Flags) -> anyhow::Result<Option<WatchLimits>> {
    let number = |flag: &'static str, default, most| match flags.number(flag).map(u64::try_from) {
        None => Ok(default),
        Some(Ok(number)) if (1..=most).contains(&number) => Ok(number),
        Some(_) => bail!("--{flag}: give a number from 1 to {most}"),
    };
    let seconds = number("seconds", LIVE_SECONDS, MOST_SECONDS)?;
    let packets = number("packets", LIVE_PACKETS, MOST_PACKETS)?;
    if !flags.is_true("live") {
        if let Some(flag) = ["seconds", "packets"].into_iter().find(|flag| flags.number(flag).is_some()) {
            bail!("--{flag} is about watching packets: give --live, too");
        }
        return Ok(None);
    }
    Ok(Some(WatchLimits { time: Duration::from_secs(seconds), packets: usize::try_from(packets)? }))
}

/// The addresses of a list, or this machine's. What is compared with a kernel is about this machine, and so is a running proxy.
fn local_addresses(
    list: Option<Vec<String>>,
    inspection: Inspection,
    is_running: bool,
) -> anyhow::Result<LocalAddresses> {
    let Some(list) = list else {
        return Ok(match inspection {
            _ if is_running => LocalAddresses::OfMachine,
            Inspection::Plan | Inspection::Trace | Inspection::Verify => LocalAddresses::OfMachine,
            Inspection::Explain | Inspection::Render => LocalAddresses::OfNode,
        });
    };
    if list == [OF_MACHINE] {
        return Ok(LocalAddresses::OfMachine);
    }
    let address = |text: &String| {
        parse_ip(text)
            .with_context(|| format!("--local-addresses {text:?} is not an IP address, nor {OF_MACHINE:?} alone"))
    };
    Ok(LocalAddresses::These(list.iter().map(address).collect::<anyhow::Result<_>>()?))
}
