//! Sets the kernel parameters that this mode needs, those of upstream's proxy.

use std::io;

use ferry_api::object::Family;
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

/// The parameters of this family. `strict_arp`: service addresses are never announced on other interfaces.
pub(crate) fn parameters(family: Family, strict_arp: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let own: &[_] = match (family, strict_arp) {
        (Family::V4, false) => &[("net.ipv4.ip_forward", "1")],
        (Family::V4, true) => &[
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv4.conf.all.arp_ignore", "1"),
            ("net.ipv4.conf.all.arp_announce", "2"),
        ],
        (Family::V6, _) => &[("net.ipv6.conf.all.forwarding", "1")],
    };
    ALWAYS.iter().chain(own).copied()
}

/// Sets the parameters that have another value, in the network namespace of this thread.
///
/// # Errors
/// [`CommitError::Unusable`] that names the parameter.
pub(crate) fn set(family: Family, strict_arp: bool) -> Result<(), CommitError> {
    for (name, value) in parameters(family, strict_arp) {
        let result = match sysctl::read(name) {
            Ok(now) if now == value => Ok(()),
            Ok(_) => sysctl::write(name, value),
            Err(error) => Err(error),
        };
        result.map_err(|error| {
            let text = format!("setting kernel parameter {name} to {value}, which mode ipvs needs: {error}");
            CommitError::Unusable(io::Error::new(error.kind(), text))
        })?;
    }
    Ok(())
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
            let all = names(family, false);
            assert!(all.contains(&"net.ipv4.vs.conntrack") && all.iter().any(|name| name.contains("forward")));
        }
    }
}
