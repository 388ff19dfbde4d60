//! What is read from a certificate's DER: when it begins and ends, and the key of those that the TLS library doesn't read.

use std::time::{Duration, SystemTime};

use ferry_api::wire::parse_timestamp;

const SEQUENCE: u8 = 0x30;
const EXPLICIT_VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Counts from 0.
const VERSION_3: &[u8] = &[2];

/// notBefore and notAfter of a certificate; `None` if it isn't one.
pub(super) fn validity(certificate: &[u8]) -> Option<(SystemTime, SystemTime)> {
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
pub(super) fn old_public_key(certificate: &[u8]) -> Option<&[u8]> {
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

/// A certificate's version, where it says one, and what it holds from its validity on.
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
        // Two digits from 50 on are of the last century.
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
    fn times() {
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
}
