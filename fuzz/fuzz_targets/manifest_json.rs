//! Fuzzes manifests in JSON: no panic, and the JSON and YAML decoders agree on every input that both accept.
#![no_main]

use ferry_api::wire::decode_manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for text in [
        text.to_owned(),
        format!("{{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{{\"name\":\"a\"}},{text}"),
    ] {
        let json = decode_manifest(&text);
        // A document marker selects the YAML decoder for the same text.
        let yaml = decode_manifest(&format!("--- \n{text}"));
        if let (Ok(json), Ok(yaml)) = (json.complete(), yaml.complete()) {
            assert_eq!(json, yaml);
        }
    }
});
