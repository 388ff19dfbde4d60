//! Prints rules in the format of `iptables-save`, which `iptables-restore` accepts.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferry_family::Family;

use super::rule::{AddressMatch, CtStates, Match, Rule, Target};

/// Maximum length of a comment in bytes: `XT_MAX_COMMENT_LEN` in linux/netfilter/xt_comment.h, without its final NUL.
const COMMENT_MAX: usize = 255;
/// Units of a probability of 1: `xt_statistic_info` has 31 bits for it.
const PROBABILITY_UNITS: f64 = 2_147_483_648.0;

/// An address in the C library's notation, which differs from Rust's for `::a.b.c.d`.
struct AddressText(IpAddr);

/// `address:port`, `[address]:port`.
struct EndpointText(SocketAddr);

/// Writes words separated by blanks.
struct Words<'a> {
    out: &'a mut String,
    start: usize,
}

// === impl Rule ===

impl Rule {
    /// Appends the rule as `iptables-save` (`ip6tables-save`) prints it after `-A CHAIN`, without a leading blank. Tools up to
    /// 1.8.9 and later ones differ in one place, the number of blanks before the name of `-m nfacct`: one is printed. `-s` or
    /// `-d` of all addresses is omitted, as by the tools. Of invalid rules, control characters in a comment become `?`, and
    /// ports without a protocol are omitted.
    pub fn print(&self, family: Family, out: &mut String) {
        self.write(family, out, true);
    }

    /// Appends the rule without its comment, otherwise as [`Self::print`].
    pub fn print_uncommented(&self, family: Family, out: &mut String) {
        self.write(family, out, false);
    }

    fn write(&self, family: Family, out: &mut String, commented: bool) {
        let mut words = Words { start: out.len(), out };
        words.side("-s", self.source);
        words.side("-d", self.destination);
        if let Some(input) = &self.input {
            words.option(input.inverted, "-i", format_args!("{}", input.name));
        }
        if let Some(protocol) = self.protocol {
            words.put("-p");
            words.put(protocol.name());
        }
        for each in &self.matches {
            match each {
                Match::Comment(_) if !commented => {}
                Match::Port(port) => {
                    let Some(protocol) = self.protocol else { continue };
                    words.put("-m");
                    words.put(protocol.name());
                    if let Some(port) = port {
                        words.option(false, "--dport", format_args!("{port}"));
                    }
                }
                other => words.extension(other, family),
            }
        }
        words.target(&self.target, family);
    }
}

// === impl Words ===

impl Words<'_> {
    fn put(&mut self, word: &str) {
        if self.out.len() > self.start {
            self.out.push(' ');
        }
        self.out.push_str(word);
    }

    fn option(&mut self, inverted: bool, name: &str, value: fmt::Arguments<'_>) {
        if inverted {
            self.put("!");
        }
        self.put(name);
        self.put(""); // the blank
        let _ = self.out.write_fmt(value); // writing to a String does not fail
    }

    fn side(&mut self, name: &str, side: Option<AddressMatch>) {
        let Some(side) = side.filter(AddressMatch::is_condition) else { return };
        let net = side.net.trunc();
        self.option(side.inverted, name, format_args!("{}/{}", AddressText(net.addr()), net.prefix_len()));
    }

    /// Appends a name or a text, in quotation marks if it has characters other than letters, digits, `-` and `_`.
    fn text(&mut self, text: &str) {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return self.put(text);
        }
        self.put("\"");
        for character in text.chars() {
            if matches!(character, '"' | '\\' | '\'') {
                self.out.push('\\');
            }
            self.out.push(printable(character));
        }
        self.out.push('"');
    }

    fn extension(&mut self, each: &Match, family: Family) {
        match each {
            Match::Comment(text) => {
                self.put("-m comment --comment");
                self.text(text);
            }
            Match::Port(_) => {} // printed by the caller, because it needs the rule's protocol
            Match::CtState { inverted, states } => {
                self.put("-m conntrack");
                self.option(*inverted, "--ctstate", format_args!("{}", states.name()));
            }
            Match::SourceLocal => self.put("-m addrtype --src-type LOCAL"),
            Match::DestinationLocal => self.put("-m addrtype --dst-type LOCAL"),
            Match::Mark { inverted, value, mask } => {
                self.put("-m mark");
                if *mask == u32::MAX {
                    self.option(*inverted, "--mark", format_args!("{value:#x}"));
                } else {
                    self.option(*inverted, "--mark", format_args!("{value:#x}/{mask:#x}"));
                }
            }
            Match::Account(name) => {
                self.put("-m nfacct --nfacct-name");
                self.text(name);
            }
            Match::RecentlySeen { seconds, list } => {
                self.put("-m recent --rcheck");
                self.option(false, "--seconds", format_args!("{seconds}"));
                self.put("--reap");
                self.recent_list(list.as_str(), family);
            }
            Match::SeeNow { list } => {
                self.put("-m recent --set");
                self.recent_list(list.as_str(), family);
            }
            Match::InSet { set } => {
                self.put("-m set");
                self.option(false, "--match-set", format_args!("{set} src"));
            }
            Match::Random(units) => {
                let (whole, fraction) = decimals(*units);
                self.put("-m statistic --mode random");
                self.option(false, "--probability", format_args!("{whole}.{fraction:011}"));
            }
        }
    }

    fn recent_list(&mut self, name: &str, family: Family) {
        self.option(false, "--name", format_args!("{name}"));
        self.option(false, "--mask", format_args!("{}", full_mask(family)));
        self.put("--rsource");
    }

    fn target(&mut self, target: &Target, family: Family) {
        match target {
            Target::None => {}
            Target::Jump(chain) => self.option(false, "-j", format_args!("{chain}")),
            Target::Return => self.put("-j RETURN"),
            Target::Accept => self.put("-j ACCEPT"),
            Target::Drop => self.put("-j DROP"),
            Target::Reject => {
                self.put("-j REJECT --reject-with");
                self.put(port_unreachable(family));
            }
            Target::SetXmark { value, mask } => {
                self.put("-j MARK");
                self.option(false, "--set-xmark", format_args!("{value:#x}/{mask:#x}"));
            }
            Target::Masquerade { random_fully: false } => self.put("-j MASQUERADE"),
            Target::Masquerade { random_fully: true } => self.put("-j MASQUERADE --random-fully"),
            Target::Dnat(to) => {
                self.put("-j DNAT");
                self.option(false, "--to-destination", format_args!("{}", EndpointText(*to)));
            }
        }
    }
}

