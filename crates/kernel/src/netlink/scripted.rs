//! A scripted peer for tests: sessions whose answers are given in advance, and messages in the kernel's format.

use std::collections::VecDeque;
use std::io;

use super::{MessageWriter, Session, Transport, control, flag};

/// Answers given in advance: for each sent datagram a list of datagrams or errors.
#[derive(Debug, Default)]
pub(crate) struct Scripted {
    script: VecDeque<Vec<io::Result<Vec<u8>>>>,
    pub(crate) unread: VecDeque<io::Result<Vec<u8>>>,
    pub(crate) sent: Vec<Vec<u8>>,
}

impl Transport for Scripted {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        self.sent.push(datagram.to_vec());
        self.unread.extend(self.script.pop_front().expect("more datagrams sent than scripted"));
        Ok(())
    }

    fn receive(&mut self, datagram: &mut Vec<u8>) -> io::Result<bool> {
        let Some(next) = self.unread.pop_front() else { return Ok(false) };
        *datagram = next?;
        Ok(true)
    }
}

pub(crate) fn session(script: impl IntoIterator<Item = Vec<io::Result<Vec<u8>>>>) -> Session<Scripted> {
    Session::new(Scripted { script: script.into_iter().collect(), ..Scripted::default() })
}

pub(crate) fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let mark = writer.message(kind, flags, sequence);
    writer.raw(payload);
    writer.end_message(mark);
    writer.into_bytes()
}

/// An acknowledgement (0) or an error.
pub(crate) fn reply(sequence: u32, errno: i32) -> Vec<u8> {
    let payload = [&(-errno).to_ne_bytes()[..], &[0; 16]].concat();
    message(control::ERROR, flag::CAPPED, sequence, &payload)
}

/// The end of a dump.
pub(crate) fn done(sequence: u32) -> Vec<u8> {
    message(control::DONE, 0, sequence, &[])
}

pub(crate) fn errno(number: i32) -> io::Result<Vec<u8>> {
    Err(io::Error::from_raw_os_error(number))
}
