//! Measures the pipeline inside one process: decode, store and resolve, the engine's thread, commit, acknowledgement.

mod engines;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::bail;
use ferry_api::object::{Family, Kind, KubeObject};
use ferry_api::wire::{Document, decode_manifest};
use ferry_kernel::nft::{ElementData, NftBatch, NftSocket, Set, SetFlags, data_type};
use ferry_kube_proxy::core::{Core, CoreSetup, EngineHandle, NodeFacts};
use ferry_kube_proxy::events::Recorder;
use ferry_kube_proxy::health::Pulse;
use ferry_kube_proxy::input::Input;
use ferry_kube_proxy::metrics::Metrics;
use ferry_kube_proxy::report::{ChangeReporter, Reports};
use ferry_lab::Mode;
use ferry_model::Settings;
use ferry_model::store::Event;
use ferry_plane::mailbox::{Arrival, Mailbox, Receiver as MailReceiver};
use ferry_plane_nftables::kernel::Written;

use crate::objects::{self, ENDPOINTS};
use crate::stats::{self, memory_mib, stat_cpu, thread_cpu};
use engines::Measured;

/// Rounds of each kind of change.
const ROUNDS: usize = 2000;

/// The engine thread's report of one sync pass.
pub(crate) struct PassReport {
    pub(crate) acknowledged: Instant,
    pub(crate) cpu: Duration,
    /// CPU time of the tool
    pub(crate) tool: Duration,
    split: (Duration, Duration),
    pub(crate) ops: usize,
    /// number of acknowledged units
    pub(crate) units: usize,
    written: Written,
}

/// The pipeline: the core on this thread, the engine on its own thread.
pub(crate) struct Pipe {
    core: Core,
    passes: Receiver<PassReport>,
    last: Written,
}

pub(crate) fn run(services: usize) -> anyhow::Result<()> {
    let mut pipe = Pipe::start(Mode::NFTABLES)?;
    load(&mut pipe, services)?;
    let mut empty = Empty::open()?;
    let mut replaced = Vec::new();
    let mut nothing = Vec::new();
    let mut bytes = Written::default();
    for round in 0..ROUNDS {
        // Replaced in one round, restored in the next.
        let index = (round / 2).wrapping_mul(7919) % services;
        let mut endpoints = objects::first_endpoints(index);
        if round.is_multiple_of(2)
            && let Some(third) = endpoints.get_mut(3)
        {
            *third = objects::endpoint(index, 15);
        }
        let (elapsed, written) = pipe.change(slice(index, &endpoints)?)?;
        replaced.push(elapsed);
        bytes = written;
        nothing.push(empty.commit()?);
    }
    stats::print("empty netlink commit", nothing, "");
    stats::print("endpoint replaced: event in -> acknowledged", replaced, &sent(bytes));
    counts(&mut pipe, services, &mut empty)?;
    context(&mut pipe)?;
    drop(pipe);
    restart(services)
}

fn sent(written: Written) -> String {
    format!("{} bytes in {} messages", written.bytes, written.messages)
}

