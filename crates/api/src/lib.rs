//! The types of Kubernetes objects and of the configuration, and the decoders from their wire formats. Pure: no clock, file,
//! environment or process. No input causes a panic.
//!
//! [`object`] holds the types: Service, EndpointSlice, Node and ServiceCIDR with the fields that a service proxy reads. A value
//! that doesn't parse is kept as its text ([`object::Parsed`]), so that the model can report it. The model and the crates above
//! it use these types.
//!
//! # The way of an object
//!
//! 1. From a manifest: [`wire::decode_manifest`] splits the text into documents (`wire/yaml.rs`, with the limits of [`yaml`], or
//!    `wire/json.rs`). `wire/head.rs` determines the kind of each document, and `wire/document.rs` decodes it.
//! 2. From the API server: [`wire::stream::ListDecoder`] and [`wire::stream::WatchDecoder`] take a body in pieces, as they
//!    arrive. `wire/stream/json` and `wire/stream/protobuf` split it into objects, `wire/stream/pending.rs` buffers the
//!    incomplete one, and `wire/stream/object.rs` makes an object an item of a list or an event of a watch.
//! 3. Then in common: every encoding decodes to the fields of `wire/raw.rs`, with scalars of JSON's types (`wire/scalar.rs`), and
//!    `wire/convert.rs` turns these into the types of [`object`]: it applies the API server's defaults, and parses addresses
//!    ([`wire::address`]), times ([`wire::parse_timestamp`]) and names.
//!
//! # The way back
//!
//! [`wire::encode_object`] writes an object as Kubernetes JSON, and [`snapshot`] the file that a proxy without an API server
//! starts from.
//!
//! # The configuration
//!
//! [`config`] is upstream's KubeProxyConfiguration v1alpha1. [`config::decode()`] parses a file to a tree (`config/tree.rs`),
//! maps its fields (`config/fields.rs`) and applies defaults (`config/default.rs`); `config/validate.rs` checks the result, with
//! upstream's error texts, and `config/write.rs` encodes it for `--write-config-to`.
//!
//! Read first: `object/mod.rs` and `object/service.rs`, then `wire/mod.rs`, `wire/convert.rs` and `wire/stream/mod.rs`;
//! `config/mod.rs` when you need it.

pub mod config;
pub mod object;
pub mod snapshot;
pub mod wire;
pub mod yaml;
