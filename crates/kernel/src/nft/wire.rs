//! Numbers of `linux/netfilter/nf_tables.h` and `nfnetlink.h`.

use crate::netlink::{MessageMark, MessageWriter, nfnetlink};

/// `NFNL_SUBSYS_NFTABLES`, the high byte of a message type
const SUBSYSTEM: u8 = 10;
/// `NFNLGRP_NFTABLES`, nfnetlink's multicast group of nf_tables
pub(super) const GROUP: u32 = 7;
/// `NFNLGRP_NFTRACE`, the one of its reports about packets
pub(super) const TRACE_GROUP: u32 = 9;

pub(super) const BATCH_BEGIN: u16 = 0x10;
pub(super) const BATCH_END: u16 = 0x11;
pub(super) const BATCH_GENERATION: u16 = 1;

/// message types
pub(super) mod msg {
    pub(in crate::nft) const NEW_TABLE: u8 = 0;
    pub(in crate::nft) const GET_TABLE: u8 = 1;
    pub(in crate::nft) const DEL_TABLE: u8 = 2;
    pub(in crate::nft) const NEW_CHAIN: u8 = 3;
    pub(in crate::nft) const GET_CHAIN: u8 = 4;
    pub(in crate::nft) const DEL_CHAIN: u8 = 5;
    pub(in crate::nft) const NEW_RULE: u8 = 6;
    pub(in crate::nft) const GET_RULE: u8 = 7;
    pub(in crate::nft) const DEL_RULE: u8 = 8;
    pub(in crate::nft) const NEW_SET: u8 = 9;
    pub(in crate::nft) const GET_SET: u8 = 10;
    pub(in crate::nft) const DEL_SET: u8 = 11;
    pub(in crate::nft) const NEW_ELEMENT: u8 = 12;
    pub(in crate::nft) const GET_ELEMENT: u8 = 13;
    pub(in crate::nft) const DEL_ELEMENT: u8 = 14;
    pub(in crate::nft) const NEW_GENERATION: u8 = 15;
    pub(in crate::nft) const GET_GENERATION: u8 = 16;
    pub(in crate::nft) const TRACE: u8 = 17;
    pub(in crate::nft) const NEW_OBJECT: u8 = 18;
    pub(in crate::nft) const DEL_OBJECT: u8 = 20;
    pub(in crate::nft) const NEW_FLOWTABLE: u8 = 22;
    pub(in crate::nft) const DEL_FLOWTABLE: u8 = 24;
}

/// attributes of lists and of nested values
pub(super) const LIST_ELEMENT: u16 = 1;
pub(super) const DATA_VALUE: u16 = 1;
pub(super) const DATA_VERDICT: u16 = 2;
pub(super) const VERDICT_CODE: u16 = 1;
pub(super) const VERDICT_CHAIN: u16 = 2;
pub(super) const EXPR_NAME: u16 = 1;
pub(super) const EXPR_DATA: u16 = 2;
pub(super) const GENERATION_ID: u16 = 1;
/// since Linux 4.14
pub(super) const GENERATION_PROCESS_NAME: u16 = 3;

/// verdict codes: the kernel's signed numbers as 32 bits
pub(super) mod verdict {
    pub(in crate::nft) const DROP: i32 = 0;
    pub(in crate::nft) const ACCEPT: i32 = 1;
    pub(in crate::nft) const JUMP: i32 = -3;
    pub(in crate::nft) const GOTO: i32 = -4;
    pub(in crate::nft) const RETURN: i32 = -5;
}

/// attributes of tables
pub(super) mod table {
    pub(in crate::nft) const NAME: u16 = 1;
    pub(in crate::nft) const FLAGS: u16 = 2;
    pub(in crate::nft) const USERDATA: u16 = 6;
    pub(in crate::nft) const OWNER: u16 = 7;
    pub(in crate::nft) const DORMANT: u32 = 1;
    /// deleted with the socket that has created it
    pub(in crate::nft) const F_OWNER: u32 = 2;
}

