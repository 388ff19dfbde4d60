//! KubeProxyConfiguration v1alpha1 as a whole: its fields, their defaults, decoding and validation.
//!
//! There are four steps, as in upstream: [`decode()`] decodes a file and applies the API's defaults,
//! [`KubeProxyConfiguration::apply_platform_defaults`] applies those of Linux, [`KubeProxyConfiguration::validate`] checks, and
//! [`KubeProxyConfiguration::effective`] returns the configured mode's values of settings that exist once per mode.
//! [`KubeProxyConfiguration::to_yaml`] encodes a configuration. [`FerryConfiguration`], a document of its own in the same file,
//! holds the settings that upstream doesn't have.

mod decode;
mod default;
mod duration;
mod error;
mod ferry;
mod fields;
mod gates;
mod place;
mod port_range;
mod quantity;
mod scalar;
mod tree;
mod types;
mod validate;
mod write;

#[cfg(test)]
mod tests;

pub use decode::{DecodedConfig, decode};
pub use duration::{DurationError, GoDuration};
pub use error::DecodeError;
pub use gates::{COMPONENT_FLAGZ, COMPONENT_STATUSZ, Feature, GivenGate, Maturity};
pub use port_range::PortRange;
pub use quantity::canonical_quantity;
pub use types::{
    CONTROL_SOCKET, ClientConnection, Conntrack, DetectLocal, Effective, FerryConfiguration, IpTables, Ipvs,
    KubeProxyConfiguration, LOCAL_MODE_BRIDGE_INTERFACE, LOCAL_MODE_CLUSTER_CIDR, LOCAL_MODE_INTERFACE_NAME_PREFIX,
    LOCAL_MODE_NODE_CIDR, LogOptions, Logging, MODE_IPTABLES, MODE_IPVS, MODE_NFTABLES, MODE_USERSPACE,
    MODE_WINUSERSPACE, NODE_PORT_ADDRESSES_PRIMARY, NfTables, PAGE_EVERYONE, PAGE_LOOPBACK, PAGE_NOBODY,
    SELF_TEST_RANGES, SelfTest, Userspace, VModule, WAY_BIND, WAY_REDIRECT, WinKernel,
};
pub use validate::ValidationErrors;
