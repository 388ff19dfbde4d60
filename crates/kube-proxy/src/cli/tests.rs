use std::collections::BTreeSet;

use ferry_api::config::FerryConfiguration;

use super::*;
use crate::version::UPSTREAM;

fn parsed(args: &[&str]) -> Result<RequestedAction, String> {
    let args = ["kube-proxy"].iter().chain(args).map(OsString::from);
    parse(args).map_err(|error| error.to_string())
}

fn flags(args: &[&str]) -> Flags {
    match parsed(args) {
        Ok(RequestedAction::Run(flags)) => flags,
        other => panic!("{args:?}: {other:?}"),
    }
}

/// The last line of the error, after a look at the usage before it.
fn error(args: &[&str]) -> String {
    let text = parsed(args).unwrap_err();
    let (usage, message) = text.rsplit_once("Error: ").unwrap();
    assert!(usage.contains("Usage:\n  kube-proxy [flags]\n\nFlags:\n"), "{text}");
    assert!(usage.ends_with("\n\n"), "{text}");
    message.trim_end().to_owned()
}

#[test]
fn values_in_every_spelling() {
    assert_eq!(flags(&["--config=a"]).text("config"), Some("a"));
    assert_eq!(flags(&["--config", "a"]).text("config"), Some("a"));
    assert_eq!(flags(&["--config", "a", "--config=b"]).text("config"), Some("b"));
    assert_eq!(flags(&["--config="]).text("config"), Some(""));
    assert_eq!(flags(&["--config="]).path("config"), None);
    assert_eq!(flags(&["--bind_address", "::1"]).text("bind-address"), Some("::1"));
    assert_eq!(flags(&["--hostname-override", "--weird"]).text("hostname-override"), Some("--weird"));
    assert_eq!(flags(&["--oom-score-adj", "-5"]).number("oom-score-adj"), Some(-5));
    for spelling in [&["-v3"][..], &["-v", "3"], &["-v=3"], &["--v=3"], &["--v", "3"], &["--v", "03"]] {
        assert_eq!(flags(spelling).level("v"), Some(3), "{spelling:?}");
    }
    assert!(flags(&["--cleanup"]).is_true("cleanup"));
    assert!(flags(&["--cleanup=T"]).is_true("cleanup"));
    assert!(!flags(&["--cleanup=F"]).is_true("cleanup"));
    assert_eq!(flags(&[]).boolean("cleanup"), None);
    assert_eq!(flags(&["", "--cleanup", "--", ""]).boolean("cleanup"), Some(true));
}

#[test]
fn lists_are_csv_and_add_up() {
    let list = |args| flags(args).list("nodeport-addresses").unwrap();
    assert_eq!(list(&["--nodeport-addresses=10.0.0.0/8,::/0"]), ["10.0.0.0/8", "::/0"]);
    assert_eq!(list(&["--nodeport-addresses=a", "--nodeport-addresses=b,c"]), ["a", "b", "c"]);
    assert_eq!(list(&["--nodeport-addresses=\"a,b\",\"c\"\"d\""]), ["a,b", "c\"d"]);
    assert_eq!(list(&["--nodeport-addresses="]), [""; 0]);
}

#[test]
fn errors_in_the_words_of_pflag() {
    for (args, message) in [
        (&["--foo"][..], "unknown flag: --foo"),
        (&["--foo=bar"], "unknown flag: --foo"),
        (&["--clean"], "unknown flag: --clean"),
        (&["--no-such", "--config"], "unknown flag: --no-such"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["-config"], "unknown shorthand flag: 'c' in -config"),
        (&["--config"], "flag needs an argument: --config"),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (
            &["--cleanup=maybe"],
            "invalid argument \"maybe\" for \"--cleanup\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (&["-v=x"], "invalid argument \"x\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"x\": invalid syntax"),
        (
            &["--v=-1"],
            "invalid argument \"-1\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"-1\": invalid syntax",
        ),
        (
            &["--v=0x3"],
            "invalid argument \"0x3\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"0x3\": invalid syntax",
        ),
        (
            &["--v=2147483648"],
            "invalid argument \"2147483648\" for \"-v, --v\" flag: strconv.ParseUint: parsing \"2147483648\": value out of range",
        ),
        (
            &["--conntrack-min=99999999999"],
            "invalid argument \"99999999999\" for \"--conntrack-min\" flag: \
             strconv.ParseInt: parsing \"99999999999\": value out of range",
        ),
        (
            &["--iptables-sync-period", "30"],
            "invalid argument \"30\" for \"--iptables-sync-period\" flag: time: missing unit in duration \"30\"",
        ),
        (
            &["--bind-address=host"],
            "invalid argument \"host\" for \"--bind-address\" flag: \"host\" is not a valid IP address",
        ),
        (
            &["--metrics-bind-address=localhost:1"],
            "invalid argument \"localhost:1\" for \"--metrics-bind-address\" flag: \"localhost\" is not a valid IP address",
        ),
        (
            &["--feature-gates=A"],
            "invalid argument \"A\" for \"--feature-gates\" flag: malformed pair, expect string=bool",
        ),
        (
            &["--version=foo"],
            "invalid argument \"foo\" for \"--version\" flag: strconv.ParseBool: parsing \"foo\": invalid syntax",
        ),
    ] {
        assert_eq!(error(args), message, "{args:?}");
    }
}

