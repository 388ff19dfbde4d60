//! Figures of this process, for metrics.

/// The figures that the system reports of this process; `None` for one that it doesn't.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessFigures {
    /// user and system time of the processor, in seconds
    pub processor_seconds: Option<f64>,
    /// most open descriptors
    pub descriptor_limit: Option<f64>,
    /// open descriptors, or handles
    pub descriptors: Option<f64>,
    /// bytes that this machine, or network namespace, has received
    pub received_bytes: Option<f64>,
    /// bytes that it has sent
    pub sent_bytes: Option<f64>,
    /// resident memory
    pub resident_bytes: Option<f64>,
    /// virtual memory
    pub virtual_bytes: Option<f64>,
    /// most virtual memory
    pub virtual_limit_bytes: Option<f64>,
    /// start of the process, in Unix seconds
    pub start_seconds: Option<f64>,
}
