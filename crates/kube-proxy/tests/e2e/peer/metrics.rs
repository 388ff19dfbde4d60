//! `/metrics` and `/configz`: upstream's executable and Ferry's serve the same metrics, series by series, except for named differences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ferry_lab::kubernetes::{self, ClusterUser};
use ferry_lab::proxy::{IPTABLES, NFTABLES, ProxyConfig};
use ferry_lab::{Family, Kubernetes, Lab, LabMachine, ProxyProcess, TestService};

use super::{EXECUTABLE, folder, matrix};

const METRICS: u16 = 10249;
const HEALTHZ: u16 = 10256;

/// What differs, by the beginning of the metric's name.
struct Difference {
    prefix: &'static str,
    is: Is,
    reason: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    /// on upstream's page alone
    Missing,
    /// on Ferry's page alone
    Own,
    /// on a page once something has happened, which may not be the same in both runs; alike where both have it
    Occasional,
    /// alike but for the series
    OtherSeries,
}

const fn differs(prefix: &'static str, is: Is, reason: &'static str) -> Difference {
    Difference { prefix, is, reason }
}

const DIFFERENCES: &[Difference] = &[
    differs("go_", Is::Missing, "about the runtime of Go"),
    differs("aggregator_", Is::Missing, "an API server's, always zero in a proxy"),
    differs("apiserver_", Is::Missing, "an API server's, always zero in a proxy"),
    differs("cardinality_enforcement_", Is::Missing, "about allow-lists of labels, which flags of an API server set"),
    differs(
        "registered_metrics_total",
        Is::Missing,
        "counts metrics in upstream's code, most of which are missing here",
    ),
    differs("rest_client_transport_cert_rotation_gc_calls_total", Is::Missing, "about Go's garbage collection"),
    differs("kubeproxy_config_", Is::Own, "about the running configuration"),
    differs("kubeproxy_engine_", Is::Own, "about the engine"),
    differs("kubeproxy_snapshot_", Is::Own, "about the snapshot"),
    differs("kubeproxy_source_", Is::Own, "about the age of objects"),
    differs("kubernetes_build_info", Is::OtherSeries, "another build"),
    differs("kubernetes_feature_enabled", Is::OtherSeries, "upstream's has the gates of all of Kubernetes"),
    differs("rest_client_requests_total", Is::OtherSeries, "upstream repeats requests that its server doesn't support"),
    differs("rest_client_request_retries_total", Is::Occasional, "after a lost connection"),
    differs("kubeproxy_conntrack_reconciler_", Is::Occasional, "Ferry looks for stale flows at its start, too"),
    differs(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Is::Occasional,
        "the first change may be part of the first sync",
    ),
];

/// One metric of a page.
#[derive(Debug, Default)]
struct Metric {
    help: String,
    kind: String,
    /// the labels of each series, sorted, with the part of a histogram
    series: BTreeSet<String>,
}

/// All metrics of a page.
fn parse(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut current = String::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            name.clone_into(&mut current);
            metrics.entry(current.clone()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert_eq!(name, current, "{line}");
            metrics.entry(current.clone()).or_default().kind = kind.to_owned();
        } else if let Some((series, _)) = line.rsplit_once(' ') {
            let part = series.strip_prefix(&current).expect("a sample stands below its own HELP line");
            metrics.entry(current.clone()).or_default().series.insert(part.to_owned());
        }
    }
    metrics
}

// === impl Metric ===

