//! Complete lists of virtual servers.

use std::collections::BTreeMap;

use ferry_kernel::ipvs::{IpvsError, IpvsServer, ServerId};

/// Lists servers until a list has nothing new: one from which the kernel has left some out, since others were deleted meanwhile, is
/// completed by the next.
pub(crate) fn completely(
    mut list: impl FnMut() -> Result<Vec<IpvsServer>, IpvsError>,
) -> Result<Vec<IpvsServer>, IpvsError> {
    let mut all: BTreeMap<ServerId, IpvsServer> = BTreeMap::new();
    loop {
        let before = all.len();
        all.extend(list()?.into_iter().map(|server| (server.id, server)));
        if all.len() == before {
            return Ok(all.into_values().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::object::Protocol;
    use ferry_model::Scheduler;

    use super::super::convert::kernel_server;
    use super::*;
    use crate::server::ServerSettings;

    fn server(last: u8) -> IpvsServer {
        let id = crate::server::ServerId { protocol: Protocol::Tcp, address: [10, 96, 0, last].into(), port: 80 };
        let settings = ServerSettings { scheduler: Scheduler::Rr, persistence: None, altered: false };
        kernel_server(id, settings, Scheduler::Rr).unwrap()
    }

    #[test]
    fn a_list_that_lacks_servers_is_completed_by_the_next() {
        let mut lists = [vec![server(1), server(3)], vec![server(2), server(3)], vec![server(1)]].into_iter();
        let all = completely(|| Ok(lists.next().unwrap())).unwrap();
        assert_eq!(all, [server(1), server(2), server(3)]);
        assert_eq!(lists.next(), None, "until one has nothing new");
    }

    #[test]
    fn a_list_that_fails_is_no_list() {
        let mut lists = [Ok(vec![server(1)]), Err(IpvsError::Absent)].into_iter();
        assert!(completely(|| lists.next().unwrap()).is_err());
    }
}
