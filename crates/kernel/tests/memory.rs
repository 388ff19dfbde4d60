//! Resident memory is counted for the whole process, so this test has a process of its own.

use ferry_kernel::memory::{resident_bytes, trim};

#[test]
fn freed_memory_is_returned_to_the_system() {
    const MIB: u64 = 1 << 20;
    let before = resident_bytes().unwrap();
    // small blocks, which the C library keeps when they are freed
    let blocks: Vec<Box<[u8; 512]>> = (0..64 * 1024_u32).map(|_| Box::new([1; 512])).collect();
    let full = resident_bytes().unwrap();
    assert!(full > before + 24 * MIB, "{before} -> {full}");
    drop(blocks);
    trim();
    let after = resident_bytes().unwrap();
    assert!(after < full - 16 * MIB, "{full} -> {after}");
}
