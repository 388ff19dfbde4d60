//! Sets the kernel parameters that this mode needs, those of upstream's proxy.

use std::io;

use ferry_api::object::Family;
use ferry_kernel::errno::ErrorClass;
use ferry_kernel::ipvs::{IpvsError, Timeouts};
use ferry_kernel::sysctl;
use ferry_plane::CommitError;

/// Parameters of both families. Those of IPVS exist once its module is loaded, for each network namespace.
const ALWAYS: &[(&str, &str)] = &[
    // Connections that IPVS forwards have conntrack entries: otherwise nothing is masqueraded.
    ("net.ipv4.vs.conntrack", "1"),
    // A client of a deleted endpoint is reset, and does not wait.
    ("net.ipv4.vs.expire_nodest_conn", "1"),
    // Session affinity ends with the endpoint: a client of a draining one gets another.
    ("net.ipv4.vs.expire_quiescent_template", "1"),
];

/// The longest timeout that every kernel accepts: `INT_MAX` divided by the highest HZ, 1000. Kernels with a lower HZ accept more.
const MAX_TIMEOUT_SECONDS: u32 = 2_147_483;

/// The parameters of this family. `strict_arp`: service addresses are never announced on other interfaces.
pub(crate) fn parameters(family: Family, strict_arp: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let own: &[_] = match (family, strict_arp) {
        (Family::V4, false) => &[("net.ipv4.ip_forward", "1")],
        (Family::V4, true) => &[
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv4.conf.all.arp_ignore", "1"),
            ("net.ipv4.conf.all.arp_announce", "2"),
        ],
        // net.ipv6.conf.all.forwarding would delete the node's default routes: `servers/forwarding.rs`.
        (Family::V6, _) => &[],
    };
    ALWAYS.iter().chain(own).copied()
}

/// Sets the parameters that have another value, in the network namespace of this thread.
///
/// # Errors
/// [`CommitError::Unusable`] that names the parameter.
pub(crate) fn set(family: Family, strict_arp: bool) -> Result<(), CommitError> {
    parameters(family, strict_arp).try_for_each(|(name, value)| set_parameter(name, value))
}

/// Sets one parameter if it has another value, in the network namespace of this thread.
///
/// # Errors
/// [`CommitError::Unusable`] that names the parameter.
pub(crate) fn set_parameter(name: &str, value: &str) -> Result<(), CommitError> {
    let result = match sysctl::read(name) {
        Ok(now) if now == value => Ok(()),
        Ok(_) => sysctl::write(name, value).inspect(|()| tracing::info!(entry = name, value, "Set sysctl")),
        Err(error) => Err(error),
    };
    result.map_err(|error| not_set(name, value, &error))
}

fn not_set(name: &str, value: &str, error: &io::Error) -> CommitError {
    let text = format!(
        "setting kernel parameter {name} to {value}, which mode ipvs needs: {error}: set it on the node, or mount /proc/sys \
         writable"
    );
    CommitError::Unusable(io::Error::new(error.kind(), text))
}

/// The error of setting timeouts, if the kernel refuses a value: it names none, and the limit depends on how it was built.
pub(crate) fn refused_timeouts(timeouts: Timeouts, error: &IpvsError) -> Option<CommitError> {
    let IpvsError::Io(error) = error else { return None };
    if ErrorClass::of(error) != ErrorClass::Invalid {
        return None;
    }
    let all = [
        ("ipvs.tcpTimeout", timeouts.tcp_seconds),
        ("ipvs.tcpFinTimeout", timeouts.tcp_fin_seconds),
        ("ipvs.udpTimeout", timeouts.udp_seconds),
    ];
    let is_too_long = |(_, seconds): &&(&str, u32)| *seconds > MAX_TIMEOUT_SECONDS;
    let named: Vec<String> = all.iter().filter(is_too_long).map(|(field, s)| format!("{field} {s}s")).collect();
    let named =
        if named.is_empty() { "ipvs.tcpTimeout, tcpFinTimeout or udpTimeout".to_owned() } else { named.join(", ") };
    let text = format!(
        "the kernel refuses {named}: {error}: at most {MAX_TIMEOUT_SECONDS}s (24 days) is accepted by every kernel"
    );
    Some(CommitError::Unusable(io::Error::new(io::ErrorKind::InvalidInput, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_arp_adds_its_parameters_to_ipv4() {
        let names = |family, strict| parameters(family, strict).map(|(name, _)| name).collect::<Vec<_>>();
        let arp = |names: &[&str]| names.iter().filter(|name| name.contains("arp")).count();
        assert_eq!(arp(&names(Family::V4, true)), 2);
        assert_eq!(arp(&names(Family::V4, false)) + arp(&names(Family::V6, true)), 0);
        for family in Family::ALL {
            assert!(names(family, false).contains(&"net.ipv4.vs.conntrack"));
        }
    }

    #[test]
    fn ipv6_forwarding_is_left_alone() {
        let forwarding = |family| parameters(family, true).find(|(name, _)| name.contains("forward"));
        assert_eq!(forwarding(Family::V4), Some(("net.ipv4.ip_forward", "1")));
        assert_eq!(forwarding(Family::V6), None);
    }

    #[test]
    fn a_parameter_that_cannot_be_set_is_named_with_what_to_do() {
        const EROFS: i32 = 30;
        let error = not_set("net.ipv4.ip_forward", "1", &io::Error::from_raw_os_error(EROFS));
        let CommitError::Unusable(error) = error else { panic!("{error:?}") };
        let text = error.to_string();
        assert!(text.contains("net.ipv4.ip_forward to 1") && text.contains("mount /proc/sys writable"), "{text}");
    }

    #[test]
    fn a_timeout_that_the_kernel_refuses_is_named_with_the_limit() {
        const EINVAL: i32 = 22;
        const EPERM: i32 = 1;
        let error = |number| IpvsError::Io(io::Error::from_raw_os_error(number));
        let days = |days: u32| days * 24 * 60 * 60;
        let timeouts = Timeouts { tcp_seconds: days(25), tcp_fin_seconds: days(24), udp_seconds: 0 };
        let refused = refused_timeouts(timeouts, &error(EINVAL));
        let Some(CommitError::Unusable(refused)) = refused else { panic!("{refused:?}") };
        let text = refused.to_string();
        assert!(text.contains("refuses ipvs.tcpTimeout 2160000s: ") && text.contains("2147483s"), "{text}");
        assert!(refused_timeouts(timeouts, &error(EPERM)).is_none());
        assert!(refused_timeouts(timeouts, &IpvsError::Absent).is_none());
    }
}
