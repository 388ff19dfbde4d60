//! Figures of this process: handles, memory, processor time and start.

use std::io;
use std::time::{Duration, SystemTime};

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::System::ProcessStatus::{K32GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessHandleCount, GetProcessTimes};

/// Time between 1601, where the system's count begins, and 1970.
const EPOCH: Duration = Duration::from_secs(11_644_473_600);

/// Memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    /// in use and present
    pub resident_bytes: u64,
    /// reserved for it in memory or in the page file
    pub committed_bytes: u64,
}

/// Times of this process.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// its start
    pub start: SystemTime,
    /// processor time of all threads, in the program and in the kernel
    pub processor: Duration,
}

/// The number of open handles: sockets, files, threads and others. Wine 8 counts none.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "writes the number by a pointer")]
pub fn handles() -> io::Result<u32> {
    let mut count = 0;
    // SAFETY: the pseudo handle of this process is always valid; the function writes one number, which is alive.
    let done = unsafe { GetProcessHandleCount(GetCurrentProcess(), &raw mut count) };
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(count) }
}

/// The memory of this process.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "writes the counters by a pointer")]
pub fn memory() -> io::Result<ProcessMemory> {
    const SIZE: u32 = size_of::<PROCESS_MEMORY_COUNTERS>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS { cb: SIZE, ..PROCESS_MEMORY_COUNTERS::default() };
    // SAFETY: as above; the structure has the size that is passed.
    let done = unsafe { K32GetProcessMemoryInfo(GetCurrentProcess(), &raw mut counters, SIZE) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let PROCESS_MEMORY_COUNTERS { WorkingSetSize: resident, PagefileUsage: committed, .. } = counters;
    Ok(ProcessMemory { resident_bytes: resident as u64, committed_bytes: committed as u64 })
}

/// The times of this process.
///
/// # Errors
/// The system's error.
#[expect(unsafe_code, reason = "writes the times by pointers")]
pub fn times() -> io::Result<Times> {
    let [mut start, mut end, mut kernel, mut user] = [FILETIME::default(); 4];
    // SAFETY: as above; the function writes four times, which are alive.
    let done =
        unsafe { GetProcessTimes(GetCurrentProcess(), &raw mut start, &raw mut end, &raw mut kernel, &raw mut user) };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let since_epoch = duration(start).saturating_sub(EPOCH);
    Ok(Times { start: SystemTime::UNIX_EPOCH + since_epoch, processor: duration(kernel) + duration(user) })
}

/// A count of 100 ns.
fn duration(time: FILETIME) -> Duration {
    let count = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_micros(count / 10) + Duration::from_nanos(count % 10 * 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_socket_is_a_handle() {
        let before = handles().unwrap();
        let sockets: Vec<_> = (0..64).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let now = handles().unwrap();
        // Wine 8 counts none.
        assert!(now == 0 || now >= before + 50, "{before} before, {now} now; other tests close some");
        drop(sockets);
    }

    #[test]
    fn memory_and_times_are_those_of_a_running_process() {
        let memory = memory().unwrap();
        assert!(memory.resident_bytes > 1 << 20 && memory.committed_bytes > 1 << 16, "{memory:?}");
        let times = times().unwrap();
        let age = times.start.elapsed().unwrap();
        assert!(age < Duration::from_secs(3600) && times.processor < Duration::from_secs(3600), "{times:?}");
    }
}
