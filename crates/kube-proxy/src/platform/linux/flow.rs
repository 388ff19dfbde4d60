//! Traces real packets of a flow through all tables of nf_tables, by the kernel's trace notifications.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferry_kernel::nft::{
    Flow, FlowTrace, Headers, NftSocket, Rule, TableFamily, TraceEvent, TraceKind, Verdict, expressions_text,
};
use ferry_model::Packet;
use ferry_plane::{PacketPath, RuleTexts};

use crate::platform::watched::{PacketEnd, WatchLimits, WatchedFlow, WatchedPacket};

/// After the last packet that is wanted, and after the time is over: the reports about one packet may come in several datagrams.
const SETTLE: Duration = Duration::from_millis(50);

/// The chain that marks packets of this machine.
const OUTPUT: &str = "output";

/// The packets as far as they were reported.
struct Assembly<'a, R> {
    /// the table that marks them
    marks: String,
    texts: &'a RuleTexts,
    /// the rules of a chain of a table
    rules: R,
    chains: HashMap<(TableFamily, String, String), Vec<Rule>>,
    packets: Vec<InFlight>,
    /// the most packets
    most: usize,
    /// no further packet begins
    is_closed: bool,
}

/// A packet, and where it is.
struct InFlight {
    /// as the kernel reports it; `None` once another packet has the number
    id: Option<u32>,
    /// the chain in which it was marked
    begun: String,
    /// the base chain that it is in
    chain: String,
    headers: Headers,
    seen: WatchedPacket,
}

/// Watches the packets that are like this one, until there are as many as wanted or the time is over. A table of its own marks them
/// meanwhile; nothing else is changed. `texts` are those of known rules; others are described by their expressions.
///
/// # Errors
/// The system's; `EPERM` without `CAP_NET_ADMIN`.
pub fn watch_flow(packet: &Packet, limits: WatchLimits, texts: &RuleTexts) -> io::Result<WatchedFlow> {
    let flow = Flow {
        source: packet.source,
        destination: packet.destination,
        protocol: packet.protocol.number(),
        port: packet.port,
    };
    let mut trace = FlowTrace::start(&flow, &format!("kube-proxy-trace-{}", std::process::id()))?;
    let mut socket = NftSocket::open()?;
    let rules = move |family: TableFamily, table: &str, chain: &str| {
        let rules = socket.rules(family, table, Some(chain)).unwrap_or_default();
        rules.into_iter().map(|(_, rule)| rule).collect()
    };
    let (marks, chains, packets) = (trace.table().to_owned(), HashMap::new(), Vec::new());
    let most = limits.packets;
    let mut assembly = Assembly { marks, texts, rules, chains, packets, most, is_closed: false };
    let (mut end, mut lost) = (Instant::now() + limits.time, false);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if !assembly.is_closed && (left.is_zero() || assembly.packets.len() >= assembly.most) {
            assembly.is_closed = true;
            end = Instant::now() + SETTLE;
        } else if left.is_zero() {
            break;
        } else if trace.wait(left)? {
            lost |= trace.read(&mut |event| assembly.take(event))?.0;
        }
    }
    Ok(WatchedFlow { packets: assembly.packets.into_iter().map(|packet| packet.seen).collect(), lost })
}

// === impl Assembly ===

