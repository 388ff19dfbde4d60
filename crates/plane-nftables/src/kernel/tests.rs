use ferry_api::object::Protocol;
use ferry_kernel::netns::Namespace;
use ferry_model::state::{BaseState, NodePortAddresses};
use ferry_model::{Context, PerFamily};

use super::*;
use crate::base;
use crate::object::Value;

fn announced(n: u8) -> NftObject {
    let sources = format!("10.{n}.0.0/16").parse().unwrap();
    let (vip, protocol, port) = ([203, 0, 113, 20].into(), Protocol::Tcp, 80);
    NftObject::Element(ElementKey::NextRange { vip, protocol, port, sources }, Value::None)
}

/// A kernel half that holds the base.
fn kernel() -> NftablesKernel {
    let context = Context {
        node_name: "node-a".into(),
        zone: None,
        node_ips: PerFamily::default(),
        local: PerFamily::default(),
        masquerade_all: false,
        masquerade_mark: 0x4000,
    };
    let base =
        BaseState { node_ports: NodePortAddresses::All, localhost: false, service_cidrs: Vec::new(), affinity: false };
    let mut create = Vec::new();
    base::compile(Family::V4, &context, &base, &mut create);
    create.sort_by_key(Object::rank);
    let mut kernel = NftablesKernel::open(Family::V4, CommitTurn::default()).unwrap();
    kernel.prepare().unwrap();
    kernel.commit(&Batch { create, ..Batch::default() }).unwrap();
    kernel
}

/// A transaction is made as a whole or not at all, so one range that is gone keeps the others.
#[test]
fn ranges_are_withdrawn_also_if_somebody_else_took_one_away() {
    Namespace::new()
        .expect("root and CAP_SYS_ADMIN are needed")
        .run(|| {
            let mut kernel = kernel();
            let add = |object| ahead::step(vec![object], Vec::new());
            for n in [1, 3] {
                kernel.try_commit(&add(announced(n)), &Ahead::default()).unwrap();
            }
            kernel.announced = [1, 2, 3].map(announced).to_vec();
            kernel.withdraw();
            assert!(kernel.announced.is_empty());
            let all = kernel.read_back(&Extent::All).unwrap();
            let left: Vec<&NftObject> = all.iter().filter(|object| [1, 2, 3].map(announced).contains(object)).collect();
            assert!(left.is_empty(), "{left:?}");
        })
        .unwrap();
}
