//! Four services that pass eight VIPs among each other.

use std::sync::Arc;

use ferry_plane::{Delta, UnitId};
use proptest::prelude::*;

use super::{base, context, service};

/// The owner of each of eight VIPs, the endpoints of each of four services, and the mark in force.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) owners: Vec<u8>,
    pub(crate) endpoints: Vec<Vec<u8>>,
    pub(crate) mark: u32,
}

/// A change of the world.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Give { vip: u8, to: u8 },
    Endpoints { service: u8, endpoints: Vec<u8> },
    Mark(u32),
}

const SERVICES: u8 = 4;

pub(crate) fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..8u8, 0..SERVICES).prop_map(|(vip, to)| Change::Give { vip, to }),
        4 => (0..SERVICES, prop::collection::vec(1..9u8, 0..5))
            .prop_map(|(service, endpoints)| Change::Endpoints { service, endpoints }),
        1 => (1..4u32).prop_map(Change::Mark),
    ]
}

impl World {
    pub(crate) fn new() -> Self {
        Self { owners: vec![0, 0, 1, 1, 2, 2, 3, 3], endpoints: vec![vec![1, 2], vec![2, 3], vec![4], vec![]], mark: 1 }
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Give { vip, to } => self.owners[usize::from(vip)] = to,
            Change::Endpoints { service, endpoints } => self.endpoints[usize::from(service)] = endpoints,
            Change::Mark(mark) => self.mark = mark,
        }
    }

    pub(crate) fn delta(&self) -> Delta {
        let mut units = vec![(UnitId::Base, Some(Arc::new(base())))];
        for index in 0..SERVICES {
            let vips: Vec<u8> = (0..8).filter(|vip| self.owners[usize::from(*vip)] == index).collect();
            let endpoints = &self.endpoints[usize::from(index)];
            let (name, unit) = service(index, &vips, endpoints);
            units.push((UnitId::Service(name), unit.map(Arc::new)));
        }
        Delta { context: Some(Arc::new(context(self.mark))), units: units.into_iter().collect() }
    }
}
