//! Parses rules in the format of `iptables-save`, as far as this program writes such rules.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use ferry_family::Family;
use ipnet::IpNet;

use super::print::probability;
use super::print::{full_mask, port_unreachable};
use super::rule::{AddressMatch, CtStates, InterfaceMatch, IptablesChainName, Match, PortProtocol, Rule, Target};

/// A rule while it is parsed.
struct RuleParser<'a> {
    words: Words<'a>,
    family: Family,
    /// the protocol of `-m tcp`, `-m udp` or `-m sctp`, which must equal the rule's
    ports: Option<PortProtocol>,
}

/// The words of a line. A word in quotation marks may have blanks, and `\` escapes the next character.
#[derive(Clone, Copy)]
struct Words<'a> {
    rest: &'a str,
}

/// An option's name.
#[derive(Clone, Copy)]
struct Name<'a> {
    text: &'a str,
    /// preceded by `!`
    inverted: bool,
}

/// The options of `-m recent`.
#[derive(Default)]
struct Recent {
    set: bool,
    check: bool,
    reap: bool,
    seconds: Option<u32>,
    list: Option<IptablesChainName>,
}

// === impl Rule ===

impl Rule {
    /// Parses a rule, the text after `-A CHAIN`. Options of the rule and of one match may be in any order, `!` may precede or
    /// follow an option (older tools print it after), and blanks may be repeated. The matches keep their order.
    ///
    /// `None` for text that is no rule, or a kind of rule that this program does not write.
    pub fn parse(family: Family, text: &str) -> Option<Self> {
        let words = Words { rest: text };
        let mut matches = Vec::with_capacity(words.count("-m"));
        let mut reader = RuleParser { words, family, ports: None };
        let mut rule = Self::default();
        while let Some(name) = reader.words.name() {
            match (name.text, name.inverted) {
                ("-s", inverted) => set(&mut rule.source, reader.side(inverted)?)?,
                ("-d", inverted) => set(&mut rule.destination, reader.side(inverted)?)?,
                ("-i", inverted) => set(&mut rule.input, reader.input(inverted)?)?,
                ("-p", false) => set(&mut rule.protocol, protocol(&reader.words.value()?)?)?,
                ("-m", false) => matches.push(reader.extension()?),
                ("-j", false) if rule.target == Target::None => rule.target = reader.target()?,
                _ => return None,
            }
        }
        (rule.source, rule.destination) =
            (rule.source.filter(AddressMatch::is_condition), rule.destination.filter(AddressMatch::is_condition));
        rule.matches = matches.into_boxed_slice();
        let right = reader.words.is_done() && (reader.ports.is_none() || reader.ports == rule.protocol);
        right.then_some(rule)
    }
}

// === impl RuleParser ===

