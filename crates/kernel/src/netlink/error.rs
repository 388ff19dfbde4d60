//! Acknowledgements and errors with which the kernel answers a netlink message.

use std::fmt;
use std::io;

use super::{Attributes, Malformed, Message, control, flag};

const ATTR_TEXT: u16 = 1;
const ATTR_OFFSET: u16 = 2;

/// An error answer of the kernel to one message.
#[derive(Debug)]
pub struct MessageError {
    /// sequence number of the refused message
    pub sequence: u32,
    /// start of the offending attribute, in bytes from the message's header (`NLMSGERR_ATTR_OFFS`); older kernels do not
    /// report it for every error
    pub offset: Option<u32>,
    /// the error number
    pub error: io::Error,
    /// the text of the extended acknowledgement
    pub text: Option<String>,
}

/// An acknowledgement or the end of a dump.
#[derive(Debug)]
pub enum Reply {
    /// success; the sequence number of the request
    Done(u32),
    /// an error
    Refused(MessageError),
}

// === impl MessageError ===

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "{text}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for MessageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<MessageError> for io::Error {
    /// Keeps the error kind; the text of the extended acknowledgement becomes part of the message.
    fn from(refusal: MessageError) -> Self {
        match refusal.text {
            None => refusal.error,
            Some(_) => Self::new(refusal.error.kind(), refusal),
        }
    }
}

/// Reads a message of type [`control::ERROR`] or [`control::DONE`]; `None` for any other type.
///
/// # Errors
/// [`Malformed`] if the message is too short for its type.
pub fn decode_reply(message: &Message<'_>) -> Result<Option<Reply>, Malformed> {
    let code = message.payload.first_chunk().map(|code| i32::from_ne_bytes(*code));
    let (code, attributes) = match message.kind {
        // a DONE message without a code reports success
        control::DONE => (code.unwrap_or(0), message.payload.get(4..).unwrap_or_default()),
        control::ERROR => (code.ok_or(Malformed("short error"))?, error_attributes(message)),
        _ => return Ok(None),
    };
    if code == 0 {
        return Ok(Some(Reply::Done(message.sequence)));
    }
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    let mut refusal = MessageError { sequence: message.sequence, offset: None, error, text: None };
    if message.flags & flag::ACK_TLVS != 0 {
        let mut attributes = Attributes::new(attributes);
        while let Some(attribute) = attributes.next_attribute()? {
            match attribute.kind {
                ATTR_TEXT => refusal.text = Some(attribute.text().into_owned()).filter(|text| !text.is_empty()),
                ATTR_OFFSET => refusal.offset = Some(attribute.native_u32()?),
                _ => {} // the policy dump and the type of a missing attribute are not printed
            }
        }
    }
    Ok(Some(Reply::Refused(refusal)))
}

/// The attributes behind the error code and the echo of the refused message.
fn error_attributes<'a>(message: &Message<'a>) -> &'a [u8] {
    const ECHO: usize = 4;
    let echoed = if message.flags & flag::CAPPED != 0 {
        super::HEADER_LEN
    } else {
        let length = message.payload.get(ECHO..).and_then(|echo| echo.first_chunk()).map(|l| u32::from_ne_bytes(*l));
        super::align(length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX))
    };
    message.payload.get(ECHO.saturating_add(echoed)..).unwrap_or_default()
}
