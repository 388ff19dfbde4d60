//! Decodes two facts of a certificate's DER: its validity, and the public key of versions that TLS libraries refuse.

use std::time::{Duration, SystemTime};

use ferry_api::wire::parse_timestamp;

const SEQUENCE: u8 = 0x30;
const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Encoded versions count from 0.
const VERSION_3: &[u8] = &[2];

/// notBefore and notAfter of a certificate; `None` if it isn't one.
pub fn validity(certificate: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let (_, rest) = from_validity(certificate)?;
    let (tag, validity, _) = element(rest)?;
    if tag != SEQUENCE {
        return None;
    }
    let (begin_tag, begin, rest) = element(validity)?;
    let (end_tag, end, _) = element(rest)?;
    Some((time(begin_tag, str::from_utf8(begin).ok()?)?, time(end_tag, str::from_utf8(end).ok()?)?))
}

/// The DER of the public key (SubjectPublicKeyInfo) of a certificate of version 1 or 2; `None` for all others.
pub fn old_public_key(certificate: &[u8]) -> Option<&[u8]> {
    let (version, mut rest) = from_validity(certificate)?;
    if version.is_some_and(|version| version >= VERSION_3) {
        return None;
    }
    // validity, subject
    for _ in 0..2 {
        rest = element(rest)?.2;
    }
    let (tag, _, behind) = element(rest)?;
    rest.get(..rest.len() - behind.len()).filter(|_| tag == SEQUENCE)
}

/// A certificate's version if it is explicit, and its fields from the validity on.
fn from_validity(certificate: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut rest, _) = element(certificate)?;
    let mut version = None;
    if rest.first() == Some(&EXPLICIT_VERSION) {
        let (_, content, behind) = element(rest)?;
        (version, rest) = (Some(element(content)?.1), behind);
    }
    // serial number, algorithm of the signature, issuer
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    Some((version, rest))
}

/// The first element: its tag, its content, and what follows it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, tail) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
        length = digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit));
        rest = tail;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`.
fn time(tag: u8, text: &str) -> Option<SystemTime> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.is_ascii())?;
    let (century, digits) = match tag {
        // RFC 5280: two-digit years from 50 on mean 19YY.
        UTC_TIME if digits >= "50" => ("19", digits),
        UTC_TIME => ("20", digits),
        GENERALIZED_TIME => digits.split_at_checked(2)?,
        _ => return None,
    };
    let (date, clock) = digits.split_at_checked(6)?;
    let pairs =
        |text: &str, by: &str| -> Option<String> { Some([text.get(..2)?, text.get(2..4)?, text.get(4..)?].join(by)) };
    let at = parse_timestamp(&format!("{century}{}T{}Z", pairs(date, "-")?, pairs(clock, ":")?))?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(at.seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<u64> {
        time(tag, text).map(|at| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn both_forms_of_time() {
        assert_eq!(seconds(UTC_TIME, "240501120000Z"), Some(1_714_564_800));
        assert_eq!(seconds(UTC_TIME, "700101000001Z"), Some(1));
        assert_eq!(seconds(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        for (tag, text) in [(UTC_TIME, "2405011200Z"), (UTC_TIME, ""), (GENERALIZED_TIME, "2Z"), (4, "240501120000Z")] {
            assert_eq!(seconds(tag, text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x80], &[0x30, 2, 0x30, 0]] {
            assert_eq!(validity(bytes), None);
            assert_eq!(old_public_key(bytes), None);
        }
    }

    fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap();
        let head = if length < 0x80 {
            vec![tag, length.to_be_bytes()[1]]
        } else {
            [&[tag, 0x82][..], &length.to_be_bytes()].concat()
        };
        [head, content.to_vec()].concat()
    }

    const BEGIN: &[u8] = b"240501120000Z";
    const END: &[u8] = b"20500101000000Z";

    fn public_key() -> Vec<u8> {
        encode(SEQUENCE, &[7; 300])
    }

    /// Without the signature behind tbsCertificate, whose last field is the issuer's identifier.
    fn certificate(version: Option<u8>, times: &[u8]) -> Vec<u8> {
        certificate_with(version, times, &public_key())
    }

    fn certificate_with(version: Option<u8>, times: &[u8], key: &[u8]) -> Vec<u8> {
        let version = version.map(|version| encode(EXPLICIT_VERSION, &encode(2, &[version]))).unwrap_or_default();
        let (serial, algorithm, name) = (encode(2, &[1]), encode(SEQUENCE, &[5, 0]), encode(SEQUENCE, &[]));
        let validity = encode(SEQUENCE, times);
        let identifier = encode(0x81, &[0, 1]);
        let content = [version, serial, algorithm, name.clone(), validity, name, key.to_vec(), identifier].concat();
        encode(SEQUENCE, &encode(SEQUENCE, &content))
    }

    fn times() -> Vec<u8> {
        [encode(UTC_TIME, BEGIN), encode(GENERALIZED_TIME, END)].concat()
    }

    #[test]
    fn a_certificate_of_any_version_has_its_validity() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for version in [None, Some(0), Some(1), Some(2)] {
            let found = validity(&certificate(version, &times()));
            assert_eq!(found, Some((at(1_714_564_800), at(2_524_608_000))), "{version:?}");
        }
    }

    #[test]
    fn only_certificates_before_version_3_give_their_key() {
        for version in [None, Some(0), Some(1)] {
            assert_eq!(old_public_key(&certificate(version, &times())), Some(&*public_key()), "{version:?}");
        }
        assert_eq!(old_public_key(&certificate(Some(2), &times())), None);
        let other = encode(4, &public_key());
        assert_eq!(old_public_key(&certificate_with(None, &times(), &other)), None, "no SubjectPublicKeyInfo");
    }

    #[test]
    fn a_certificate_that_is_cut_off_or_has_other_times_is_none() {
        let whole = certificate(Some(1), &times());
        for end in 0..whole.len() {
            assert_eq!((validity(&whole[..end]), old_public_key(&whole[..end])), (None, None), "{end} bytes");
        }
        let begin = encode(UTC_TIME, BEGIN);
        for times in [vec![], begin.clone(), [begin, encode(4, END)].concat()] {
            assert_eq!(validity(&certificate(None, &times)), None);
        }
    }
}