impl<R: FnMut(TableFamily, &str, &str) -> Vec<Rule>> Assembly<'_, R> {
    fn take(&mut self, event: TraceEvent) {
        if event.table == self.marks {
            return self.begin(event);
        }
        let Some(at) = self.packet_of(&event) else { return };
        let (cause, place) = (self.cause(&event), place(&event));
        let Some(packet) = self.packets.get_mut(at) else { return };
        packet.enter(&event, &place);
        let Some(by) = cause else { return };
        let is_base = packet.chain == event.chain;
        let within = if is_base { String::new() } else { format!("chain {}: ", event.chain) };
        let (text, drops) = match &event.kind {
            TraceKind::Rule { verdict: None, .. } => (by.clone(), false),
            TraceKind::Rule { verdict: Some(verdict), .. } => (format!("{by} => {verdict}"), *verdict == Verdict::Drop),
            TraceKind::Policy { .. } | TraceKind::End(_) => ("policy drop".to_owned(), true),
        };
        packet.seen.path.step(if is_base { 1 } else { 2 }, format_args!("{within}{text}"));
        if drops {
            packet.seen.fate = PacketEnd::Ended { place, by };
        }
    }

    /// The packet of an event. One that this machine has sent to itself gets another number when it comes in; its addresses tell.
    fn packet_of(&mut self, event: &TraceEvent) -> Option<usize> {
        let known = self.packets.iter().rposition(|packet| packet.id == Some(event.packet));
        known.or_else(|| {
            let headers = event.headers?;
            let at = self.packets.iter().rposition(|packet| packet.begun == OUTPUT && packet.headers == headers)?;
            self.packets.get_mut(at)?.id = Some(event.packet);
            Some(at)
        })
    }

    /// A packet is marked: a new one, or one that this machine has sent to itself, which comes in after it went out. Numbers are used
    /// again when a packet is sent again.
    fn begin(&mut self, event: TraceEvent) {
        // Only the first report of a chain has the addresses; what follows is about the same packet.
        let Some(headers) = event.headers else { return };
        let known = self.packet_of(&event).and_then(|at| self.packets.get_mut(at));
        if let Some(packet) = known {
            if packet.begun != event.chain {
                return;
            }
            packet.id = None;
        }
        if self.is_closed || self.packets.len() >= self.most {
            return;
        }
        let mut path = PacketPath::recorded();
        path.step(0, format_args!("{} in hook {}", ends(&headers), event.chain));
        self.packets.push(InFlight {
            id: Some(event.packet),
            begun: event.chain,
            chain: String::new(),
            headers,
            seen: WatchedPacket { path, fate: PacketEnd::WentOn },
        });
    }

    /// The rule of an event, or the policy that drops; `None` for the end of a chain and for a policy that accepts.
    fn cause(&mut self, event: &TraceEvent) -> Option<String> {
        let handle = match event.kind {
            TraceKind::Rule { handle, .. } => handle,
            TraceKind::Policy { drops: true } => return Some("its policy".to_owned()),
            TraceKind::Policy { drops: false } | TraceKind::End(_) => return None,
        };
        let texts = self.texts;
        let Some(rule) = self.rule(event, handle) else { return Some(format!("rule with handle {handle}")) };
        let text = expressions_text(&rule.exprs);
        let comment = rule.comment.as_ref().map_or_else(String::new, |comment| format!(" comment {comment:?}"));
        Some(format!("rule {}{comment}", texts.get(&text).unwrap_or(&text)))
    }

    fn rule(&mut self, event: &TraceEvent, handle: u64) -> Option<&Rule> {
        let (family, table, chain) = (event.family?, &event.table, &event.chain);
        let Self { rules, chains, .. } = self;
        let key = (family, table.clone(), chain.clone());
        let known = chains.entry(key).or_insert_with(|| rules(family, table, chain));
        known.iter().find(|rule| rule.handle == handle)
    }
}

// === impl InFlight ===

impl InFlight {
    /// The first event of a base chain has the packet's addresses.
    fn enter(&mut self, event: &TraceEvent, place: &str) {
        let Some(now) = event.headers else { return };
        self.chain.clone_from(&event.chain);
        let changed = std::mem::replace(&mut self.headers, now) != now;
        let changed = if changed { format!(", now {}", ends(&now)) } else { String::new() };
        self.seen.path.step(0, format_args!("{place}{changed}"));
    }
}

fn place(event: &TraceEvent) -> String {
    let family = event.family.map_or_else(String::new, |family| format!("{family} "));
    format!("table {family}{}, chain {}", event.table, event.chain)
}

fn ends(headers: &Headers) -> String {
    let Headers { source, destination } = headers;
    let end = |(address, port): (IpAddr, u16)| std::net::SocketAddr::new(address, port);
    format!("{} -> {}", end(*source), end(*destination))
}

#[cfg(test)]
mod tests {
    use ferry_kernel::nft::Expr;

    use super::*;