/// Measured with upstream's executable.
#[test]
fn malformed_addresses_in_the_words_of_go() {
    let address = |text: &str| {
        let prefix = format!("invalid argument {text:?} for \"--healthz-bind-address\" flag: ");
        error(&[&format!("--healthz-bind-address={text}")]).strip_prefix(&prefix).unwrap().to_owned()
    };
    for (text, why) in [
        ("x", "missing port in address"),
        ("a:b:c", "too many colons in address"),
        ("::1:80:zz", "too many colons in address"),
        ("[::1]:80:1", "too many colons in address"),
        ("[::1", "missing ']' in address"),
        ("[::1]", "missing port in address"),
        ("[a", "missing port in address"),
        ("a]b:1", "unexpected ']' in address"),
        ("a[b:1", "unexpected '[' in address"),
    ] {
        assert_eq!(address(text), format!("{text:?} is not in a valid format (ip or ip:port): address {text}: {why}"));
    }
    for (text, why) in [
        (":80", "\"\" is not a valid IP address"),
        ("1.2.3.4:99999", "\"99999\" is not a valid number"),
        ("1.2.3.4:", "\"\" is not a valid number"),
        ("[::1]:x", "\"x\" is not a valid number"),
    ] {
        assert_eq!(address(text), why);
    }
}

#[test]
fn the_first_wrong_value_counts() {
    assert!(error(&["--conntrack-min=x", "--cleanup=y"]).contains("conntrack-min"));
    assert!(error(&["--cleanup=y", "--conntrack-min=x"]).contains("cleanup"));
}

#[test]
fn positionals_are_refused_without_usage() {
    let message = "Error: \"kube-proxy\" does not take any arguments, got [\"false\"]\n";
    assert_eq!(parsed(&["--masquerade-all", "false"]).unwrap_err(), message);
    let message = "Error: \"kube-proxy\" does not take any arguments, got [\"\" \"a\"]\n";
    assert_eq!(parsed(&["", "--cleanup", "a"]).unwrap_err(), message);
}

#[test]
fn versions() {
    let printed = |args: &[&str]| match parsed(args) {
        Ok(RequestedAction::Print(text)) => text,
        other => panic!("{other:?}"),
    };
    let (line, of_distro) = (format!("Kubernetes {UPSTREAM}\n"), format!("--version={UPSTREAM}-distro.1"));
    assert_eq!(printed(&["--version"]), line);
    assert_eq!(printed(&["--version=true"]), line);
    assert_eq!(printed(&[&of_distro]), format!("Kubernetes {UPSTREAM}-distro.1\n"));
    let raw = printed(&["--version=raw"]);
    assert!(raw.starts_with("version.Info{Major:\"1\", Minor:\"36\", "), "{raw}");
    assert!(raw.contains(&format!("GitVersion:\"{UPSTREAM}+ferry.")), "{raw}");
    assert_eq!(flags(&["--version=false"]).text("version"), Some("false"));
    assert!(error(&["--version=v1.30.0"]).starts_with("invalid argument \"v1.30.0\" for \"--version\" flag: "));
}

#[test]
fn help_names_every_flag_but_those_of_older_releases() {
    let Ok(RequestedAction::Print(help)) = parsed(&["-h"]) else { panic!("no help") };
    for flag in FLAGS {
        let named = help.contains(&format!("--{} ", flag.name)) || help.contains(&format!("--{}[", flag.name));
        assert_eq!(named, !flag.is_of_older_releases(), "{}", flag.name);
    }
}

#[test]
fn flag_names_are_unique() {
    let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FLAGS.len());
}

#[test]
fn flags_become_configuration() {
    let mut config = ferry_api::config::KubeProxyConfiguration::default();
    let given = flags(&[
        "--proxy-mode=nftables",
        "--bind-address=",
        "--healthz-bind-address=::1",
        "--metrics-bind-address=10.0.0.1:99",
        "--masquerade-all",
        "--iptables-min-sync-period=0s",
        "--nodeport-addresses=10.0.0.0/8",
        "--cluster-cidr=10.1.0.0/16",
    ]);
    apply(&given, &mut config);
    assert_eq!(config.mode, "nftables");
    assert_eq!(config.bind_address, "0.0.0.0");
    assert_eq!(config.healthz_bind_address, "[::1]:10256");
    assert_eq!(config.metrics_bind_address, "10.0.0.1:99");
    assert!(config.effective().masquerade_all);
    assert!(config.effective().min_sync_period.is_zero());
    assert_eq!(config.node_port_addresses, ["10.0.0.0/8"]);
    assert_eq!(config.cluster_cidr, "10.1.0.0/16");
}