// === impl EndpointText ===

impl fmt::Display for EndpointText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, port) = (AddressText(self.0.ip()), self.0.port());
        if self.0.is_ipv4() { write!(f, "{address}:{port}") } else { write!(f, "[{address}]:{port}") }
    }
}

// === impl AddressText ===

impl fmt::Display for AddressText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) => match dotted(address) {
                Some(low) => write!(f, "::{low}"),
                None => address.fmt(f),
            },
            IpAddr::V4(address) => address.fmt(f),
        }
    }
}

/// The last 32 bits of an address that begins with 96 zero bits; `None` for `::`, `::1` and others with 112 leading zero bits.
fn dotted(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let low = u32::try_from(address.to_bits()).ok()?;
    (low > u32::from(u16::MAX)).then(|| Ipv4Addr::from_bits(low))
}

// === impl Match ===

impl Match {
    /// A comment match: truncated to 255 bytes, control characters replaced by `?`.
    pub fn comment(text: &str) -> Self {
        let text = text.get(..text.floor_char_boundary(COMMENT_MAX)).unwrap_or_default();
        Self::Comment(if text.contains(char::is_control) {
            text.chars().map(printable).collect::<String>().into()
        } else {
            text.into()
        })
    }

    /// Matches one packet in `n`, with the probability as the tool rounds `1/n` written with ten decimals. 0 counts as 1.
    pub fn one_of(n: u32) -> Self {
        const DECIMALS: f64 = 1e10;
        Self::Random(units((DECIMALS / f64::from(n.max(1))).round_ties_even() / DECIMALS))
    }
}

fn printable(character: char) -> char {
    if character.is_control() { '?' } else { character }
}

/// Parses a probability into units of 1/2^31; `None` if it is not from 0 to 1.
pub(super) fn probability(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|value| plain && (0.0..=1.0).contains(value)).map(units)
}

/// Converts a probability from 0 to 1 to units of 1/2^31.
fn units(probability: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2^31")]
    let units = (probability * PROBABILITY_UNITS).round() as u32;
    units
}

/// Converts units of 1/2^31 to a decimal number with eleven decimals, rounding half to even, as the C library does.
fn decimals(units: u32) -> (u64, u64) {
    const SCALE: u64 = 100_000_000_000;
    let exact = u128::from(units) * u128::from(SCALE);
    let (floor, rest) = (exact >> 31, exact & ((1 << 31) - 1));
    let up = rest > (1 << 30) || (rest == (1 << 30) && floor & 1 == 1);
    let rounded = u64::try_from(floor + u128::from(up)).unwrap_or(u64::MAX);
    (rounded / SCALE, rounded % SCALE)
}

// === impl CtStates ===

impl CtStates {
    /// In the order in which the tool prints them.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Invalid => "INVALID",
            Self::RelatedEstablished => "RELATED,ESTABLISHED",
            Self::RelatedEstablishedDnat => "RELATED,ESTABLISHED,DNAT",
        }
    }
}

/// The full mask of an address, as `-m recent` prints it.
pub(super) fn full_mask(family: Family) -> &'static str {
    match family {
        Family::V4 => "255.255.255.255",
        Family::V6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    }
}

/// The ICMP type of `-j REJECT` without options.
pub(super) fn port_unreachable(family: Family) -> &'static str {
    match family {
        Family::V4 => "icmp-port-unreachable",
        Family::V6 => "icmp6-port-unreachable",
    }
}
