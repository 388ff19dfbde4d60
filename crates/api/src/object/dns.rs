//! Checks the names that an API server accepts: DNS labels and DNS subdomains (RFC 1123).

/// The longest DNS label.
const LABEL_BYTES: usize = 63;
/// The longest DNS subdomain.
const SUBDOMAIN_BYTES: usize = 253;

/// True for a DNS label (RFC 1123), as namespaces, Services and their ports are named: at most 63 lower-case
/// letters, digits and `-`, the first and the last of them no `-`.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= LABEL_BYTES && is_part(text)
}

/// True for a DNS subdomain (RFC 1123), as most other objects are named: parts like labels, joined by `.`, at most
/// 253 bytes in all.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_BYTES && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inside) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        for (text, label, subdomain) in [
            ("web", true, true),
            ("0-web-1", true, true),
            ("80", true, true),
            ("web.shop", false, true),
            ("web-1.2-x", false, true),
            ("", false, false),
            ("Web", false, false),
            ("web_1", false, false),
            ("web:http", false, false),
            ("web/http", false, false),
            ("-web", false, false),
            ("web-", false, false),
            (".web", false, false),
            ("web..shop", false, false),
            ("web.-shop", false, false),
            ("wéb", false, false),
            ("web\n", false, false),
        ] {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text:?}");
        }
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
    }
}
