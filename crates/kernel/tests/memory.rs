//! Resident memory is that of the whole process, so that this test has one of its own.

use ferry_kernel::memory::{resident_bytes, trim};

#[test]
fn memory_that_is_freed_goes_back() {
    const MIB: u64 = 1 << 20;
    let before = resident_bytes().unwrap();
    // small pieces, which the C library keeps when they are freed
    let pieces: Vec<Box<[u8; 512]>> = (0..64 * 1024_u32).map(|_| Box::new([1; 512])).collect();
    let full = resident_bytes().unwrap();
    assert!(full > before + 24 * MIB, "{before} -> {full}");
    drop(pieces);
    trim();
    let after = resident_bytes().unwrap();
    assert!(after < full - 16 * MIB, "{full} -> {after}");
}
