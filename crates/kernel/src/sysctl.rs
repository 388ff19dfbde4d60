//! Kernel parameters under `/proc/sys`. Those under `net` are per network namespace: that of the calling thread applies.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Reads a parameter, without the final line end.
///
/// # Errors
/// The system's error; `NotFound` if this kernel has no such parameter; `InvalidInput` if the name is malformed.
pub fn read(name: &str) -> io::Result<String> {
    std::fs::read_to_string(path(name)?).map(|text| text.trim_end().to_owned())
}

/// Writes a parameter.
///
/// # Errors
/// The system's error; `NotFound` if this kernel has no such parameter; `InvalidInput` if the name is malformed.
pub fn write(name: &str, value: &str) -> io::Result<()> {
    let path = path(name)?;
    // `std::fs::write` would try to create a missing parameter, and fail with "permission denied"
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

/// True if the kernel has IPv6 and it is not disabled in the calling thread's network namespace.
pub fn ipv6_available() -> bool {
    // `/proc/net` shows the namespace of the process's main thread
    Path::new("/proc/thread-self/net/if_inet6").exists()
        && read("net/ipv6/conf/all/disable_ipv6").is_ok_and(|disabled| disabled != "1")
}

/// The file of `net.ipv4.ip_forward` or, if a part of the name has dots, of `net/ipv4/conf/eth0.5/forwarding`.
fn path(name: &str) -> io::Result<PathBuf> {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let relative = Path::new(&relative);
    let plain = |component| matches!(component, Component::Normal(_));
    if relative.as_os_str().is_empty() || !relative.components().all(plain) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a kernel parameter name: {name:?}")));
    }
    Ok(Path::new("/proc/sys").join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn parameters_are_those_of_the_threads_namespace() {
        let read_after_write = |value: &'static str| {
            Namespace::new().unwrap().run(move || {
                write("net.ipv4.ip_forward", value).unwrap();
                read("net/ipv4/ip_forward").unwrap()
            })
        };
        assert_eq!(read_after_write("1").unwrap(), "1");
        assert_eq!(read_after_write("0").unwrap(), "0");
    }

    #[test]
    fn names_stay_below_the_root() {
        for name in ["", "..", "net/../../etc/passwd", "/etc/passwd", "net/./x/.."] {
            assert_eq!(read(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(read("net.ipv4.no_such_thing").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(write("net.ipv4.no_such_thing", "1").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn disabled_ipv6_is_detected() {
        let (before, after) = Namespace::new()
            .unwrap()
            .run(|| {
                let before = ipv6_available();
                write("net/ipv6/conf/all/disable_ipv6", "1").unwrap();
                (before, ipv6_available())
            })
            .unwrap();
        assert!(before);
        assert!(!after);
    }
}
