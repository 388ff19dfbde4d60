//! Describes every flag with its effective value, as upstream logs them from `-v=1`.

use ferry_api::config::KubeProxyConfiguration;
use ferry_client::kubeconfig::without_credentials;

use super::table::{FLAGS, Flag, ValueKind};
use super::{Flags, value};

impl Flags {
    /// Every current flag with its value, given or default, in the form in which upstream's flag library prints it, sorted by name;
    /// URLs have no credentials. A configuration that was made of flags has replaced some of these values; one of a file has not.
    pub fn values(&self, of_flags: Option<&KubeProxyConfiguration>) -> impl Iterator<Item = (String, String)> {
        let current = FLAGS.iter().filter(|flag| !flag.is_of_older_releases());
        let effective = |flag: &Flag| {
            let completed = of_flags.and_then(|config| completed(flag.name, config));
            (flag.name.to_owned(), completed.unwrap_or_else(|| self.effective(flag)))
        };
        let mut values: Vec<(String, String)> = current.map(effective).collect();
        values.push(("help".to_owned(), "false".to_owned()));
        values.sort_unstable();
        values.into_iter()
    }

    /// `FLAG: --name="value"` of each of these.
    pub fn describe_all(&self, of_flags: Option<&KubeProxyConfiguration>) -> impl Iterator<Item = String> {
        self.values(of_flags).map(|(name, value)| format!("FLAG: --{name}={value:?}"))
    }

    fn effective(&self, flag: &Flag) -> String {
        let given = self.given(flag);
        given.unwrap_or_else(|| match (flag.kind, flag.default) {
            (ValueKind::Bool | ValueKind::Version, "") => "false".to_owned(),
            (ValueKind::List, default) => format!("[{default}]"),
            (_, default) => default.to_owned(),
        })
    }

    /// The value that was given, if it counts.
    fn given(&self, flag: &Flag) -> Option<String> {
        let name = flag.name;
        match flag.kind {
            ValueKind::Bool => self.boolean(name).map(|value| value.to_string()),
            ValueKind::Int32 => self.number(name).map(|value| value.to_string()),
            ValueKind::Level => self.level(name).map(|value| value.to_string()),
            ValueKind::Float32 => self.float(name).map(|value| value.to_string()),
            ValueKind::Duration => self.duration(name).map(|value| value.to_string()),
            ValueKind::Text if name == "master" => self.text(name).map(|url| without_credentials(url).to_string()),
            ValueKind::Text | ValueKind::Ports => self.text(name).map(str::to_owned),
            ValueKind::List => self.list(name).map(|items| csv(&items)),
            ValueKind::Ip | ValueKind::IpPort => self.path(name).map(str::to_owned),
            ValueKind::Gates => self.gates(name).map(|gates| {
                let pairs: Vec<String> = gates.iter().map(|(gate, value)| format!("{gate}={value}")).collect();
                pairs.join(",")
            }),
            ValueKind::Quantity => self.quantity(name),
            ValueKind::VModule => self.text(name).map(|_| {
                let modules = self.vmodule(name).into_iter();
                let pairs: Vec<String> =
                    modules.map(|module| format!("{}={}", module.file_pattern, module.verbosity)).collect();
                pairs.join(",")
            }),
            ValueKind::Version => self
                .text(name)
                .map(|text| value::boolean(text).map_or_else(|_| text.to_owned(), |value| value.to_string())),
        }
    }
}

/// The value of a flag that defaults of the platform, or another flag, may have completed.
fn completed(name: &str, config: &KubeProxyConfiguration) -> Option<String> {
    match name {
        "detect-local-mode" => Some(config.detect_local_mode.clone()),
        "healthz-bind-address" => Some(config.healthz_bind_address.clone()),
        "metrics-bind-address" => Some(config.metrics_bind_address.clone()),
        "nodeport-addresses" => Some(csv(&config.node_port_addresses)),
        "proxy-mode" => Some(config.configured_mode().to_owned()),
        _ => None,
    }
}

