use std::time::Duration;

use ferry_lab::api::{ApiServerOptions as Server, Authority, Validity};

use super::*;

const V1: &str = "client.authentication.k8s.io/v1";
/// Time between the runs of a plugin in these tests.
const PAUSE: Duration = Duration::from_millis(200);

/// A server that accepts a token, and a folder for plugins.
struct Bench {
    server: ApiServer,
    folder: Folder,
    cluster: String,
}

/// Waits until the pause after a run that has ended is over.
async fn pause_ends() {
    tokio::time::sleep(PAUSE + Duration::from_millis(50)).await;
}

impl Bench {
    fn new() -> Self {
        let identity = Authority::new("lab").server(&["127.0.0.1"], Validity::Now);
        let token = Some("sesame".to_owned());
        let server = filled(Server { tls: Some(identity.clone()), token, ..Server::default() }, 1);
        let cluster = cluster_of(&server, &identity);
        Self { server, folder: Folder::new(), cluster }
    }

    /// A client whose plugin is this script; fields of `exec` may be added.
    fn client(&self, script: &str, fields: &str) -> Setup {
        self.folder.script("plugin", script);
        self.client_of("./plugin", fields)
    }

    fn client_of(&self, command: &str, fields: &str) -> Setup {
        self.client_of_with(command, fields, |timing| timing.plugin = Duration::from_millis(700))
    }

    /// A client whose plugin is this script, with other time limits.
    fn client_with(&self, script: &str, adjust: impl FnOnce(&mut TimeLimits)) -> Setup {
        self.folder.script("plugin", script);
        self.client_of_with("./plugin", "", adjust)
    }

    fn client_of_with(&self, command: &str, fields: &str, adjust: impl FnOnce(&mut TimeLimits)) -> Setup {
        let user = format!("exec: {{command: {command}, apiVersion: {V1}, interactiveMode: Never{fields}}}");
        let access = self.folder.access(&self.cluster, &user).unwrap();
        Setup::with(access, |options| {
            options.timing.plugin_pause = PAUSE;
            adjust(&mut options.timing);
        })
    }

    /// Number of the plugin's runs: lines that it appended to a file.
    fn runs(&self) -> usize {
        fs::read_to_string(self.folder.path("runs")).map_or(0, |text| text.lines().count())
    }

    fn count(&self) -> String {
        format!("echo run >> {}\n", self.folder.path("runs"))
    }
}

fn credential(status: &str) -> String {
    format!("{{\"apiVersion\": \"{V1}\", \"kind\": \"ExecCredential\", \"status\": {{{status}}}}}")
}

fn printing(status: &str) -> String {
    format!("cat <<'END'\n{}\nEND\n", credential(status))
}

