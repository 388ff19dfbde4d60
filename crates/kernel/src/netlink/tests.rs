//! Decoding of answers in the kernel's format, and of malformed bytes.

use super::*;

/// A message with this payload.
fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    let mark = writer.message(kind, flags, 7);
    writer.raw(payload);
    writer.end_message(mark);
    writer.into_bytes()
}

fn reply(bytes: &[u8]) -> Result<Option<Reply>, Malformed> {
    decode_reply(&Messages::new(bytes).next().unwrap().unwrap())
}

fn refusal(bytes: &[u8]) -> MessageError {
    match reply(bytes) {
        Ok(Some(Reply::Refused(refusal))) => refusal,
        other => panic!("{other:?}"),
    }
}

/// An error code, the echo of a request's header, and attributes.
fn error_payload(code: i32, echo: &[u8], attributes: impl FnOnce(&mut MessageWriter)) -> Vec<u8> {
    let mut writer = MessageWriter::new();
    writer.raw(&code.to_ne_bytes());
    writer.raw(echo);
    attributes(&mut writer);
    writer.into_bytes()
}

fn explained(writer: &mut MessageWriter) {
    writer.text(1, "Interval overlaps with an existing one");
    writer.attribute(2, &84_u32.to_ne_bytes());
}

#[test]
fn written_messages_are_decoded() {
    let mut writer = MessageWriter::new();
    for n in 1..=3_u32 {
        let mark = writer.message(100, flag::REQUEST, n);
        writer.be_u32(1, n);
        let nest = writer.nest(2);
        writer.text(3, "name");
        writer.be_u64(4, u64::MAX);
        writer.end_nest(nest);
        writer.end_message(mark);
    }
    let messages: Vec<_> = Messages::new(writer.bytes()).map(Result::unwrap).collect();
    assert_eq!(messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 2, 3]);
    let mut attributes = Attributes::new(messages[2].payload);
    assert_eq!(attributes.next_attribute().unwrap().unwrap().be_u32(), Ok(3));
    let nest = attributes.next_attribute().unwrap().unwrap();
    assert_eq!(nest.kind, 2);
    assert_eq!(nest.nested().find(3).unwrap().unwrap().text(), "name");
    assert_eq!(nest.nested().find(4).unwrap().unwrap().be_u64(), Ok(u64::MAX));
    assert!(nest.nested().find(4).unwrap().unwrap().be_u32().is_err());
    assert_eq!(nest.nested().find(9).unwrap(), None);
    assert_eq!(attributes.next_attribute(), Ok(None));
}

#[test]
fn an_error_has_its_offset_and_text() {
    let header = &[0; HEADER_LEN];
    let payload = error_payload(-libc::EEXIST, header, explained);
    let error = refusal(&message(control::ERROR, flag::CAPPED | flag::ACK_TLVS, &payload));
    assert_eq!(error.sequence, 7);
    assert_eq!(error.offset, Some(84));
    assert_eq!(error.error.raw_os_error(), Some(libc::EEXIST));
    assert_eq!(error.to_string(), "Interval overlaps with an existing one: File exists (os error 17)");
    let io: std::io::Error = error.into();
    assert_eq!(io.kind(), std::io::ErrorKind::AlreadyExists);
    assert!(io.to_string().starts_with("Interval overlaps"));
}

#[test]
fn the_echo_of_a_whole_request_is_skipped() {
    let echo = message(100, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let payload = error_payload(-libc::EINVAL, &echo, explained);
    assert_eq!(refusal(&message(control::ERROR, flag::ACK_TLVS, &payload)).offset, Some(84));
}

#[test]
fn without_attributes_there_is_only_the_number() {
    let payload = error_payload(-libc::EPERM, &[0; HEADER_LEN], |_| {});
    let error = refusal(&message(control::ERROR, flag::CAPPED, &payload));
    assert_eq!((error.offset, &error.text), (None, &None));
    assert_eq!(error.to_string(), "Operation not permitted (os error 1)");
}

#[test]
fn acknowledgements_and_ends_of_dumps() {
    let payload = error_payload(0, &[0; HEADER_LEN], |_| {});
    assert!(matches!(reply(&message(control::ERROR, flag::CAPPED, &payload)), Ok(Some(Reply::Done(7)))));
    assert!(matches!(reply(&message(control::DONE, 0, &[])), Ok(Some(Reply::Done(7)))));
    assert!(matches!(reply(&message(100, 0, &[])), Ok(None)));
    assert_eq!(
        refusal(&message(control::DONE, 0, &(-libc::EINTR).to_ne_bytes())).error.raw_os_error(),
        Some(libc::EINTR)
    );
}

#[test]
fn truncated_answers_are_malformed_or_lack_the_explanation() {
    let payload = error_payload(-libc::EEXIST, &[0; HEADER_LEN], explained);
    let whole = message(control::ERROR, flag::CAPPED | flag::ACK_TLVS, &payload);
    for end in 1..whole.len() {
        assert_eq!(Messages::new(&whole[..end]).next().map(|message| message.is_ok()), Some(false), "{end}");
    }
    for end in 0..payload.len() {
        // cut anywhere, decoding returns
        let cut = message(control::ERROR, flag::CAPPED | flag::ACK_TLVS, &payload[..end]);
        assert_eq!(reply(&cut).is_err(), end == 0 || attributes_are_cut(&payload, end), "{end}");
    }
    assert!(reply(&message(control::ERROR, flag::ACK_TLVS, &[255; 40])).is_ok(), "an echo longer than the message");
}

/// True if the attributes are cut. `message` adds padding, so only cuts at multiples of four are detected.
fn attributes_are_cut(payload: &[u8], end: usize) -> bool {
    let start = 4 + HEADER_LEN;
    let end = align(end);
    let Some(attributes) = payload.get(start..end) else { return false };
    let mut attributes = Attributes::new(attributes);
    loop {
        match attributes.next_attribute() {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

#[test]
fn decoding_ends_at_a_malformed_message() {
    let mut bytes = message(100, 0, &[1, 2, 3, 4]);
    bytes.extend([3, 0, 0, 0]);
    bytes.extend([0; 40]);
    let results: Vec<_> = Messages::new(&bytes).map(|message| message.is_ok()).collect();
    assert_eq!(results, [true, false]);
}
