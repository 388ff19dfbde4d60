//! Process memory: heap arenas, trimming, resident size, and the OOM score.

use std::io;

/// Returns freed heap memory to the system. Needed with glibc, which keeps it.
#[expect(unsafe_code, reason = "the C library's function")]
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: takes no pointer, and locks the heap internally.
    unsafe { libc::malloc_trim(0) };
}

/// Returns freed heap memory to the system. This C library does so by itself.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}

/// Makes all threads allocate from one arena; to be called before threads are started. By default glibc gives each thread an
/// arena of its own, whose freed memory other threads cannot use.
#[expect(unsafe_code, reason = "the C library's function")]
#[cfg(target_env = "gnu")]
pub fn share_one_arena() {
    // SAFETY: takes no pointer, and locks the heap internally.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Makes all threads allocate from one arena. This C library has only one.
#[cfg(not(target_env = "gnu"))]
pub fn share_one_arena() {}

/// Returns the resident set size of this process, in bytes.
///
/// # Errors
/// The system's error when `/proc/self/statm` is read; any error if its format is unexpected.
pub fn resident_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(0);
    pages
        .map(|pages| pages.saturating_mul(page))
        .ok_or_else(|| io::Error::other("/proc/self/statm has an unexpected format"))
}

/// Sets the OOM score adjustment of this process: from -1000 (never killed) to 1000 (killed first).
///
/// # Errors
/// The system's error; lowering it needs `CAP_SYS_RESOURCE`.
pub fn set_oom_score_adj(score: i16) -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// Raises the OOM score adjustment of a child process to 0, the default, if it has inherited a lower one.
///
/// # Errors
/// The system's error, also if the child has ended.
pub fn expose_to_oom_killer(process: u32) -> io::Result<()> {
    let file = format!("/proc/{process}/oom_score_adj");
    let score = std::fs::read_to_string(&file)?;
    if is_spared(&score) { std::fs::write(file, "0") } else { Ok(()) }
}

/// True for the score adjustment, as in its file, of a process that is killed after those with the default.
fn is_spared(score: &str) -> bool {
    score.starts_with('-')
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

    /// Lowering a score takes a capability that containers lack, so that no child here has a lower one.
    #[test]
    fn a_child_with_a_higher_score_keeps_it() {
        assert!(is_spared("-999\n") && !is_spared("0\n") && !is_spared("300\n"));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let file = format!("/proc/{}/oom_score_adj", child.id());
        std::fs::write(&file, "300").unwrap();
        expose_to_oom_killer(child.id()).unwrap();
        let after = std::fs::read_to_string(&file).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(after.trim(), "300");
        assert!(expose_to_oom_killer(child.id()).is_err());
    }
}
