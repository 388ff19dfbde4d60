//! Arbitrary rules are equal after printing and parsing.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

fn address(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::V4 => any::<[u8; 4]>().prop_map(IpAddr::from).boxed(),
        // with zeros, so that the printed addresses are shortened
        Family::V6 => (any::<[u16; 8]>(), any::<u8>())
            .prop_map(|(mut groups, zeros)| {
                (0..8).filter(|at| zeros & 1 << at != 0).for_each(|at| groups[at] = 0);
                IpAddr::from(groups)
            })
            .boxed(),
    }
}

fn side(family: Family) -> impl Strategy<Value = AddressMatch> {
    let longest = if family == Family::V4 { 32_u8 } else { 128 };
    (address(family), 1..=longest, any::<bool>()).prop_map(|(address, length, inverted)| AddressMatch {
        net: IpNet::new(address, length).unwrap().trunc(),
        inverted,
    })
}

fn chain() -> impl Strategy<Value = IptablesChainName> {
    "KUBE-[A-Z0-9]{1,20}".prop_map(|text| name(&text))
}

fn states() -> impl Strategy<Value = CtStates> {
    use CtStates::{Invalid, New, RelatedEstablished, RelatedEstablishedDnat};
    prop_oneof![Just(New), Just(Invalid), Just(RelatedEstablished), Just(RelatedEstablishedDnat)]
}

/// Matches of lists and sets of addresses.
fn of_lists() -> impl Strategy<Value = Match> {
    prop_oneof![
        (any::<u32>(), chain()).prop_map(|(seconds, list)| Match::RecentlySeen { seconds, list: list.into() }),
        chain().prop_map(|list| Match::SeeNow { list: list.into() }),
        chain().prop_map(|set| Match::InSet { set: set.into() }),
    ]
}

fn any_match(with_ports: bool) -> impl Strategy<Value = Match> {
    let port = of(any::<u16>()).prop_map(Match::Port);
    prop_oneof![
        3 => any::<String>().prop_map(|text| Match::comment(&text)),
        if with_ports { 3 } else { 0 } => port,
        1 => (any::<bool>(), states()).prop_map(|(inverted, states)| Match::CtState { inverted, states }),
        1 => Just(Match::SourceLocal),
        1 => Just(Match::DestinationLocal),
        1 => (any::<bool>(), any::<u32>(), any::<u32>())
            .prop_map(|(inverted, value, mask)| Match::Mark { inverted, value, mask }),
        1 => "[!-~]{1,31}".prop_map(|name| Match::Account(name.into())),
        3 => of_lists(),
        1 => (0..=1_u32 << 31).prop_map(Match::Random),
    ]
}

fn target(family: Family) -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::None),
        chain().prop_map(Target::Jump),
        Just(Target::Return),
        Just(Target::Accept),
        Just(Target::Drop),
        Just(Target::Reject),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Target::SetXmark { value, mask }),
        any::<bool>().prop_map(|random_fully| Target::Masquerade { random_fully }),
        (address(family), any::<u16>()).prop_map(|(address, port)| Target::Dnat(SocketAddr::new(address, port))),
    ]
}

pub(super) fn rule(family: Family) -> impl Strategy<Value = Rule> {
    let input = ("[a-z][a-z0-9.@-]{0,13}[+0-9]", any::<bool>())
        .prop_map(|(name, inverted)| Box::new(InterfaceMatch { name: name.into(), inverted }));
    let protocol = of(prop_oneof![Just(PortProtocol::Tcp), Just(PortProtocol::Udp), Just(PortProtocol::Sctp)]);
    (of(side(family)), of(side(family)), of(input), protocol, target(family)).prop_flat_map(
        |(source, destination, input, protocol, target)| {
            vec(any_match(protocol.is_some()), 0..5).prop_map(move |matches| Rule {
                source,
                destination,
                input: input.clone(),
                protocol,
                matches: matches.into(),
                target,
            })
        },
    )
}

fn family_and_rule() -> impl Strategy<Value = (Family, Rule)> {
    prop_oneof![Just(Family::V4), Just(Family::V6)].prop_flat_map(|family| (Just(family), rule(family)))
}

proptest! {
    #[test]
    fn parse_is_the_inverse_of_print((family, rule) in family_and_rule()) {
        let text = printed(family, &rule);
        prop_assert!(!text.contains(char::is_control), "one line: {text}");
        prop_assert_eq!(Rule::parse(family, &text), Some(rule), "{}", text);
    }

    #[test]
    fn only_comments_are_left_out((family, rule) in family_and_rule()) {
        let mut text = String::new();
        rule.print_uncommented(family, &mut text);
        let matches = rule.matches.iter().filter(|each| !matches!(each, Match::Comment(_))).cloned().collect();
        prop_assert_eq!(Rule::parse(family, &text), Some(Rule { matches, ..rule }));
    }

    /// The number and kind of blanks outside of quotation marks is insignificant.
    #[test]
    fn blanks_are_insignificant((family, rule) in family_and_rule(), blanks in "[ \t]{1,3}") {
        let spread: Vec<_> = printed(family, &rule).split('"').enumerate()
            .map(|(at, part)| if at == 0 { part.replace(' ', &blanks) } else { part.to_owned() })
            .collect();
        prop_assert_eq!(Rule::parse(family, &format!("{blanks}{}", spread.join("\""))), Some(rule));
    }
}
