use ferry_lab::api::{Authority, Validity};

use super::*;

fn refused(folder: &Folder, cluster: &str, user: &str) -> String {
    folder.access(cluster, user).unwrap_err().to_string()
}

fn environment(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
    move |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
}

fn load(path: &str, master: Option<&str>) -> Result<Access, AccessError> {
    Access::load_with(path, master, &|_| None, Path::new("/nowhere"))
}

#[test]
fn a_missing_or_broken_file_ends_the_start() {
    let folder = Folder::new();
    let missing = load("/nowhere/config", None).unwrap_err().to_string();
    assert_eq!(missing, "stat /nowhere/config: no such file or directory");
    let directory = folder.path("");
    assert_eq!(load(&directory, None).unwrap_err().to_string(), format!("open {directory}: is a directory"));
    let path = folder.write("broken", "clusters: [\n");
    let error = load(&path, None).unwrap_err().to_string();
    assert!(error.starts_with(&format!("error loading config file {path:?}: yaml: line ")), "{error}");
    let path = folder.write("empty", "");
    let error = load(&path, None).unwrap_err().to_string();
    assert!(error.starts_with(&format!("error loading config file {path:?}: invalid configuration: ")), "{error}");
    fs::write(folder.path("binary"), [0xff, 0xfe]).unwrap();
    assert!(load(&folder.path("binary"), None).unwrap_err().to_string().ends_with(": not UTF-8 text"));
}

#[test]
fn a_master_alone_needs_nothing_else() {
    assert_eq!(load("", Some("http://10.0.0.1:8080/")).unwrap().server(), "http://10.0.0.1:8080");
    assert_eq!(load("", Some("10.0.0.1:8080")).unwrap().server(), "http://10.0.0.1:8080");
    assert_eq!(load("", Some("https://[fd00::1]")).unwrap().server(), "https://[fd00::1]");
    assert!(load("", Some("gopher://x")).unwrap_err().to_string().starts_with("--master: invalid configuration: "));
    let folder = Folder::new();
    let path = folder.kubeconfig("server: 'https://a'", "token: t");
    assert_eq!(load(&path, Some("https://b/x")).unwrap().server(), "https://b/x");
}

#[test]
fn a_pod_has_its_account() {
    let folder = Folder::new();
    let authority = Authority::new("cluster");
    folder.write("token", "t\n");
    folder.write("ca.crt", &authority.certificate());
    let load = |env: &'static [(&str, &str)]| Access::load_with("", None, &environment(env), &folder.0);
    let access = load(&[("KUBERNETES_SERVICE_HOST", "fd00::1"), ("KUBERNETES_SERVICE_PORT", "443")]).unwrap();
    assert_eq!(access.server(), "https://[fd00::1]:443");
    let access = load(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("KUBERNETES_SERVICE_PORT", "6443")]).unwrap();
    assert_eq!(access.server(), "https://10.0.0.1:6443");
    let error = load(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    );
    let error = load(&[("KUBERNETES_SERVICE_HOST", "a"), ("KUBERNETES_SERVICE_PORT", "https")]).unwrap_err();
    assert!(error.to_string().contains("KUBERNETES_SERVICE_PORT"), "{error}");
    fs::remove_file(folder.path("token")).unwrap();
    let error = load(&[("KUBERNETES_SERVICE_HOST", "a"), ("KUBERNETES_SERVICE_PORT", "1")]).unwrap_err().to_string();
    let token = folder.path("token");
    assert_eq!(
        error,
        format!("invalid configuration: in-cluster configuration: tokenFile: open {token}: no such file or directory")
    );
}

