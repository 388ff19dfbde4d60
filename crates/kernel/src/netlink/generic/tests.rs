use netlink_sys::protocols::NETLINK_GENERIC;

use super::*;
use crate::netlink::scripted::{message, reply, session};

#[test]
fn the_running_kernel_resolves_families() {
    let mut session = Session::open(NETLINK_GENERIC).unwrap();
    assert_eq!(family(&mut session, "nlctrl").unwrap(), Some(controller::FAMILY));
    assert_eq!(family(&mut session, "no_such_family").unwrap(), None);
    let ask = |writer: &mut MessageWriter| header(writer, controller::GET_FAMILY, controller::VERSION);
    let all = session.dump(controller::FAMILY, 3, &ask, &mut |attempt| Ok(!attempt.interrupted)).unwrap();
    let names = all.of(controller::FAMILY).map(|family| {
        let name = body(family).unwrap().1.find(controller::NAME).unwrap().unwrap();
        name.text().into_owned()
    });
    assert!(names.into_iter().any(|name| name == "nlctrl"));
}

#[test]
fn answers_without_a_number_are_malformed() {
    let described = |attribute: &[u8]| {
        let payload = [&[1, 2, 0, 0], attribute].concat();
        let mut session = session([vec![Ok(message(controller::FAMILY, 0, 1, &payload)), Ok(reply(1, 0))]]);
        family(&mut session, "IPVS")
    };
    assert_eq!(described(&[6, 0, 1, 0, 0x25, 0]).unwrap(), Some(0x25));
    for attribute in [&[][..], &[6, 0, 7, 0, 0x25, 0], &[5, 0, 1, 0, 0x25], &[9, 0, 1, 0]] {
        assert_eq!(described(attribute).unwrap_err().kind(), io::ErrorKind::InvalidData, "{attribute:?}");
    }
    let mut silent = session([vec![Ok(reply(1, 0))]]);
    assert_eq!(family(&mut silent, "IPVS").unwrap_err().kind(), io::ErrorKind::InvalidData);
    let mut refused = session([vec![Ok(reply(1, libc::EPERM))]]);
    assert_eq!(family(&mut refused, "IPVS").unwrap_err().raw_os_error(), Some(libc::EPERM));
}
