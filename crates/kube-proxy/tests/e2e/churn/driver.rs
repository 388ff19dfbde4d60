//! Writes manifests and waits for each to be in force.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferry_lab::objects::{EndpointCondition, Manifests};
use ferry_lab::patience::slowly;
use ferry_lab::proxy::{IPTABLES, ProxyConfig, USERSPACE};
use ferry_lab::{Family, Host, Lab, LabMachine, Mode, ProbeClient, ProxyProcess};

use crate::services::{self, ENDPOINTS, Pool, Ranges, Role, State, Way};

/// Kind and pace of changes.
pub(crate) enum Pace {
    /// endpoints, at this rate; and sometimes a policy
    Endpoints { a_minute: u64 },
    /// policies, one after another without a pause
    Policies,
}

/// The pool of one kind of access to one service during a period.
pub(crate) struct Period {
    /// time of writing: no earlier packet met it
    pub(crate) written: Instant,
    /// time at which it was known to be in force: every later packet meets it, or a later one
    pub(crate) acknowledged: Instant,
    pub(crate) pool: Pool,
}

/// The periods of each kind of access to each service that carries connections, in order.
pub(crate) type History = Vec<[Vec<Period>; 3]>;

/// The proxy, its manifests, and their history.
pub(crate) struct Driver<'a> {
    start: Start<'a>,
    proxy: ProxyProcess<'a>,
    marker: ProbeClient<'a>,
    services: Vec<State>,
    history: History,
    dice: Dice,
    tally: Tally,
    pace: Option<u64>,
}

/// Settings of starting the proxy.
struct Start<'a> {
    host: &'a Host,
    executable: String,
    folder: PathBuf,
    config: ProxyConfig,
}

/// A manifest that is not known to be in force.
struct Draft {
    number: usize,
    written: Instant,
    /// the changed pools
    pools: [Option<Pool>; 3],
}

/// Counts of changes.
#[derive(Default)]
pub(crate) struct Tally {
    endpoints: u64,
    policies: u64,
    others: u64,
    written: u64,
    slowest: Duration,
    total: Duration,
}

/// Numbers that look random and are the same in every run (Marsaglia's xorshift).
struct Dice(u64);

/// The service that has UDP.
const PLAIN: usize = 0;
/// Polling interval of the marker.
const LOOK: Duration = Duration::from_millis(1);
/// The most changes of endpoints in one manifest.
const MAX_CHANGES: u64 = 6;

// === impl Driver ===

