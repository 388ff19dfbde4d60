//! The manual page `kube-proxy(8)`, generated from the flag table.

use ferry_kube_proxy::cli::{Effect, Flag, INSPECTIONS};
use ferry_kube_proxy::version;

use crate::epoch::Epoch;
use crate::values;

/// The page as roff, dated by the epoch.
pub fn page(epoch: Epoch) -> String {
    let mut page = ManualPage::default();
    page.head(epoch);
    page.description();
    page.options();
    page.subcommands();
    page.rest();
    page.0
}

/// A page that grows.
#[derive(Default)]
struct ManualPage(String);

// === impl ManualPage ===

impl ManualPage {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.line(&format!(".SH {name}"));
    }

    /// A paragraph of plain text; the first of a section has no macro before it.
    fn text(&mut self, text: &str) {
        if !self.0.lines().next_back().is_some_and(|line| line.starts_with(".SH")) {
            self.line(".PP");
        }
        self.line(&escaped(text));
    }

    /// An entry of a list: a term in bold, and its text.
    fn entry(&mut self, term: &str, text: &str) {
        self.line(".TP");
        self.line(&format!(".B {}", escaped(term)));
        self.line(&escaped(text));
    }

    fn head(&mut self, epoch: Epoch) {
        self.line(&format!(
            ".TH KUBE\\-PROXY 8 {} \"Ferry {}\" \"System Administration\"",
            epoch.date(),
            version::FERRY
        ));
        self.section("NAME");
        self.line("kube\\-proxy \\- routes connections to Kubernetes Services to their endpoints");
        self.section("SYNOPSIS");
        self.line(".B kube\\-proxy");
        self.line(".B \\-\\-config");
        self.line(".I FILE");
        self.line("[\\fIflags\\fR]");
    }

    fn description(&mut self) {
        self.section("DESCRIPTION");
        self.text(
            "kube-proxy programs the kernel of a node with rules for the Services and EndpointSlices of a Kubernetes cluster, so that a \
             connection to a Service's address reaches one of its endpoints. It reads these objects from the API server or, with \
             --manifests, from files.",
        );
        self.text(&format!(
            "This is Ferry, a drop-in replacement of Kubernetes' kube-proxy {}: flags, configuration file, health checks and metrics \
             are the same.",
            version::UPSTREAM
        ));
        self.text("The rules stay in force when the program ends; kube-proxy --cleanup removes them.");
    }

    fn options(&mut self) {
        self.section("OPTIONS");
        self.text("A value follows after a blank or an equals sign; that of a boolean flag, which may be left out, after an equals sign.");
        let with =
            |wanted: &[Effect]| values::current().filter(|flag| wanted.contains(&flag.effect)).collect::<Vec<_>>();
        self.flags("Effective in every case", &with(&[Effect::Acts]));
        self.entry("-h, --help", "Print the usage and exit.");
        self.flags("Effective without --config", &with(&[Effect::Config, Effect::Deprecated]));
        self.flags("Accepted without effect", &with(&[Effect::Nothing]));
    }

    fn subcommands(&mut self) {
        self.section("SUBCOMMANDS");
        self.text("They show something instead of running, and take the options that set the configuration, too.");
        for inspected in INSPECTIONS {
            let flags: Vec<&Flag> = inspected.flags.iter().collect();
            self.flags(format!("kube-proxy {} {}", inspected.name, inspected.arguments).trim_end(), &flags);
            self.text(inspected.about);
            for (line, what) in inspected.examples {
                self.entry(line, &format!("Prints {what}."));
            }
        }
    }

    fn flags(&mut self, title: &str, flags: &[&Flag]) {
        self.line(&format!(".SS {}", escaped(title)));
        for flag in flags {
            let short = if flag.name.len() == 1 { format!("-{}, ", flag.name) } else { String::new() };
            let value = if flag.kind.is_optional() { String::new() } else { format!(" {}", flag.kind.word()) };
            let default =
                if flag.default.is_empty() { String::new() } else { format!(" The default is {}.", flag.default) };
            self.entry(&format!("{short}--{}{value}", flag.name), &format!("{}{default}", flag.help));
        }
    }

    fn rest(&mut self) {
        self.section("SIGNALS");
        self.entry(
            "SIGHUP",
            "Read the configuration file and the kubeconfig again; without a signal they are followed, too.",
        );
        self.entry("SIGTERM, SIGINT", "End at once. The rules stay in force.");
        self.section("FILES");
        self.entry("/etc/default/kube-proxy", "The flags of the Debian package's service.");
        self.entry("/etc/kube-proxy/config.yaml", "The configuration file of the Debian package's service.");
        self.entry("/run/kube-proxy/control.sock", "The socket by which subcommands ask the running kube-proxy.");
        self.section("\"EXIT STATUS\"");
        self.entry("0", "A command such as --cleanup or --version has succeeded.");
        self.entry("1", "An error; the last line on standard error names it.");
        self.entry("2", "kube-proxy plan has found something to change, or kube-proxy verify a difference.");
        self.section("\"SEE ALSO\"");
        self.line(".BR nft (8),");
        self.line(".BR iptables (8),");
        self.line(".BR ipvsadm (8)");
    }
}

/// Text in roff: dashes are ASCII dashes, and no line begins with a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
