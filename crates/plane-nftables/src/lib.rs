//! The nftables mode.
