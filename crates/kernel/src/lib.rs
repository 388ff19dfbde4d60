//! Talks to the kernel.
