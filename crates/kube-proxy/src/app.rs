//! Starts the proxy: creates source, core, engines and servers in order, connects them, and runs the main thread.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fs::File;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ferry_api::config::KubeProxyConfiguration;
use ferry_api::object::Family;
use ferry_model::{Profile, Settings};
use ferry_plane::mailbox::Mailbox;
use ferry_plane::{SyncEngine, thread_name};
use tokio::task::{LocalSet, spawn_blocking};

use crate::control::{self, Control, ControlSetup, GivenConfiguration};
use crate::core::{Core, Desk, EngineHandle, NodeFacts};
use crate::engine_loop;
use crate::events::{KubeEvent, Recorder};
use crate::flows::{Behind, FlowObserver, FlowReports, Replies};
use crate::handover::Handover;
use crate::health::{DataPath, Freshness, Pulse, Pulses};
use crate::input::Input;
use crate::metrics::Metrics;
use crate::origin::{Opened, Origin, Source};
use crate::planes::{Candidates, EffectiveMode, InheritedSockets, Onward, Opening, RuleDomain, Serving, Way};
use crate::platform::supervisor::{self, Readiness};
use crate::reload::{self, Reload};
use crate::report::{ChangeReporter, Inbox, Reporter, Reports, SharedInbox};
use crate::self_test::SelfTest;
use crate::serve::healthz::Health;
use crate::serve::http::{self, BlockingAnswers, Routes};
use crate::serve::service_health::{HealthCheckReports, ServiceHealth};
use crate::serve::status::{MetricsServer, Pages, Setup};
use crate::snapshot::{ObjectHandOver, SnapshotPeers, SnapshotSetup};
use crate::source::{self, Sink};
use crate::threads::{STACK_BYTES, ThreadEnds, Threads};
use crate::ui::{Access, PageSetup, StatusPage};
use crate::{core, flows, planes, platform, version};

/// The inputs of a run.
#[derive(Debug)]
pub struct RunOptions {
    /// the configured mode and its fallbacks
    pub candidates: Candidates,
    /// valid, with all defaults; its mode is the configured one
    pub config: KubeProxyConfiguration,
    /// the settings of this configuration that affect traffic
    pub settings: Settings,
    /// where /healthz and /livez are served; `None` for nowhere
    pub healthz: Option<SocketAddr>,
    /// where /metrics is served
    pub metrics: SocketAddr,
    /// every flag with its value, sorted by name
    pub flags: Vec<(String, String)>,
    /// the configuration before its defaults
    pub given: GivenConfiguration,
    /// listening sockets of the process before
    pub sockets: InheritedSockets,
}

/// Batches that may wait for the core before the source has to.
const INPUTS: usize = 64;
/// Longest wait of an initialisation for the Node where there is a snapshot.
const LOOKUP: Duration = Duration::from_secs(1);

