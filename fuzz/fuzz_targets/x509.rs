//! Fuzzes the DER decoder of certificates: validity, and the public key of old versions.
//!
//! Most inputs fail at the first lengths, so the bytes are also tried as the fields after the issuer.
#![no_main]

use std::time::{Duration, SystemTime};

use ferry_client::x509::{old_public_key, validity};
use libfuzzer_sys::fuzz_target;

const SEQUENCE: u8 = 0x30;
/// Year 10000: the encoding has no later time.
const LATEST: Duration = Duration::from_secs(253_402_300_800);

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // serial number, algorithm, issuer
    let content = [&[2, 1, 1, SEQUENCE, 0, SEQUENCE, 0], bytes].concat();
    check(&sequence(&sequence(&content)));
});

fn sequence(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).expect("libFuzzer's inputs are short");
    [&[SEQUENCE, 0x84][..], &length.to_be_bytes(), content].concat()
}

fn check(certificate: &[u8]) {
    if let Some((begin, end)) = validity(certificate) {
        for time in [begin, end] {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).expect("earlier times are refused");
            assert!(since < LATEST, "{time:?}");
        }
    }
    if let Some(key) = old_public_key(certificate) {
        assert_eq!(key.first(), Some(&SEQUENCE));
        assert!(certificate.as_ptr_range().contains(&key.as_ptr()), "the key is a part of the certificate");
        assert!(key.len() < certificate.len());
    }
}