#[test]
fn what_a_kubeconfig_names_must_be_usable() {
    let folder = Folder::new();
    let authority = Authority::new("a");
    let (one, other) = (authority.client("a", &[], Validity::Now), authority.client("b", &[], Validity::Now));
    let [ca, certificate, key, strange] = [
        folder.write("ca", &authority.certificate()),
        folder.write("certificate", &one.certificate),
        folder.write("key", &one.key),
        folder.write("strange", &other.key),
    ];
    let server = "server: 'https://a'";
    folder.write("token", "t");
    let empty = folder.write("empty", " \n");
    let origin = folder.path("kubeconfig");
    assert!(folder.access(&format!("{server}, certificate-authority: {ca}"), "").is_ok());
    // Relative to the kubeconfig's folder.
    assert!(folder.access(server, "client-certificate: certificate, client-key: ./key, tokenFile: token").is_ok());
    for (cluster, user, wanted) in [
        ("certificate-authority: nothing", String::new(), "certificate-authority: unable to read the file: open "),
        (
            "certificate-authority: empty",
            String::new(),
            "certificate-authority: unable to load root certificates: unable to parse bytes as PEM block",
        ),
        ("certificate-authority: key", String::new(), "certificate-authority: unable to load root certificates: "),
        (
            "",
            format!("client-certificate: {certificate}, client-key: nothing"),
            "client-key: unable to read the file: open ",
        ),
        ("", format!("client-certificate: {key}, client-key: {key}"), "client-certificate: no certificate found"),
        ("", format!("client-certificate: {certificate}, client-key: {ca}"), "client-key: no private key found"),
        (
            "",
            format!("client-certificate: {certificate}, client-key: {strange}"),
            "client-certificate and client-key: private key does not match public key",
        ),
        ("", "tokenFile: nothing".to_owned(), "tokenFile: open "),
        ("", format!("tokenFile: {empty}"), &format!("tokenFile: {empty}: the token is empty")),
        ("", "token: \"a\\nb\"".to_owned(), "token: the token contains characters that are invalid in a header"),
        ("", "username: 'a:b'".to_owned(), "username: must not contain a colon"),
        ("", "as: \"a\\nb\"".to_owned(), "impersonation: the value of Impersonate-User is invalid in a header"),
    ] {
        let error = refused(&folder, &format!("{server}, {cluster}"), &user);
        let start = format!("invalid configuration: {origin}: {wanted}");
        assert!(error.starts_with(&start), "{error}\n{start}");
    }
}

#[test]
fn a_server_without_tls_gets_no_credentials_and_no_file_is_read() {
    let folder = Folder::new();
    let user = "client-certificate: nothing, client-key: nothing, tokenFile: nothing";
    let access = folder.access("server: 'http://a', certificate-authority: nothing", user).unwrap();
    assert_eq!(access.settings.chosen.user, kubeconfig::User::default());
}

#[test]
fn nothing_secret_is_shown() {
    let folder = Folder::new();
    let access = folder.access("server: 'https://a', proxy-url: 'http://u:secret@p'", "token: secret").unwrap();
    assert!(!format!("{access:?} {:?}", access.settings.proxy).contains("secret"));
    assert!(!format!("{:?}", access.settings.chosen).contains("secret"));
    let setup = Setup::new(access);
    assert!(!format!("{:?} {:?}", setup.client, setup.client.0.credentials).contains("secret"));
}

#[test]
fn a_password_in_a_url_is_never_shown() {
    let folder = Folder::new();
    for url in [
        "https://me:secret@a",
        "https://me:secret/@a",
        "https://secret/b@a",
        "https://me:secret@a:x",
        "me:secret@a",
        "secret://me:secret@a",
        "me:secret://x@a",
        "https://1:23/secret@a",
    ] {
        let of_file = folder.access(&format!("server: '{url}'"), "");
        let of_flag = load("", Some(url));
        for result in [of_file, of_flag] {
            let shown = match result {
                // The password looks like a path; the message omits it.
                Ok(access) => format!("{access:?} {} {:?}", access.server(), access.settings.shown),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.replace("secret://", "").contains("secret"), "{url}: {shown}");
        }
    }
    for url in ["ftp://me:secret@p", "http://me:secret@", "http://me:secret@p:x", "me:secret@p", "http://me:secret/@p"]
    {
        let error = folder.access(&format!("server: 'https://a', proxy-url: '{url}'"), "").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error}");
    }
}
