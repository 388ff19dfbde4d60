//! The relay over real sockets, each test in a network namespace of its own: streams against a model, faults of endpoints, changes
//! while connections are open, datagrams, limits. Needs root.

mod changes;
mod datagrams;
mod faults;
mod kit;
mod limits;
mod streams;