impl Metric {
    /// The names of labels, and the bounds of buckets, of all series.
    fn layout(&self) -> BTreeSet<String> {
        let part = |series: &String| {
            let (part, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split("\",").map(|label| match label.split_once('=') {
                Some(("le", bound)) => format!("le={}", bound.trim_matches('"')),
                Some((name, _)) => name.to_owned(),
                None => String::new(),
            });
            format!("{part} {}", labels.collect::<Vec<_>>().join(","))
        };
        self.series.iter().map(part).collect()
    }
}

/// The differences of two pages that are not in the list, and the entries of the list that were not needed.
fn compare(upstream: &BTreeMap<String, Metric>, ours: &BTreeMap<String, Metric>) -> Vec<String> {
    let names: BTreeSet<&String> = upstream.keys().chain(ours.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let known = DIFFERENCES.iter().find(|known| name.starts_with(known.prefix)).map(|known| known.is);
        let (theirs, ours) = match (upstream.get(name), ours.get(name)) {
            (Some(theirs), Some(ours)) => (theirs, ours),
            (theirs, _) => {
                let allowed = if theirs.is_some() { Is::Missing } else { Is::Own };
                if known != Some(allowed) && known != Some(Is::Occasional) {
                    found.push(format!("{name}: {} alone", if theirs.is_some() { "upstream" } else { "Ferry" }));
                }
                continue;
            }
        };
        if (&theirs.kind, &theirs.help) != (&ours.kind, &ours.help) {
            found.push(format!("{name}: {} {:?} / {} {:?}", theirs.kind, theirs.help, ours.kind, ours.help));
        }
        if theirs.layout() != ours.layout() {
            found.push(format!(
                "{name}: {:?}",
                theirs.layout().symmetric_difference(&ours.layout()).collect::<Vec<_>>()
            ));
        }
        if known.is_none() && theirs.series != ours.series {
            let different = theirs.series.symmetric_difference(&ours.series);
            found.push(format!("{name}: series {:?}", different.collect::<Vec<_>>()));
        }
    }
    let needed = |known: &&Difference| upstream.keys().chain(ours.keys()).any(|name| name.starts_with(known.prefix));
    let idle = DIFFERENCES.iter().filter(|known| known.is != Is::Occasional && !needed(known));
    found.extend(idle.map(|known| format!("no {} to differ ({})", known.prefix, known.reason)));
    found
}

/// The body of an answer.
fn body(proxy: &ProxyProcess<'_>, port: u16, path: &str) -> String {
    let answer = proxy.get(port, path).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut text, mut rest) = (String::new(), body);
    while let Some((length, tail)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("the length of a chunk");
        text.push_str(&tail[..length]);
        rest = tail[length..].trim_start_matches("\r\n");
    }
    text
}

/// Both proxies, one after the other, on the same node and API server.
struct Pages<'a> {
    lab: &'a Lab,
    api: Kubernetes<'a>,
    web: TestService,
}

impl Pages<'_> {
    /// The metrics after a start, a change and probes, and the configuration.
    fn of(&self, mut proxy: ProxyProcess<'_>, name: &str, mode: &str) -> (BTreeMap<String, Metric>, serde_json::Value) {
        proxy.wait_until_synced(&Family::ALL);
        proxy.wait_until_healthy();
        for place in [LabMachine::Far, LabMachine::PodA] {
            for family in Family::ALL {
                let slice = self.web.endpoints(8080, &[place]).slice(family).expect("endpoints of both families");
                let time = now();
                let trigger = format!("annotations: {{endpoints.kubernetes.io/last-change-trigger-time: \"{time}\"}}");
                self.api.replace(&slice.replace("metadata:\n", &format!("metadata:\n  {trigger}\n")));
            }
            let changes = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
            proxy.wait_for("the change", |proxy| proxy.samples(changes, &[]) == Some(0.0));
            std::thread::sleep(std::time::Duration::from_millis(1500));
        }
        body(&proxy, HEALTHZ, "/healthz");
        body(&proxy, HEALTHZ, "/livez");
        let page = body(&proxy, METRICS, "/metrics");
        std::fs::write(folder("metrics").join(format!("page-{name}-{mode}")), &page).expect("keeping the page");
        let configuration = serde_json::from_str(&body(&proxy, METRICS, "/configz")).expect("JSON");
        assert_eq!(body(&proxy, METRICS, "/healthz?verbose&exclude=x&exclude=ping"), {
            "[+]ping excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n"
        });
        proxy.terminate();
        (parse(&page), configuration)
    }

    fn upstream(&self, mode: &str) -> (BTreeMap<String, Metric>, serde_json::Value) {
        self.of(self.api.start_proxy(&folder(&format!("metrics/upstream-{mode}")), mode), "upstream", mode)
    }

    fn ours(&self, mode: &'static str) -> (BTreeMap<String, Metric>, serde_json::Value) {
        let folder = folder(&format!("metrics/ours-{mode}"));
        std::fs::create_dir_all(&folder).expect("making a folder");
        let kubeconfig = self.api.kubeconfig(ClusterUser::Certificate);
        self.of(start_ours(self.lab, &folder, mode, &kubeconfig), "ours", mode)
    }
}

