//! The signal handler: follows the frame pointers of the interrupted thread.

use std::ffi::c_void;
use std::io::IoSliceMut;

use super::buffer;

/// Where a thread was interrupted.
#[derive(Clone, Copy, Debug)]
struct Registers {
    instruction: u64,
    frame: u64,
    stack: u64,
}

/// Most addresses of a sample.
const DEPTH: usize = 64;
/// Longest stack of a thread, in bytes: the main thread's default.
const LONGEST: u64 = 8 << 20;
/// Bytes of a frame's two words: the caller's frame, and where it goes on.
const FRAME: usize = 16;

/// Handles SIGPROF. Calls nothing but what is safe in a signal handler (`signal-safety(7)`) and leaves `errno` as it was.
#[expect(unsafe_code, reason = "a handler gets a pointer, and errno is the C library's")]
pub(super) extern "C" fn on_signal(_: libc::c_int, _: *const libc::siginfo_t, context: *const c_void) {
    // SAFETY: the C library returns the address of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: with SA_SIGINFO the kernel passes a context of this type.
    if let Some(context) = unsafe { context.cast::<libc::ucontext_t>().as_ref() } {
        let mut stack = [0; DEPTH];
        let depth = walk(registers(context), &mut stack);
        buffer::note(stack.get(..depth).unwrap_or_default());
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let general = &context.uc_mcontext.gregs;
    let at = |index: libc::c_int| {
        usize::try_from(index).ok().and_then(|index| general.get(index)).copied().unwrap_or_default().cast_unsigned()
    };
    Registers { instruction: at(libc::REG_RIP), frame: at(libc::REG_RBP), stack: at(libc::REG_RSP) }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let machine = &context.uc_mcontext;
    Registers { instruction: machine.pc, frame: machine.regs[29], stack: machine.sp }
}

/// Writes the addresses of a stack, the innermost first; returns their number, at least 1.
fn walk(from: Registers, to: &mut [u64; DEPTH]) -> usize {
    let (mut frame, mut lowest, mut depth) = (from.frame, from.stack, 0);
    let mut address = from.instruction;
    for to in to.iter_mut() {
        *to = address;
        depth += 1;
        // Frames of callers are at higher addresses: the loop ends also where the register holds something else.
        let is_frame = frame >= lowest && frame - from.stack < LONGEST && frame % 8 == 0;
        let Some([next, back]) = is_frame.then(|| read(frame)).flatten() else { break };
        if back == 0 {
            break;
        }
        // The call, not what follows it, which can belong to another line or function.
        address = back - 1;
        (frame, lowest) = (next, frame + FRAME as u64);
    }
    depth
}

/// Reads two words of this process's memory; `None` if there is none, or the kernel doesn't permit the call.
#[expect(unsafe_code, reason = "an address may be any number")]
fn read(address: u64) -> Option<[u64; 2]> {
    let mut bytes = [0; FRAME];
    let mut to = [IoSliceMut::new(&mut bytes)];
    let from = libc::iovec { iov_base: address as *mut c_void, iov_len: FRAME };
    // SAFETY: a slice for input has the layout of an iovec; the kernel writes within it, and checks the other address.
    let length = unsafe {
        libc::process_vm_readv(libc::getpid(), to.as_mut_ptr().cast::<libc::iovec>(), 1, &raw const from, 1, 0)
    };
    let words = (usize::try_from(length) == Ok(FRAME)).then_some(bytes)?;
    let (first, second) = words.split_at(FRAME / 2);
    Some([u64::from_ne_bytes(first.try_into().ok()?), u64::from_ne_bytes(second.try_into().ok()?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_where_there_is_some() {
        let words = [3_u64, 4];
        assert_eq!(read(words.as_ptr() as u64), Some([3, 4]));
        for nowhere in [0, 8, u64::MAX - 7, 1 << 60] {
            assert_eq!(read(nowhere), None, "{nowhere:x}");
        }
    }

    #[test]
    fn a_walk_ends_at_what_is_no_frame() {
        // Two frames, the second of which leads back to the first.
        let mut memory = [0_u64; 6];
        let base = memory.as_ptr() as u64;
        memory = [base + 32, 101, 0, 0, base, 201];
        let walked = |frame, stack| {
            let mut to = [0; DEPTH];
            let depth = walk(Registers { instruction: 7, frame, stack }, &mut to);
            to[..depth].to_vec()
        };
        assert_eq!(walked(base, base), [7, 100, 200]);
        assert_eq!(walked(base + 32, base), [7, 200]);
        for (frame, stack) in [(0, base), (base - 8, base), (base + 1, base), (base, base - LONGEST), (u64::MAX, base)]
        {
            assert_eq!(walked(frame, stack), [7], "{frame:x} {stack:x}");
        }
        assert_eq!(memory.len(), 6);
    }
}
