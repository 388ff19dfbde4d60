//! The subcommands that show something instead of running, each with its own flags beside those of the program.

use super::table::{Effect, Flag, ValueKind};

/// A subcommand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// prints what a mode would have in the kernel
    Render,
}

/// What the help says about a subcommand, and its own flags.
#[derive(Clone, Copy, Debug)]
pub struct Inspected {
    /// the subcommand
    pub inspection: Inspection,
    /// its name
    pub name: &'static str,
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

/// All subcommands.
pub const INSPECTIONS: &[Inspected] = &[Inspected {
    inspection: Inspection::Render,
    name: "render",
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
        own("mode", ValueKind::Text, "The mode that is rendered, instead of the configured one."),
        own("dump", ValueKind::Text, "The file with all objects to read, as kubectl get -A -o yaml or json prints it."),
        own(
            "local-addresses",
            ValueKind::List,
            "The addresses of the node's interfaces, or machine for this machine's; by default those of its Node.",
        ),
        own("service", ValueKind::Text, "This Service alone: NAMESPACE/NAME."),
        own("part", ValueKind::Text, "This part alone, as the tool that it is for loads it."),
        own("json", ValueKind::Bool, "Print JSON."),
    ],
}];

// === impl Inspected ===

impl Inspected {
    /// The subcommand of this name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        INSPECTIONS.iter().find(|inspected| inspected.name == name)
    }
}
