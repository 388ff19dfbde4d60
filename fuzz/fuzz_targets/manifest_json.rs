//! A manifest in JSON: no panic, and what both decoders can read, both read alike.
#![no_main]

use ferry_api::wire::decode_manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for text in [
        text.to_owned(),
        format!("{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"a\"}},{text}"),
    ] {
        let json = decode_manifest(&text);
        // Behind a document marker the same text takes the way through YAML.
        let yaml = decode_manifest(&format!("--- \n{text}"));
        if let (Ok(json), Ok(yaml)) = (json.complete(), yaml.complete()) {
            assert_eq!(json, yaml);
        }
    }
});
