//! The kernel's early lookup of sockets, which misleads redirected connections on older kernels.
//!
//! The kernel looks for a packet's socket right after the first translation, that of the destination. Two connections from one port
//! of a client, to two Services, have the same addresses at a gate then; only a later step gives the second one another source port.
//! Linux 6.1 keeps the socket that it has found, that of the first connection: the first packet of the second one goes there, and
//! stays without an answer for as long as the first one lasts. Linux 6.12 looks again (both measured). Kernels before that get the
//! lookup switched off, which costs their TCP packets a search of the routes.

use std::io;

use ferry_kernel::sysctl;

/// The parameter: 0 switches the early lookup off, for TCP over both families.
const PARAMETER: &str = "net.ipv4.tcp_early_demux";
/// The oldest kernel that is known to look again.
const LOOKS_AGAIN: (u32, u32) = (6, 12);

/// Switches the early lookup off where the kernel needs that, and logs it. A parameter that can't be set is a warning, since most
/// connections have a port of their own.
pub(super) fn switch_off() {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if looks_again(&release) {
        return;
    }
    match set() {
        Ok(false) => {}
        Ok(true) => tracing::info!(
            kernel = release,
            parameter = PARAMETER,
            value = 0,
            "Set kernel parameter: this kernel may lead a client's second connection from one port to the first one's socket"
        ),
        Err(err) => tracing::warn!(
            kernel = release,
            %err,
            "Can't set {PARAMETER}=0, which this kernel needs: connections from one port of a client to two Services at a time may hang; set it \
             beforehand"
        ),
    }
}

/// Returns false if it is off already.
fn set() -> io::Result<bool> {
    if sysctl::read(PARAMETER)? == "0" {
        return Ok(false);
    }
    sysctl::write(PARAMETER, "0").map(|()| true)
}

/// False for a release that can't be read.
fn looks_again(release: &str) -> bool {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map(str::parse);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= LOOKS_AGAIN)
}

#[cfg(test)]
mod tests {
    use super::looks_again;

    #[test]
    fn kernels_from_6_12_on_look_again() {
        for release in ["6.12.95+deb12-amd64", "6.12", "6.18.44-fc", "7.0.0", "10.1-rc1"] {
            assert!(looks_again(release), "{release}");
        }
        for release in ["6.1.0-50-amd64", "6.11.0", "5.15.0-1", "4.19", "6", "", "x.6.12"] {
            assert!(!looks_again(release), "{release}");
        }
    }
}
