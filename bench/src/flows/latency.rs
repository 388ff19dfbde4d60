//! Measures how long after a change of rules a client with a constant UDP source port reaches the new endpoint, for a client that gets
//! answers and for one that gets none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferry_api::object::Family;
use ferry_kernel::conntrack::testing::create;
use ferry_lab::Mode;

use super::{clear, endpoint_of, flow, manifests, vip, write};
use crate::network::ip;
use crate::process::ScratchDirectory;
use crate::stats;

/// Number of measured changes.
const ROUNDS: usize = 40;
/// Interval between changes: the second sweep after the previous one is complete.
const PAUSE: Duration = Duration::from_millis(700);
/// Interval of the requests to both.
const PERIOD: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// A datagram that no endpoint answers.
const ONE_WAY: &[u8] = b"!";

/// Number of these datagrams that each endpoint has received.
static UNANSWERED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// From a change in force until each client reaches the other endpoint.
#[derive(Default)]
struct Times {
    answered: Vec<Duration>,
    one_way: Vec<Duration>,
}

/// Measures in both families, with no other flows in the table and with `flows`.
pub(super) fn run(mode: Mode, flows: usize, directory: &ScratchDirectory) -> anyhow::Result<()> {
    for family in Family::ALL {
        for endpoint in [0, 1] {
            serve(family, endpoint)?;
        }
        for others in [0, flows] {
            let case = &super::CASES[0];
            create((0..others).map(|n| flow(case, n)), Duration::from_secs(600))?;
            let Times { answered, one_way } = follow(family, directory)?;
            let what = format!("{mode}, {family}, {others} flows, in force -> other endpoint");
            stats::print(&format!("{what} answers"), answered, "");
            stats::print(&format!("{what} reached one-way"), one_way, "");
            clear(case.protocol)?;
        }
    }
    Ok(())
}

/// Starts an endpoint of the first service on this machine, which answers with its number.
fn serve(family: Family, endpoint: u8) -> anyhow::Result<()> {
    let address = endpoint_of(family, 0, endpoint);
    let (length, option, vips) = match family {
        Family::V4 => (32, "-4", "10.96.0.0/16"),
        Family::V6 => (128, "-6", "fd00:96::/64"),
    };
    ip(&[option, "address", "add", &format!("{address}/{length}"), "dev", "lo"])?;
    ip(&[option, "route", "replace", vips, "dev", "lo"])?;
    let socket = UdpSocket::bind((address, 5353))?;
    std::thread::spawn(move || {
        let mut datagram = [0; 16];
        while let Ok((length, from)) = socket.recv_from(&mut datagram) {
            if datagram.get(..length) == Some(ONE_WAY) {
                UNANSWERED.get(usize::from(endpoint)).map(|count| count.fetch_add(1, Ordering::Relaxed));
            } else {
                // the client may be gone
                let _ = socket.send_to(&[endpoint], from);
            }
        }
    });
    Ok(())
}

fn follow(family: Family, directory: &ScratchDirectory) -> anyhow::Result<Times> {
    let to = SocketAddr::from((vip(family, 0), 53));
    let any: IpAddr = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let open = |port: u16| -> anyhow::Result<UdpSocket> {
        let socket = UdpSocket::bind((any, port))?;
        socket.connect(to)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (kept, one_way) = (open(4000)?, open(4001)?);
    let mut times = Times::default();
    for round in 0..=ROUNDS {
        let endpoint = u8::from(round % 2 == 1);
        let received = || UNANSWERED.get(round % 2).map_or(0, |count| count.load(Ordering::Relaxed));
        let received_before = received();
        write(
            directory,
            &manifests(family, super::SERVICES.into(), |service| match service {
                0 => endpoint..endpoint + 1,
                _ => 0..super::ENDPOINTS,
            }),
        )?;
        let (start, mut in_force, mut followed, mut reached) = (Instant::now(), None, None, None);
        let mut fresh = Vec::new();
        while in_force.is_none() || followed.is_none() || reached.is_none() {
            anyhow::ensure!(start.elapsed() < PATIENCE, "the new endpoint does not answer");
            if in_force.is_none() {
                let socket = open(0)?;
                // refused before the rules are in force
                let _ = socket.send(b"?");
                fresh.push((socket, Instant::now()));
            }
            let _ = kept.send(b"?");
            let _ = one_way.send(ONE_WAY);
            std::thread::sleep(PERIOD);
            if received() > received_before {
                reached.get_or_insert_with(Instant::now);
            }
            let mut answer = [0];
            for (socket, asked) in &fresh {
                if in_force.is_none() && socket.recv(&mut answer).is_ok() && answer == [endpoint] {
                    in_force = Some(*asked);
                }
            }
            while kept.recv(&mut answer).is_ok() {
                if answer == [endpoint] {
                    followed.get_or_insert_with(Instant::now);
                }
            }
        }
        let since = |at: Option<Instant>| at.zip(in_force).map(|(at, in_force)| at.saturating_duration_since(in_force));
        // the first round only sets the initial state
        if round > 0 {
            times.answered.extend(since(followed));
            times.one_way.extend(since(reached));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}
