//! What the process of mode ipvs may do: one capability is enough.

use ferry_lab::objects::at_cluster_ip;
use ferry_lab::stage::ManifestDirectory;
use ferry_lab::{Family, Lab, LabMachine, Manifests, ProxyProcess, TestService};

use crate::support::{EXECUTABLE, folder, ipvs, servers};

#[test]
#[ignore = "needs IPVS: runs in virtual machines"]
fn net_admin_alone_serves() {
    let (lab, folder) = (Lab::new(), folder("net-admin-alone"));
    let node = lab.host(LabMachine::Node);
    let mut directory = ManifestDirectory::new(&folder);
    directory.write(&Manifests::new().with(TestService::new("web", 1), &[LabMachine::PodA]));
    let config = folder.join("config.yaml");
    ipvs("").write(&config);
    let (config, objects) = (config.display().to_string(), directory.manifests().display().to_string());
    let mut proxy = ProxyProcess::start_by(
        node,
        "setpriv",
        &folder,
        &[
            "--bounding-set=-all,+net_admin",
            "--inh-caps=-all,+net_admin",
            "--no-new-privs",
            "--",
            EXECUTABLE,
            "--config",
            &config,
            "--manifests",
            &objects,
        ],
    );
    for family in Family::ALL {
        let client = lab.from(LabMachine::Client);
        proxy.wait_for("a connection", |_| client.tcp(at_cluster_ip(family, 1), 1).all_answered());
    }
    let listed = servers(node).into_iter().filter(|server| server.name.contains("10.96.0.1:"));
    assert_eq!(listed.count(), 1);
    assert!(!proxy.log().contains("denied"), "{}", proxy.log());
}
