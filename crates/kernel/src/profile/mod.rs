//! Samples the stacks of this process's threads, as a CPU profile needs them.
//!
//! A timer of the process's processor time sends SIGPROF (`setitimer(2)`), which the kernel gives to a running thread. The handler
//! follows the frame pointers of the stack that it has interrupted (`stack`) and notes what it finds (`buffer`). It takes no
//! lock and allocates nothing, and reads the stack by a system call, which fails where there is no memory: so it can neither
//! deadlock nor crash the process, whatever was interrupted. Stacks end early at functions that were compiled without frame
//! pointers.

mod buffer;
mod stack;

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A recording. There is one at a time; dropping it ends it.
#[derive(Debug)]
pub struct Recording {
    period: Duration,
}

/// The stacks of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// stacks: addresses of instructions, the innermost first. Those of callers point into the call, not behind it.
    pub stacks: Vec<Vec<u64>>,
    /// samples that didn't fit
    pub lost: u64,
    /// the processor time that a sample stands for
    pub period: Duration,
}

/// True while a recording exists.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

// === impl Recording ===

impl Recording {
    /// Begins to sample: that many times in a second of processor time.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if there is a recording; the system's.
    pub fn start(frequency: NonZeroU32) -> io::Result<Self> {
        if IS_RECORDING.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let recording = Self { period: Duration::from_secs(1) / frequency.get() };
        handle_signal()?;
        buffer::begin();
        set_timer(recording.period)?;
        Ok(recording)
    }

    /// Ends the recording.
    pub fn finish(self) -> Samples {
        let (stacks, lost) = self.end();
        Samples { stacks, lost, period: self.period }
    }

    fn end(&self) -> (Vec<Vec<u64>>, u64) {
        // It can't fail with an interval of zero; a signal that is on its way finds no buffer.
        let _ = set_timer(Duration::ZERO);
        buffer::end()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.end();
        IS_RECORDING.store(false, Ordering::Release);
    }
}

/// Ends the timer and the signal for a program that replaces this one: the kernel keeps the timer, but not the handler.
#[expect(unsafe_code, reason = "the C library's function")]
pub(crate) fn stop_before_exec() {
    let _ = set_timer(Duration::ZERO);
    // SAFETY: the disposition is one of the constants.
    unsafe { libc::signal(libc::SIGPROF, libc::SIG_IGN) };
}

/// Installs the handler. It stays, since a signal may arrive after the end of a recording.
#[expect(unsafe_code, reason = "the C library's function")]
fn handle_signal() -> io::Result<()> {
    // SAFETY: zero is a valid value of all fields.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = stack::on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the action is initialised, and its handler has the signature that SA_SIGINFO asks for.
    let status = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel send the signal after each such period of processor time; zero for never.
#[expect(unsafe_code, reason = "the C library's function")]
fn set_timer(period: Duration) -> io::Result<()> {
    let interval = libc::timeval {
        tv_sec: libc::time_t::try_from(period.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(period.subsec_micros()),
    };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the pointer is valid for the call.
    let status = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use super::*;
    use crate::clock::processor_time;

    const FREQUENCY: NonZeroU32 = NonZeroU32::new(200).unwrap();

    /// Keeps the processor busy for this time. Samples of it have an address in this function.
    #[inline(never)]
    fn burn(time: Duration) -> u64 {
        let (begun, mut sum) = (processor_time(), 0_u64);
        while processor_time().saturating_sub(begun) < time {
            for number in 0..black_box(20_000_u64) {
                sum = black_box(sum.wrapping_add(number));
            }
        }
        sum
    }

    #[test]
    fn one_recording_at_a_time_samples_by_processor_time() {
        let recording = Recording::start(FREQUENCY).unwrap();
        let refused = Recording::start(FREQUENCY).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        let others = [(); 2].map(|()| thread::spawn(|| burn(Duration::from_millis(200))));
        burn(Duration::from_millis(200));
        for other in others {
            other.join().unwrap();
        }
        let samples = recording.finish();
        // 600 ms at 5 ms each; the kernel's own clock may be coarser.
        assert!((30..=300).contains(&samples.stacks.len()), "{}", samples.stacks.len());
        assert_eq!((samples.lost, samples.period), (0, Duration::from_millis(5)));
        let start = burn as *const () as usize as u64;
        let is_here = |address: &u64| (start..start + 4096).contains(address);
        let here = samples.stacks.iter().filter(|stack| stack.iter().any(is_here)).count();
        assert!(here * 2 > samples.stacks.len(), "{here} of {}", samples.stacks.len());

        let idle = Recording::start(FREQUENCY).unwrap();
        drop(idle);
        burn(Duration::from_millis(20));
        assert!(!IS_RECORDING.load(Ordering::Acquire));
    }
}