/// Now, as RFC 3339.
fn now() -> String {
    let output = std::process::Command::new("date").args(["-u", "+%FT%T.%NZ"]).output().expect("running date");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn start_ours<'a>(lab: &'a Lab, folder: &Path, mode: &'static str, kubeconfig: &Path) -> ProxyProcess<'a> {
    let file = folder.join("config.yaml");
    let more = format!("clientConnection: {{kubeconfig: {}}}", kubeconfig.display());
    ProxyConfig { mode, ..ProxyConfig::with(&more) }.write(&file);
    ProxyProcess::start_with(
        lab.host(LabMachine::Node),
        EXECUTABLE,
        folder,
        &["--config", &file.display().to_string(), "-v=2"],
    )
}

#[test]
fn the_page_is_upstreams_but_for_named_differences() {
    kubernetes::build();
    let lab = Lab::new();
    let api = Kubernetes::start(lab.host(LabMachine::Node), &folder("metrics/api"));
    api.create_node();
    api.create_all(&matrix::manifests());
    let web = TestService::new("counted", 95);
    api.create_service(&web);
    api.create_endpoints(&web.endpoints(8080, &[LabMachine::PodA]));
    let pages = Pages { lab: &lab, api, web };
    for mode in [NFTABLES, IPTABLES] {
        let ((upstream, their_configuration), (ours, our_configuration)) = (pages.upstream(mode), pages.ours(mode));
        let found = compare(&upstream, &ours);
        assert!(found.is_empty(), "{mode}:\n{}", found.join("\n"));
        for metric in ["kubeproxy_sync_proxy_rules_duration_seconds", "rest_client_request_duration_seconds"] {
            assert!(ours.contains_key(metric), "{mode}: {metric}");
        }
        compare_features(&upstream, &ours);
        compare_configurations(&their_configuration, &our_configuration);
    }
}

/// All gates of Ferry's page stand on upstream's.
fn compare_features(upstream: &BTreeMap<String, Metric>, ours: &BTreeMap<String, Metric>) {
    let gates = |metrics: &BTreeMap<String, Metric>| metrics["kubernetes_feature_enabled"].series.clone();
    let unknown: Vec<String> = gates(ours).difference(&gates(upstream)).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The configurations have the same fields; values differ only where the two were started differently.
fn compare_configurations(upstream: &serde_json::Value, ours: &serde_json::Value) {
    const GROUP: &str = "kubeproxy.config.k8s.io";
    let fields = |value: &serde_json::Value| {
        let mut names = BTreeSet::new();
        let sections = value[GROUP].as_object().expect("an object");
        for (name, section) in sections {
            names.insert(name.clone());
            names.extend(section.as_object().into_iter().flatten().map(|(field, _)| format!("{name}.{field}")));
        }
        names
    };
    assert_eq!(fields(upstream), fields(ours));
    for field in
        ["apiVersion", "kind", "mode", "clusterCIDR", "conntrack", "hostnameOverride", "nodePortAddresses", "ipvs"]
    {
        assert_eq!(upstream[GROUP].get(field), ours[GROUP].get(field), "{field}");
    }
}