/// The text of the error.
async fn refused(setup: &Setup) -> String {
    match setup.status().await {
        Err(CallError::Credentials(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_of_a_plugin_is_used_until_it_is_refused() {
    let bench = Bench::new();
    bench.folder.write("token", &credential("\"token\": \"sesame\""));
    let script = format!("{}cat {}", bench.count(), bench.folder.path("token"));
    let setup = bench.client(&script, "");
    let all = tokio::join!(setup.status(), setup.status(), setup.status(), setup.status());
    assert_eq!(all, (Ok(200), Ok(200), Ok(200), Ok(200)));
    assert_eq!(bench.runs(), 1);
    assert_eq!(setup.count("plugin no_error 0"), Some(1));
    pause_ends().await;
    bench.folder.write("token", &credential("\"token\": \"open\""));
    bench.server.accept_token(Some("open"));
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.runs(), 2);
    // Rejected again at once: the plugin isn't run for each request.
    bench.server.accept_token(Some("something else"));
    for _ in 0..5 {
        assert_eq!(setup.status().await, Ok(401));
    }
    assert_eq!(bench.runs(), 2);
}

#[tokio::test]
async fn expired_credentials_are_asked_for_again() {
    let bench = Bench::new();
    let script = bench.count() + &printing("\"token\": \"sesame\", \"expirationTimestamp\": \"2020-01-01T00:00:00Z\"");
    let setup = bench.client(&script, "");
    for wanted in [1, 1, 2] {
        assert_eq!(setup.status().await, Ok(200));
        assert_eq!(bench.runs(), wanted);
        if wanted == 1 {
            tokio::time::sleep(Duration::from_millis(130)).await;
        }
    }
    let script = bench.count() + &printing("\"token\": \"sesame\", \"expirationTimestamp\": \"2999-01-01T00:00:00Z\"");
    let setup = bench.client(&script, "");
    assert_eq!(setup.status().await, Ok(200));
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.runs(), 3);
}

#[tokio::test]
async fn a_plugin_is_told_what_it_asks_for() {
    let bench = Bench::new();
    let about = bench.folder.path("about");
    let script = format!("echo \"$KUBERNETES_EXEC_INFO\" > {about}\necho \"$1 $GREETING\" >> {about}\n")
        + &printing("\"token\": \"sesame\"");
    let fields = ", args: [hello], env: [{name: GREETING, value: world}], provideClusterInfo: true";
    let setup = bench.client(&script, fields);
    assert_eq!(setup.status().await, Ok(200));
    let text = fs::read_to_string(&about).unwrap();
    let (info, rest) = text.split_once('\n').unwrap();
    assert_eq!(rest, "hello world\n");
    let info: serde_json::Value = serde_json::from_str(info).unwrap();
    assert_eq!((info["kind"].as_str(), info["apiVersion"].as_str()), (Some("ExecCredential"), Some(V1)));
    assert_eq!(info["spec"]["interactive"], false);
    assert_eq!(info["spec"]["cluster"]["server"], bench.server.url());
    assert!(info["spec"]["cluster"]["certificate-authority-data"].as_str().unwrap().len() > 100);
}

#[tokio::test]
async fn a_credential_that_has_not_expired_survives_a_plugin_that_fails() {
    let bench = Bench::new();
    let setup = bench.client(&printing("\"token\": \"sesame\", \"expirationTimestamp\": \"2999-01-01T00:00:00Z\""), "");
    assert_eq!(setup.status().await, Ok(200));
    pause_ends().await;
    bench.folder.script("plugin", &format!("{}exit 1", bench.count()));
    // Nothing but the same credential again: the answer stands, without a second request.
    bench.server.accept_token(Some("other"));
    assert_eq!(setup.status().await, Ok(401));
    assert_eq!(setup.count("retried"), None);
    assert_eq!(bench.runs(), 1);
    bench.server.accept_token(Some("sesame"));
    assert_eq!(setup.status().await, Ok(200));
    // The plugin is asked again after its pause, and what it returns then is used.
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.runs(), 2);
    bench.folder.script("plugin", &printing("\"token\": \"open\""));
    bench.server.accept_token(Some("open"));
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
}

/// One request that is rejected waits for the plugin, for a while. All others use what hasn't expired, while the plugin runs, and
/// after it has failed.
#[tokio::test]
async fn a_plugin_that_hangs_delays_no_request_with_a_credential_that_has_not_expired() {
    const PATIENCE: Duration = Duration::from_millis(100);
    let bench = Bench::new();
    let setup = bench.client_with(
        &printing("\"token\": \"sesame\", \"expirationTimestamp\": \"2999-01-01T00:00:00Z\""),
        |timing| {
            timing.plugin = Duration::from_secs(3);
            timing.plugin_patience = PATIENCE;
        },
    );
    assert_eq!(setup.status().await, Ok(200));
    pause_ends().await;
    bench.folder.script("plugin", &format!("{}sleep 60", bench.count()));
    bench.server.accept_token(Some("other"));
    let begun = Instant::now();
    assert_eq!(setup.status().await, Ok(401));
    assert!((PATIENCE..Duration::from_secs(2)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    bench.server.accept_token(Some("sesame"));
    // The first run ends after 3 s and fails; another one begins after the pause, of which one request waits for a while.
    let (mut slow, mut answered) = (0, 0);
    while begun.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        assert_eq!(setup.status().await, Ok(200));
        answered += 1;
        slow += usize::from(asked.elapsed() >= PATIENCE);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(bench.runs() == 2 && answered > 20 && slow <= answered / 5, "{} runs, {slow} of {answered}", bench.runs());
    assert_eq!(setup.count("plugin client_internal_error 1"), Some(1));
}

/// A run outlives the request that began it.
#[tokio::test]
async fn a_run_goes_on_after_the_request_that_began_it() {
    let bench = Bench::new();
    let script = format!("{}sleep 0.3\n{}", bench.count(), printing("\"token\": \"sesame\""));
    let setup = bench.client(&script, "");
    assert!(tokio::time::timeout(Duration::from_millis(150), setup.status()).await.is_err(), "it waits for the plugin");
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.runs(), 1);
}

/// Nothing is left of a client: a run ends with it.
#[tokio::test]
async fn a_run_ends_with_its_client() {
    let bench = Bench::new();
    let identity = bench.folder.path("identity");
    let script = format!("{}echo $$ > {identity}\nexec sleep 60", bench.count());
    let setup = bench.client_with(&script, |timing| timing.plugin = Duration::from_secs(60));
    assert!(tokio::time::timeout(Duration::from_millis(500), setup.status()).await.is_err(), "it waits for the plugin");
    assert_eq!(bench.runs(), 1);
    // A process that has ended, and is not waited for yet, has no command line.
    let process = Path::new("/proc").join(fs::read_to_string(&identity).unwrap().trim()).join("cmdline");
    let is_alive = || fs::read(&process).is_ok_and(|text| !text.is_empty());
    assert!(is_alive());
    drop(setup);
    let deadline = Instant::now() + Duration::from_secs(30);
    while is_alive() {
        assert!(Instant::now() < deadline, "the plugin outlives its client");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_failure_of_a_plugin_whose_credential_is_kept_is_logged_once() {
    let text = logged(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            let setup = bench.client(&printing("\"token\": \"sesame\""), "");
            assert_eq!(setup.status().await, Ok(200));
            bench.folder.script("plugin", &format!("{}exit 1", bench.count()));
            bench.server.accept_token(Some("other"));
            for runs in [1, 2] {
                pause_ends().await;
                assert_eq!(setup.status().await, Ok(401));
                assert_eq!(bench.runs(), runs);
            }
        });
    });
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("Renewing the credentials failed, keeping the last ones")).collect();
    assert!(lines.len() == 1 && lines[0].contains("failed with exit code 1"), "{lines:?}");
}