/// Runs until an unrecoverable failure. Signals end the process, at once unless it serves connections itself; the rules stay in the
/// kernel. After a reload, `handed` are the objects of the run before.
pub fn run(options: RunOptions, origin: Origin, reload: Reload, handed: Option<File>) -> anyhow::Result<()> {
    prepare_process(&options)?;
    let metrics = new_metrics(&options.config)?;
    let Opened { source, node, freshness, recorder, cluster } = origin.open(&options.settings, &metrics)?;
    let (threads, ends) = Threads::new();
    // The modes' threads have inputs for the core, too.
    let (inputs, input) = mpsc::sync_channel(INPUTS);
    let node_name = &options.settings.node_name;
    let snapshot = SnapshotSetup::new(&options.config.ferry, node_name, cluster.clone(), freshness.clone());
    let supported = supported_families();
    let mode = open_mode(&options, &supported, (&threads, &inputs), (&metrics, &recorder))?;
    let EffectiveMode { plane, profile, config, settings, engines, metrics: of_mode, domains, serving, way, .. } = mode;
    metrics.add_mode(of_mode)?;
    let periods = config.effective();
    let setup = Setup::new(&config, options.flags.clone());
    let flows = start_flows(profile, serving.as_ref(), (&metrics, &threads))?;
    let handovers = start_handovers(domains, config.clone(), &flows, (&supported, &options.sockets));
    let families = families_of(&engines);
    reload.serves(&families);

    // Until the cluster has a Node object for this node, load balancers should not send to it.
    let eligible = Arc::new(AtomicBool::new(node == NodeFacts::Local));
    let reports = Reports::default();
    // In the reverse direction of the data, so that the receiver of each part exists before it.
    let pulses = new_pulses(&families);
    let timing = (periods.min_sync_period, plane.paced);
    let handles = engines.into_iter().zip(&pulses).map(|((family, engine), (_, pulse))| {
        start_engine(timing, engine, flows.observer(family), pulse, &reports, &threads)
    });
    let addresses = platform::addresses(&planes::devices()).context("listing local addresses")?;
    let desk = Desk::new(Core::new(core::CoreSetup {
        settings,
        config,
        profile,
        addresses: addresses.clone(),
        node,
        engines: handles.collect::<anyhow::Result<_>>()?,
        changes: ChangeReporter::new(Arc::clone(&metrics), reports.clone(), families.clone()),
        eligible: Arc::clone(&eligible),
        recorder: recorder.clone(),
        in_use: planes::in_use,
        changed: snapshot.as_ref().map(SnapshotSetup::changed),
    }));
    let objects = ObjectHandOver::new(desk.clone(), node_name, cluster, freshness.clone());
    take_objects(objects.as_ref(), handed, (&inputs, &metrics));
    start_snapshot(snapshot, (&desk, &inputs), (&metrics, &recorder), &threads)?;
    start_core(desk.clone(), input, &threads)?;
    start_addresses(addresses, &inputs, &threads)?;
    let health_events = Rc::new(HealthCheckReports::new(inputs.clone()));
    let self_test =
        start_self_test(&options, &families, (&desk, &inputs, periods.min_sync_period), (&metrics, &threads))?;
    start_source(source, Sink::direct(desk.clone(), inputs), &threads)?;
    recorder.record(KubeEvent::starting(node_name));

    let pulses = Pulses { families: pulses, limit: periods.sync_period * 2 };
    let health = new_health((&pulses, eligible), (&freshness, self_test.data_path()), &metrics);
    let service_health = ServiceHealth::new(node_name, (pulses.clone(), self_test.data_path()), health_events);
    // Servers and reports run on the main thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _clock = runtime.enter();
    let inbox = new_inbox(reports, plane.mode, &metrics);
    let reload = reload::follow(reload, Arc::clone(&metrics), (objects, serving.clone()));
    let (control, page) = operator_servers(&options, (plane.mode, way.as_ref()), (&desk, &inbox, &health), self_test);
    let status = MetricsServer { freshness, metrics, inbox: Rc::clone(&inbox), setup, ping: Default::default(), page };
    let follow = follow(inbox, service_health, handovers, (Readiness::new(families), pulses), serving.clone());
    let edges = edges(&options, health, (status, control), follow, (reload, ends), serving);
    match LocalSet::new().block_on(&runtime, edges)? {}
}

/// Sets what a run without privileges doesn't set, and returns.
pub fn initialize(options: &RunOptions, origin: Origin) -> anyhow::Result<()> {
    prepare_process(options)?;
    let metrics = Arc::new(Metrics::new()?);
    let Opened { source, node, recorder, .. } = origin.open(&options.settings, &metrics)?;
    let (threads, _ends) = Threads::new();
    let (inputs, input) = mpsc::sync_channel(INPUTS);
    start_source(source, Sink::new(inputs.clone()), &threads)?;
    // Where the proxy starts from a snapshot, its init container must not wait for the API server.
    let limit = Some(LOOKUP).filter(|_| !options.config.ferry.snapshot.is_empty());
    core::await_node(&options.settings.node_name, node, &input, limit)?;
    let mode = open_mode(options, &supported_families(), (&threads, &inputs), (&metrics, &recorder))?;
    mode.plane.initialize(&mode.settings)?;
    for (family, _) in &mode.engines {
        tracing::info!(%family, mode = mode.plane.mode, "System initialized and --init-only specified");
    }
    Ok(())
}

/// Opens the source and the engines as [`run`] would, and closes them again, without a thread or a rule; mode ipvs makes its
/// device and sets its parameters of the kernel. Returns the families that would be served.
///
/// # Errors
/// If [`run`] would fail with these inputs. Addresses of servers are not tried.
pub fn rehearse(options: &RunOptions, origin: Origin) -> anyhow::Result<Vec<Family>> {
    origin.open(&options.settings, &Metrics::new()?)?;
    let threads = Threads::rehearsal();
    let (inputs, _nobody) = mpsc::sync_channel(INPUTS);
    let RunOptions { candidates, config, settings, sockets, .. } = options;
    let families = &supported_families();
    let opening = Opening { families, config, settings, threads: &threads, sockets, inputs: &inputs };
    Ok(families_of(&candidates.open(&opening)?.engines))
}

