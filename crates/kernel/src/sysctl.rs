//! Kernel parameters under `/proc/sys`. Those of the network are of the calling thread's network namespace.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Reads a parameter, without the final line end.
///
/// # Errors
/// What the system says; `NotFound` if this kernel has no such parameter; `InvalidInput` if it is no name.
pub fn read(name: &str) -> io::Result<String> {
    std::fs::read_to_string(path(name)?).map(|text| text.trim_end().to_owned())
}

/// Writes a parameter.
///
/// # Errors
/// What the system says; `NotFound` if this kernel has no such parameter; `InvalidInput` if it is no name.
pub fn write(name: &str, value: &str) -> io::Result<()> {
    let path = path(name)?;
    // `write` would try to create a parameter that does not exist, and then say "permission denied"
    let mut file = std::fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

/// Whether IPv6 exists in the calling thread's network namespace and is not switched off there.
pub fn ipv6_available() -> bool {
    // `/proc/net` is that of the process's first thread
    Path::new("/proc/thread-self/net/if_inet6").exists()
        && read("net/ipv6/conf/all/disable_ipv6").is_ok_and(|disabled| disabled != "1")
}

/// `net.ipv4.ip_forward` or, where a part of the name has dots, `net/ipv4/conf/eth0.5/forwarding`.
fn path(name: &str) -> io::Result<PathBuf> {
    let relative = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    let relative = Path::new(&relative);
    let plain = |component| matches!(component, Component::Normal(_));
    if relative.as_os_str().is_empty() || !relative.components().all(plain) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no name of a kernel parameter: {name:?}")));
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
    fn ipv6_switched_off_is_seen() {
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