/// Upstream hands plugins its own standard error.
#[test]
fn what_a_working_plugin_writes_to_its_standard_error_is_one_line_of_the_log() {
    let forged = "login expires soon\\nE1121 08:17:33.714186   25767 run.go:72] \\033[1Aforged\\n";
    let script = format!("printf '{forged}' >&2; head -c 100000 /dev/zero >&2\n{}", printing("\"token\": \"sesame\""));
    let text = logged(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new();
            assert_eq!(bench.client(&script, "").status().await, Ok(200));
        });
    });
    let wanted = "stderr=\"login expires soon; E1121 08:17:33.714186   25767 run.go:72] \\x1b[1Aforged; \\x00";
    let wanted = wanted.replace("\\x", "\\\\x");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("Exec plugin wrote")).collect();
    assert!(lines.len() == 1 && lines[0].contains(&wanted), "{lines:?}");
    assert!(lines[0].len() < 16_384 && !text.contains('\u{1b}') && !text.contains("sesame"), "{}", lines[0].len());
}

#[tokio::test]
async fn failing_plugins_say_why_and_show_no_secret() {
    let bench = Bench::new();
    let plugin = bench.folder.path("./plugin");
    for (script, wanted) in [
        ("echo hidden; echo no network >&2; exit 3".to_owned(), "failed with exit code 3: no network"),
        (
            "printf 'no\\033[2J\\r net\\n\\nwork\\302\\233A\\342\\200\\256\\n' >&2; exit 3".to_owned(),
            "failed with exit code 3: no\\x1b[2J\\r net; work\\u009bA\\u202e",
        ),
        ("kill -9 $$".to_owned(), "terminated: signal: 9"),
        ("echo hidden".to_owned(), "the output is no ExecCredential: invalid at line 1, column 1"),
        (
            "echo '{\"kind\": \"Pod\", \"apiVersion\": \"hidden\"}'".to_owned(),
            "the output is no ExecCredential: wrong kind",
        ),
        (
            printing("\"token\": \"hidden\"").replace("/v1\"", "/v1beta1\""),
            "the output is an ExecCredential of another version than",
        ),
        (printing(""), "the plugin didn't return a token or a certificate and key"),
        (printing("\"clientKeyData\": \"hidden\""), "the plugin returned only one of certificate and key"),
        (
            printing("\"clientKeyData\": \"hidden\", \"clientCertificateData\": \"hidden\""),
            "its client-certificate: no certificate found",
        ),
        (
            printing("\"token\": \"hidden\", \"expirationTimestamp\": \"hidden\""),
            "its expirationTimestamp is not an RFC 3339 timestamp",
        ),
        (printing("\"token\": [\"hidden\"]"), "the output is no ExecCredential: invalid at line 1"),
    ] {
        let setup = bench.client(&script, "");
        let error = refused(&setup).await;
        let start = format!("exec plugin {plugin}: {wanted}");
        assert!(error.starts_with(&start), "{error}\n{start}");
        assert!(!error.contains("hidden"), "{error}");
        // A short pause, so that the plugin runs again soon.
        assert_eq!(refused(&setup).await, error);
    }
    let setup = bench.client("exit 3", "");
    refused(&setup).await;
    assert_eq!(setup.count("plugin plugin_execution_error 3"), Some(1));
    let setup = bench.client_of("no-such-program-anywhere", ", installHint: get it");
    let error = refused(&setup).await;
    assert_eq!(error, "exec plugin no-such-program-anywhere: failed to start: no such file or directory; get it");
    // A plugin that works again is used.
    let setup = bench.client("exit 1", "");
    refused(&setup).await;
    bench.folder.script("plugin", &printing("\"token\": \"sesame\""));
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
}

