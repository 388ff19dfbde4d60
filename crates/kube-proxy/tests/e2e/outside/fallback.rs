//! Black-box tests of fallback modes: what runs where the configured mode can't start, and how it is reported.

use rustix::process::Signal;

use crate::support::{METRICS, Machine};

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  clusterIP: 10.96.0.1\n  \
                       clusterIPs: [10.96.0.1]\n  ipFamilies: [IPv4]\n  ports: [{port: 80}]\n";
const FILE: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                    ---\napiVersion: ferry.io/v1alpha1\nkind: FerryConfiguration\n";

/// Without the tool of mode iptables, mode nftables runs, for the whole program.
#[test]
fn without_the_tool_the_fallback_runs() {
    let machine = Machine::new();
    machine.write("manifests/web.yaml", SERVICE);
    let file = machine.write("config.yaml", &format!("{FILE}proxyModeFallback: [iptables, nftables]\n"));
    let flags = ["--proxy-mode=iptables", "--proxy-mode-fallback=nftables"];
    for arguments in [&["--config", &file][..], &flags] {
        let mut running = machine.start_with_installed(arguments);
        running.until("the map", |_| machine.serves("ip", "10.96.0.1"));
        running.until_synced();
        assert_eq!(running.get(METRICS, "/proxyMode").body, "nftables");
        let page = running.get(METRICS, "/metrics").body;
        for line in [
            "kubeproxy_engine_mode_info{configured=\"iptables\",mode=\"nftables\"} 1",
            "kubeproxy_engine_pending_units{ip_family=\"IPv4\",mode=\"nftables\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        let log = running.log();
        let message =
            "\"Configured mode can't start, running in a fallback mode\" configured=\"iptables\" mode=\"nftables\"";
        let line = log.lines().find(|line| line.contains(message)).unwrap_or_else(|| panic!("{log}"));
        assert!(line.starts_with('W') && line.contains("iptables-restore") && line.contains("PATH"), "{line}");
        running.signal(Signal::TERM);
    }
    // With the tool, the configured mode runs, and takes over.
    let mut running = machine.start_as(&["--config", &file]);
    running.until("end of the tables", |_| !machine.tables().iter().any(|table| table.ends_with("kube-proxy")));
    assert_eq!(running.get(METRICS, "/proxyMode").body, "iptables");
    let page = running.get(METRICS, "/metrics").body;
    assert!(page.contains("kubeproxy_engine_mode_info{configured=\"iptables\",mode=\"iptables\"} 1\n"), "{page}");
    assert!(!running.log().contains("fallback"), "{}", running.log());
}