    fn event(chain: &str, kind: TraceKind, port: Option<u16>) -> TraceEvent {
        let headers = port.map(|port| Headers {
            source: ([192, 0, 2, 1].into(), 40_000),
            destination: ([192, 0, 2, 2].into(), port),
        });
        let (table, chain) = chain.split_once(' ').unwrap();
        let family = Some(TableFamily::Inet);
        TraceEvent { packet: 7, family, table: table.to_owned(), chain: chain.to_owned(), kind, headers }
    }

    fn rule(handle: u64, verdict: Option<Verdict>) -> TraceKind {
        TraceKind::Rule { handle, verdict }
    }

    fn assembled(events: Vec<TraceEvent>) -> Vec<WatchedPacket> {
        let drop = Rule { exprs: vec![Expr::Verdict(Verdict::Drop)], comment: Some("no".to_owned()), handle: 4 };
        let accept = Rule { exprs: vec![Expr::Verdict(Verdict::Accept)], comment: None, handle: 3 };
        let rules = move |_: TableFamily, _: &str, chain: &str| match chain {
            "forward" => vec![drop.clone()],
            "services" => vec![accept.clone()],
            _ => Vec::new(),
        };
        let (chains, packets) = (HashMap::new(), Vec::new());
        let texts = RuleTexts::from([("[accept]".to_owned(), "let it pass".to_owned())]);
        let marks = "marks".to_owned();
        let mut assembly = Assembly { marks, texts: &texts, rules, chains, packets, most: 2, is_closed: false };
        events.into_iter().for_each(|event| assembly.take(event));
        assembly.packets.into_iter().map(|packet| packet.seen).collect()
    }

    fn lines(packet: &WatchedPacket) -> Vec<String> {
        packet.path.steps().iter().map(|step| format!("{} {}", step.depth, step.text)).collect()
    }

    #[test]
    fn a_packet_is_followed_to_the_rule_that_drops_it() {
        let packets = assembled(vec![
            event("marks prerouting", rule(1, None), Some(80)),
            event("marks prerouting", rule(1, None), None),
            event("marks prerouting", TraceKind::Policy { drops: false }, None),
            event("nat dstnat", rule(2, Some(Verdict::Jump("services".to_owned()))), Some(80)),
            event("nat services", rule(3, Some(Verdict::Accept)), None),
            event("fw forward", rule(4, Some(Verdict::Drop)), Some(8080)),
        ]);
        assert_eq!(packets.len(), 1);
        assert_eq!(
            lines(&packets[0]),
            [
                "0 192.0.2.1:40000 -> 192.0.2.2:80 in hook prerouting",
                "0 table inet nat, chain dstnat",
                "1 rule with handle 2 => jump services",
                "2 chain services: rule let it pass => accept",
                "0 table inet fw, chain forward, now 192.0.2.1:40000 -> 192.0.2.2:8080",
                "1 rule [drop] comment \"no\" => drop",
            ]
        );
        let by = "rule [drop] comment \"no\"".to_owned();
        assert_eq!(packets[0].fate, PacketEnd::Ended { place: "table inet fw, chain forward".to_owned(), by });
    }

    #[test]
    fn a_packet_that_is_sent_again_is_another_one_and_one_to_this_machine_the_same() {
        let marked = |hook| event(&format!("marks {hook}"), rule(1, None), Some(80));
        let policy = || event("fw input", TraceKind::Policy { drops: true }, Some(80));
        assert_eq!(assembled(vec![marked("prerouting"), policy(), marked("prerouting"), policy()]).len(), 2);
        let with_number = |packet, event| TraceEvent { packet, ..event };
        let comes_in = [marked("prerouting"), policy()].map(|event| with_number(8, event));
        let packets = assembled([vec![marked("output")], comes_in.to_vec()].concat());
        assert_eq!(packets.len(), 1);
        assert!(matches!(&packets[0].fate, PacketEnd::Ended { by, .. } if by == "its policy"));
        assert_eq!(assembled(vec![policy()]).len(), 0, "nobody has marked it");
        let sent_thrice = [marked("prerouting"), marked("prerouting"), marked("prerouting"), policy()];
        let packets = assembled(sent_thrice.to_vec());
        assert!(packets.len() == 2 && packets.iter().all(|packet| packet.fate == PacketEnd::WentOn), "{packets:?}");
    }
}
