use prost::Message as _;
use serde_json::json;

use super::*;

#[test]
fn what_go_writes_although_it_is_empty_is_written() {
    let bytes = encode(Kind::ServiceCidr, &json!({"spec": {"cidrs": ["10.0.0.0/8"]}})).expect("a sound object");
    // metadata: seven empty texts and times; spec; status
    let metadata = [0x0a, 0, 0x12, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x32, 0, 0x38, 0, 0x42, 0];
    let mut expected = vec![0x0a, u8::try_from(metadata.len()).expect("short")];
    expected.extend(metadata);
    expected.extend(b"\x12\x0c\x0a\x0a10.0.0.0/8\x1a\x00");
    assert_eq!(bytes, expected);
}

#[test]
fn a_service_keeps_its_fields() {
    let object = json!({
        "metadata": {"name": "web", "namespace": "demo", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"},
            "managedFields": [{"manager": "kubectl", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"clusterIP": "10.0.0.1", "ports": [
            {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}, {"port": 81, "targetPort": 8081}]},
        "status": {"loadBalancer": {"ingress": null}}
    });
    let bytes = encode(Kind::Service, &object).expect("a sound object");
    let service = service::WireService::decode(bytes.as_slice()).expect("what was just encoded");
    assert_eq!(service.metadata.name, "web");
    assert_eq!(service.metadata.managed_fields.len(), 1);
    assert_eq!(service.spec.cluster_ip, "10.0.0.1");
    let targets: Vec<_> = service.spec.ports.iter().map(|port| &port.target_port).collect();
    assert_eq!((targets[0].kind, targets[0].text.as_str(), targets[1].int), (1, "web", 8081));
    let time = 1_767_323_045_u64;
    assert!(bytes.windows(6).any(|bytes| bytes == varint_field(time)), "the creation time in seconds");
}

#[test]
fn a_wrong_type_is_an_error() {
    let error = encode(Kind::Service, &json!({"spec": {"ports": [{"port": "http"}]}})).expect_err("a text for a port");
    assert!(error.to_string().contains("invalid type: string"), "{error}");
}

#[test]
fn frames_hold_their_lengths() {
    let message = encode(Kind::Service, &json!({"metadata": {"name": "a-name"}})).expect("a sound object");
    let object = envelope("v1", "Service", &message);
    let frame = watch_frame("ADDED", &object);
    assert_eq!(frame[..4], u32::try_from(frame.len() - 4).expect("short").to_be_bytes());
    assert_eq!(object[..4], MAGIC);
    let text = String::from_utf8_lossy(&frame);
    assert!(text.contains("a-name") && text.ends_with("\u{1a}\0\"\0"), "{text:?}");
}

fn varint_field(value: u64) -> Vec<u8> {
    let mut out = vec![0x08];
    prost::encoding::encode_varint(value, &mut out);
    out
}
