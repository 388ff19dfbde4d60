//! Table of all flags: those of kube-proxy 1.36 on Linux, those of older releases that unit files still contain, and Ferry's own.

/// Syntax of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// `--name` or `--name=value`, never `--name value`
    Bool,
    /// an integer; Go's base prefixes are allowed
    Int32,
    /// a verbosity: a decimal number from 0 on
    Level,
    /// a floating-point number
    Float32,
    /// Go syntax: `1h2m3.5s`
    Duration,
    /// any text
    Text,
    /// a range of ports: `61000-61999`, or empty
    Ports,
    /// comma-separated with CSV quotes; the first use replaces the default, later ones append
    List,
    /// an IP address; empty means not given
    Ip,
    /// an IP address with or without port; empty means not given
    IpPort,
    /// `A=true,B=false`
    Gates,
    /// a number with a unit: `1Ki`
    Quantity,
    /// `pattern=N,…`
    VModule,
    /// `true`, `false`, `raw`, or a version
    Version,
}

/// Effect of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// effective, also with `--config`
    Acts,
    /// sets a field of the configuration; ignored with `--config`, as upstream does
    Config,
    /// checked for its type and without effect in this build, with a warning; `--write-config-to` writes it if it belongs to the
    /// configuration
    Nothing,
    /// sets a field of the configuration, and should be replaced by another flag, as upstream says at each start
    Deprecated,
    /// the old name of another flag
    Renamed,
    /// removed upstream and accepted for old unit files, with a warning
    Removed,
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// the long name
    pub name: &'static str,
    /// the syntax of its value
    pub kind: ValueKind,
    /// its effect
    pub effect: Effect,
    /// the default printed by `--help`; empty for none
    pub default: &'static str,
    /// its help text, one line
    pub help: &'static str,
}

use Effect::{Acts, Config, Deprecated, Nothing, Removed, Renamed};
use ValueKind::{
    Bool, Duration, Float32, Gates, Int32, Ip, IpPort, Level, List, Ports, Quantity, Text, VModule, Version,
};

const fn flag(name: &'static str, kind: ValueKind, effect: Effect, default: &'static str, help: &'static str) -> Flag {
    Flag { name, kind, effect, default, help }
}

/// A flag of an older release.
const fn removed(name: &'static str, kind: ValueKind) -> Flag {
    flag(name, kind, Removed, "", "No effect: removed by upstream, accepted for old unit files.")
}

