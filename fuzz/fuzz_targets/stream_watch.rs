//! Fuzzes the decoder of a watch in both encodings: no panic, and the same result for any split into pieces.
//!
//! The first byte selects the kind, the encoding and the type of an event, the next two the sizes of the pieces. Most inputs
//! are no frame, so the bytes are also tried as the object of one.
#![no_main]

use ferry_api::object::Kind;
use ferry_api::wire::stream::{Encoding, WatchDecoder, decode_status};
use libfuzzer_sys::fuzz_target;

#[path = "common/input.rs"]
mod input;
#[path = "common/protobuf.rs"]
mod protobuf;

use input::Input;
use protobuf::field;

const TYPES: [&str; 4] = ["ADDED", "DELETED", "BOOKMARK", "ERROR"];

fuzz_target!(|bytes: &[u8]| {
    let Some((input, choice)) = Input::of(bytes) else { return };
    let encoding = if choice & 1 == 0 { Encoding::Protobuf } else { Encoding::Json };
    let event = TYPES[usize::from(choice / 2 % 4)];
    watch(input, encoding, input.body);
    decode_status(encoding, input.body);
    match encoding {
        Encoding::Json => {
            let frame = [b"{\"type\":\"", event.as_bytes(), b"\",\"object\":", input.body, b"}"].concat();
            watch(input, encoding, &frame);
        }
        Encoding::Protobuf => {
            let kind = match input.kind {
                Kind::Service => "Service",
                Kind::EndpointSlice => "EndpointSlice",
                Kind::Node => "Node",
                Kind::ServiceCidr => "ServiceCIDR",
            };
            let kind = if event == "ERROR" { "Status" } else { kind };
            let object = [b"k8s\0".to_vec(), field(1, &field(2, kind.as_bytes())), field(2, input.body)].concat();
            let event = [field(1, event.as_bytes()), field(2, &field(1, &object))].concat();
            let length = u32::try_from(event.len()).expect("a short input").to_be_bytes();
            assert_eq!(watch(input, encoding, &[&length[..], &event].concat()), 1);
        }
    }
});

/// Decodes a watch whole and in pieces, checks that both agree, and returns the number of events.
fn watch(input: Input<'_>, encoding: Encoding, body: &[u8]) -> usize {
    let read = |pieces: &[&[u8]]| {
        let (mut decoder, mut events) = (WatchDecoder::new(input.kind, encoding), Vec::new());
        let pushed = pieces.iter().try_for_each(|piece| decoder.push(piece, &mut events));
        let end = decoder.finish();
        assert!(pushed.is_ok() || end.is_err());
        (events, end)
    };
    let whole = read(&[body]);
    assert_eq!(whole, read(&input.pieces(body)));
    whole.0.len()
}
