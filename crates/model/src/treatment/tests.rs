use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};

use super::*;

const MATRIX: Matrix<'static> = Matrix {
    profile: &Profile::NFTABLES,
    internal_local: false,
    external_local: false,
    detects_pods: true,
    masquerade_all: false,
    any: true,
    has_cluster: true,
    has_local: true,
};

fn text(matrix: Matrix<'_>, kind: FrontendKind) -> String {
    let Treatment { pod, host, other } = matrix.treatment(kind);
    format!("{pod} {host} {other}")
}

fn all_external(matrix: Matrix<'_>, wanted: &str) {
    for kind in [ExternalIp, LoadBalancer, NodePort] {
        assert_eq!(text(matrix, kind), wanted, "{kind} {matrix:?}");
    }
}

#[test]
fn cluster_ip() {
    let local = Matrix { internal_local: true, ..MATRIX };
    for (matrix, wanted) in [
        (MATRIX, "cluster cluster+masquerade cluster+masquerade"),
        (Matrix { external_local: true, ..MATRIX }, "cluster cluster+masquerade cluster+masquerade"),
        (local, "local local+masquerade local+masquerade"),
        (Matrix { masquerade_all: true, ..MATRIX }, "cluster+masquerade cluster+masquerade cluster+masquerade"),
        (Matrix { detects_pods: false, ..MATRIX }, "cluster cluster cluster"),
        (
            Matrix { detects_pods: false, masquerade_all: true, ..local },
            "local+masquerade local+masquerade local+masquerade",
        ),
        (Matrix { has_local: false, ..local }, "drop drop drop"),
        (Matrix { has_local: false, has_cluster: false, ..local }, "drop drop drop"),
        (Matrix { any: false, has_local: false, has_cluster: false, ..local }, "reject reject reject"),
        (Matrix { any: false, has_local: false, has_cluster: false, ..MATRIX }, "reject reject reject"),
    ] {
        assert_eq!(text(matrix, ClusterIp), wanted, "{matrix:?}");
    }
}

#[test]
fn external_frontends() {
    let local = Matrix { external_local: true, ..MATRIX };
    for (matrix, wanted) in [
        (MATRIX, "cluster+masquerade cluster+masquerade cluster+masquerade"),
        (Matrix { internal_local: true, ..MATRIX }, "cluster+masquerade cluster+masquerade cluster+masquerade"),
        (Matrix { detects_pods: false, ..MATRIX }, "cluster+masquerade cluster+masquerade cluster+masquerade"),
        (local, "cluster cluster+masquerade local"),
        (Matrix { masquerade_all: true, ..local }, "cluster cluster+masquerade local"),
        (Matrix { has_local: false, ..local }, "cluster cluster+masquerade drop"),
        // without a detector pods are others
        (Matrix { detects_pods: false, ..local }, "local cluster+masquerade local"),
        (Matrix { detects_pods: false, has_local: false, ..local }, "drop cluster+masquerade drop"),
        (Matrix { any: false, has_local: false, has_cluster: false, ..local }, "reject reject reject"),
    ] {
        all_external(matrix, wanted);
    }
}

#[test]
fn in_mode_ipvs_all_sources_share_the_endpoints() {
    let ipvs = Matrix { profile: &Profile::IPVS, ..MATRIX };
    let local = Matrix { external_local: true, internal_local: true, ..ipvs };
    let no_local = Matrix { has_local: false, ..local };
    let not_here_nor_there = Matrix { has_local: false, has_cluster: false, ..local };
    let none = Matrix { any: false, ..not_here_nor_there };
    all_external(ipvs, "cluster+masquerade cluster+masquerade cluster+masquerade");
    all_external(local, "local local local");
    all_external(no_local, "cluster cluster cluster");
    all_external(none, "reject reject reject");
    all_external(Matrix { masquerade_all: true, detects_pods: false, ..local }, "local local local");
    for (matrix, wanted) in [
        (ipvs, "cluster cluster+masquerade cluster+masquerade"),
        (local, "local local+masquerade local+masquerade"),
        (no_local, "cluster cluster+masquerade cluster+masquerade"),
        (not_here_nor_there, "drop drop drop"),
        (none, "reject reject reject"),
        // the node's own connections have the bound address as their source
        (Matrix { detects_pods: false, ..ipvs }, "cluster cluster+masquerade cluster"),
        (
            Matrix { detects_pods: false, masquerade_all: true, ..ipvs },
            "cluster+masquerade cluster+masquerade cluster+masquerade",
        ),
    ] {
        assert_eq!(text(matrix, ClusterIp), wanted, "{matrix:?}");
    }
}

#[test]
fn a_mode_that_leaves_the_host_alone_without_endpoints() {
    let profile = Profile { rejects_host_to_external: false, ..Profile::IPVS };
    let none = Matrix { profile: &profile, any: false, has_cluster: false, has_local: false, ..MATRIX };
    assert_eq!(text(none, LoadBalancer), "reject pass reject");
    assert_eq!(text(none, NodePort), "reject reject reject");
}