/// attributes of reports about packets
pub(super) mod trace {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const CHAIN: u16 = 2;
    pub(in crate::nft) const RULE_HANDLE: u16 = 3;
    pub(in crate::nft) const TYPE: u16 = 4;
    pub(in crate::nft) const VERDICT: u16 = 5;
    pub(in crate::nft) const ID: u16 = 6;
    pub(in crate::nft) const NETWORK_HEADER: u16 = 8;
    pub(in crate::nft) const TRANSPORT_HEADER: u16 = 9;
    pub(in crate::nft) const POLICY: u16 = 16;
    /// types
    pub(in crate::nft) const POLICY_MET: u32 = 1;
    pub(in crate::nft) const RETURN: u32 = 2;
    pub(in crate::nft) const RULE: u32 = 3;
}

/// attributes of chains
pub(super) mod chain {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const NAME: u16 = 3;
    pub(in crate::nft) const HOOK: u16 = 4;
    pub(in crate::nft) const POLICY: u16 = 5;
    pub(in crate::nft) const TYPE: u16 = 7;
    pub(in crate::nft) const FLAGS: u16 = 10;
    pub(in crate::nft) const HOOK_NUMBER: u16 = 1;
    pub(in crate::nft) const HOOK_PRIORITY: u16 = 2;
    /// base chain
    pub(in crate::nft) const F_BASE: u32 = 1;
    /// anonymous: bound to a rule, created and deleted with it
    pub(in crate::nft) const F_BINDING: u32 = 4;
}

/// attributes of rules
pub(super) mod rule {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const CHAIN: u16 = 2;
    pub(in crate::nft) const HANDLE: u16 = 3;
    pub(in crate::nft) const EXPRESSIONS: u16 = 4;
    pub(in crate::nft) const POSITION: u16 = 6;
    pub(in crate::nft) const USERDATA: u16 = 7;
}

/// attributes of sets
pub(super) mod set {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const NAME: u16 = 2;
    pub(in crate::nft) const FLAGS: u16 = 3;
    pub(in crate::nft) const KEY_TYPE: u16 = 4;
    pub(in crate::nft) const KEY_LEN: u16 = 5;
    pub(in crate::nft) const DATA_TYPE: u16 = 6;
    pub(in crate::nft) const DATA_LEN: u16 = 7;
    pub(in crate::nft) const DESC: u16 = 9;
    pub(in crate::nft) const ID: u16 = 10;
    pub(in crate::nft) const TIMEOUT: u16 = 11;
    pub(in crate::nft) const USERDATA: u16 = 13;
    pub(in crate::nft) const DESC_SIZE: u16 = 1;
    pub(in crate::nft) const DESC_CONCAT: u16 = 2;
    pub(in crate::nft) const FIELD_LEN: u16 = 1;
    pub(in crate::nft) const F_ANONYMOUS: u32 = 0x1;
    pub(in crate::nft) const F_INTERVAL: u32 = 0x4;
    pub(in crate::nft) const F_MAP: u32 = 0x8;
    pub(in crate::nft) const F_TIMEOUT: u32 = 0x10;
    pub(in crate::nft) const F_EVAL: u32 = 0x20;
    pub(in crate::nft) const F_CONCAT: u32 = 0x80;
}

/// attributes of elements
pub(super) mod element {
    pub(in crate::nft) const TABLE: u16 = 1;
    pub(in crate::nft) const SET: u16 = 2;
    pub(in crate::nft) const LIST: u16 = 3;
    pub(in crate::nft) const KEY: u16 = 1;
    pub(in crate::nft) const DATA: u16 = 2;
    pub(in crate::nft) const FLAGS: u16 = 3;
    pub(in crate::nft) const OBJECT: u16 = 9;
    pub(in crate::nft) const KEY_END: u16 = 10;
    pub(in crate::nft) const F_INTERVAL_END: u32 = 1;
    pub(in crate::nft) const F_CATCHALL: u32 = 2;
}