impl<'a> Driver<'a> {
    /// Starts the proxy over the services as they are at the beginning.
    pub(crate) fn start(lab: &'a Lab, executable: &str, folder: &Path, mode: Mode) -> Self {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
            Ok(()) | Err(_) => {}
        }
        let manifests = folder.join("manifests");
        std::fs::create_dir_all(&manifests).expect("making a folder");
        std::fs::write(manifests.join("node.yaml"), Manifests::new().to_string()).expect("writing the node");
        let services = services::all();
        for service in &services {
            std::fs::write(manifests.join(file(service)), service.manifest()).expect("writing a manifest");
        }
        let written = Instant::now();
        let start = Start {
            host: lab.host(LabMachine::Node),
            executable: executable.to_owned(),
            folder: folder.to_owned(),
            config: config(mode),
        };
        let proxy = start.proxy();
        let mut driver = Self {
            start,
            proxy,
            marker: lab.from(LabMachine::Node).patience(slowly(patience(mode.name))),
            services,
            history: History::new(),
            dice: Dice(0x9e37_79b9_7f4a_7c15),
            tally: Tally::default(),
            pace: None,
        };
        for number in 0..driver.services.len() {
            driver.wait(number);
        }
        let acknowledged = Instant::now();
        for service in driver.services.iter().take(services::CARRIERS.len()) {
            let first = |way| vec![Period { written, acknowledged, pool: service.pool(way) }];
            driver.history.push(Way::ALL.map(first));
        }
        driver
    }

    /// Makes changes until that time.
    pub(crate) fn run(&mut self, until: Instant, pace: &Pace) {
        let start = Instant::now();
        while Instant::now() < until {
            match pace {
                Pace::Policies => self.policy(),
                Pace::Endpoints { a_minute } => {
                    self.pace = Some(*a_minute);
                    let due = u64::try_from(start.elapsed().as_millis()).expect("minutes") * a_minute / 60_000;
                    match due.saturating_sub(self.tally.endpoints) {
                        0 => std::thread::sleep(Duration::from_millis(2)),
                        owed => self.endpoints(owed.min(MAX_CHANGES)),
                    }
                }
            }
            assert!(self.proxy.is_running(), "the proxy ended\n{}", self.proxy.log());
        }
    }

    /// Changes some endpoints of some services, each in force before the next.
    pub(crate) fn some(&mut self, changes: usize) {
        for _ in 0..changes {
            self.endpoints(2);
        }
    }

    /// Kills the proxy while a change is under way, or was just made; changes more while it is away, and as it comes back. Waits
    /// until all is in force.
    pub(crate) fn outage(&mut self) {
        let mut drafts = vec![self.scramble(PLAIN)];
        std::thread::sleep(Duration::from_millis(u64::try_from(self.dice.below(40)).expect("a small number")));
        self.proxy.kill();
        for _ in 0..3 {
            let other = self.dice.below(self.services.len());
            drafts.extend([PLAIN, other].map(|number| self.scramble(number)));
        }
        self.proxy = self.start.proxy();
        drafts.push(self.scramble(PLAIN));
        drafts.iter().for_each(|draft| self.wait(draft.number));
        let acknowledged = Instant::now();
        drafts.into_iter().for_each(|draft| self.acknowledge(draft, acknowledged));
    }

    /// Endpoints that serve UDP: ready ones, and terminating ones that still serve.
    pub(crate) fn serving(&self) -> Pool {
        let serves = |endpoint: &usize| {
            let condition = self.services[PLAIN].conditions[*endpoint];
            condition
                .is_some_and(|condition| matches!(condition, EndpointCondition::Ready | EndpointCondition::Terminating))
        };
        Pool((0..ENDPOINTS).filter(serves).fold(0, |pool, endpoint| pool | 1 << endpoint))
    }

    /// Changes some endpoints of a service.
    fn scramble(&mut self, number: usize) -> Draft {
        let before = self.services[number].clone();
        for _ in 0..4 {
            self.change(number);
        }
        self.write(number, &before)
    }

    /// The pools of all frontends over time.
    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Counts of changes.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Asserts that the changes came at the requested pace.
    pub(crate) fn judge(&self, took: Duration) {
        let Some(a_minute) = self.pace else { return };
        let asked = u64::try_from(took.as_millis()).expect("minutes") * a_minute / 60_000;
        assert!(
            self.tally.endpoints * 10 >= asked * 9,
            "{} changes of endpoints, asked for {asked}",
            self.tally.endpoints
        );
    }

    /// Changes a number of endpoints of one service, and sometimes something else of another.
    fn endpoints(&mut self, changes: u64) {
        let number = self.dice.below(self.services.len());
        let before = self.services[number].clone();
        for _ in 0..changes {
            self.change(number);
        }
        if self.services[number].role == Role::Other {
            self.tally.others += 1;
        }
        self.put(number, &before);
        if self.dice.below(8) == 0 {
            self.policy();
        }
    }

    /// Changes one endpoint of a service that stays healthy.
    fn change(&mut self, number: usize) {
        loop {
            let endpoint = self.dice.below(ENDPOINTS);
            let becomes = match self.dice.below(6) {
                0 => None,
                1 => Some(EndpointCondition::Unready),
                2 => Some(EndpointCondition::Terminating),
                _ => Some(EndpointCondition::Ready),
            };
            let empty = self.services[number].role == Role::Other && self.dice.below(4) == 0;
            let service = &mut self.services[number];
            if empty {
                // from some to none; the next change leads back
                service.conditions = [None; ENDPOINTS];
                self.tally.endpoints += 1;
                return;
            }
            let had = std::mem::replace(&mut service.conditions[endpoint], becomes);
            if had != becomes && service.is_healthy() {
                self.tally.endpoints += 1;
                return;
            }
            service.conditions[endpoint] = had;
        }
    }

    /// Makes a change that must not affect any connection.
    fn policy(&mut self) {
        let (number, die) = (self.dice.below(self.services.len()), self.dice.below(3));
        let before = self.services[number].clone();
        let service = &mut self.services[number];
        match service.role {
            Role::Ranged => {
                service.ranges = match service.ranges {
                    Ranges::None => [Ranges::Narrow, Ranges::Wide, Ranges::Both][die],
                    Ranges::Narrow => Ranges::Wide,
                    Ranges::Wide => Ranges::None,
                    Ranges::Both => [Ranges::None, Ranges::Narrow, Ranges::Wide][die],
                };
            }
            Role::Turning => match die {
                0 => service.affinity = !service.affinity,
                1 => service.internal_local = !service.internal_local,
                _ => service.external_local = !service.external_local,
            },
            Role::Plain | Role::Held => service.external_local = !service.external_local,
            Role::Other => {
                service.node_port =
                    if service.node_port >= 31000 { service.node_port - 1000 } else { service.node_port + 1000 };
            }
            // the roles' purpose stays
            Role::Edge | Role::Sticky => service.internal_local = !service.internal_local,
        }
        self.tally.policies += 1;
        self.put(number, &before);
    }

    /// Puts a service's manifest in place and waits until it is in force.
    fn put(&mut self, number: usize, before: &State) {
        let draft = self.write(number, before);
        self.wait(number);
        self.acknowledge(draft, Instant::now());
    }

    /// Puts a service's manifest in place.
    fn write(&mut self, number: usize, before: &State) -> Draft {
        let service = &mut self.services[number];
        service.written += 1;
        let draft = self.start.folder.join("draft.yaml");
        std::fs::write(&draft, service.manifest()).expect("writing a manifest");
        let written = Instant::now();
        std::fs::rename(&draft, self.start.manifests().join(file(service))).expect("putting it in place");
        let pools = Way::ALL.map(|way| Some(service.pool(way)).filter(|pool| *pool != before.pool(way)));
        Draft { number, written, pools }
    }

    /// Notes that the draft has been in force at this time at the latest.
    fn acknowledge(&mut self, draft: Draft, acknowledged: Instant) {
        let Draft { number, written, pools } = draft;
        let took = acknowledged - written;
        self.tally.written += 1;
        self.tally.total += took;
        self.tally.slowest = self.tally.slowest.max(took);
        let Some(ways) = self.history.get_mut(number) else { return };
        for (pool, periods) in pools.into_iter().zip(ways) {
            periods.extend(pool.map(|pool| Period { written, acknowledged, pool }));
        }
    }

    /// Waits until what was written last of a service is in force in both families.
    ///
    /// Its marker is a Service in the same file, whose port changes with each version. One file is one batch of events, one
    /// change of the engine, and one transaction: once the marker's port answers, the rest is in force.
    fn wait(&mut self, number: usize) {
        for family in Family::ALL {
            let (at, marker) = (self.services[number].marker(family), self.marker);
            self.proxy.wait_for("a manifest in force", |_| {
                // looked for all the time it would be what a virtual machine does
                std::thread::sleep(slowly(LOOK));
                marker.tcp(at, 1).all_answered()
            });
        }
    }
}

