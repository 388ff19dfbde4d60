//! The ports of the relay's listeners, which the system chooses: known while they are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferry_api::object::Protocol;

use super::element::Door;

/// The ports of one family's listeners: written by the relay's half of the mode, read where elements of the table are encoded.
#[derive(Clone, Debug, Default)]
pub struct Doors(Arc<Mutex<OpenDoors>>);

#[derive(Debug, Default)]
struct OpenDoors {
    ports: HashMap<Door, u16>,
    doors: HashMap<(Protocol, u16), Door>,
}

// === impl Doors ===

impl Doors {
    /// Notes the port of an open listener.
    pub(crate) fn open(&self, door: &Door, port: u16) {
        let mut open = self.lock();
        open.remove(door);
        open.ports.insert(door.clone(), port);
        open.doors.insert((door.protocol(), port), door.clone());
    }

    /// Forgets a listener.
    pub(crate) fn close(&self, door: &Door) {
        self.lock().remove(door);
    }

    /// The port of an open listener.
    pub fn port(&self, door: &Door) -> Option<u16> {
        self.lock().ports.get(door).copied()
    }

    /// The listener with this port.
    pub(crate) fn door(&self, protocol: Protocol, port: u16) -> Option<Door> {
        self.lock().doors.get(&(protocol, port)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, OpenDoors> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenDoors ===

impl OpenDoors {
    fn remove(&mut self, door: &Door) {
        if let Some(port) = self.ports.remove(door) {
            self.doors.remove(&(door.protocol(), port));
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_model::Scope;

    use super::*;

    #[test]
    fn a_port_leads_to_its_listener_as_long_as_that_is_open() {
        let (doors, gate) = (Doors::default(), Door::Gate(Scope::Local));
        doors.open(&gate, 61_000);
        doors.open(&gate, 61_001);
        assert_eq!((doors.port(&gate), doors.door(Protocol::Tcp, 61_001)), (Some(61_001), Some(gate.clone())));
        assert_eq!((doors.door(Protocol::Tcp, 61_000), doors.door(Protocol::Udp, 61_001)), (None, None));
        doors.close(&gate);
        assert_eq!((doors.port(&gate), doors.door(Protocol::Tcp, 61_001)), (None, None));
    }
}