/// The type of an nf_tables message.
pub(super) const fn kind(message: u8) -> u16 {
    nfnetlink::kind(SUBSYSTEM, message)
}

/// The nf_tables message of this type, if it is one.
pub(super) const fn message_of(kind: u16) -> Option<u8> {
    match kind.to_be_bytes() {
        [SUBSYSTEM, message] => Some(message),
        _ => None,
    }
}

/// Begins an nf_tables message of a batch.
pub(super) fn begin(writer: &mut MessageWriter, message: u8, family: u8, flags: u16, sequence: u32) -> MessageMark {
    let mark = writer.message(kind(message), flags, sequence);
    nfnetlink::header(writer, family);
    mark
}

/// Begins the message that opens or closes a batch.
pub(super) fn begin_batch(writer: &mut MessageWriter, kind: u16, sequence: u32) -> MessageMark {
    let mark = writer.message(kind, crate::netlink::flag::REQUEST, sequence);
    let [high, low] = u16::from(SUBSYSTEM).to_be_bytes();
    writer.raw(&[0, 0, high, low]);
    mark
}

/// expressions: their names, their attributes, and (`ATTRIBUTES`) those that a typed expression may have
pub(super) mod expr {
    /// payload: loads (or, with `SREG`, writes) bytes of the packet
    pub(in crate::nft) mod payload {
        pub(in crate::nft) const NAME: &str = "payload";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, BASE, OFFSET, LEN];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const BASE: u16 = 2;
        pub(in crate::nft) const OFFSET: u16 = 3;
        pub(in crate::nft) const LEN: u16 = 4;
        pub(in crate::nft) const NETWORK: u32 = 1;
        pub(in crate::nft) const TRANSPORT: u32 = 2;
    }
    /// properties of the packet
    pub(in crate::nft) mod meta {
        pub(in crate::nft) const NAME: &str = "meta";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, KEY, SREG];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const KEY: u16 = 2;
        pub(in crate::nft) const SREG: u16 = 3;
    }
    /// comparison
    pub(in crate::nft) mod cmp {
        pub(in crate::nft) const NAME: &str = "cmp";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[SREG, OP, DATA];
        pub(in crate::nft) const SREG: u16 = 1;
        pub(in crate::nft) const OP: u16 = 2;
        pub(in crate::nft) const DATA: u16 = 3;
        pub(in crate::nft) const EQ: u32 = 0;
        pub(in crate::nft) const NEQ: u32 = 1;
    }
    /// mask and xor
    pub(in crate::nft) mod bitwise {
        pub(in crate::nft) const NAME: &str = "bitwise";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[SREG, DREG, LEN, MASK, XOR, OP];
        pub(in crate::nft) const SREG: u16 = 1;
        pub(in crate::nft) const DREG: u16 = 2;
        pub(in crate::nft) const LEN: u16 = 3;
        pub(in crate::nft) const MASK: u16 = 4;
        pub(in crate::nft) const XOR: u16 = 5;
        pub(in crate::nft) const OP: u16 = 6;
        pub(in crate::nft) const MASK_XOR: u32 = 0;
    }
    /// lookup in a set or map
    pub(in crate::nft) mod lookup {
        pub(in crate::nft) const NAME: &str = "lookup";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[SET, SREG, DREG, FLAGS];
        pub(in crate::nft) const SET: u16 = 1;
        pub(in crate::nft) const SREG: u16 = 2;
        pub(in crate::nft) const DREG: u16 = 3;
        pub(in crate::nft) const FLAGS: u16 = 5;
        pub(in crate::nft) const F_INVERT: u32 = 1;
    }
    /// change of a set during evaluation of a packet
    pub(in crate::nft) mod dynset {
        pub(in crate::nft) const NAME: &str = "dynset";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[SET, OP, KEY, DATA, TIMEOUT, PAD, FLAGS];
        pub(in crate::nft) const SET: u16 = 1;
        pub(in crate::nft) const OP: u16 = 3;
        pub(in crate::nft) const KEY: u16 = 4;
        pub(in crate::nft) const DATA: u16 = 5;
        pub(in crate::nft) const TIMEOUT: u16 = 6;
        pub(in crate::nft) const PAD: u16 = 8;
        pub(in crate::nft) const FLAGS: u16 = 9;
        pub(in crate::nft) const ADD: u32 = 0;
        pub(in crate::nft) const UPDATE: u32 = 1;
        pub(in crate::nft) const DELETE: u32 = 2;
    }
    /// number generator
    pub(in crate::nft) mod numgen {
        pub(in crate::nft) const NAME: &str = "numgen";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, MODULUS, TYPE, OFFSET];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const MODULUS: u16 = 2;
        pub(in crate::nft) const TYPE: u16 = 3;
        pub(in crate::nft) const OFFSET: u16 = 4;
        pub(in crate::nft) const INCREMENTAL: u32 = 0;
        pub(in crate::nft) const RANDOM: u32 = 1;
    }
    /// translation of addresses
    pub(in crate::nft) mod nat {
        pub(in crate::nft) const NAME: &str = "nat";
        pub(in crate::nft) const ATTRIBUTES: &[u16] =
            &[TYPE, FAMILY, ADDRESS_MIN, ADDRESS_MAX, PORT_MIN, PORT_MAX, FLAGS];
        pub(in crate::nft) const TYPE: u16 = 1;
        pub(in crate::nft) const FAMILY: u16 = 2;
        pub(in crate::nft) const ADDRESS_MIN: u16 = 3;
        pub(in crate::nft) const ADDRESS_MAX: u16 = 4;
        pub(in crate::nft) const PORT_MIN: u16 = 5;
        pub(in crate::nft) const PORT_MAX: u16 = 6;
        pub(in crate::nft) const FLAGS: u16 = 7;
        pub(in crate::nft) const DNAT: u32 = 1;
        /// set by the kernel itself: the address is mapped, the port is specified
        pub(in crate::nft) const F_KERNELS: u32 = 1 | 2;
    }
    /// masquerading
    pub(in crate::nft) mod masq {
        pub(in crate::nft) const NAME: &str = "masq";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[FLAGS];
        pub(in crate::nft) const FLAGS: u16 = 1;
        pub(in crate::nft) const F_FULLY_RANDOM: u32 = 1 << 4;
    }
    /// rejection with an answer
    pub(in crate::nft) mod reject {
        pub(in crate::nft) const NAME: &str = "reject";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[TYPE, CODE];
        pub(in crate::nft) const TYPE: u16 = 1;
        pub(in crate::nft) const CODE: u16 = 2;
        pub(in crate::nft) const ICMP: u32 = 0;
        pub(in crate::nft) const TCP_RESET: u32 = 1;
    }
    /// routing lookup
    pub(in crate::nft) mod fib {
        pub(in crate::nft) const NAME: &str = "fib";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, RESULT, FLAGS];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const RESULT: u16 = 2;
        pub(in crate::nft) const FLAGS: u16 = 3;
        pub(in crate::nft) const ADDRESS_TYPE: u32 = 3;
        pub(in crate::nft) const F_SOURCE: u32 = 1;
        pub(in crate::nft) const F_DESTINATION: u32 = 2;
    }
    /// properties of the connection
    pub(in crate::nft) mod ct {
        pub(in crate::nft) const NAME: &str = "ct";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, KEY, DIRECTION];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const KEY: u16 = 2;
        pub(in crate::nft) const DIRECTION: u16 = 3;
        pub(in crate::nft) const ORIGINAL: u8 = 0;
    }
    /// loads a constant into a register
    pub(in crate::nft) mod immediate {
        pub(in crate::nft) const NAME: &str = "immediate";
        pub(in crate::nft) const ATTRIBUTES: &[u16] = &[DREG, DATA];
        pub(in crate::nft) const DREG: u16 = 1;
        pub(in crate::nft) const DATA: u16 = 2;
    }
}
