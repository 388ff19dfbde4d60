//! `kube-proxy render`: each case in each mode, sources of objects, and errors; the examples of all subcommands.

use std::fs;
use std::process::Output;

use ferry_api::config::MODE_USERSPACE;
use ferry_api::object::Family;
use ferry_conformance::{Case, Decided};
use ferry_kube_proxy::cli::INSPECTIONS;
use ferry_model::Profile;
use ferry_plane_iptables::{Features, Iptables};
use ferry_plane_ipvs::{Ipvs, Pings};
use ferry_plane_nftables::Nftables;
use ferry_plane_userspace::{bind, redirect};

use crate::control::Socket;
use crate::support::Machine;

/// The cases' Node is called so unless they say otherwise.
const NODE: &str = "node-a";
/// Ferry's own settings behind a configuration.
const BIND: &str = "\n---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\nuserspaceWay: bind\n";

/// The parts of a case in a mode, as its compiler makes them.
type Compiled = fn(&Case) -> Vec<(&'static str, String)>;

fn both(case: &Case, profile: &Profile, text: impl Fn(&Decided) -> String) -> String {
    let of = |family| text(&Decided::by(case, family, profile));
    Family::ALL.map(of).join("\n")
}

fn nftables(case: &Case) -> Vec<(&'static str, String)> {
    let table = |decided: &Decided| {
        let objects = decided.compiled_by(&Nftables::new(decided.family));
        ferry_plane_nftables::render::ruleset(decided.family, &objects)
    };
    vec![("nft", both(case, &Profile::NFTABLES, table))]
}

fn iptables(case: &Case) -> Vec<(&'static str, String)> {
    use ferry_plane_iptables::render;
    let of = |family| {
        let decided = Decided::by(case, family, &Profile::IPTABLES);
        let features = Features {
            counts_invalid: true,
            counts_localhost: decided.base.localhost,
            drops_invalid: true,
            guards_loopback: false,
            has_sets: true,
            lacks_mangle: false,
        };
        decided.compiled_by(&Iptables::new(family, features))
    };
    let [v4, v6] = Family::ALL.map(|family| (family, of(family)));
    let rules = |(family, objects): &(Family, Vec<_>)| render::ruleset(*family, objects);
    let sets = [&v4, &v6].map(|(family, objects)| render::sets(*family, objects)).concat();
    let sets = Some(("ipset", sets)).filter(|(_, text)| !text.is_empty());
    sets.into_iter().chain([("iptables", rules(&v4)), ("ip6tables", rules(&v6))]).collect()
}

fn ipvs(case: &Case) -> Vec<(&'static str, String)> {
    use ferry_plane_ipvs::render;
    let objects = |decided: &Decided| decided.compiled_by(&Ipvs::new(decided.family, Pings::Answered));
    let tables = both(case, &Profile::IPVS, |decided| render::table(decided.family, &objects(decided)));
    let of_all = |text: fn(&[_]) -> String| {
        Family::ALL.map(|family| text(&objects(&Decided::by(case, family, &Profile::IPVS)))).concat()
    };
    let addresses = format!("link add kube-ipvs0 type dummy\n{}", of_all(render::addresses));
    vec![("nft", tables), ("ipvsadm", of_all(render::servers)), ("addresses", addresses)]
}

fn relayed(case: &Case) -> Vec<(&'static str, String)> {
    let text = |decided: &Decided| {
        let objects = decided.compiled_by(&redirect::Relaying::new(decided.family));
        redirect::render::ruleset(decided.family, &objects)
    };
    vec![("relay", both(case, &Profile::USERSPACE, text))]
}

fn bound(case: &Case) -> Vec<(&'static str, String)> {
    let objects = |decided: &Decided| decided.compiled_by(&bind::Binding::new(decided.family, true));
    let profile = &Profile::USERSPACE_BIND;
    let routes = Family::ALL.map(|family| bind::routes(&objects(&Decided::by(case, family, profile)))).concat();
    let listeners = both(case, profile, |decided| bind::render::objects(&objects(decided)));
    vec![("routes", routes), ("listeners", listeners)]
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The parts that the program renders.
fn parts(output: &Output) -> Vec<(String, String)> {
    assert!(output.status.success(), "{output:?}");
    let rendered: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(rendered.pointer("/version"), Some(&1.into()));
    let part = |part: &serde_json::Value| {
        let field = |name: &str| part.get(name).and_then(serde_json::Value::as_str).expect("a text").to_owned();
        (field("name"), field("text"))
    };
    rendered.pointer("/parts").and_then(serde_json::Value::as_array).expect("parts").iter().map(part).collect()
}

#[test]
fn every_case_is_rendered_as_the_modes_compile_it() {
    let modes: [(&str, &str, Compiled); 5] = [
        ("nftables", "", nftables),
        ("iptables", "", iptables),
        ("ipvs", "", ipvs),
        (MODE_USERSPACE, "", relayed),
        (MODE_USERSPACE, BIND, bound),
    ];
    let (cases, machine) = (Case::all(), Machine::new());
    assert!(cases.len() > 200, "{}", cases.len());
    for case in &cases {
        for (mode, settings, compiled) in modes {
            let config = in_mode(&case.text("config.yaml").expect("a configuration"), mode);
            let of_mode = case.with_config(&config);
            let (file, manifests) =
                (machine.write("config.yaml", &(config + settings)), case.folder.display().to_string());
            let named = ["--hostname-override", &case.settings.node_name];
            let arguments = ["render", "--json", "--config", &file, "--manifests", &manifests];
            let rendered = parts(&machine.output(&[&arguments[..], &named].concat()));
            let expected = compiled(&of_mode);
            assert_eq!(rendered.len(), expected.len(), "{} in mode {mode}{settings}: {rendered:?}", case.name);
            for ((name, text), (wanted_name, wanted)) in rendered.iter().zip(expected) {
                assert_eq!(name, wanted_name);
                let differs = text.lines().zip(wanted.lines()).find(|(one, other)| one != other);
                assert!(*text == wanted, "{} in mode {mode}{settings}, part {name}: {differs:?}", case.name);
            }
        }
    }
}

/// The same configuration in another mode, which has a section of its own.
fn in_mode(config: &str, mode: &str) -> String {
    let section = if mode == MODE_USERSPACE { "iptables" } else { mode };
    config.replace("mode: nftables", &format!("mode: {mode}")).replace("\nnftables:", &format!("\n{section}:"))
}

/// A list as kubectl prints it, of a Node, a Service and its slice.
fn dump() -> String {
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-a"},
        "status":{"addresses":[{"type":"InternalIP","address":"192.0.2.10"}]}}"#;
    let items = [node, crate::support::SERVICE, crate::support::SLICE].join(",");
    format!(r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":""}},"items":[{items}]}}"#)
}

#[test]
fn a_dump_has_the_same_text_everywhere_and_for_one_service() {
    let machine = Machine::new();
    let file = machine.write("dump.json", &dump());
    let render = |more: &[&str]| {
        let arguments = ["render", "--mode", "ipvs", "--dump", &file, "--hostname-override", NODE];
        machine.output(&[&arguments[..], more].concat())
    };
    let servers = "-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r 10.244.0.7:8080 -m -w 1\n";
    for more in [&["--part", "ipvsadm"][..], &["--part=ipvsadm", "--service=shop/web"]] {
        assert_eq!(text(&render(more).stdout), servers, "{more:?}");
    }
    let whole = render(&[]);
    assert_eq!(text(&whole.stdout).matches("# mode ipvs, part ").count(), 3, "{whole:?}");
    assert!(text(&whole.stdout).contains("\t\t\t192.0.2.10\n"), "the Node's address, whatever this machine's are");
    let elsewhere = render(&["--part=nft", "--local-addresses=192.0.2.77,198.51.100.1"]);
    let nodes = ["192.0.2.10", "192.0.2.77", "198.51.100.1"].map(|address| text(&elsewhere.stdout).contains(address));
    assert_eq!(nodes, [false, true, true]);
    let error = |more: &[&str]| {
        let output = render(more);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
        text(&output.stderr).lines().next_back().expect("a line").to_owned()
    };
    assert_eq!(
        error(&["--part", "iptables"]),
        "Error: mode ipvs has no part \"iptables\": it has nft, ipvsadm, addresses"
    );
    assert_eq!(
        error(&["--service", "shop/wep"]),
        "Error: no Service shop/wep among the objects: name it NAMESPACE/NAME"
    );
    assert_eq!(
        error(&["--local-addresses", "192.0.2.1,machine"]),
        "Error: --local-addresses \"machine\" is not an IP address, nor \"machine\" alone"
    );
    assert_eq!(error(&["--service", "web"]), "Error: --service: \"web\" is not NAMESPACE/NAME");
    assert_eq!(
        error(&["--hostname-override", "node-b"]),
        "Error: no Node node-b among the objects: name the node by --hostname-override; there is node-a"
    );
    assert_eq!(
        error(&["--manifests", &machine.manifests()]),
        "Error: --dump and --manifests are two sources of objects: give one"
    );
}

#[test]
fn what_cannot_be_read_is_named() {
    let machine = Machine::new();
    let broken = dump().replace("\"10.96.0.1\"", "\"10.96.0.x\"").replace("shop", "Sh@p");
    let error = |text_of_file: &str, arguments: &[&str]| {
        let file = machine.write("dump.json", text_of_file);
        let output = machine.output(&[&["render", "--mode", "nftables"][..], arguments, &["--dump", &file]].concat());
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
        text(&output.stderr).lines().next_back().expect("a line").replace(&file, "FILE")
    };
    assert!(error("{", &[]).starts_with("Error: FILE: 1 malformed objects: line 1"), "{}", error("{", &[]));
    let named = error(&broken, &["--hostname-override", NODE]);
    assert!(named.starts_with("Error: FILE: 2 malformed objects: ") && named.contains("Sh@p"), "{named}");
    let none = machine.output(&["render", "--mode", "nftables", "--dump", "/no/such/file"]);
    assert!(text(&none.stderr).ends_with("Error: reading /no/such/file: No such file or directory (os error 2)\n"));
    let manifests = machine.manifests();
    fs::write(machine.path("manifests").join("web.yaml"), "kind: Service\napiVersion: v1\nspec: [").expect("writing");
    let output = machine.output(&["render", "--mode", "nftables", "--manifests", &manifests]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("web.yaml") && stderr.contains("malformed manifests in 1 files"), "{stderr}");
}

/// The folder that examples name relative to the repository.
const HELLO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hello");

/// An example of a help text as a shell runs it, for this many seconds at most: with files of this machine instead of
/// those that it names; if it names none, with this control socket. `$0` is the executable.
fn runnable(example: &str, machine: &Machine, socket: &str, seconds: u32) -> String {
    let [config, dump, manifests] = ["config.yaml", "objects.yaml", "manifests"].map(|name| machine.path(name));
    let (config, dump, manifests) = (config.display(), dump.display(), manifests.display());
    let arguments = example.strip_prefix("kube-proxy ").expect("it begins with the program's name");
    let mut line = arguments.to_owned();
    for (named, instead) in [
        ("--config /var/lib/kube-proxy/config.conf", format!("--config {config} --manifests {manifests}")),
        ("--config config.yaml", format!("--config {config}")),
        ("--dump objects.yaml", format!("--dump {dump}")),
        ("--kubeconfig ~/.kube/config", format!("--manifests {manifests}")),
        ("--manifests examples/hello", format!("--manifests {HELLO}")),
    ] {
        line = line.replace(named, &instead);
    }
    if line == arguments {
        line += &format!(" --control-socket {socket}");
    }
    if line.contains(" --live ") {
        line += " --seconds 1";
    }
    format!("timeout {seconds} \"$0\" {line}")
}

/// A node with what the examples ask about: Service default/web, in mode nftables.
fn machine_of_examples() -> Machine {
    let machine = Machine::node();
    let objects = dump().replace("shop", "default").replace("10.96.0.1", "10.96.0.10");
    machine.write("manifests/all.json", &objects);
    machine.write("objects.yaml", &objects);
    let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
    machine.write("config.yaml", &format!("{config}hostnameOverride: {NODE}\n"));
    machine
}

#[test]
fn the_help_has_examples_that_run() {
    let (machine, socket) = (machine_of_examples(), Socket::new());
    let config = machine.path("config.yaml").display().to_string();
    let mut running =
        machine.start_bare(&["--config", &config, "--manifests", &machine.manifests(), "--control-socket", &socket]);
    running.until_synced();
    for inspected in INSPECTIONS {
        let help = machine.output(&[inspected.name, "--help"]);
        assert!(help.status.success() && !inspected.examples.is_empty(), "{help:?}");
        for (example, what) in inspected.examples {
            assert!(text(&help.stdout).contains(&format!("\n  # {what}\n  {example}\n")), "{example}: {help:?}");
            // One that watches goes on until it is killed, after which `timeout` ends with 124.
            let (seconds, codes) = if example.contains("--watch") { (10, &[124][..]) } else { (120, &[0, 2][..]) };
            let line = runnable(example, &machine, &socket, seconds);
            let output = machine.tool("sh", &["-c", &line, env!("CARGO_BIN_EXE_kube-proxy")]);
            assert!(output.status.code().is_some_and(|code| codes.contains(&code)), "{line}: {output:?}");
            assert!(!output.stdout.is_empty(), "{line}: {output:?}");
            assert!(!text(&output.stderr).contains("working offline"), "{line}: {output:?}");
        }
    }
}

#[test]
fn the_help_names_subcommands_and_arguments() {
    let machine = Machine::new();
    let help = machine.output(&["render", "--help"]);
    assert!(help.status.success() && help.stderr.is_empty(), "{help:?}");
    assert!(text(&help.stdout).contains("Usage:\n  kube-proxy render [flags]\n\nExamples:\n  # "), "{help:?}");
    assert!(text(&machine.output(&["--help"]).stdout).contains("\nSubcommands:\n  explain "));
    assert!(text(&machine.output(&["--help"]).stdout).contains("\n  render  Prints what"));
    let wrong = machine.output(&["render", "web"]);
    assert!(text(&wrong.stderr).contains("Error: \"kube-proxy render\" does not take any arguments, got [\"web\"]\n"));
}
