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

/// A profile like that of ipvs.
const NO_SHORT_CIRCUIT: Profile = Profile {
    short_circuit: false,
    local_falls_back: true,
    masquerades_host_on_local: false,
    rejects_host_to_external: false,
    ..Profile::NFTABLES
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
fn a_mode_without_short_circuit() {
    let local = Matrix { profile: &NO_SHORT_CIRCUIT, external_local: true, internal_local: true, ..MATRIX };
    let no_local = Matrix { has_local: false, ..local };
    let none = Matrix { has_local: false, has_cluster: false, any: false, ..local };
    all_external(local, "local local local");
    all_external(no_local, "cluster cluster cluster");
    assert_eq!(text(local, ClusterIp), "local local+masquerade local+masquerade");
    assert_eq!(text(no_local, ClusterIp), "cluster cluster+masquerade cluster+masquerade");
    assert_eq!(text(none, LoadBalancer), "reject pass reject");
    assert_eq!(text(none, NodePort), "reject reject reject");
}
