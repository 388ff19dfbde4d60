//! Fuzzes the decoder of a list in protobuf: no panic, and the same result for any split into pieces.
//!
//! The first byte selects the kind, the next two the sizes of the pieces. Most inputs are no list, so the bytes are also
//! tried as the only item of one.
#![no_main]

use ferry_api::object::Kind;
use ferry_api::wire::stream::Encoding;
use libfuzzer_sys::fuzz_target;

#[path = "common/input.rs"]
mod input;
#[path = "common/list.rs"]
mod list;
#[path = "common/protobuf.rs"]
mod protobuf;

use input::Input;
use list::list;
use protobuf::field;

fuzz_target!(|bytes: &[u8]| {
    let Some((input, _)) = Input::of(bytes) else { return };
    list(input, Encoding::Protobuf, input.body);
    let (api_version, name) = match input.kind {
        Kind::Service => ("v1", "ServiceList"),
        Kind::EndpointSlice => ("discovery.k8s.io/v1", "EndpointSliceList"),
        Kind::Node => ("v1", "NodeList"),
        Kind::ServiceCidr => ("networking.k8s.io/v1", "ServiceCIDRList"),
    };
    let type_meta = [field(1, api_version.as_bytes()), field(2, name.as_bytes())].concat();
    let raw = [field(1, &field(2, b"1")), field(2, input.body)].concat();
    let body = [b"k8s\0".to_vec(), field(1, &type_meta), field(2, &raw)].concat();
    assert!(list(input, Encoding::Protobuf, &body) == 1);
});
