//! Prints expressions: the text of rules that were read back, for which the kernel keeps none.

use std::fmt;

use super::{CmpOp, CtKey, Expr, FibAddress, MetaKey, PayloadBase, Reg, Verdict};

/// Bytes in hexadecimal.
struct Hex<'a>(&'a [u8]);

// === impl Expr ===

/// The expression as an assignment to a register, or a comparison: `reg8 = 4 bytes of the network header from 16 on`.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload { dreg, base, offset, len } => {
                let header = match base {
                    PayloadBase::Network => "network",
                    PayloadBase::Transport => "transport",
                };
                write!(f, "{dreg} = {len} bytes of the {header} header from {offset} on")
            }
            Self::Meta { key, dreg } => write!(f, "{dreg} = {}", meta_word(*key)),
            Self::SetMeta { key, sreg } => write!(f, "{} = {sreg}", meta_word(*key)),
            Self::Cmp { sreg, op: CmpOp::Eq, data } => write!(f, "{sreg} == {}", Hex(data)),
            Self::Cmp { sreg, op: CmpOp::Neq, data } => write!(f, "{sreg} != {}", Hex(data)),
            Self::Bitwise { sreg, dreg, mask, xor } => {
                write!(f, "{dreg} = ({sreg} & {}) ^ {}", Hex(mask), Hex(xor))
            }
            Self::Lookup { set, sreg, dreg: None, invert } => {
                write!(f, "{sreg} {}in @{set}", if *invert { "not " } else { "" })
            }
            Self::Lookup { set, sreg, dreg: Some(Reg::VERDICT), .. } => write!(f, "verdict of {sreg} in @{set}"),
            Self::Lookup { set, sreg, dreg: Some(dreg), .. } => write!(f, "{dreg} = value of {sreg} in @{set}"),
            Self::Dynset { set, op, key, .. } => write!(f, "{} {key} in @{set}", format!("{op:?}").to_lowercase()),
            Self::Numgen { dreg, modulus, random, offset } => {
                let kind = if *random { "random" } else { "next" };
                write!(f, "{dreg} = {kind} number from {offset}, one of {modulus}")
            }
            Self::Dnat { address, port: None, .. } => write!(f, "dnat to {address}"),
            Self::Dnat { address, port: Some(port), .. } => write!(f, "dnat to {address}, port {port}"),
            Self::Masquerade { fully_random } => {
                f.write_str(if *fully_random { "masquerade fully-random" } else { "masquerade" })
            }
            Self::RejectTcpReset => f.write_str("reject with tcp reset"),
            Self::RejectIcmp { code } => write!(f, "reject with icmp code {code}"),
            Self::Fib { dreg, of } => {
                let side = match of {
                    FibAddress::Source => "source",
                    FibAddress::Destination => "destination",
                };
                write!(f, "{dreg} = type of the {side} address")
            }
            Self::Ct { key, original, dreg } => {
                let direction = if *original { "original " } else { "" };
                write!(f, "{dreg} = ct {direction}{}", ct_word(*key))
            }
            Self::Verdict(verdict) => verdict.fmt(f),
            Self::Opaque { name, .. } => write!(f, "{name} (not known to this program)"),
        }
    }
}

/// The text of a rule's expressions, each in brackets.
pub fn expressions_text(exprs: &[Expr]) -> String {
    let texts: Vec<String> = exprs.iter().map(|expr| format!("[{expr}]")).collect();
    texts.join(" ")
}

fn meta_word(key: MetaKey) -> &'static str {
    match key {
        MetaKey::Mark => "mark",
        MetaKey::IifName => "iifname",
        MetaKey::OifName => "oifname",
        MetaKey::NfTrace => "nftrace",
        MetaKey::L4Proto => "l4proto",
        MetaKey::NfProto => "nfproto",
    }
}

fn ct_word(key: CtKey) -> &'static str {
    match key {
        CtKey::State => "state",
        CtKey::Direction => "direction",
        CtKey::Status => "status",
        CtKey::DstIp | CtKey::DstIp6 => "daddr",
        CtKey::ProtoDst => "proto-dst",
    }
}

// === impl Verdict ===

/// In the words of the `nft` tool.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

// === impl Reg ===

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg{}", self.0)
    }
}

// === impl Hex ===

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_can_be_followed_from_register_to_verdict() {
        let reg = Reg(8);
        let rule = [
            Expr::Payload { dreg: reg, base: PayloadBase::Network, offset: 16, len: 4 },
            Expr::Bitwise { sreg: reg, dreg: reg, mask: vec![255, 0], xor: vec![0, 1] },
            Expr::Cmp { sreg: reg, op: CmpOp::Neq, data: vec![10, 96] },
            Expr::Lookup { set: "ips".to_owned(), sreg: reg, dreg: Some(Reg::VERDICT), invert: false },
            Expr::Lookup { set: "ips".to_owned(), sreg: reg, dreg: None, invert: true },
            Expr::Verdict(Verdict::Goto("web".to_owned())),
        ];
        let text = expressions_text(&rule);
        assert_eq!(
            text,
            "[reg8 = 4 bytes of the network header from 16 on] [reg8 = (reg8 & 0xff00) ^ 0x0001] [reg8 != 0x0a60] \
             [verdict of reg8 in @ips] [reg8 not in @ips] [goto web]"
        );
    }
}
