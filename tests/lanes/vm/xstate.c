/* Lets user-mode Linux restore the registers of its processes on processors with AMX.
 *
 * The kernel for user mode sets the state of the floating-point unit (NT_X86_XSTATE) with a buffer of constant size,
 * 2,696 bytes (arch/x86/um/user-offsets.c). A host whose processor has more state than that, 11,008 bytes with AMX, accepts
 * only a buffer of its own size (xstateregs_set in arch/x86/kernel/fpu/regset.c) and answers EFAULT. Loaded before the C
 * library, this function adds what the buffer lacks: zeros, since no process in the machine uses that state, and the header
 * in the buffer says so.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LARGEST = 1 << 16 };

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  long pid = va_arg(arguments, long);
  void *address = va_arg(arguments, void *);
  void *data = va_arg(arguments, void *);
  va_end(arguments);
  static char whole[LARGEST] __attribute__((aligned(64)));
  static size_t size;
  struct iovec state = {whole, sizeof whole};
  if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
    struct iovec *part = data;
    if (size == 0 && syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &state) == 0) {
      size = state.iov_len;
      memset(whole, 0, size);
    }
    if (part->iov_len < size) {
      memcpy(whole, part->iov_base, part->iov_len);
      state.iov_len = size;
      data = &state;
    }
  }
  /* Other than the system call, the function returns the word that these requests read. */
  long word = 0;
  if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
    if (syscall(SYS_ptrace, request, pid, address, &word) < 0) return -1;
    errno = 0;
    return word;
  }
  return syscall(SYS_ptrace, request, pid, address, data);
}