/// A list in brackets, its items quoted where CSV needs it.
fn csv(items: &[String]) -> String {
    let quoted = |item: &String| {
        if item.contains([',', '"', '\n', '\r']) || item.starts_with(' ') {
            format!("\"{}\"", item.replace('"', "\"\""))
        } else {
            item.clone()
        }
    };
    format!("[{}]", items.iter().map(quoted).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{RequestedAction, parse};
    use super::*;

    fn described(args: &[&str]) -> Vec<String> {
        let args = ["kube-proxy"].iter().chain(args).map(OsString::from);
        match parse(args) {
            Ok(RequestedAction::Run(flags)) => flags.describe_all(None).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_current_flag_is_described_once_and_sorted() {
        let lines = described(&["--config=a", "--logtostderr"]);
        let names = lines.iter().map(|line| line.split_once('=').unwrap().0);
        assert!(names.is_sorted());
        assert_eq!(lines.len(), 1 + FLAGS.iter().filter(|flag| !flag.is_of_older_releases()).count());
        for line in [
            "--config=\"a\"",
            "--cleanup=\"false\"",
            "--v=\"0\"",
            "--help=\"false\"",
            "--version=\"false\"",
            "--nodeport-addresses=\"[]\"",
            "--feature-gates=\"\"",
            "--iptables-localhost-nodeports=\"true\"",
            "--healthz-port=\"10256\"",
        ] {
            assert!(lines.contains(&format!("FLAG: {line}")), "{line}\n{lines:?}");
        }
    }

    #[test]
    fn values_are_effective_ones() {
        for (args, wanted) in [
            (&["--v=04"][..], "--v=\"4\""),
            (&["--oom-score-adj=-0x4"], "--oom-score-adj=\"-4\""),
            (&["--masquerade-all=T"], "--masquerade-all=\"true\""),
            (&["--config-sync-period=90s"], "--config-sync-period=\"1m30s\""),
            (
                &["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=::/0"],
                "--nodeport-addresses=\"[10.0.0.0/8,::/0]\"",
            ),
            (&["--feature-gates=B=t,A=0", "--feature-gates=A=1"], "--feature-gates=\"A=true,B=true\""),
            (&["--bind-address=010.0.0.1"], "--bind-address=\"010.0.0.1\""),
            (&["--bind-address="], "--bind-address=\"0.0.0.0\""),
            (&["--healthz-bind-address=::1"], "--healthz-bind-address=\"::1\""),
            (&["--metrics-bind-address=[::1]:99"], "--metrics-bind-address=\"[::1]:99\""),
            (&["--log-json-info-buffer-size=1024Ki"], "--log-json-info-buffer-size=\"1Mi\""),
            (&["--vmodule=a=1", "--vmodule=b*=2"], "--vmodule=\"a=1,b*=2\""),
            (&["--kube-api-qps=7.5"], "--kube-api-qps=\"7.5\""),
            (&["--version=F"], "--version=\"false\""),
            (&["--hostname-override=a\"b"], "--hostname-override=\"a\\\"b\""),
        ] {
            let lines = described(args);
            assert!(lines.contains(&format!("FLAG: {wanted}")), "{wanted}\n{lines:?}");
        }
        let lines = described(&["--master=https://user:secret@10.0.0.1"]);
        assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:?}");
    }

    #[test]
    fn a_configuration_made_of_flags_is_complete() {
        let args = ["kube-proxy", "--proxy-mode=nftables", "--healthz-port=0", "--metrics-bind-address=::1"];
        let Ok(RequestedAction::Run(flags)) = parse(args.map(OsString::from)) else { panic!("not to run") };
        let mut config = KubeProxyConfiguration::default();
        crate::cli::apply(&flags, &mut config);
        config.apply_platform_defaults();
        let lines: Vec<String> = flags.describe_all(Some(&config)).collect();
        for line in [
            "--detect-local-mode=\"ClusterCIDR\"",
            "--healthz-bind-address=\"\"",
            "--metrics-bind-address=\"[::1]:10249\"",
            "--nodeport-addresses=\"[primary]\"",
            "--proxy-mode=\"nftables\"",
        ] {
            assert!(lines.contains(&format!("FLAG: {line}")), "{line}\n{lines:?}");
        }
        let blank = KubeProxyConfiguration::default();
        assert!(flags.describe_all(Some(&blank)).any(|line| line == "FLAG: --proxy-mode=\"iptables\""));
    }
}
