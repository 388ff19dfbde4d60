use super::*;
use proptest::prelude::*;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 2));
const SECOND: Duration = Duration::from_secs(1);

fn address(port: u16) -> SocketAddr {
    ([192, 0, 2, 1], port).into()
}

fn balancer(affinity: Option<Duration>, ports: &[u16]) -> Balancer {
    let balancer = Balancer::new(affinity, 10 * SECOND);
    assert!(balancer.replace(&ports.iter().copied().map(address).collect::<Vec<_>>(), []).is_empty());
    balancer
}

fn ports(balancer: &Balancer, client: IpAddr, now: Instant) -> Vec<u16> {
    balancer.choose(client, now).endpoints().map(|endpoint| endpoint.address().port()).collect()
}

/// Chooses, and reports a connection to the first endpoint.
fn connect(balancer: &Balancer, client: IpAddr, now: Instant) -> u16 {
    let choice = balancer.choose(client, now);
    let endpoint = choice.endpoints().next().unwrap();
    balancer.connected(client, endpoint, now);
    endpoint.address().port()
}

#[test]
fn endpoints_take_turns() {
    let (balancer, now) = (balancer(None, &[1, 2, 3]), Instant::now());
    assert_eq!(ports(&balancer, CLIENT, now), [1, 2, 3]);
    assert_eq!(ports(&balancer, CLIENT, now), [2, 3, 1]);
    assert_eq!(ports(&balancer, OTHER, now), [3, 1, 2]);
    assert_eq!(ports(&balancer, CLIENT, now), [1, 2, 3]);
}

#[test]
fn without_endpoints_there_is_no_choice() {
    let balancer = balancer(Some(SECOND), &[]);
    assert!(balancer.choose(CLIENT, Instant::now()).is_empty());
}

#[test]
fn a_failing_endpoint_stands_behind_the_others_for_a_while() {
    let (balancer, now) = (balancer(None, &[1, 2, 3]), Instant::now());
    let failing = Arc::clone(&balancer.endpoints()[1]);
    balancer.failed(CLIENT, &failing, now);
    assert_eq!(failing.counters().failures.value(), 1);
    assert_eq!(ports(&balancer, CLIENT, now), [1, 3, 2]);
    assert_eq!(ports(&balancer, CLIENT, now), [3, 1, 2]);
    assert_eq!(ports(&balancer, CLIENT, now + 9 * SECOND), [3, 1, 2]);
    assert_eq!(ports(&balancer, CLIENT, now + 11 * SECOND), [1, 2, 3]);
    for endpoint in balancer.endpoints().iter() {
        balancer.failed(CLIENT, endpoint, now);
    }
    assert_eq!(ports(&balancer, CLIENT, now).len(), 3, "if all fail, all are tried");
}

#[test]
fn a_client_stays_with_its_endpoint_until_the_timeout() {
    let (balancer, now) = (balancer(Some(10 * SECOND), &[1, 2, 3]), Instant::now());
    assert_eq!(connect(&balancer, CLIENT, now), 1);
    assert_eq!(connect(&balancer, OTHER, now), 2);
    assert_eq!(connect(&balancer, CLIENT, now + 9 * SECOND), 1);
    assert_eq!(connect(&balancer, CLIENT, now + 18 * SECOND), 1, "renewed by the connection before");
    assert_eq!(connect(&balancer, OTHER, now + 18 * SECOND), 3, "expired");
}

#[test]
fn affinity_ends_with_the_endpoint_and_with_a_failure() {
    let (balancer, now) = (balancer(Some(100 * SECOND), &[1, 2]), Instant::now());
    assert_eq!(connect(&balancer, CLIENT, now), 1);
    let first = Arc::clone(&balancer.endpoints()[0]);
    balancer.failed(CLIENT, &first, now);
    assert_eq!(connect(&balancer, CLIENT, now), 2);
    assert_eq!(
        connect(&balancer, CLIENT, now + 50 * SECOND),
        2,
        "the first one serves again, but the client has another"
    );
    let removed = balancer.replace(&[address(1)], []);
    assert_eq!(removed.len(), 1);
    assert!(removed[0].is_removed());
    assert_eq!(connect(&balancer, CLIENT, now + 50 * SECOND), 1);
}

