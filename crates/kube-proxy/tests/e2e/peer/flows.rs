//! UDP conversations over a change from upstream's proxy to Ferry: endpoints and a Service are removed while neither runs.

use std::net::SocketAddr;
use std::time::Duration;

use ferry_lab::kubernetes::{service_path, slice_path};
use ferry_lab::objects::{at_cluster_ip, at_external_ip, at_node_port};
use ferry_lab::patience::until;
use ferry_lab::proxy::{IPTABLES, NFTABLES};
use ferry_lab::{Family, Lab, LabMachine, ProbeClient, ProbeOutcome, Protocol, TestService};

use crate::iptables::{Scene, Who};

const LIMIT: Duration = Duration::from_secs(10);

/// A client with one source port.
struct Talker<'a> {
    client: ProbeClient<'a>,
    to: SocketAddr,
}

impl Talker<'_> {
    /// Sends once; returns the endpoint that answered.
    fn endpoint(&self) -> Option<String> {
        match self.client.ask(Protocol::Udp, self.to, 1).0.remove(0) {
            ProbeOutcome::Answered(answer) => Some(answer.endpoint),
            ProbeOutcome::Refused | ProbeOutcome::Reset | ProbeOutcome::Timeout | ProbeOutcome::Failed(_) => None,
        }
    }

    fn is_led_to(&self, endpoint: &str, what: &str) {
        until(&format!("{what}: {} answers at {}", endpoint, self.to), LIMIT, || {
            self.endpoint().as_deref() == Some(endpoint)
        });
    }
}

/// Clients of all frontends of a service, each with an unused port.
fn talkers<'a>(lab: &'a Lab, number: u8, port: &mut u16) -> Vec<Talker<'a>> {
    let mut all = Vec::new();
    for family in Family::ALL {
        for (place, to) in [
            (LabMachine::PodB, at_cluster_ip(family, number.into())),
            (LabMachine::Client, at_node_port(family, 30000 + u16::from(number))),
            (LabMachine::Client, at_external_ip(family, number)),
        ] {
            *port += 1;
            let client = lab.from(place).bound_to_port(SocketAddr::new(place.address(family), *port));
            all.push(Talker { client: client.patience(Duration::from_millis(300)), to });
        }
    }
    all
}

fn service(name: &str, number: u8) -> TestService {
    let number16 = u16::from(number);
    TestService::new(name, number16).protocols(&[Protocol::Udp]).node_port(30000 + number16).external_ip(number)
}

#[test]
fn udp_conversations_follow_from_upstream_to_ours() {
    let lab = Lab::new();
    let mut scene = Scene::new(&lab, "flows");
    let mut port = 21_000;
    for (round, (from, to)) in
        (0..).zip([(IPTABLES, IPTABLES), (NFTABLES, NFTABLES), (IPTABLES, NFTABLES), (NFTABLES, IPTABLES)])
    {
        let what = format!("upstream's {from} to our {to}");
        let services = ["moved", "gone", "stays"];
        let [moved, gone, stays] = [0, 1, 2].map(|n: u8| {
            let name = services.map(|name| format!("{name}-{round}"));
            let service = service(&name[usize::from(n)], 60 + round * 4 + n);
            scene.api.create_service(&service);
            scene.api.create_endpoints(&service.endpoints(8080, &[LabMachine::PodA]));
            service
        });
        let mut upstream = scene.serve(Who::Upstream(from));
        let [to_moved, to_gone, to_stays] = [0, 1, 2].map(|n| talkers(&lab, 60 + round * 4 + n, &mut port));
        for talker in to_moved.iter().chain(&to_gone).chain(&to_stays) {
            talker.is_led_to("pod-a:8080", &what);
        }
        upstream.terminate();
        Family::ALL.iter().for_each(|family| scene.api.delete(&slice_path(&moved.name, *family)));
        scene.api.create_endpoints(&moved.endpoints(8080, &[LabMachine::Far]));
        scene.api.delete(&service_path(&gone.name));
        let mut ours = scene.serve(Who::Ours(to));
        to_moved.iter().for_each(|talker| talker.is_led_to("far:8080", &what));
        for talker in &to_gone {
            until(&format!("{what}: nobody answers at {}", talker.to), LIMIT, || talker.endpoint().is_none());
            assert_eq!(talker.endpoint(), None, "{what}: {}", talker.to);
        }
        to_stays.iter().for_each(|talker| talker.is_led_to("pod-a:8080", &what));
        println!("{what}: {} conversations are where they belong", to_moved.len() + to_gone.len() + to_stays.len());
        ours.terminate();
        scene.api.delete(&service_path(&moved.name));
        scene.api.delete(&service_path(&stays.name));
    }
}