impl RuleParser<'_> {
    fn side(&mut self, inverted: bool) -> Option<AddressMatch> {
        let (inverted, text) = self.words.invertible(inverted)?;
        let (address, length) =
            text.split_once('/').map_or((&*text, None), |(address, length)| (address, Some(length)));
        let address = self.address(address)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(longest), number)?;
        Some(AddressMatch { net: IpNet::new(address, u8::try_from(length).ok()?).ok()?.trunc(), inverted })
    }

    fn address(&self, text: &str) -> Option<IpAddr> {
        text.parse().ok().filter(|address: &IpAddr| address.is_ipv4() == (self.family == Family::V4))
    }

    fn input(&mut self, inverted: bool) -> Option<Box<InterfaceMatch>> {
        /// `IFNAMSIZ` in linux/if.h, without its final NUL
        const MAX: usize = 15;
        let (inverted, name) = self.words.invertible(inverted)?;
        // the tools print names unescaped: with any of these characters the line would have another meaning
        let misread = |character: char| character.is_whitespace() || character.is_control() || character == '"';
        let fits = (1..=MAX).contains(&name.len()) && !name.contains(misread) && name != "!";
        fits.then(|| Box::new(InterfaceMatch { name: name.into(), inverted }))
    }

    /// Parses a match, the text after `-m`.
    fn extension(&mut self) -> Option<Match> {
        match &*self.words.value()? {
            "comment" => self.words.plain("--comment").and_then(|text| comment(&text)),
            "conntrack" => self.conntrack(),
            "addrtype" => self.addrtype(),
            "mark" => self.mark(),
            "nfacct" => self.words.plain("--nfacct-name").and_then(|name| account(&name)),
            "recent" => self.recent(),
            "set" => self.in_set(),
            "statistic" => self.statistic(),
            name => {
                let of = protocol(name).filter(|of| self.ports.is_none_or(|ports| ports == *of))?;
                self.ports = Some(of);
                match self.words.extension_name() {
                    None => Some(Match::Port(None)),
                    Some(Name { text: "--dport" | "--destination-port", inverted: false }) => {
                        let port = number(&self.words.value()?)?;
                        Some(Match::Port(Some(u16::try_from(port).ok()?)))
                    }
                    Some(_) => None,
                }
            }
        }
    }

    fn conntrack(&mut self) -> Option<Match> {
        let name = self.words.extension_name().filter(|name| name.text == "--ctstate")?;
        let (inverted, states) = self.words.invertible(name.inverted)?;
        Some(Match::CtState { inverted, states: CtStates::parse(&states)? })
    }

    fn addrtype(&mut self) -> Option<Match> {
        let name = self.words.extension_name().filter(|name| !name.inverted)?;
        match (name.text, &*self.words.value()?) {
            ("--src-type", "LOCAL") => Some(Match::SourceLocal),
            ("--dst-type", "LOCAL") => Some(Match::DestinationLocal),
            _ => None,
        }
    }

    fn mark(&mut self) -> Option<Match> {
        let name = self.words.extension_name().filter(|name| name.text == "--mark")?;
        let (inverted, text) = self.words.invertible(name.inverted)?;
        let (value, mask) = masked(&text)?;
        Some(Match::Mark { inverted, value, mask })
    }

    fn recent(&mut self) -> Option<Match> {
        let mut found = Recent::default();
        while let Some(name) = self.words.extension_name() {
            match (name.text, name.inverted) {
                ("--set", false) => found.set = true,
                ("--rcheck", false) => found.check = true,
                ("--reap", false) => found.reap = true,
                ("--rsource", false) => {} // the default
                ("--seconds", false) => set(&mut found.seconds, number(&self.words.value()?)?)?,
                ("--name", false) => set(&mut found.list, IptablesChainName::new(&self.words.value()?)?)?,
                ("--mask", false) if self.words.value()? == full_mask(self.family) => {}
                _ => return None,
            }
        }
        match found {
            Recent { set: true, check: false, reap: false, seconds: None, list: Some(list) } => {
                Some(Match::SeeNow { list: list.into() })
            }
            Recent { set: false, check: true, reap: true, seconds: Some(seconds), list: Some(list) } => {
                Some(Match::RecentlySeen { seconds, list: list.into() })
            }
            _ => None,
        }
    }

    fn in_set(&mut self) -> Option<Match> {
        let set = IptablesChainName::new(&self.words.plain("--match-set")?)?;
        (self.words.value()? == "src").then(|| Match::InSet { set: set.into() })
    }

    fn statistic(&mut self) -> Option<Match> {
        let (mut random, mut units) = (false, None);
        while let Some(name) = self.words.extension_name() {
            match (name.text, name.inverted) {
                ("--mode", false) if self.words.value()? == "random" => random = true,
                ("--probability", false) => set(&mut units, probability(&self.words.value()?)?)?,
                _ => return None,
            }
        }
        units.filter(|_| random).map(Match::Random)
    }

    /// Parses a target, the text after `-j`.
    fn target(&mut self) -> Option<Target> {
        match &*self.words.value()? {
            "ACCEPT" => Some(Target::Accept),
            "DROP" => Some(Target::Drop),
            "RETURN" => Some(Target::Return),
            "REJECT" => {
                let with = self.words.plain("--reject-with")?;
                (with == port_unreachable(self.family)).then_some(Target::Reject)
            }
            "MARK" => {
                let (value, mask) = masked(&self.words.plain("--set-xmark")?)?;
                Some(Target::SetXmark { value, mask })
            }
            "MASQUERADE" => match self.words.extension_name() {
                None => Some(Target::Masquerade { random_fully: false }),
                Some(Name { text: "--random-fully", inverted: false }) => {
                    Some(Target::Masquerade { random_fully: true })
                }
                Some(_) => None,
            },
            "DNAT" => self.endpoint().map(Target::Dnat),
            // other targets are distinguished from chains by their options, which cannot follow a chain
            chain => IptablesChainName::new(chain).map(Target::Jump),
        }
    }

    fn endpoint(&mut self) -> Option<SocketAddr> {
        let text = self.words.plain("--to-destination")?;
        let (address, port) = text.rsplit_once(':')?;
        let address = match address.strip_prefix('[') {
            Some(address) => self.address(address.strip_suffix(']')?).filter(IpAddr::is_ipv6)?,
            None => self.address(address).filter(IpAddr::is_ipv4)?,
        };
        Some(SocketAddr::new(address, u16::try_from(number(port)?).ok()?))
    }
}

// === impl Words ===

impl<'a> Words<'a> {
    /// The next word, and true if it was in quotation marks. `None` at the end, and for a malformed word: then
    /// [`is_done`](Self::is_done) is false.
    fn next(&mut self) -> Option<(Cow<'a, str>, bool)> {
        let start = self.rest.bytes().position(|byte| !is_blank(byte))?;
        let text = self.rest.get(start..)?;
        let quoted = text.starts_with('"');
        let (word, rest) = if let Some(text) = text.strip_prefix('"') {
            quoted_word(text)?
        } else {
            let end = text.bytes().position(|byte| is_blank(byte) || byte == b'"').unwrap_or(text.len());
            (Cow::Borrowed(text.get(..end)?), text.get(end..)?)
        };
        self.rest = rest.bytes().next().is_none_or(is_blank).then_some(rest)?;
        Some((word, quoted))
    }