// === impl Start ===

impl<'a> Start<'a> {
    fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    fn proxy(&self) -> ProxyProcess<'a> {
        ProxyProcess::start(self.host, &self.executable, &self.folder, &self.manifests(), &self.config)
    }
}

/// The configuration of a mode. It names the way, since without a name the proxy takes another one if this one fails. An endpoint that
/// gets no processor for more than the default of 250 ms would answer an association that has ended.
fn config(mode: Mode) -> ProxyConfig {
    let own = |way| {
        format!(
            "---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceWay: {way}\n\
             userspaceUDPTimeout: 5s\n"
        )
    };
    ProxyConfig { mode: mode.name, more: mode.way.map(own).unwrap_or_default(), ..ProxyConfig::default() }
}

/// The time limit of a probe of the marker.
fn patience(mode: &str) -> Duration {
    Duration::from_millis(match mode {
        // doesn't refuse connections to missing ports: an early probe runs into the limit
        IPTABLES => 15,
        // where the machine is slow, the proxy answers late
        USERSPACE => 1000,
        _ => 200,
    })
}

fn file(service: &State) -> String {
    format!("service-{}.yaml", service.number)
}

// === impl Tally ===

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = self.total.as_secs_f64() * 1e3 / self.written.max(1) as f64;
        write!(
            f,
            "{} changes of endpoints and {} of policies in {} manifests, in force after {mean:.1} ms, at most {:.0} ms",
            self.endpoints,
            self.policies,
            self.written,
            self.slowest.as_secs_f64() * 1e3
        )
    }
}

// === impl Dice ===

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}