#[test]
fn a_bare_address_gets_its_port_and_port_zero_takes_the_address_away() {
    for (args, want) in [
        (&[][..], ["0.0.0.0:10256", "127.0.0.1:10249"]),
        (
            &["--healthz-bind-address=10.0.0.1", "--healthz-port=1", "--metrics-port=2"],
            ["10.0.0.1:1", "127.0.0.1:10249"],
        ),
        (&["--metrics-bind-address=::1", "--healthz-port=1", "--metrics-port=2"], ["0.0.0.0:10256", "[::1]:2"]),
        (&["--healthz-bind-address=10.0.0.1:7", "--healthz-port=0", "--metrics-port=0"], ["", ""]),
        (&["--write-config-to=f", "--healthz-port=0", "--metrics-port=0"], ["0.0.0.0:10256", "127.0.0.1:10249"]),
    ] {
        let mut config = ferry_api::config::KubeProxyConfiguration::default();
        apply(&flags(args), &mut config);
        assert_eq!([&*config.healthz_bind_address, &*config.metrics_bind_address], want, "{args:?}");
    }
}

#[test]
fn deprecated_flags_are_named_in_the_words_of_pflag() {
    let lines: Vec<String> = flags(&["--metrics-port=1", "--v=2"]).deprecations().collect();
    let line = "Flag --metrics-port has been deprecated, This flag is deprecated and will be removed in a future release. Please \
                use --metrics-bind-address instead.\n";
    assert_eq!(lines, [line]);
}

#[test]
fn an_address_that_is_only_written_gets_no_port() {
    let mut config = ferry_api::config::KubeProxyConfiguration::default();
    apply(
        &flags(&["--write-config-to=f", "--healthz-bind-address=::1", "--metrics-bind-address=10.0.0.1"]),
        &mut config,
    );
    assert_eq!((&*config.healthz_bind_address, &*config.metrics_bind_address), ("::1", "10.0.0.1"));
}

#[test]
fn periods_of_mode_ipvs_begin_with_those_of_iptables() {
    let periods = |args| {
        let mut config = ferry_api::config::KubeProxyConfiguration::default();
        apply(&flags(args), &mut config);
        (config.ipvs.sync_period.to_string(), config.ipvs.min_sync_period.to_string())
    };
    assert_eq!(periods(&["--proxy-mode=ipvs"]), ("30s".to_owned(), "1s".to_owned()));
    assert_eq!(periods(&["--proxy-mode=ipvs", "--ipvs-min-sync-period=0s"]), ("30s".to_owned(), "0s".to_owned()));
    assert_eq!(periods(&["--proxy-mode=ipvs", "--iptables-sync-period=9s"]), ("30s".to_owned(), "1s".to_owned()));
}

#[test]
fn flags_of_the_log_come_before_the_file() {
    let given = flags(&["-v=5", "--vmodule=a=1,b*=2", "--vmodule=c=3", "--log-json-info-buffer-size=1024Ki"]);
    let mut logging = ferry_api::config::KubeProxyConfiguration::default().logging;
    logging.vmodule = vec![VModule { file_pattern: "z".to_owned(), verbosity: 9 }];
    logging.text.split_stream = true;
    apply_logging(&given, &mut logging);
    let patterns: Vec<_> = logging.vmodule.iter().map(|item| (item.file_pattern.as_str(), item.verbosity)).collect();
    assert_eq!(patterns, [("a", 1), ("b*", 2), ("c", 3), ("z", 9)]);
    assert_eq!((logging.verbosity, logging.format.as_str()), (5, "text"));
    assert_eq!(logging.json.info_buffer_size, "1Mi");
    assert!(!logging.text.split_stream, "upstream forgets a file's splitStream");
}

#[test]
fn the_fallbacks_of_a_flag_replace_those_of_the_file() {
    let fallbacks = |args: &[&str]| {
        let mut own =
            FerryConfiguration { proxy_mode_fallback: vec!["iptables".to_owned()], ..FerryConfiguration::default() };
        apply_own(&flags(args), &mut own);
        own.proxy_mode_fallback
    };
    assert_eq!(fallbacks(&[]), ["iptables"]);
    assert_eq!(fallbacks(&["--proxy-mode-fallback=ipvs,nftables"]), ["ipvs", "nftables"]);
    assert_eq!(fallbacks(&["--proxy-mode-fallback=ipvs", "--proxy-mode-fallback", "nftables"]), ["ipvs", "nftables"]);
    assert_eq!(fallbacks(&["--proxy-mode-fallback="]), [""; 0]);
}