#[tokio::test]
async fn a_plugin_that_hangs_or_floods_is_ended_with_its_children() {
    let bench = Bench::new();
    let alive = bench.folder.path("alive");
    let begun = Instant::now();
    let setup = bench.client(&format!("(sleep 2; touch {alive}) & wait"), "");
    let error = refused(&setup).await;
    assert!(error.ends_with("no result within 0.7 s"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    let setup = bench.client("head -c 100000000 /dev/zero", "");
    let error = refused(&setup).await;
    assert!(error.ends_with("the output exceeds 1048576 bytes"), "{error}");
    // The quotation of stderr is bounded, too, and a full pipe doesn't block the plugin.
    let setup = bench.client("head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1", "");
    let error = refused(&setup).await;
    assert!(error.len() < 3000 && error.contains("xxxx"), "{}", error.len());
    tokio::time::sleep(Duration::from_secs(2).saturating_sub(begun.elapsed())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!Path::new(&alive).exists());
}

#[tokio::test]
async fn a_certificate_of_a_plugin() {
    let authority = Authority::new("lab");
    let identity = authority.server(&["127.0.0.1"], Validity::Now);
    let [first, second] = ["a", "b"].map(|name| authority.client(name, &[], Validity::For(Duration::from_hours(2))));
    let clients = Some(authority);
    let server = filled(Server { tls: Some(identity.clone()), clients, ..Server::default() }, 1);
    let bench = Bench { cluster: cluster_of(&server, &identity), server, folder: Folder::new() };
    let answer = |pair: &ferry_lab::api::Identity| {
        let [certificate, key] = [&pair.certificate, &pair.key].map(|pem| serde_json::to_string(pem).unwrap());
        credential(&format!(
            "\"clientCertificateData\": {certificate}, \"clientKeyData\": {key}, \
             \"expirationTimestamp\": \"2020-01-01T00:00:00Z\""
        ))
    };
    bench.folder.write("answer", &answer(&first));
    let setup = bench.client(&format!("cat {}", bench.folder.path("answer")), "");
    assert_eq!(setup.status().await, Ok(200));
    let expiry = setup.observed.expiry.lock().unwrap().unwrap();
    let left = expiry.duration_since(SystemTime::now()).unwrap().as_secs();
    assert!((7000..=7200).contains(&left), "{left}");
    // The same certificate again is no change; another one is, and gets connections of its own.
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.server.connections(), 1);
    bench.folder.write("answer", &answer(&second));
    pause_ends().await;
    assert_eq!(setup.status().await, Ok(200));
    assert_eq!(bench.server.connections(), 2);
    assert_eq!(setup.count("plugin certificate replaced"), Some(1));
}
