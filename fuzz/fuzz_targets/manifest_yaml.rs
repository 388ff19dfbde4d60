//! Fuzzes manifests in YAML: no panic, and an error names its document.
//!
//! Most inputs have no kind, so each text is also tried after the heads of the supported kinds.
#![no_main]

use ferry_api::wire::decode_manifest;
use libfuzzer_sys::fuzz_target;

const HEADS: [&str; 5] = [
    "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\n",
    "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n",
    "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: a}\n",
    "apiVersion: v1\nkind: List\n",
];

fuzz_target!(|text: &str| {
    try_one(text);
    for head in HEADS {
        try_one(&format!("{head}{text}"));
    }
});

fn try_one(text: &str) {
    let manifest = decode_manifest(text);
    assert!(manifest.documents.len() <= text.len());
    // In YAML a lone carriage return also ends a line.
    let lines = text.matches(['\n', '\r']).count() + 1;
    for error in manifest.documents.iter().filter_map(|document| document.as_ref().err()) {
        assert!(error.document >= 1 && error.line.is_none_or(|line| line >= 1 && line <= lines), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }
}
