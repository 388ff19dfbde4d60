//! Fuzzes each decoder of netlink responses, with the messages of a datagram and with the raw bytes.
#![no_main]

use ferry_kernel::netlink::{Messages, decode_reply};
use ferry_kernel::{dummy, link, nft, route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|datagram: &[u8]| {
    for message in Messages::new(datagram).map_while(Result::ok) {
        let _ = decode_reply(&message);
        decode(message.payload);
    }
    decode(datagram);
});

fn decode(payload: &[u8]) {
    let _ = nft::decode_table(payload);
    let _ = nft::decode_chain(payload);
    let _ = nft::decode_base_chain(payload);
    let _ = nft::decode_set(payload);
    let _ = nft::decode_rule(payload);
    let _ = nft::decode_expression(payload);
    let _ = nft::decode_elements(payload, &mut |element| assert!(element.key.len() <= nft::Octets::MAX));
    let _ = nft::decode_generation(payload);
    let _ = nft::userdata::table_comment(payload);
    let _ = dummy::decode_device(payload);
    let _ = route::decode_local_route(payload);
    let (address, detailed) = (link::decode_address(payload), dummy::decode_address(payload));
    if let Ok(Some(detailed)) = detailed {
        let address = address.ok().flatten().expect("both decode the same attributes");
        assert_eq!((address.index, address.address), (detailed.device, detailed.network.addr()));
    }
}
