use ferry_lab::api::{Authority, Validity};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::super::tls;
use super::*;

/// A certificate of version 1, as `openssl x509 -req` makes it without extensions.
const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBGTCBwQIUBe8NzKiPa4Ti5dYYDBFXqou3jikwCgYIKoZIzj0EAwIwDTELMAkG
A1UEAwwCY2EwIBcNMjYxMTIxMTc1OTMxWhgPMjEyNjEwMjgxNzU5MzFaMBExDzAN
BgNVBAMMBmNsaWVudDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABE4ouKPNqpoG
9HZnR/VGBLPmYcW5RqVcE8NtU4R3gbtKUFBk12xzeUtgv6gjRfCl5ngrbASmwhqb
FciGnOj531EwCgYIKoZIzj0EAwIDRwAwRAIgUfiZDYbEGH4ERd7/x36F60rRfSdZ
f4yDb4SCvi8I41YCIBFUUT0lANeKe4ClfOrO1tZSZTZj4cAxGYzr/G7bXhJR
-----END CERTIFICATE-----
";
/// Its key.
const VERSION_1_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgQBuQLv5oQwtO282s
SyjyqxKNuxG4+kOMnZT8+K4UJFuhRANCAAROKLijzaqaBvR2Z0f1RgSz5mHFuUal
XBPDbVOEd4G7SlBQZNdsc3lLYL+oI0XwpeZ4K2wEpsIamxXIhpzo+d9R
-----END PRIVATE KEY-----
";
const P521_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIHuAgEAMBAGByqGSM49AgEGBSuBBAAjBIHWMIHTAgEBBEIBGJkN8aOVxdTFGd/E
zjTPtIxYtVloTdqA9E3STUkqydbHh2sdFf+/BBZAQsGcAK61JUN6M4+pNY6Nkf9f
xqVkSI+hgYkDgYYABAD0LPAiWH9j6VazWzA4Q/cOqpPzvddjtCyhRS8q1+q6Ks20
HDmxf4hxCmlVSRJNqX3cW+FXFj/Uz1WcHNc+0jf2hAFY865bvjBIW1mY1x+APaJX
pDNqm0zpvEu/v5nSW4Gp9JSR61mOl6tYzTTZlMcGKVSbsfiro8KayRsRv7gTXlUE
sA==
-----END PRIVATE KEY-----
";
const RSA_1024_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIICdgIBADANBgkqhkiG9w0BAQEFAASCAmAwggJcAgEAAoGBANIMNNqd0Xz1Wg7I
4X+5cIJW/2EdQv9kcfxeR2iTHs2jRPoaU1BSgUBNqEL8NB16pldJAZfQ74X1oEDN
dKI1Y2hOg/0RW3AmHUAkkm4sozEOLl9sw9QpSixhPZb0WA8xUMXiorU9roemanTM
SqNXkHs9houahDb+efE+48kYM/XvAgMBAAECgYA8T+j1RQ+b889SI3gsdpDJvDVE
K2TLdIoOTvvuGSBlJ5ZswhZeH/KhBitkYIqOVGNi+MGOWB4OtwK22Me+s9nA2dSr
S94pr68dzTAHZF5ifjQOMgxGDD8vxsD87NOTrfZ3CWOAYvFtTmhRMBARVbsEop8d
DdKOyEzreY/pQ0yVIQJBAP8QGp/xeCpe1ECB//TvB6kjFKS5Bt9R+PVl/y9BnW9h
qQ/7vIOjomexPT1J/NZ1RVPxrEhEXlR90/ynwTWPCBkCQQDS0cOU9Hajf1VG4st7
Lr/K4ExNvGMdxFeU3IWY8xEs6fTpJVsT29KAPtdKo5R+0OaNNryzMl7CsZg7d9Kf
cU9HAkEAggUzjVUKbI7qo/ehArrWrOG1JEMtvamLv4y/CNfp6V1fUUaCUpiXsUQo
c5XDzY76SFBqAmzXqTp7VdAuLZ88AQJAftNWd8vBe4ZkxOo3Q3nSQ7g/7xv//K5b
ieBINsUzdfOhNIkWi5HYxvIHDo3uDYSaziU5zAvnWfUBAfWJrgW6jQJAU/vRCU2z
JudNtK2AbBcczEGTYLQFvfMmWxMDz1d5OQUnI8DQ5Wy3PewsPp3thjTc5xnHp7y8
6cP8NzEtiEcpag==
-----END PRIVATE KEY-----
";

/// The result for a kubeconfig with this pair.
fn load(certificate: &str, key: &str) -> Result<Access, String> {
    let folder = Folder::new();
    let (certificate, key) = (base64(certificate), base64(key));
    let user = format!("client-certificate-data: {certificate}, client-key-data: {key}");
    let start = format!("invalid configuration: {}: ", folder.path("kubeconfig"));
    folder.access("server: 'https://a'", &user).map_err(|error| {
        let error = error.to_string();
        error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
    })
}

#[test]
fn certificates_of_version_1_are_sent() {
    let access = load(VERSION_1, VERSION_1_KEY).unwrap();
    let config = tls::config(&access.settings, &access.material).unwrap();
    let sent = config.client_auth_cert_resolver.resolve(&[], &[]).unwrap();
    let der = CertificateDer::from_pem_slice(VERSION_1.as_bytes()).unwrap();
    assert_eq!(sent.cert, [der]);
    assert!(access.material.pair.unwrap().expiry().is_some());
}

#[test]
fn a_pair_that_doesnt_match_is_refused_in_every_version() {
    let other = Authority::new("a").client("a", &[], Validity::Now);
    let wanted = "client-certificate and client-key: private key does not match public key";
    assert_eq!(load(VERSION_1, &other.key).unwrap_err(), wanted);
    assert_eq!(load(&other.certificate, VERSION_1_KEY).unwrap_err(), wanted);
}

#[test]
fn keys_that_cant_be_used_are_told_apart_from_certificates() {
    for key in [P521_KEY, RSA_1024_KEY] {
        let error = load(VERSION_1, key).unwrap_err();
        assert!(error.starts_with("client-key: the key is malformed or of an unsupported type"), "{error}");
        assert!(error.contains("P-521 and RSA below 2048 bits"), "{error}");
    }
}

#[test]
fn a_certificate_that_cant_be_read_is_called_the_clients() {
    let broken = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    let error = load(broken, VERSION_1_KEY).unwrap_err();
    assert!(error.starts_with("client-certificate: malformed certificate: "), "{error}");
    assert!(!error.contains("peer"), "{error}");
}