proptest! {
    /// After any history of replacements the endpoints are those of the last one; those that stayed are the same objects.
    #[test]
    fn replacements_keep_what_stays(history in prop::collection::vec(prop::collection::vec(1u16..8, 0..8), 1..8)) {
        let balancer = Balancer::new(None, SECOND);
        for ports in &history {
            let before = balancer.endpoints();
            let addresses: Vec<_> = ports.iter().copied().map(address).collect();
            let removed = balancer.replace(&addresses, []);
            let after = balancer.endpoints();
            let mut unique = Vec::new();
            for address in addresses {
                if !unique.contains(&address) {
                    unique.push(address);
                }
            }
            prop_assert_eq!(after.iter().map(|endpoint| endpoint.address()).collect::<Vec<_>>(), unique.clone());
            for endpoint in before.iter() {
                let stays = unique.contains(&endpoint.address());
                prop_assert_eq!(after.iter().any(|other| Arc::ptr_eq(endpoint, other)), stays);
                prop_assert_eq!(removed.iter().any(|other| Arc::ptr_eq(endpoint, other)), !stays);
                prop_assert_eq!(endpoint.is_removed(), !stays);
            }
        }
    }
}

#[test]
fn an_endpoint_that_comes_back_is_the_same_and_is_not_cut() {
    let balancer = Balancer::new(None, DEFAULT_PENALTY);
    let at: SocketAddr = ([192, 0, 2, 1], 80).into();
    balancer.replace(&[at], []);
    let held = Arc::clone(&balancer.endpoints()[0]);
    balancer.replace(&[], []);
    let removals = held.removals();
    assert!(held.is_removed());
    balancer.replace(&[at], []);
    assert!(Arc::ptr_eq(&held, &balancer.endpoints()[0]) && !held.is_removed());
    held.cut_if_gone_since(removals);
    balancer.replace(&[], []);
    held.cut_if_gone_since(removals);
    balancer.replace(&[at], []);
    assert!(Arc::ptr_eq(&held, &balancer.endpoints()[0]), "each put-off end is about one removal");
    balancer.replace(&[], []);
    held.cut_if_gone_since(held.removals());
    balancer.replace(&[at], []);
    assert!(!Arc::ptr_eq(&held, &balancer.endpoints()[0]), "one that was cut is gone");
}

#[test]
fn another_timeout_of_affinity_begins_anew_and_the_same_one_does_not() {
    let (balancer, client, now) =
        (Balancer::new(Some(Duration::from_secs(60)), DEFAULT_PENALTY), [10, 0, 0, 1].into(), Instant::now());
    balancer.replace(&[([192, 0, 2, 1], 80).into(), ([192, 0, 2, 2], 80).into()], []);
    let second = Arc::clone(&balancer.endpoints()[1]);
    balancer.connected(client, &second, now);
    let first = |balancer: &Balancer| Arc::clone(balancer.choose(client, now).endpoints().next().unwrap());
    balancer.set_affinity(Some(Duration::from_secs(60)));
    assert!(Arc::ptr_eq(&first(&balancer), &second) && Arc::ptr_eq(&first(&balancer), &second));
    balancer.set_affinity(None);
    assert!(!Arc::ptr_eq(&first(&balancer), &first(&balancer)), "turns again");
}

#[test]
fn endpoints_that_are_kept_linger_until_they_are_not() {
    let balancer = Balancer::new(None, DEFAULT_PENALTY);
    balancer.replace(&[address(1), address(2)], []);
    let held = balancer.endpoints();
    let [first, second] = [&held[0], &held[1]];
    assert!(balancer.replace(&[], [address(1), address(2)]).is_empty(), "both linger");
    assert!(first.is_removed() && first.lingers() && second.lingers());
    assert!(balancer.choose(CLIENT, Instant::now()).is_empty());
    let gone = balancer.replace(&[], [address(2)]);
    assert!(gone.len() == 1 && Arc::ptr_eq(&gone[0], first) && !first.lingers());
    // Listed again before its put-off end: this doesn't come.
    let removals = first.removals();
    assert!(balancer.replace(&[], [address(1), address(2)]).is_empty());
    first.cut_if_gone_since(removals);
    balancer.replace(&[address(1)], [address(2)]);
    assert!(Arc::ptr_eq(first, &balancer.endpoints()[0]) && !first.is_removed() && !first.lingers());
}

#[test]
fn endpoints_of_a_closed_balancer_end_with_those_of_the_one_that_is_left() {
    let (closed, left) = (Balancer::new(None, DEFAULT_PENALTY), Balancer::new(None, DEFAULT_PENALTY));
    closed.replace(&[address(1), address(2)], []);
    let held = closed.endpoints();
    closed.replace(&[address(2)], [address(1)]);
    left.replace(&[address(1), address(2)], []);
    left.adopt(&closed);
    assert!(held[0].lingers() && !held[1].is_removed() && !closed.choose(CLIENT, Instant::now()).is_empty());
    let mut gone = left.replace(&[address(2)], []);
    gone.retain(|endpoint| Arc::ptr_eq(endpoint, &held[0]));
    assert!(gone.len() == 1 && !held[1].is_removed());
}
