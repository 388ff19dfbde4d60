//! The kube-proxy executable: object sources, the core that resolves Services, the engines, and everything that the proxy
//! reports.
//!
//! A tour, in the direction of the data:
//!
//! - [`cli`] and [`commands`] read flags and configuration; [`app`] wires everything below and starts its threads. Start reading
//!   there.
//! - [`origin`] opens the source of objects: [`source::api`], through the client of the API server ([`ferry_client`]), or
//!   [`source::directory`], a directory of manifests. [`platform`] adds the machine's own addresses.
//! - An [`input`] goes to the [`core`], which keeps all objects, resolves Services and hands changed units to each IP family's
//!   engine.
//! - [`engine_loop`] drives an engine of the mode that [`planes`] has chosen. [`flows`] deletes stale conntrack entries after
//!   rule changes, [`handover`] removes the rules of other modes once this proxy's are in force.
//! - [`report`] converts the engines' reports to [`metrics`] and log lines; [`health`] holds the state behind probes; [`events`]
//!   writes Events to the API server; [`serve`] answers over HTTP, health checks of Services included.
//! - [`reload`] has a new run take the process over when the configuration changes.
//! - [`snapshot`] keeps the objects of the API server in a file, and serves from it at a start without the server.
//! - [`query`] encodes and decodes the queries of URLs, for the API server's client and the servers.
//! - [`control`] answers this program's own subcommands over a Unix socket.
//! - [`self_test`] tests the data path by connections through a Service of its own.
//! - [`inspect`] shows the desired state of objects instead of running.
//! - [`ui`] is the status page. [`plugin`] is the other executable, `kubectl-ferry`, which asks it through the API server; [`http_client`]
//!   is what it shares with the subcommands.
//! - [`logging`] prints klog's text format or JSON; [`version`] names the build.
//!
//! Threads: the main one serves HTTP and follows reports, `source` reads objects, `addresses` the machine's addresses, `core`
//! resolves Services, `sync-v4` and `sync-v6` each drive an engine, `listener` receives the kernel's notifications, `flows` reads
//! the conntrack table, `handover` checks once a minute for rules of other modes, and `snapshot` writes the file of that name, if
//! one is configured, and `self-test` connects through the Service of the self-test, if that has a period. A mode may start more, by [`threads`], as `forward`, which finds firewalls that drop packets of Services.
//!
//! Folders import each other in one direction only; `cargo xt layers` checks it.

pub mod app;
pub mod cli;
pub mod commands;
pub mod control;
pub mod core;
pub mod engine_loop;
pub mod events;
pub mod flows;
pub mod handover;
pub mod health;
pub mod http_client;
pub mod input;
pub mod inspect;
pub mod logging;
pub mod metrics;
pub mod origin;
pub mod planes;
pub mod platform;
pub mod plugin;
pub mod query;
pub mod reload;
pub mod report;
pub mod self_test;
pub mod serve;
pub mod snapshot;
pub mod source;
pub mod threads;
pub mod ui;
pub mod version;