pub(crate) fn load(pipe: &mut Pipe, services: usize) -> anyhow::Result<()> {
    let before = thread_cpu();
    let mut events = vec![Event::Restart(Kind::Service), Event::Restart(Kind::EndpointSlice)];
    for (_, text) in objects::files(services) {
        events.extend(decode(&text)?);
    }
    events.extend([Kind::Node, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    let decoded = thread_cpu();
    pipe.core.take(Input::Events(events));
    pipe.core.decide()?;
    let resolved = thread_cpu();
    let pass = pipe.passes.recv()?;
    ferry_kernel::memory::trim();
    println!("manifests -> objects                         {:8.1} ms cpu", ms(decoded - before));
    println!("objects -> resolved                          {:8.1} ms cpu", ms(resolved - decoded));
    println!(
        "resolved -> kernel                           {:8.1} ms cpu (user {:.0}, system {:.0})  {} operations, {}",
        ms(pass.cpu),
        ms(pass.split.0),
        ms(pass.split.1),
        pass.ops,
        sent(pass.written)
    );
    println!(
        "this process                                 {:8.1} MiB resident, {:.1} peak",
        memory_mib("self", "VmRSS")?,
        memory_mib("self", "VmHWM")?
    );
    pipe.last = pass.written;
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Measures changes of the number of endpoints and of services.
fn counts(pipe: &mut Pipe, services: usize, empty: &mut Empty) -> anyhow::Result<()> {
    let (mut added, mut removed, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    let (mut born, mut gone) = (Vec::new(), Vec::new());
    let mut bytes = [Written::default(); 4];
    for round in 0..ROUNDS / 4 {
        let index = round.wrapping_mul(7919) % services;
        let mut endpoints = objects::first_endpoints(index);
        endpoints.push(objects::endpoint(index, ENDPOINTS));
        let change = pipe.change(slice(index, &endpoints)?)?;
        added.push(change.0);
        endpoints.pop();
        let back = pipe.change(slice(index, &endpoints)?)?;
        removed.push(back.0);
        let new = services + round;
        let text = objects::service(new) + &objects::slice(new, &objects::first_endpoints(new));
        let birth = pipe.change(decode(&text)?)?;
        born.push(birth.0);
        let death = decode(&text)?.into_iter().filter_map(|event| match event {
            Event::Upsert(object) => Some(Event::Delete(object.kind(), object.name().clone())),
            Event::Restart(_) | Event::Delete(..) | Event::Unreadable(..) | Event::Synced(_) => None,
        });
        let death = pipe.change(death.collect())?;
        gone.push(death.0);
        bytes = [change.1, back.1, birth.1, death.1];
        nothing.push(empty.commit()?);
    }
    let [first, second, third, fourth] = bytes;
    stats::print("empty netlink commit", nothing, "");
    stats::print("endpoint added", added, &sent(first));
    stats::print("endpoint removed", removed, &sent(second));
    stats::print("service added", born, &sent(third));
    stats::print("service removed", gone, &sent(fourth));
    Ok(())
}

/// Measures a change of the node's pod range, with all rules that depend on it.
fn context(pipe: &mut Pipe) -> anyhow::Result<()> {
    let before = thread_cpu();
    let started = Instant::now();
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: bench}\nspec: {podCIDRs: [10.245.0.0/16]}\n";
    pipe.core.take(Input::Events(decode(node)?));
    pipe.core.decide()?;
    let resolved = thread_cpu() - before;
    let pass = pipe.passes.recv()?;
    println!(
        "context change                               {:8.1} ms ({:.1} ms cpu core, {:.1} ms cpu engine), {} operations",
        ms(pass.acknowledged - started),
        ms(resolved),
        ms(pass.cpu),
        pass.ops
    );
    pipe.last = pass.written;
    Ok(())
}

/// Measures the start of a second engine with the first one's rules and the same objects.
fn restart(services: usize) -> anyhow::Result<()> {
    let mut pipe = Pipe::start(Mode::NFTABLES)?;
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: bench}\nspec: {podCIDRs: [10.245.0.0/16]}\n";
    let mut events = decode(node)?;
    for (_, text) in objects::files(services) {
        events.extend(decode(&text)?);
    }
    events.extend([Kind::Node, Kind::Service, Kind::EndpointSlice].map(Event::Synced));
    pipe.core.take(Input::Events(events));
    pipe.core.decide()?;
    let pass = pipe.passes.recv()?;
    println!(
        "restart with nothing to do                   {:8.1} ms cpu engine, {} commits, {} operations",
        ms(pass.cpu),
        pass.written.commits,
        pass.ops
    );
    Ok(())
}

pub(crate) fn decode(text: &str) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for document in decode_manifest(text).complete().map_err(|error| anyhow::anyhow!("{error}"))? {
        if let Document::Object(object) = document {
            events.push(Event::Upsert(object));
        }
    }
    Ok(events)
}

pub(crate) fn slice(index: usize, endpoints: &[std::net::Ipv4Addr]) -> anyhow::Result<Vec<Event>> {
    let events = decode(&objects::slice(index, endpoints))?;
    anyhow::ensure!(matches!(events.as_slice(), [Event::Upsert(KubeObject::EndpointSlice(_))]), "one slice");
    Ok(events)
}

// === impl Pipe ===

impl Pipe {
    pub(crate) fn start(mode: Mode) -> anyhow::Result<Self> {
        let (sender, mailbox) = Mailbox::new();
        let (said, passes) = sync_channel(16);
        let engine = engines::open(mode)?;
        std::thread::Builder::new().name("sync-v4".to_owned()).spawn(move || drive(engine, &mailbox, &said))?;
        let now = Instant::now();
        let metrics = Arc::new(Metrics::new()?);
        let config = engines::defaults(&mode);
        let setup = CoreSetup {
            settings: Settings::from_config(&config, "bench"),
            config,
            profile: mode.profile,
            addresses: Vec::new(),
            node: NodeFacts::Local,
            engines: vec![EngineHandle::new(Family::V4, sender, Arc::new(Pulse::new(now)))],
            changes: ChangeReporter::new(metrics, Reports::default(), vec![Family::V4]),
            eligible: Arc::new(AtomicBool::new(true)),
            changed: None,
            in_use: |_| Ok(false),
            recorder: Recorder::nobody(),
        };
        Ok(Self { core: Core::new(setup), passes, last: Written::default() })
    }

    /// Measures the time from the event to the acknowledgement, and the data sent for it.
    pub(crate) fn change(&mut self, events: Vec<Event>) -> anyhow::Result<(Duration, Written)> {
        let before = self.last;
        let (elapsed, pass) = self.pass(events)?;
        let written = Written {
            commits: pass.written.commits - before.commits,
            messages: pass.written.messages - before.messages,
            bytes: pass.written.bytes - before.bytes,
        };
        Ok((elapsed, written))
    }

    /// The same, with the report of the sync pass.
    pub(crate) fn pass(&mut self, events: Vec<Event>) -> anyhow::Result<(Duration, PassReport)> {
        let started = Instant::now();
        self.start_change(events)?;
        let pass = self.next_pass()?;
        Ok((pass.acknowledged - started, pass))
    }

    /// Sends a change to the engine without waiting for its commit.
    pub(crate) fn start_change(&mut self, events: Vec<Event>) -> anyhow::Result<()> {
        self.core.take(Input::Events(events));
        self.core.decide()?;
        Ok(())
    }

    pub(crate) fn next_pass(&mut self) -> anyhow::Result<PassReport> {
        let pass = self.passes.recv()?;
        self.last = pass.written;
        Ok(pass)
    }
}

/// CPU time of this thread, and of the tools that have ended, which the kernel counts in ticks of 10 ms.
fn cpu() -> (Duration, Duration) {
    let (user, system) = stats::children_cpu(std::process::id()).unwrap_or_default();
    (thread_cpu(), user + system)
}

/// The engine's thread: the executable's loop for a change, with time measurements.
fn drive(mut engine: Box<dyn Measured>, mailbox: &MailReceiver, said: &SyncSender<PassReport>) {
    let stat = || stat_cpu("/proc/thread-self/stat").unwrap_or_default();
    while mailbox.wait(None) == Arrival::Delta {
        let Some(delta) = mailbox.take() else { continue };
        let first = engine.is_new();
        let (before, split) = (cpu(), if first { stat() } else { Default::default() });
        engine.offer(delta);
        let outcome = engine.sync(Instant::now());
        let acknowledged = Instant::now();
        let after = cpu();
        let (cpu, tool) = (after.0 - before.0, after.1.saturating_sub(before.1));
        if let Some(error) = &outcome.error {
            println!("failed: {error}");
        }
        let after = if first { stat() } else { Default::default() };
        let split = (after.0.saturating_sub(split.0), after.1.saturating_sub(split.1));
        let (ops, units, written) = (outcome.ops, outcome.acked.len(), engine.written());
        if said.send(PassReport { acknowledged, cpu, tool, split, ops, units, written }).is_err() {
            return;
        }
        // The executable does this between changes: the check for foreign changes.
        drop(engine.tend(Instant::now()));
    }
}

/// The minimal commit, for comparison: adds an element to a private set, or removes it.
pub(crate) struct Empty {
    socket: NftSocket,
}

impl Empty {
    const TABLE: &str = "bench";
    const SET: &str = "scratch";

    fn batch() -> NftBatch {
        NftBatch::new(Family::V4, Self::TABLE)
    }

    pub(crate) fn open() -> anyhow::Result<Self> {
        let mut socket = NftSocket::open()?;
        let mut batch = Self::batch();
        batch.add_table(None);
        batch.add_set(&Set {
            name: Self::SET.to_owned(),
            key_type: data_type::IPV4_ADDR,
            key_len: 4,
            data: None,
            flags: SetFlags::default(),
            field_lens: Vec::new(),
            size: None,
            timeout: None,
            userdata: Vec::new(),
        });
        match socket.commit(batch) {
            Ok(_) => Ok(Self { socket }),
            Err(failure) => bail!("{failure}"),
        }
    }

    pub(crate) fn commit(&mut self) -> anyhow::Result<Duration> {
        let mut batch = Self::batch();
        batch.add_element(Self::SET, &[1, 2, 3, 4], None, ElementData::None);
        batch.delete_element(Self::SET, &[1, 2, 3, 4], None);
        let started = Instant::now();
        match self.socket.commit(batch) {
            Ok(_) => Ok(started.elapsed()),
            Err(failure) => bail!("{failure}"),
        }
    }
}
