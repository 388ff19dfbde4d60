use super::*;

const HEAD: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n";

/// A file with one context, whose cluster and user have these fields.
fn config(cluster: &str, user: &str) -> String {
    format!(
        "{HEAD}contexts:\n- name: c\n  context: {{cluster: k, user: u}}\nclusters:\n- name: k\n  cluster: {{{cluster}}}\n\
         users:\n- name: u\n  user: {{{user}}}\n"
    )
}

fn of(cluster: &str, user: &str) -> Result<Chosen, KubeconfigError> {
    decode(&config(cluster, user), None)
}

fn user(fields: &str) -> Result<User, String> {
    of("server: 'https://a'", fields).map(|chosen| chosen.user).map_err(|error| error.to_string())
}

/// The error's text behind `invalid configuration: `.
fn invalid(result: Result<Chosen, KubeconfigError>) -> String {
    result.unwrap_err().to_string().strip_prefix("invalid configuration: ").unwrap().to_owned()
}

#[test]
fn a_whole_file() {
    let text = r#"
apiVersion: v1
kind: Config
preferences: {colors: true}
current-context: two
contexts:
- name: one
- name: two
  context: {cluster: far, user: me, namespace: x, unknown: 1}
clusters:
- name: near
  cluster: {server: https://near}
- name: far
  cluster:
    server: https://far.example:6443/k8s/clusters/c-1/
    certificate-authority-data: |
      YXV0
      aG9y
    tls-server-name: kubernetes
    proxy-url: socks5://user:word@proxy:1080
    disable-compression: true
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {a: [1, b]}
    - name: other
users:
- name: me
  user:
    client-certificate: cert.pem
    client-key-data: a2V5
    tokenFile: token
    token: passed over
    as: admin
    as-uid: "7"
    as-groups: [g, h]
    as-user-extra: {b: [x, y], a: null}
"#;
    let chosen = decode(text, None).unwrap();
    assert_eq!(chosen.server.to_string(), "https://far.example:6443/k8s/clusters/c-1");
    assert_eq!(chosen.authorities, Some(FileContent::Data(b"author".to_vec())));
    assert_eq!((chosen.insecure, chosen.disable_compression), (false, true));
    assert_eq!(chosen.server_name.as_deref(), Some("kubernetes"));
    assert_eq!(chosen.proxy.as_deref(), Some("socks5://user:word@proxy:1080"));
    assert_eq!(chosen.exec_config, Some(serde_json::json!({"a": [1, "b"]})));
    let impersonate = Impersonate {
        user: "admin".to_owned(),
        uid: Some("7".to_owned()),
        groups: vec!["g".to_owned(), "h".to_owned()],
        extra: vec![("a".to_owned(), vec![]), ("b".to_owned(), vec!["x".to_owned(), "y".to_owned()])],
    };
    let user = User {
        name: "me".to_owned(),
        certificate: Some((FileContent::File("cert.pem".to_owned()), FileContent::Data(b"key".to_vec()))),
        authorization: Authorization::TokenFile("token".to_owned()),
        impersonate: Some(impersonate),
    };
    assert_eq!(chosen.user, user);
}

#[test]
fn json_is_read_too_with_tabs() {
    let text = "{\n\t\"kind\": \"Config\",\n\t\"current-context\": \"c\",\n\t\"contexts\": [{\"name\": \"c\", \
                \"context\": {\"cluster\": \"k\"}}],\n\t\"clusters\": [\n\t\t{\"name\": \"k\", \"cluster\": \
                {\"server\": \"https://a:1\", \"certificate-authority-data\": null}}\n\t],\n\t\"users\": null\n}\n";
    assert_eq!(decode(text, None).unwrap().server.to_string(), "https://a:1");
}

#[test]
fn a_master_stands_in_for_the_server() {
    let text = config("server: 'https://a', tls-server-name: n", "token: t");
    let chosen = decode(&text, Some("https://b:1/p/")).unwrap();
    assert_eq!((chosen.server.to_string(), chosen.server_name), ("https://b:1/p".to_owned(), None));
    assert_eq!(chosen.user.authorization, Authorization::Token(Secret::new("t")));
    // Without a context, too, and without a file.
    assert_eq!(decode("", Some("http://b")).unwrap().user, User::default());
    assert_eq!(of_master("http://b").unwrap().server.to_string(), "http://b");
    assert_eq!(decode(&text, Some("")).unwrap().server.host, "a");
}

#[test]
fn servers() {
    for (text, default_tls, wanted) in [
        ("https://a", false, "https://a"),
        ("HTTPS://A.b-c_d:443/", false, "https://A.b-c_d:443"),
        ("http://10.0.0.1:8080//x/%20y//", true, "http://10.0.0.1:8080//x/%20y"),
        ("https://[fd00::1]:6443", false, "https://[fd00::1]:6443"),
        ("[::1]", false, "http://[::1]"),
        ("a:1", false, "http://a:1"),
        ("a:1", true, "https://a:1"),
        ("a:", true, "https://a"),
        ("a/", true, "https://a"),
    ] {
        assert_eq!(ServerAddress::parse(text, default_tls).unwrap().to_string(), wanted, "{text}");
    }
    for text in [
        "",
        "https://",
        "ftp://a",
        "https://a b",
        "https://a:port",
        "https://a:65536",
        "https://a:+1",
        "https://::1",
        "https://[::1",
        "https://[a]",
        "https://[::1]x",
        "https://u:p@a",
        "https://a?x",
        "https://a/x#y",
        "a/b",
        "https://a/x y",
        "https://a/ä",
        "https://ä",
        "https://a\n",
    ] {
        assert!(ServerAddress::parse(text, true).is_err(), "{text:?}");
    }
}

#[test]
fn which_scheme_a_server_without_one_has() {
    let scheme = |cluster: &str| of(cluster, "token: t").map(|chosen| (chosen.server.tls, chosen.user.name)).unwrap();
    assert_eq!(scheme("server: 'a:1'"), (false, String::new()));
    assert_eq!(scheme("server: 'a:1', insecure-skip-tls-verify: true"), (true, "u".to_owned()));
    assert_eq!(scheme("server: 'a:1', certificate-authority: f"), (true, "u".to_owned()));
}

#[test]
fn a_server_without_tls_gets_no_credentials_and_nothing_about_them_is_checked() {
    let chosen = of("server: 'http://a'", "token: t, password: p, client-key: k, exec: {}").unwrap();
    assert_eq!(chosen.user, User::default());
}

#[test]
fn what_a_context_needs() {
    assert_eq!(invalid(decode("", None)), "no configuration has been provided, there is no current-context");
    assert_eq!(
        invalid(decode("kind: Config\n", None)),
        "no configuration has been provided, there is no current-context"
    );
    assert_eq!(invalid(decode(HEAD, None)), "context was not found for specified context: c");
    let context = format!("{HEAD}contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n");
    assert_eq!(invalid(decode(&context, None)), "cluster \"k\" was not found for context \"c\"");
    assert_eq!(invalid(decode(&context, Some("https://a"))), "user \"u\" was not found for the current context");
    assert!(decode(&context, Some("http://a")).is_ok());
    assert_eq!(invalid(of("server: ''", "")), "no server found for cluster \"k\"");
    assert_eq!(invalid(of("", "")), "no server found for cluster \"k\"");
    assert_eq!(
        invalid(of("server: 'gopher://a'", "")),
        "cluster \"k\": server \"gopher://a\": scheme \"gopher\" is neither http nor https"
    );
    assert_eq!(invalid(decode("kind: Pod\n", None)), "no kind \"Pod\" is registered for version \"v1\"");
    assert_eq!(invalid(decode("apiVersion: v2\n", None)), "no kind \"Config\" is registered for version \"v2\"");
    assert_eq!(invalid(decode("users: [{name: a}, {name: a}]\n", None)), "users: duplicate name \"a\" in list");
}

#[test]
fn contradictions_of_a_cluster() {
    for (fields, message) in [
        (
            "certificate-authority: f, certificate-authority-data: YQ==",
            "certificate-authority-data and certificate-authority are both specified",
        ),
        (
            "certificate-authority: f, insecure-skip-tls-verify: true",
            "a certificate authority with insecure-skip-tls-verify is not allowed",
        ),
        ("certificate-authority-data: '!'", "certificate-authority-data: illegal base64 data"),
        ("proxy-url: 'ftp://p'", "invalid proxy-url: unsupported scheme \"ftp\", must be http, https, or socks5"),
        ("proxy-url: 'p:1'", "invalid proxy-url: missing scheme"),
        ("proxy-url: 'http://secret@'", "invalid proxy-url: missing host"),
    ] {
        assert_eq!(invalid(of(&format!("server: 'https://a', {fields}"), "")), format!("cluster \"k\": {message}"));
    }
}

#[test]
fn contradictions_of_a_user() {
    for (fields, message) in [
        ("client-certificate: f", "client-key-data or client-key must be specified beside the certificate"),
        ("client-key: f", "client-certificate-data or client-certificate must be specified beside the key"),
        (
            "client-certificate: f, client-certificate-data: YQ==",
            "client-certificate-data and client-certificate are both specified",
        ),
        ("client-key: f, client-key-data: YQ==", "client-key-data and client-key are both specified"),
        ("client-key-data: 'YQ', client-certificate: f", "client-key-data: illegal base64 data"),
        (
            "token: t, username: n",
            "more than one authentication method found: token and basicAuth, only one is allowed",
        ),
        (
            "tokenFile: t, password: n",
            "more than one authentication method found: token and basicAuth, only one is allowed",
        ),
        ("as-groups: [a]", "requesting uid, groups or user-extra without impersonating a user"),
        ("auth-provider: {name: gcp}", "no auth provider found for name \"gcp\": use an exec plugin"),
        ("auth-provider: {name: oidc}", "auth-provider oidc: id-token is missing"),
        (
            "auth-provider: {name: oidc}, exec: {command: c}",
            "auth-provider cannot be provided in combination with an exec plugin",
        ),
        ("exec: {}", "command must be specified to use exec authentication plugin"),
        ("exec: {command: c}", "apiVersion must be specified to use exec authentication plugin"),
        ("exec: {command: c, apiVersion: x/v1}", "exec: invalid apiVersion \"x/v1\", neither v1 nor v1beta1"),
        (
            "exec: {command: c, apiVersion: client.authentication.k8s.io/v1}",
            "interactiveMode must be specified to use exec authentication plugin",
        ),
        (
            "exec: {command: c, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}",
            "exec: interactiveMode Always needs a terminal: use IfAvailable or Never",
        ),
        (
            "exec: {command: c, apiVersion: client.authentication.k8s.io/v1beta1, env: [{value: x}]}",
            "env variable name must be specified for exec plugin",
        ),
    ] {
        assert_eq!(user(fields).unwrap_err(), format!("invalid configuration: user \"u\": {message}"), "{fields}");
    }
}

#[test]
fn forms_of_authorization() {
    let authorization = |fields: &str| user(fields).unwrap().authorization;
    assert_eq!(authorization(""), Authorization::None);
    assert_eq!(authorization("token: t"), Authorization::Token(Secret::new("t")));
    assert_eq!(authorization("token: t, tokenFile: f"), Authorization::TokenFile("f".to_owned()));
    let basic = Authorization::Basic { username: "n".to_owned(), password: Secret::default() };
    assert_eq!(authorization("username: n"), basic);
    let oidc = "auth-provider: {name: oidc, config: {id-token: t, client-id: x, refresh-token: null}}";
    assert_eq!(authorization(oidc), Authorization::Token(Secret::new("t")));
    let exec = "exec: {command: c, apiVersion: client.authentication.k8s.io/v1, interactiveMode: IfAvailable, \
                args: [a, b], env: [{name: n, value: v}], provideClusterInfo: true, installHint: h}";
    let wanted = Exec {
        command: "c".to_owned(),
        args: vec!["a".to_owned(), "b".to_owned()],
        env: vec![("n".to_owned(), "v".to_owned())],
        api_version: "client.authentication.k8s.io/v1".to_owned(),
        install_hint: "h".to_owned(),
        provide_cluster_info: true,
    };
    assert_eq!(authorization(exec), Authorization::Exec(Box::new(wanted)));
    // Credentials in the file win over a plugin.
    assert_eq!(authorization(&format!("token: t, {exec}")), Authorization::Token(Secret::new("t")));
}

#[test]
fn malformed_files_say_where() {
    for (text, wanted) in [
        ("users:\n  a: [\n", "yaml: line "),
        ("users: 5\n", "yaml: line 1, column 8: users: expected a list"),
        ("5\n", "yaml: line 1, column 1: expected a map"),
        ("clusters:\n- cluster: {insecure-skip-tls-verify: [1]}\n", "yaml: line 2, column "),
        ("a\u{0}b: c", "yaml: line "),
    ] {
        let error = decode(text, None).unwrap_err();
        assert!(matches!(error, KubeconfigError::Malformed { .. }), "{text:?}: {error}");
        assert!(error.to_string().starts_with(wanted), "{text:?}: {error}");
    }
}

#[test]
fn a_wrong_type_names_the_field() {
    for (cluster, user, wanted) in [
        ("server: [1]", "", "9, column 21: clusters[0].cluster.server: expected string scalar"),
        (
            "insecure-skip-tls-verify: maybe",
            "",
            "9, column 39: clusters[0].cluster.insecure-skip-tls-verify: invalid boolean",
        ),
        ("extensions: {}", "", "9, column 25: clusters[0].cluster.extensions: expected a list"),
        ("", "token: [secret]", "12, column 17: users[0].user.token: expected string scalar"),
        ("", "token: {secret: 1}", "12, column 17: users[0].user.token: expected string scalar"),
        ("", "as-groups: secret", "12, column 21: users[0].user.as-groups: expected a list"),
        (
            "",
            "as-user-extra: {k: [a, [secret]]}",
            "12, column 33: users[0].user.as-user-extra.k[1]: expected string scalar",
        ),
        (
            "",
            "auth-provider: {config: {\"a\\nb\": [secret]}}",
            "12, column 43: users[0].user.auth-provider.config.a\\nb: expected string scalar",
        ),
        ("", "exec: secret", "12, column 16: users[0].user.exec: expected a map"),
        ("", "exec: {args: [a, {secret: 1}]}", "12, column 27: users[0].user.exec.args[1]: expected string scalar"),
        (
            "",
            "exec: {env: [{}, {name: n, value: [secret]}]}",
            "12, column 44: users[0].user.exec.env[1].value: expected string scalar",
        ),
        ("", "exec: {env: [secret]}", "12, column 23: users[0].user.exec.env[0]: expected a map"),
        (
            "",
            "exec: {provideClusterInfo: secret}",
            "12, column 37: users[0].user.exec.provideClusterInfo: invalid boolean",
        ),
    ] {
        let error = of(cluster, user).unwrap_err();
        assert_eq!(error.to_string(), format!("yaml: line {wanted}"), "{cluster} {user}");
    }
    let error = decode("contexts:\n- name: a\n- context:\n    cluster: [b]\n", None).unwrap_err();
    assert_eq!(error.to_string(), "yaml: line 4, column 14: contexts[1].context.cluster: expected string scalar");
}

#[test]
fn urls_are_shown_without_credentials() {
    for (url, wanted) in [
        ("https://a:1/b", "https://a:1/b"),
        ("https://me:word@a:1/b", "https://…@a:1/b"),
        ("https://me:wo@rd@a", "https://…@a"),
        ("socks5://me@a", "socks5://…@a"),
        ("me:word@a:1", "…@a:1"),
        ("me:word://x@a", "…@a"),
        ("me:word@https://a", "…@https://a"),
        ("://word@a", "…@a"),
        ("", ""),
        ("@", "…@"),
    ] {
        assert_eq!(without_credentials(url), wanted, "{url}");
    }
}

#[test]
fn no_password_of_a_url_is_shown() {
    for server in ["https://me:secret@a", "https://me:secret/x@a", "me:secret@a", "secret@a://b", "ht:secret://x@a"] {
        let wanted = format!("server {:?}: must consist of scheme, host, port and path, without credentials", {
            without_credentials(server)
        });
        assert_eq!(invalid(of(&format!("server: '{server}'"), "")), format!("cluster \"k\": {wanted}"));
        assert_eq!(invalid(of_master(server)), format!("cluster \"\": {wanted}"));
        assert!(!wanted.contains("secret"), "{wanted}");
    }
    for proxy in ["ftp://me:secret@p", "http://me:secret@p:x", "http://12:3/secret@p", "me:secret://x@p", "secret@p"] {
        let error = of(&format!("server: 'https://a', proxy-url: '{proxy}'"), "").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
    let chosen = of("server: 'https://a', proxy-url: 'http://me:secret@p'", "").unwrap();
    assert_eq!(chosen.proxy.as_deref(), Some("http://me:secret@p"));
    assert!(!format!("{chosen:?}").contains("secret"), "{chosen:?}");
    // A text that isn't a URL's authority may be a path all the same.
    let chosen = of("server: 'https://1:2/secret@a'", "").unwrap();
    assert_eq!(chosen.server.to_string(), "https://1:2/secret@a");
    assert!(!format!("{chosen:?}").contains("secret"), "{chosen:?}");
}

#[test]
fn nothing_secret_is_shown() {
    let fields = "client-certificate: f, client-key-data: c2VjcmV0, username: n, password: secret, \
                  as: x";
    let shown = format!("{:?}", user(fields).unwrap());
    assert!(!shown.contains("secret") && !shown.contains("115, 101"), "{shown}");
    let exec = "exec: {command: c, apiVersion: client.authentication.k8s.io/v1beta1, args: [secret], \
                env: [{name: n, value: secret}]}";
    assert!(!format!("{:?}", user(exec).unwrap()).contains("secret"));
    let error = user("client-certificate: f, client-key-data: 'se!cret'").unwrap_err();
    assert!(!error.contains("se!cret"), "{error}");
}

#[test]
fn no_broken_file_shows_what_its_fields_hold() {
    for field in [
        "token: ",
        "password: ",
        "client-key-data: ",
        "as-groups: ",
        "as-user-extra: ",
        "auth-provider: ",
        "auth-provider: {config: ",
        "auth-provider: {config: {id-token: ",
        "exec: ",
        "exec: {args: ",
        "exec: {env: ",
        "exec: {env: [{value: ",
        "exec: {provideClusterInfo: ",
    ] {
        for value in [
            "[secret]",
            "[[secret]]",
            "{secret: 1}",
            "\"secret",
            "'secret",
            "*secret",
            "!secret x",
            "!<secret",
            "!!binary secret!",
            "!!int secret",
            "&secret",
            "&secret [*secret]",
            "|secret",
            "%secret",
            "@secret",
            "`secret",
            "secret: x: y",
            "\"\\qsecret\"",
            "[secret",
            "{secret",
            "<<: secret",
        ] {
            let closing: String = field
                .chars()
                .rev()
                .filter_map(|c| [('{', '}'), ('[', ']')].iter().find(|p| p.0 == c).map(|p| p.1))
                .collect();
            let text = format!("client-certificate: f, {field}{value}{closing}");
            if let Err(error) = user(&text) {
                // Names of entries aren't secret.
                assert!(
                    !error.replace("config.secret", "").replace("extra.secret", "").contains("secret"),
                    "{text}: {error}"
                );
            }
        }
    }
}
