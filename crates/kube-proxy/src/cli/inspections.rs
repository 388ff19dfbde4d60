//! The subcommands that show something instead of running, each with its own flags beside those of the program.

use super::table::{Effect, Flag, ValueKind};

/// A subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// says what happens to connections
    Explain,
    /// says what a run would change
    Plan,
    /// prints what a mode would have in the kernel
    Render,
    /// takes a packet through what is in the kernel
    Trace,
    /// compares what packets meet with what they should
    Verify,
}

/// The help text and the own flags of a subcommand.
#[derive(Clone, Copy, Debug)]
pub struct Inspected {
    /// the subcommand
    pub inspection: Inspection,
    /// its name
    pub name: &'static str,
    /// what is asked, for the usage; empty if nothing is
    pub arguments: &'static str,
    /// what it does, one line
    pub about: &'static str,
    /// command lines, each with what it is for
    pub examples: &'static [(&'static str, &'static str)],
    /// its own flags, in the order of the help
    pub flags: &'static [Flag],
}

const fn own(name: &'static str, kind: ValueKind, help: &'static str) -> Flag {
    Flag { name, kind, effect: Effect::Acts, default: "", help }
}

pub(super) const MODE: Flag = own("mode", ValueKind::Text, "The mode that is shown, instead of the configured one.");
const DUMP: Flag =
    own("dump", ValueKind::Text, "The file with all objects to read, as kubectl get -A -o yaml or json prints it.");
const LOCAL_ADDRESSES: Flag = own(
    "local-addresses",
    ValueKind::List,
    "The addresses of the node's interfaces, or machine for this machine's, which is the default for what is in the kernel and for the running proxy; else those of its Node.",
);
const IN: Flag = own("in", ValueKind::Text, "The interface through which the connection comes in.");
const JSON: Flag = own("json", ValueKind::Bool, "Print JSON.");

