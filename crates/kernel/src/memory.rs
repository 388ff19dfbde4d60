//! The memory of this process, and its place in the queue when the machine has none left.

use std::io;

/// Gives memory that was freed back to the system. Only glibc keeps it in the first place.
#[expect(unsafe_code, reason = "the C library's function")]
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: takes no pointer, and locks what it works on itself.
    unsafe { libc::malloc_trim(0) };
}

/// Gives memory that was freed back to the system. This C library does so by itself.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}

/// Has all threads allocate from one place, to be called before there are any. glibc gives each a place of its own, and
/// what one thread frees there stays where others can't use it.
#[expect(unsafe_code, reason = "the C library's function")]
#[cfg(target_env = "gnu")]
pub fn share_one_arena() {
    // SAFETY: takes no pointer, and locks what it works on itself.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Has all threads allocate from one place. This C library knows no other way.
#[cfg(not(target_env = "gnu"))]
pub fn share_one_arena() {}

/// How many bytes of this process are resident.
///
/// # Errors
/// What the system says when it is asked for `/proc/self/statm`.
pub fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(0);
    pages.map(|pages| pages.saturating_mul(page)).ok_or_else(|| io::Error::other("/proc/self/statm has another form"))
}

/// Sets how readily the kernel ends this process when memory runs out: -1000 never, 1000 first.
///
/// # Errors
/// What the system says; lowering it needs a privilege.
pub fn set_oom_score_adj(score: i16) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_is_set() {
        let before: i16 = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
        let other = if before == 500 { 501 } else { 500 };
        set_oom_score_adj(other).unwrap();
        let after = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        set_oom_score_adj(before).unwrap();
        assert_eq!(after.trim(), other.to_string());
    }
}
