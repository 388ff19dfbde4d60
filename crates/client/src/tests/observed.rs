//! Implements `Observe` by counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::*;

/// Counters by event, with its code, method and host.
#[derive(Debug, Default)]
pub(super) struct Observed {
    counts: Mutex<BTreeMap<String, u64>>,
    /// expiry of a plugin's certificate
    pub(super) expiry: Mutex<Option<SystemTime>>,
}

// === impl Observed ===

impl Observed {
    /// The count under a name: `answered 200 GET HOST`, `plugin no_error 0` and so on.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn add(&self, name: String, count: u64) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += count;
    }
}

impl Observe for Observed {
    fn answered(&self, code: &str, method: &str, host: &str) {
        self.add(format!("answered {code} {method} {host}"), 1);
    }

    fn waited(&self, method: &str, host: &str, _time: Duration) {
        self.add(format!("waited {method} {host}"), 1);
    }

    fn ended(&self, method: &str, host: &str, _took: Duration, (sent, came): (u64, Option<u64>)) {
        self.add(format!("ended {method} {host}"), 1);
        self.add(format!("sent {method} {host}"), sent);
        if let Some(came) = came {
            self.add(format!("received {method} {host}"), came);
        }
    }

    fn retried(&self, code: &str, method: &str, host: &str) {
        self.add(format!("retried {code} {method} {host}"), 1);
        self.add("retried".to_owned(), 1);
    }

    fn connected(&self, result: &str) {
        self.add(format!("connected {result}"), 1);
    }

    fn plugin_call(&self, status: &str, code: i32) {
        self.add(format!("plugin {status} {code}"), 1);
    }

    fn plugin_certificate(&self, expiry: Option<SystemTime>) {
        *self.expiry.lock().unwrap_or_else(PoisonError::into_inner) = expiry;
    }

    fn plugin_certificate_replaced(&self, _age: Duration) {
        self.add("plugin certificate replaced".to_owned(), 1);
    }

    fn transport_created(&self) {
        self.add("transport".to_owned(), 1);
    }
}
