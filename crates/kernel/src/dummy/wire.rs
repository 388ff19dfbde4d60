//! Numbers of `linux/rtnetlink.h`, `linux/if_link.h` and `linux/if_addr.h`.

/// message types
pub(super) mod msg {
    pub(in crate::dummy) const NEW_LINK: u16 = 16;
    pub(in crate::dummy) const DELETE_LINK: u16 = 17;
    pub(in crate::dummy) const GET_LINK: u16 = 18;
    pub(in crate::dummy) const NEW_ADDRESS: u16 = 20;
    pub(in crate::dummy) const DELETE_ADDRESS: u16 = 21;
    pub(in crate::dummy) const GET_ADDRESS: u16 = 22;
}

/// multicast groups
pub(super) mod group {
    pub(in crate::dummy) const LINK: u32 = 1;
    pub(in crate::dummy) const IPV4_ADDRESS: u32 = 5;
    pub(in crate::dummy) const IPV6_ADDRESS: u32 = 9;
}

/// attributes of a device
pub(super) mod link {
    pub(in crate::dummy) const NAME: u16 = 3;
    pub(in crate::dummy) const INFO: u16 = 18;
    /// within [`INFO`]
    pub(in crate::dummy) const KIND: u16 = 1;
}

/// attributes of an address
pub(super) mod address {
    pub(in crate::dummy) const ADDRESS: u16 = 1;
    pub(in crate::dummy) const LOCAL: u16 = 2;
    pub(in crate::dummy) const CACHE_INFO: u16 = 6;
    pub(in crate::dummy) const FLAGS: u16 = 8;
}

/// `RT_SCOPE_UNIVERSE`
pub(super) const SCOPE_UNIVERSE: u8 = 0;
/// `RT_SCOPE_HOST`
pub(super) const SCOPE_HOST: u8 = 254;
/// `IFA_F_NODAD`
pub(super) const FLAG_NO_DAD: u32 = 0x02;
/// `IFA_F_DEPRECATED`
pub(super) const FLAG_DEPRECATED: u32 = 0x20;
/// `IFA_F_NOPREFIXROUTE`
pub(super) const FLAG_NO_PREFIX_ROUTE: u32 = 0x200;
/// prefix length of the address that stands in for one while that is replaced
pub(super) const STAND_IN_PREFIX: u8 = 31;
/// `IFF_UP` (linux/if.h)
pub(super) const FLAG_UP: u32 = 0x1;
/// `INFINITY_LIFE_TIME` (net/addrconf.h)
pub(super) const FOREVER: u32 = u32::MAX;
/// `AF_UNSPEC`
pub(super) const NO_FAMILY: u8 = 0;
