//! portRange: the ports that listeners of mode userspace prefer.

use std::ops::RangeInclusive;

/// A range of ports, not empty and without 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRange(RangeInclusive<u16>);

/// Above the ports that systems choose themselves (`ip_local_port_range`) and the node ports of a cluster.
const DEFAULT: RangeInclusive<u16> = 61_000..=65_535;

// === impl PortRange ===

impl PortRange {
    /// Reads `first-last`, `first+more`, or a single port, as upstream's mode userspace did. Empty, `0` and `0-0` are the default,
    /// 61000-65535.
    ///
    /// # Errors
    /// The reason, for a message about the field.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if ["", "0", "0-0"].contains(&text) {
            return Ok(Self(DEFAULT));
        }
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_error| REMEDY.to_owned());
        let range = if let Some((first, last)) = text.split_once('-') {
            port(first)?..=port(last)?
        } else if let Some((first, more)) = text.split_once('+') {
            let first = port(first)?;
            first..=first.checked_add(port(more)?).ok_or(REMEDY)?
        } else {
            port(text)?..=port(text)?
        };
        if range.is_empty() || *range.start() == 0 { Err(REMEDY.to_owned()) } else { Ok(Self(range)) }
    }

    /// The ports.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.0.clone()
    }
}

const REMEDY: &str = "must be a range of ports such as 61000-61999, or empty for 61000-65535";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_three_forms_and_a_default() {
        for (text, wanted) in [
            ("", DEFAULT),
            ("0-0", DEFAULT),
            ("0", DEFAULT),
            ("7000-7010", 7000..=7010),
            (" 7000 - 7010 ", 7000..=7010),
            ("7000+10", 7000..=7010),
            ("7000", 7000..=7000),
        ] {
            assert_eq!(PortRange::parse(text).map(|range| range.ports()), Ok(wanted), "{text:?}");
        }
        for text in ["foo", "7010-7000", "0-7", "65535+1", "70000", "-7", "7-", "1-2-3"] {
            assert_eq!(PortRange::parse(text), Err(REMEDY.to_owned()), "{text:?}");
        }
    }
}