#[test]
fn values_of_rarer_kinds() {
    let gates = flags(&["--feature-gates=A=true, B = f,", "--feature-gates=A=0"]).gates("feature-gates").unwrap();
    assert_eq!(gates, [("A".to_owned(), false), ("B".to_owned(), false)].into());
    assert_eq!(flags(&["--kube-api-qps=-1.5"]).float("kube-api-qps"), Some(-1.5));
    for (args, message) in [
        (
            "--kube-api-qps=1e40",
            "invalid argument \"1e40\" for \"--kube-api-qps\" flag: strconv.ParseFloat: parsing \"1e40\": value out of range",
        ),
        ("--vmodule=a", "invalid argument \"a\" for \"--vmodule\" flag: \"a\" does not have the pattern=N format"),
        (
            "--vmodule=a=x",
            "invalid argument \"a=x\" for \"--vmodule\" flag: parsing verbosity in \"a=x\": strconv.ParseUint: parsing \"x\": \
             invalid syntax",
        ),
    ] {
        assert_eq!(error(&[args]), message);
    }
}

/// Names of flags in backquotes.
fn named(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let flags = quoted.filter_map(|text| text.strip_prefix("--"));
    flags.filter_map(|text| text.split([' ', '=']).next()).collect()
}

#[test]
fn flags_of_the_configuration_are_passed_on_without_credentials() {
    let line = |words: &[&str]| {
        let words = words.iter().map(|word| OsString::from(*word));
        match parse([OsString::from("kube-proxy")].into_iter().chain(words)).unwrap() {
            RequestedAction::Run(flags) | RequestedAction::Inspect(_, flags, _) => flags,
            RequestedAction::Print(text) => panic!("{text}"),
        }
    };
    let running = line(&[
        "--cluster-cidr=10.0.0.0/8",
        "--feature-gates=A=true",
        "--feature-gates=B=true",
        "--hostname-override=a",
        "--master=https://user:word@host",
        "-v=4",
        "--control-socket=/run/x",
    ]);
    let given = running.of_configuration();
    let names: Vec<&str> = given.keys().map(String::as_str).collect();
    assert_eq!(names, ["cluster-cidr", "feature-gates", "hostname-override"]);
    let own = line(&["explain", "svc", "a/b", "-v=2"]).with_configuration(&given).or_mode("ipvs");
    assert_eq!(own.of_configuration(), given);
    assert_eq!((own.text("mode"), own.text("v")), (Some("ipvs"), Some("2")));
    assert_eq!(line(&["explain", "svc", "a/b", "--mode=nftables"]).or_mode("ipvs").text("mode"), Some("nftables"));
    let unknown = [("invented".to_owned(), vec!["x".to_owned()])].into();
    assert_eq!(running.with_configuration(&unknown), running);
}

#[test]
fn the_documentation_says_what_each_flag_does() {
    let text = include_str!("../../../../docs/cli.md");
    let section = |title: &str| {
        let rest = text.split_once(&format!("## {title}\n")).unwrap().1;
        rest.split_once("\n## ").unwrap().0
    };
    let of = |effect: Effect| -> BTreeSet<&str> {
        FLAGS.iter().filter(|flag| flag.effect == effect).map(|flag| flag.name).collect()
    };
    let rows = section("Flags that act").lines().filter_map(|line| line.split('|').nth(1));
    let acting: BTreeSet<&str> = rows.flat_map(named).filter(|name| *name != "help").collect();
    assert_eq!(acting, of(Effect::Acts));
    let mut setting = named(section("Flags that set the configuration"));
    assert!(setting.remove("config"), "without which they count");
    assert_eq!(setting, &of(Effect::Config) | &of(Effect::Deprecated));
    let others = section("Flags without effect");
    for name in of(Effect::Renamed) {
        assert!(others.contains(&format!("`--{name}` is the old name of")), "{name}");
    }
    let subcommands = section("Subcommands");
    for inspected in INSPECTIONS {
        let title = format!("### `kube-proxy {}`\n", inspected.name);
        let own = subcommands.split_once(&title).unwrap().1.split("\n### ").next().unwrap();
        assert!(inspected.flags.iter().all(|flag| named(own).contains(flag.name)), "{}", inspected.name);
        assert!(inspected.examples.iter().all(|(line, _)| own.contains(line)), "{}", inspected.name);
    }
    // The plugin's flags are compared by its own test.
    let text = &text.replace(section("kubectl ferry"), "");
    let known = || INSPECTIONS.iter().flat_map(|inspected| inspected.flags).chain(FLAGS);
    for name in named(text).into_iter().filter(|name| !["help", "name", "noflush"].contains(name)) {
        assert!(known().any(|flag| flag.name == name), "{name}");
    }
}