/// All subcommands.
pub const INSPECTIONS: &[Inspected] = &[
    Inspected {
        inspection: Inspection::Explain,
        name: "explain",
        arguments: "svc NAMESPACE/NAME[:PORT] | pod IP | IP:PORT[/PROTOCOL] | \"CLIENT -> IP:PORT[/PROTOCOL]\"",
        about: "Says what happens to connections, and why: the problems first.",
        examples: &[
            ("kube-proxy explain svc default/web", "a Service, as the running proxy knows it"),
            ("kube-proxy explain --manifests examples/hello svc default/hello", "a Service, and each of its endpoints"),
            (
                "kube-proxy explain --config config.yaml --dump objects.yaml --hostname-override node-a 10.96.0.10:80",
                "who serves an address on one node, from what kubectl get services,endpointslices,nodes -A -o yaml has printed",
            ),
            (
                "kube-proxy explain --kubeconfig ~/.kube/config --cluster-cidr 10.244.0.0/16 \"10.244.1.7 -> 10.96.0.10:53/UDP\"",
                "what happens to a connection in a cluster",
            ),
        ],
        flags: &[
            MODE,
            DUMP,
            LOCAL_ADDRESSES,
            IN,
            own("watch", ValueKind::Bool, "Follow the running proxy: print the answer again whenever it changes."),
            JSON,
        ],
    },
    Inspected {
        inspection: Inspection::Plan,
        name: "plan",
        arguments: "",
        about: "Says what a run would change in this machine's kernel now, and changes nothing; exits with 2 if it would.",
        examples: &[
            ("kube-proxy plan", "what the running proxy would repair"),
            (
                "kube-proxy plan --config /var/lib/kube-proxy/config.conf",
                "the difference between the cluster and this node, also where upstream's proxy runs",
            ),
            (
                "kube-proxy plan --mode nftables --kubeconfig ~/.kube/config --json",
                "all operations of a change of mode",
            ),
        ],
        flags: &[MODE, DUMP, LOCAL_ADDRESSES, JSON],
    },
    Inspected {
        inspection: Inspection::Render,
        name: "render",
        arguments: "",
        about: "Prints what a mode would have in the kernel for these objects, without changing anything.",
        examples: &[
            ("kube-proxy render --mode nftables --manifests examples/hello", "the rules for a directory of manifests"),
            (
                "kube-proxy render --config config.yaml --dump objects.yaml --hostname-override node-a",
                "those of one node, from what kubectl get services,endpointslices,nodes -A -o yaml has printed",
            ),
            (
                "kube-proxy render --mode ipvs --kubeconfig ~/.kube/config --part ipvsadm --service default/web",
                "the virtual servers of one Service, from a cluster",
            ),
        ],
        flags: &[
            MODE,
            DUMP,
            LOCAL_ADDRESSES,
            own("service", ValueKind::Text, "This Service alone: NAMESPACE/NAME."),
            own("part", ValueKind::Text, "This part alone, as the tool that it is for loads it."),
            JSON,
        ],
    },
    Inspected {
        inspection: Inspection::Trace,
        name: "trace",
        arguments: "\"CLIENT -> IP:PORT[/PROTOCOL]\"",
        about: "Takes a connection's first packet through what is in this machine's kernel, object by object; exits with 2 if it ends elsewhere than it should.",
        examples: &[
            ("kube-proxy trace \"10.244.1.7 -> 10.96.0.10:80\"", "from a pod, where the running proxy serves"),
            (
                "kube-proxy trace --config /var/lib/kube-proxy/config.conf \"10.244.1.7 -> 10.96.0.10:53/UDP\"",
                "from a pod to a cluster IP",
            ),
            (
                "kube-proxy trace --config /var/lib/kube-proxy/config.conf --live --seconds 30 \"10.244.1.7 -> 10.96.0.10:53/UDP\"",
                "what the pod's next packet meets, in other programs' tables too",
            ),
            (
                "kube-proxy trace --config /var/lib/kube-proxy/config.conf --in eth0 \"198.51.100.7 -> 192.0.2.10:30080\"",
                "from outside to a node port, through the interface eth0",
            ),
        ],
        flags: &[
            MODE,
            DUMP,
            LOCAL_ADDRESSES,
            IN,
            own(
                "live",
                ValueKind::Bool,
                "Also watch real packets of the connection: what they meet in nf_tables, of all programs.",
            ),
            own("seconds", ValueKind::Int32, "With --live, the longest time to wait for packets; 10 by default."),
            own("packets", ValueKind::Int32, "With --live, the number of packets to watch; 1 by default."),
            JSON,
        ],
    },
    Inspected {
        inspection: Inspection::Verify,
        name: "verify",
        arguments: "",
        about: "Compares what packets to each Service meet in this machine's kernel with what they should; exits with 2 if some differ.",
        examples: &[
            ("kube-proxy verify", "all Services of the running proxy"),
            ("kube-proxy verify --config /var/lib/kube-proxy/config.conf", "all Services of the cluster on this node"),
            (
                "kube-proxy verify --config /var/lib/kube-proxy/config.conf --sample 100 --json",
                "a hundred of them, evenly spread, for a script",
            ),
            ("kube-proxy verify --connect", "a real connection through the running proxy's rules"),
        ],
        flags: &[
            MODE,
            DUMP,
            LOCAL_ADDRESSES,
            own("sample", ValueKind::Int32, "The number of Services, evenly spread over all; by default all of them."),
            own("all", ValueKind::Bool, "Compare all Services, which is the default."),
            own(
                "connect",
                ValueKind::Bool,
                "Instead, have the running proxy make a Service and two network namespaces, and connect from one to the other through it; exits with 2 if that fails.",
            ),
            JSON,
        ],
    },
];

// === impl Inspected ===

impl Inspected {
    /// The subcommand of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        INSPECTIONS.iter().find(|inspected| inspected.name == name)
    }
}