/// All flags, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    flag("bind-address", Ip, Config, "0.0.0.0", "Overrides the node's IP address; binds nothing."),
    flag("bind-address-hard-fail", Bool, Config, "", "Failing to bind the health or metrics port is fatal."),
    flag("boot-id-file", Text, Nothing, "/proc/sys/kernel/random/boot_id", "Unused flag of a library."),
    flag("cleanup", Bool, Acts, "", "Remove all rules and exit."),
    flag(
        "cleanup-leftovers",
        Bool,
        Acts,
        "",
        "Remove Ferry's leftovers in tables that another kube-proxy took over, and exit.",
    ),
    flag("cluster-cidr", Text, Config, "", "The range of pod addresses; one, or a dual-stack pair joined by a comma."),
    flag("config", Text, Acts, "", "The path to the configuration file."),
    flag("config-sync-period", Duration, Nothing, "15m0s", "Resync interval of objects."),
    flag("conntrack-max-per-core", Int32, Config, "32768", "Tracked connections per core; 0 keeps the limit."),
    flag("conntrack-min", Int32, Config, "131072", "Least number of tracked connections."),
    flag("conntrack-tcp-be-liberal", Bool, Config, "", "Accept TCP packets outside the window."),
    flag("conntrack-tcp-timeout-close-wait", Duration, Config, "1h0m0s", "Timeout of connections in CLOSE_WAIT."),
    flag("conntrack-tcp-timeout-established", Duration, Config, "24h0m0s", "Timeout of idle TCP connections."),
    flag("conntrack-udp-timeout", Duration, Config, "0s", "Timeout of unanswered UDP; 0 keeps it."),
    flag("conntrack-udp-timeout-stream", Duration, Config, "0s", "Timeout of answered UDP; 0 keeps it."),
    flag(
        "control-socket",
        Text,
        Acts,
        "/run/kube-proxy/control.sock",
        "The Unix socket on which the proxy answers its subcommands; empty for none.",
    ),
    flag("detect-local-mode", Text, Config, "", "How to detect traffic from this node's pods."),
    flag("feature-gates", Gates, Config, "", "Pairs A=true,B=false. Some have an effect."),
    flag("healthz-bind-address", IpPort, Config, "0.0.0.0:10256", "The address of /healthz and /livez."),
    flag("healthz-port", Int32, Deprecated, "10256", "The port of a bare --healthz-bind-address; 0 serves no health."),
    flag("hostname-override", Text, Acts, "", "The node's name, instead of the host's."),
    flag(
        "init-only",
        Bool,
        Acts,
        "",
        "Look up the node, set kernel parameters and exit; then CAP_NET_ADMIN is enough to run.",
    ),
    flag("iptables-localhost-nodeports", Bool, Config, "true", "Node ports on loopback, mode iptables."),
    flag("iptables-masquerade-bit", Int32, Config, "14", "The bit of the packet mark, mode iptables."),
    flag("iptables-min-sync-period", Duration, Config, "1s", "Least time between two syncs; values above 1s apply."),
    flag("iptables-sync-period", Duration, Config, "30s", "Half the time after which a waiting change is unhealthy."),
    flag("ipvs-exclude-cidrs", List, Config, "", "Ranges that mode ipvs ignores."),
    flag("ipvs-min-sync-period", Duration, Config, "1s", "Least time between two syncs, mode ipvs."),
    flag("ipvs-scheduler", Text, Config, "", "The scheduler of mode ipvs."),
    flag("ipvs-strict-arp", Bool, Config, "", "Strict ARP, mode ipvs."),
    flag("ipvs-sync-period", Duration, Config, "30s", "Sync period of mode ipvs."),
    flag("ipvs-tcp-timeout", Duration, Config, "0s", "Idle timeout of mode ipvs; 0 keeps it."),
    flag("ipvs-tcpfin-timeout", Duration, Config, "0s", "Timeout after FIN, mode ipvs; 0 keeps it."),
    flag("ipvs-udp-timeout", Duration, Config, "0s", "UDP timeout of mode ipvs; 0 keeps it."),
    flag("kube-api-burst", Int32, Config, "10", "Burst of requests to the API server."),
    flag("kube-api-content-type", Text, Config, "application/vnd.kubernetes.protobuf", "Content type of API requests."),
    flag("kube-api-qps", Float32, Config, "5", "Requests per second to the API server; negative for no limit."),
    flag("kubeconfig", Text, Config, "", "Path to a kubeconfig; without it and --master, the pod's service account."),
    flag("log-flush-frequency", Duration, Nothing, "5s", "How often logs are flushed."),
    flag("log-json-info-buffer-size", Quantity, Nothing, "0", "Buffer of JSON logs."),
    flag("log-json-split-stream", Bool, Acts, "", "Errors of JSON logs to stderr, the rest to stdout."),
    flag("log-text-info-buffer-size", Quantity, Nothing, "0", "Buffer of text logs."),
    flag("log-text-split-stream", Bool, Acts, "", "Informational lines of text logs to stdout."),
    flag("logging-format", Text, Acts, "text", "Format of logs: text or json."),
    flag("machine-id-file", Text, Nothing, "/etc/machine-id,/var/lib/dbus/machine-id", "Unused flag of a library."),
    flag("manifests", Text, Acts, "", "The directory to read Services, EndpointSlices, Nodes and ServiceCIDRs from."),
    flag("masquerade-all", Bool, Config, "", "Masquerade all connections to cluster IPs."),
    flag("master", Text, Acts, "", "The URL of the API server, instead of the kubeconfig's."),
    flag("metrics-bind-address", IpPort, Config, "127.0.0.1:10249", "The address of /metrics, /configz and others."),
    flag("metrics-port", Int32, Deprecated, "10249", "The port of a bare --metrics-bind-address."),
    flag("nodeport-addresses", List, Config, "", "Ranges of node addresses that serve node ports, or primary."),
    flag("oom-score-adj", Int32, Config, "-999", "The OOM score adjustment of this process."),
    flag("pod-bridge-interface", Text, Config, "", "The bridge of local pods, for detect-local-mode BridgeInterface."),
    flag("pod-interface-name-prefix", Text, Config, "", "Prefix of local pods' interfaces, for InterfaceNamePrefix."),
    flag("profiling", Bool, Config, "", "Serve /debug/flags/v and /debug/pprof/ on the metrics port."),
    flag("proxy-mode", Text, Config, "", "The mode: iptables, the default, ipvs, nftables or userspace."),
    flag("proxy-mode-fallback", List, Acts, "", "Modes to try, in order, where the mode can't start on this machine."),
    flag("show-hidden-metrics-for-version", Text, Nothing, "", "Show metrics hidden in this version."),
    flag(
        "v",
        Level,
        Acts,
        "0",
        "Number for the log level verbosity: 2 logs each sync, 4 each object, 6 each decision.",
    ),
    flag("version", Version, Acts, "", "--version, --version=raw prints the version and exits."),
    flag("vmodule", VModule, Acts, "", "Verbosity per source file, text logs only."),
    flag(
        "write-config-to",
        Text,
        Acts,
        "",
        "Write the configuration to this file, checked and with defaults, and exit.",
    ),
    removed("add-dir-header", Bool),
    removed("alsologtostderr", Bool),
    flag("cleanup-iptables", Bool, Renamed, "", "Old name of --cleanup."),
    removed("cleanup-ipvs", Bool),
    removed("log-backtrace-at", Text),
    removed("log-dir", Text),
    removed("log-file", Text),
    removed("log-file-max-size", Text),
    removed("logtostderr", Bool),
    removed("one-output", Bool),
    flag("proxy-port-range", Ports, Config, "", "Ports that listeners of mode userspace prefer (default 61000-65535)."),
    removed("resource-container", Text),
    removed("skip-headers", Bool),
    removed("skip-log-headers", Bool),
    removed("stderrthreshold", Text),
    flag("udp-timeout", Duration, Acts, "250ms", "Idle time that ends a UDP association of mode userspace."),
];

// === impl Flag ===

impl Flag {
    /// True if no current proxy has it, and only old unit files do.
    pub fn is_of_older_releases(&self) -> bool {
        matches!(self.effect, Removed | Renamed)
    }
}

// === impl ValueKind ===

impl ValueKind {
    /// The placeholder of the value in `--help`.
    pub fn word(self) -> &'static str {
        match self {
            Bool => "bool",
            Int32 => "int32",
            Level => "Level",
            Float32 => "float32",
            Duration => "duration",
            Text => "string",
            Ports => "port-range",
            List => "strings",
            Ip => "ip",
            IpPort => "ipport",
            Gates => "mapStringBool",
            Quantity => "quantity",
            VModule => "pattern=N,...",
            Version => "version",
        }
    }

    /// True if the flag may be given without a value, which means true.
    pub fn is_optional(self) -> bool {
        matches!(self, Bool | Version)
    }
}