/// Checks and sets what concerns the whole process, before its first thread.
fn prepare_process(options: &RunOptions) -> anyhow::Result<()> {
    platform::handle_signals().context("handling signals")?;
    let (version, mode, node) = (version::full(), options.candidates.configured(), &*options.settings.node_name);
    tracing::info!(version, mode, node, "Starting kube-proxy");
    platform::set_oom_score(options.config.oom_score_adj);
    platform::raise_open_files();
    platform::set_connection_tracking(&options.config.conntrack);
    // A hundred thousand endpoints are decoded on one thread and kept by others.
    platform::share_one_arena();
    Ok(())
}

fn families_of(engines: &[(Family, Box<dyn SyncEngine>)]) -> Vec<Family> {
    engines.iter().map(|(family, _)| *family).collect()
}

/// The control socket and the status page of a run in this mode.
fn operator_servers(
    options: &RunOptions,
    (mode, way): (&str, Option<&Way>),
    (desk, inbox, health): (&Desk, &SharedInbox, &Health),
    self_test: SelfTest,
) -> (impl Future<Output = Infallible> + use<>, Pages) {
    let (node, ferry) = (options.settings.node_name.to_string(), &options.config.ferry);
    let control = ControlSetup {
        path: ferry.control_socket.clone(),
        node: node.clone(),
        configuration: options.given.clone(),
        mode: mode.to_owned(),
        way: way.map(|way| way.name.to_owned()),
        // Objects of an API server have an age.
        manifests: health.freshness.is_none(),
    };
    let access = Access::configured(&ferry.status_page);
    let setup = PageSetup { node, mode: mode.to_owned(), access, control_socket: ferry.control_socket.clone() };
    let page = StatusPage {
        desk: desk.clone(),
        inbox: Rc::clone(inbox),
        health: health.clone(),
        setup,
        blocking: BlockingAnswers::default(),
        traces: BlockingAnswers::with_pauses(),
    };
    let control = control::serve(Control::new(desk.clone(), Rc::clone(inbox), (control, self_test)));
    (control, Box::new(move |received| page.answer(received)))
}

/// The metrics of a run with this configuration.
fn new_metrics(config: &KubeProxyConfiguration) -> anyhow::Result<Arc<Metrics>> {
    let metrics = Metrics::new()?;
    metrics.config.run(config);
    metrics.set_features(config.features());
    Ok(Arc::new(metrics))
}

/// Takes the objects of the run before, if there was one.
fn take_objects(
    objects: Option<&ObjectHandOver>,
    handed: Option<File>,
    (inputs, metrics): (&mpsc::SyncSender<Input>, &Metrics),
) {
    if let (Some(objects), Some(handed)) = (objects, handed) {
        objects.take(handed, inputs, metrics);
    }
}

/// The families of this machine's kernel.
fn supported_families() -> Vec<Family> {
    let mut families = vec![Family::V4];
    if platform::supports(Family::V6) {
        families.push(Family::V6);
    } else {
        tracing::info!(family = %Family::V6, "Family is disabled in the kernel, not serving it");
    }
    families
}

/// Opens the engines of the configured mode, or of the first fallback that can start, and reports which.
fn open_mode(
    options: &RunOptions,
    families: &[Family],
    (threads, inputs): (&Threads, &mpsc::SyncSender<Input>),
    (metrics, recorder): (&Metrics, &Recorder),
) -> anyhow::Result<EffectiveMode> {
    let RunOptions { candidates, config, settings, sockets, .. } = options;
    let mode = candidates.open(&Opening { families, config, settings, threads, sockets, inputs })?;
    let (configured, effective) = (candidates.configured(), mode.plane.mode);
    metrics.engine_mode.with_label_values(&[effective, configured]).set(1);
    if !mode.failures.is_empty() {
        let errors = mode.failures.to_string();
        tracing::warn!(configured, mode = effective, errors, "Configured mode can't start, running in a fallback mode");
        recorder.record(KubeEvent::mode_fallback(&settings.node_name, configured, effective, &errors));
    }
    if let Some(Way { name, why, .. }) = &mode.way {
        report_way(effective, name, why.as_deref(), (&settings.node_name, recorder));
    }
    tracing::info!("Using {effective} Proxier");
    Ok(mode)
}