    fn is_done(&self) -> bool {
        self.rest.bytes().all(is_blank)
    }

    /// Number of occurrences of this word.
    fn count(mut self, word: &str) -> usize {
        let mut count = 0;
        while let Some((next, quoted)) = self.next() {
            count += usize::from(!quoted && next == word);
        }
        count
    }

    /// Consumes an option's name, if one follows.
    fn name(&mut self) -> Option<Name<'a>> {
        let mut ahead = *self;
        let mut text = ahead.bare()?;
        let inverted = text == "!";
        if inverted {
            text = ahead.bare()?;
        }
        *self = ahead;
        Some(Name { text, inverted })
    }

    /// Consumes the name of an option of the current match or target, if one follows.
    fn extension_name(&mut self) -> Option<Name<'a>> {
        let mut ahead = *self;
        let name = ahead.name().filter(|name| name.text.starts_with("--"))?;
        *self = ahead;
        Some(name)
    }

    fn bare(&mut self) -> Option<&'a str> {
        match self.next()? {
            (Cow::Borrowed(word), false) => Some(word),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Cow<'a, str>> {
        self.next().map(|(word, _)| word)
    }

    /// Consumes this option, which must be next, and returns its value.
    fn plain(&mut self, option: &str) -> Option<Cow<'a, str>> {
        self.extension_name().filter(|name| name.text == option && !name.inverted)?;
        self.value()
    }

    /// A value, and true if it is inverted: by `!` before the value or, as `inverted` states, before its option.
    fn invertible(&mut self, inverted: bool) -> Option<(bool, Cow<'a, str>)> {
        match self.next()? {
            (word, false) if word == "!" => (!inverted).then_some(())?,
            (word, _) => return Some((inverted, word)),
        }
        self.value().map(|word| (true, word))
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Splits the text after an opening quotation mark into the quoted word and the text after the closing mark.
fn quoted_word(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.bytes().position(|byte| matches!(byte, b'"' | b'\\'))?;
    if text.get(end..)?.starts_with('"') {
        return Some((Cow::Borrowed(text.get(..end)?), text.get(end + 1..)?));
    }
    let mut word = String::with_capacity(text.len().min(256));
    let mut characters = text.chars();
    loop {
        match characters.next()? {
            '"' => return Some((Cow::Owned(word), characters.as_str())),
            '\\' => word.push(characters.next()?),
            character => word.push(character),
        }
    }
}

// === impl CtStates ===

impl CtStates {
    const ALL: [Self; 4] = [Self::New, Self::Invalid, Self::RelatedEstablished, Self::RelatedEstablishedDnat];

    /// Parses a list of states in any order.
    fn parse(text: &str) -> Option<Self> {
        let bits = |list: &str| {
            list.split(',').try_fold(0_u8, |bits, state| {
                let at = ["NEW", "INVALID", "RELATED", "ESTABLISHED", "DNAT"].iter().position(|each| *each == state)?;
                Some(bits | 1 << at)
            })
        };
        let wanted = bits(text)?;
        Self::ALL.into_iter().find(|states| bits(states.name()) == Some(wanted))
    }
}

/// Sets a value; `None` if it is set already.
fn set<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
}

fn comment(text: &str) -> Option<Match> {
    let made = Match::comment(text);
    matches!(&made, Match::Comment(same) if **same == *text).then_some(made)
}

fn account(name: &str) -> Option<Match> {
    /// `NFACCT_NAME_MAX` in linux/netfilter/nfnetlink_acct.h, without its final NUL
    const MAX: usize = 31;
    let fits = (1..=MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| Match::Account(name.into()))
}

fn protocol(text: &str) -> Option<PortProtocol> {
    match text {
        "tcp" | "6" => Some(PortProtocol::Tcp),
        "udp" | "17" => Some(PortProtocol::Udp),
        "sctp" | "132" => Some(PortProtocol::Sctp),
        _ => None,
    }
}

/// A decimal number, without a sign.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.starts_with(|first: char| first.is_ascii_digit()))
}

/// `value/mask`, or a value with a mask of all bits.
fn masked(text: &str) -> Option<(u32, u32)> {
    let (value, mask) = text.split_once('/').map_or((text, None), |(value, mask)| (value, Some(mask)));
    Some((bits(value)?, mask.map_or(Some(u32::MAX), bits)?))
}

/// A number, hexadecimal with `0x`, else decimal.
fn bits(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => number(text),
    }
}
