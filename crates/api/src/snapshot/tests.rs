//! The format of a snapshot: what is written is read, and nothing else.

use super::*;
use crate::wire::{Document, decode_manifest};

const MANIFEST: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: here}
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: demo}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"#;

fn snapshot() -> Snapshot {
    let documents = decode_manifest(MANIFEST).complete().unwrap().into_iter();
    let objects = documents.map(|document| match document {
        Document::Object(object) => object,
        Document::Ignored { kind } => panic!("{kind}"),
    });
    let header = SnapshotHeader {
        server: "https://192.0.2.1:6443".into(),
        authorities: "00ff".into(),
        node: "here".into(),
        confirmed: Timestamp { seconds: 1_790_000_000, nanoseconds: 500 },
    };
    Snapshot { header, objects: objects.collect() }
}

fn encode(snapshot: &Snapshot) -> String {
    let mut encoder = SnapshotEncoder::new(Vec::new(), &snapshot.header).unwrap();
    snapshot.objects.iter().for_each(|object| encoder.push(object).unwrap());
    String::from_utf8(encoder.finish().unwrap()).unwrap()
}

fn refusal(bytes: &[u8]) -> String {
    decode_snapshot(bytes).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read() {
    let text = encode(&snapshot());
    assert_eq!(decode_snapshot(text.as_bytes()).unwrap(), snapshot());
    let empty = Snapshot { objects: Vec::new(), ..snapshot() };
    assert_eq!(decode_snapshot(encode(&empty).as_bytes()).unwrap(), empty);
}

#[test]
fn no_part_of_a_snapshot_is_one() {
    let text = encode(&snapshot());
    for length in 0..text.len() {
        let error = refusal(&text.as_bytes()[..length]);
        assert!(error.contains("the file ends here"), "{length}: {error}");
    }
    assert_eq!(refusal(format!("{text}\n").as_bytes()), "it is damaged: line 5: the file goes on behind its end");
    let twice = format!("{text}{text}");
    assert_eq!(refusal(twice.as_bytes()), "it is damaged: line 5: the file goes on behind its end");
}

#[test]
fn every_changed_bit_is_found() {
    let text = encode(&snapshot());
    for at in 0..text.len() {
        for bit in 0..8 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            assert!(decode_snapshot(&*bytes).is_err(), "bit {bit} of byte {at}");
        }
    }
}

#[test]
fn lines_can_not_be_exchanged_or_lost() {
    let text = encode(&snapshot());
    let lines: Vec<&str> = text.lines().collect();
    let joined = |order: &[usize]| order.iter().map(|at| format!("{}\n", lines[*at])).collect::<String>();
    assert_eq!(joined(&[0, 1, 2, 3, 4]), text);
    let mismatch = "the number of objects or the checksum doesn't match";
    assert_eq!(refusal(joined(&[0, 1, 3, 2, 4]).as_bytes()), format!("it is damaged: line 5: {mismatch}"));
    assert_eq!(refusal(joined(&[0, 1, 2, 4]).as_bytes()), format!("it is damaged: line 4: {mismatch}"));
    assert_eq!(refusal(b"foo\n"), "it is damaged: line 1: it isn't the first line of a snapshot");
    let error = refusal(text.replace("\"kind\":\"Node\"", "\"kind\":\"Pod\"").as_bytes());
    assert_eq!(error, "it is damaged: line 3: an object of kind \"Pod\"");
}

#[test]
fn another_version_is_named() {
    let text = encode(&snapshot()).replacen("ferry-snapshot 1", "ferry-snapshot 2", 1);
    let wanted = "it has version \"2\" of the format, this program reads version 1";
    assert_eq!(refusal(text.as_bytes()), wanted);
}
