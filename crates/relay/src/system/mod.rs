//! The operating system: classes of its errors, batches of datagrams, the limit of descriptors, and what it reports of a
//! connection. One file per system; decision 62 has the differences.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub use linux::{OpenSocket, raise_limit};
#[cfg(windows)]
pub use windows::{OpenSocket, raise_limit};

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    Acceptor, BATCH, Datagrams, ReceivedDatagram, Stream, accept_routed_address, duplicate, has_undelivered,
    is_at_mark, is_in_progress, is_listening, is_of, is_of_connection, is_of_datagram, lacks_local_port,
    lacks_resources, lost, open_connecting, open_datagrams, original_destination, prepare_datagrams, receive, send,
    set_keepalive, set_mark, share_address,
};
#[cfg(windows)]
pub(crate) use windows::{
    Acceptor, BATCH, Datagrams, ReceivedDatagram, Stream, accept_routed_address, duplicate, has_undelivered,
    is_at_mark, is_in_progress, is_listening, is_of, is_of_connection, is_of_datagram, lacks_local_port,
    lacks_resources, lost, open_connecting, open_datagrams, original_destination, prepare_datagrams, receive, send,
    set_keepalive, set_mark, share_address,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_never_lowered() {
        let before = raise_limit(0);
        assert_eq!(raise_limit(16), before);
        assert!(raise_limit(before.saturating_add(1)) >= before);
    }
}
