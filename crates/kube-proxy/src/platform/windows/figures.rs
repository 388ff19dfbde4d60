//! Reads the processor time, memory and start of this process from the system.

use std::time::SystemTime;

use ferry_kernel::windows::process;

use crate::platform::ProcessFigures;

/// The figures of this process now.
pub fn process_figures() -> ProcessFigures {
    let (memory, times) = (process::memory().ok(), process::times().ok());
    let unix = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    ProcessFigures {
        processor_seconds: times.map(|times| times.processor.as_secs_f64()),
        descriptors: process::handles().ok().map(f64::from),
        resident_bytes: memory.map(|memory| memory.resident_bytes as f64),
        virtual_bytes: memory.map(|memory| memory.committed_bytes as f64),
        start_seconds: times.map(|times| unix(times.start)),
        ..ProcessFigures::default()
    }
}