/// Says in the log and in an Event in which way traffic reaches a mode.
fn report_way(mode: &str, way: &str, why: Option<&str>, (node, recorder): (&str, &Recorder)) {
    match why {
        Some(errors) => {
            tracing::warn!(
                mode,
                way,
                errors,
                "Way redirect can't be used, traffic reaches the proxy in another one: mend what errors names, or configure userspaceWay"
            )
        }
        None => tracing::info!(mode, way, "Way in which traffic reaches the proxy"),
    }
    recorder.record(KubeEvent::way_chosen(node, mode, way, why));
}

/// The hand-over to these domains from all others, and that of connections which wait since the mode has changed.
fn start_handovers(
    own: &[RuleDomain],
    config: KubeProxyConfiguration,
    flows: &Arc<FlowReports>,
    (supported, sockets): (&[Family], &InheritedSockets),
) -> (Handover, Onward) {
    let mut handover = Handover::new(own, Arc::clone(flows), Arc::new(config));
    if !supported.contains(&Family::V6) {
        handover.abandon(Family::V6);
    }
    (handover, Onward::new(sockets.take()))
}

/// The health of each family, from now on.
fn new_pulses(families: &[Family]) -> Vec<(Family, Arc<Pulse>)> {
    let epoch = Instant::now();
    families.iter().map(|family| (*family, Arc::new(Pulse::new(epoch)))).collect()
}

/// The receiver of the engines' reports.
fn new_inbox(reports: Reports, mode: &'static str, metrics: &Arc<Metrics>) -> SharedInbox {
    Rc::new(RefCell::new(Inbox::new(reports, Reporter::new(mode, Arc::clone(metrics)))))
}

/// The state of probes.
fn new_health(
    (pulses, eligible): (&Pulses, Arc<AtomicBool>),
    (freshness, data_path): (&Option<Arc<Freshness>>, Option<Arc<DataPath>>),
    metrics: &Arc<Metrics>,
) -> Health {
    let (pulses, freshness, metrics) = (pulses.clone(), freshness.clone(), Arc::clone(metrics));
    Health { pulses, eligible, freshness, data_path, metrics }
}

/// Prepares tests of the data path, and starts those that are configured.
fn start_self_test(
    options: &RunOptions,
    families: &[Family],
    core: (&Desk, &mpsc::SyncSender<Input>, Duration),
    (metrics, threads): (&Arc<Metrics>, &Threads),
) -> anyhow::Result<SelfTest> {
    let self_test = SelfTest::new(&options.config.ferry.self_test, families, core, metrics);
    self_test.start(threads)?;
    Ok(self_test)
}

fn start_engine(
    (min_sync_period, paced): (Duration, bool),
    engine: Box<dyn SyncEngine>,
    flows: FlowObserver,
    pulse: &Arc<Pulse>,
    reports: &Reports,
    threads: &Threads,
) -> anyhow::Result<EngineHandle> {
    let (sender, mailbox) = Mailbox::new();
    let family = flows.family();
    let setup = engine_loop::EngineLoopSetup {
        family,
        min_sync_period,
        paced,
        mailbox,
        pulse: Arc::clone(pulse),
        reports: reports.clone(),
        flows,
    };
    threads.spawn(thread_name(family), STACK_BYTES, move || engine_loop::run(setup, engine))?;
    Ok(EngineHandle::new(family, sender, Arc::clone(pulse)))
}

/// Starts the conntrack cleaner. In a mode that serves connections itself it is given the endpoints behind the proxy's listeners. Returns the
/// state through which engines report to it.
fn start_flows(
    profile: Profile,
    serving: Option<&Arc<dyn Serving>>,
    (metrics, threads): (&Arc<Metrics>, &Threads),
) -> anyhow::Result<Arc<FlowReports>> {
    let behind = serving
        .cloned()
        .map(|serving| -> Arc<Behind> { Arc::new(move |family, port| serving.endpoints_of_datagrams(family, port)) });
    let replies = Replies { owner: profile.reply_owner, behind, keeps_client_ports: profile.keeps_client_ports };
    flows::start(replies, planes::devices(), metrics, threads)
}

fn start_source(source: Source, sink: Sink, threads: &Threads) -> anyhow::Result<()> {
    threads.spawn("source", source::STACK_BYTES, move || source.run(&sink))
}

