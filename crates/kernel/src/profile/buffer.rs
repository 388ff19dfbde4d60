//! The memory of a recording, which the signal handler fills from any thread without a lock.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::{ptr, thread};

/// The addresses of all samples, each after their number.
struct Buffer {
    words: Box<[AtomicU64]>,
    /// words that are taken; more than there are if samples were lost
    used: AtomicUsize,
    lost: AtomicU64,
}

/// Words of a buffer: at 100 samples of 30 addresses a second, six minutes of one processor. The kernel adds pages when they
/// are used.
const WORDS: usize = 1 << 20;

/// The buffer of the recording; null without one.
static BUFFER: AtomicPtr<Buffer> = AtomicPtr::new(ptr::null_mut());
/// Handlers that are running, which may use the buffer.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);

// === impl Buffer ===

impl Buffer {
    #[expect(unsafe_code, reason = "memory of zeros without touching it")]
    fn new() -> Box<Self> {
        let zeros: Box<[u64]> = vec![0; WORDS].into_boxed_slice();
        // SAFETY: an atomic integer has the size and alignment of the integer, and nothing else refers to these.
        let words = unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [AtomicU64]) };
        Box::new(Self { words, used: AtomicUsize::new(0), lost: AtomicU64::new(0) })
    }

    fn note(&self, stack: &[u64]) {
        let first = self.used.fetch_add(stack.len() + 1, Ordering::Relaxed);
        let Some([length, addresses @ ..]) = self.words.get(first..first.saturating_add(stack.len() + 1)) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        length.store(stack.len() as u64, Ordering::Relaxed);
        addresses.iter().zip(stack).for_each(|(to, address)| to.store(*address, Ordering::Relaxed));
    }

    fn stacks(&self) -> Vec<Vec<u64>> {
        let (mut stacks, mut rest) = (Vec::new(), &*self.words);
        while let [length, words @ ..] = rest {
            let length = usize::try_from(length.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
            let (1.., Some(addresses)) = (length, words.get(..length)) else { break };
            stacks.push(addresses.iter().map(|address| address.load(Ordering::Relaxed)).collect());
            rest = words.get(length..).unwrap_or_default();
        }
        stacks
    }
}

/// Begins a recording; there must be none.
pub(super) fn begin() {
    BUFFER.store(Box::into_raw(Buffer::new()), Ordering::SeqCst);
}

/// Notes a stack; to be called by the signal handler.
#[expect(unsafe_code, reason = "the recording may end while the handler runs")]
pub(super) fn note(stack: &[u64]) {
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the buffer is freed only after it was taken from here and no handler ran any more.
    if let Some(buffer) = unsafe { BUFFER.load(Ordering::SeqCst).as_ref() } {
        buffer.note(stack);
    }
    HANDLERS.fetch_sub(1, Ordering::SeqCst);
}

/// Ends the recording, if there is one; returns its stacks, and the number of those that were lost.
#[expect(unsafe_code, reason = "takes the buffer back")]
pub(super) fn end() -> (Vec<Vec<u64>>, u64) {
    let buffer = BUFFER.swap(ptr::null_mut(), Ordering::SeqCst);
    if buffer.is_null() {
        return Default::default();
    }
    while HANDLERS.load(Ordering::SeqCst) > 0 {
        thread::yield_now();
    }
    // SAFETY: it comes from a box, was taken from where handlers find it, and those that had found it have ended.
    let buffer = unsafe { Box::from_raw(buffer) };
    (buffer.stacks(), buffer.lost.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_kept_until_they_do_not_fit() {
        let buffer = Buffer::new();
        assert_eq!(buffer.stacks(), Vec::<Vec<u64>>::new());
        buffer.note(&[1, 2, 3]);
        buffer.note(&[4]);
        assert_eq!(buffer.stacks(), [vec![1, 2, 3], vec![4]]);
        let long = vec![7; WORDS / 4];
        for _ in 0..5 {
            buffer.note(&long);
        }
        assert_eq!((buffer.stacks().len(), buffer.lost.load(Ordering::Relaxed)), (5, 2));
    }
}