fn start_core(desk: Desk, inputs: mpsc::Receiver<Input>, threads: &Threads) -> anyhow::Result<()> {
    let failed = threads.clone();
    threads.spawn("core", STACK_BYTES, move || {
        if let Err(error) = desk.run(&inputs) {
            failed.fail(error.into());
        }
    })
}

/// Starts the snapshot's thread, if the configuration has one.
fn start_snapshot(
    snapshot: Option<SnapshotSetup>,
    (desk, inputs): (&Desk, &mpsc::SyncSender<Input>),
    (metrics, recorder): (&Arc<Metrics>, &Recorder),
    threads: &Threads,
) -> anyhow::Result<()> {
    let Some(snapshot) = snapshot else { return Ok(()) };
    let peers = SnapshotPeers {
        desk: desk.clone(),
        inputs: inputs.clone(),
        metrics: Arc::clone(metrics),
        recorder: recorder.clone(),
    };
    snapshot.start(peers, threads)
}

fn start_addresses(
    known: Vec<std::net::IpAddr>,
    core: &mpsc::SyncSender<Input>,
    threads: &Threads,
) -> anyhow::Result<()> {
    let core = core.clone();
    threads.spawn("addresses", STACK_BYTES, move || platform::follow_addresses(known, &planes::devices(), &core))
}

/// HTTP and reports, until one of them fails.
async fn edges(
    options: &RunOptions,
    health: Health,
    (status, control): (MetricsServer, impl Future<Output = Infallible>),
    follow: impl Future<Output = Infallible>,
    (reload, mut ends): (impl Future<Output = anyhow::Result<Infallible>>, ThreadEnds),
    serving: Option<Arc<dyn Serving>>,
) -> anyhow::Result<Infallible> {
    let (health, status): (Rc<dyn Routes>, Rc<dyn Routes>) = (Rc::new(health), Rc::new(status));
    tokio::select! {
        error = serve_health(options, health) => error,
        error = http::serve("metrics", options.metrics, options.config.bind_address_hard_fail, status) => {
            error.context("starting metrics server failed")
        }
        signal = platform::asked_to_end(serving.is_some()) => {
            let signal = signal.context("handling signals")?;
            if let Some(serving) = serving {
                end_serving(serving).await;
            }
            signal.end().context("ending by a signal")
        }
        error = ends.first() => Err(error),
        error = reload => error,
        never = follow => match never {},
        never = control => match never {},
    }
}

/// Leaves the listening sockets to the service manager, for the next start, and waits for the end of established connections.
async fn end_serving(serving: Arc<dyn Serving>) {
    match serving.sockets() {
        Ok(sockets) => supervisor::keep(&sockets),
        Err(error) => tracing::warn!(err = %error, "Can't leave the listening sockets to the next start"),
    }
    let patience = serving.patience();
    match spawn_blocking(move || serving.end(patience)).await {
        Ok(0) | Err(_) => {}
        Ok(connections) => tracing::info!(connections, "Resetting connections that have not ended in time"),
    }
}

async fn serve_health(options: &RunOptions, health: Rc<dyn Routes>) -> anyhow::Result<Infallible> {
    let Some(address) = options.healthz else { return std::future::pending().await };
    let served = http::serve("healthz", address, options.config.bind_address_hard_fail, health).await;
    served.with_context(|| format!("healthz server failed: failed to start proxy healthz on {address}"))
}

/// Passes on the reports of the engines and the core, and notifies systemd.
async fn follow(
    inbox: SharedInbox,
    mut service_health: ServiceHealth,
    (mut handover, mut onward): (Handover, Onward),
    (mut readiness, alive): (Readiness, Pulses),
    serving: Option<Arc<dyn Serving>>,
) -> Infallible {
    let mut watch = pin!(supervisor::watch(|| alive.are_healthy(Instant::now())));
    loop {
        tokio::select! {
            pass = Inbox::sync_pass(&inbox) => {
                if pass.settled {
                    readiness.settled(pass.family);
                    if let Some(serving) = &serving {
                        serving.settled(pass.family);
                    }
                    if let Err(error) = onward.settled(pass.family) {
                        tracing::warn!(err = %error, "Resetting connections that wait since the mode has changed");
                    }
                }
                handover.sync_pass(&pass);
                service_health.sync_pass(&pass).await;
            }
            () = service_health.due() => service_health.retry().await,
            () = handover.go_on() => {}
            never = &mut watch => match never {},
        }
    }
}
