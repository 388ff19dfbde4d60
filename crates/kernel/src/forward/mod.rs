//! Base chains of any table in the hook `forward`, foreign ones included: what their policy does with forwarded packets, what
//! their rules accept of established and of translated connections, and one rule that accepts these.
//!
//! Rules of other programs can't be evaluated in general. A rule counts if it accepts by one of these conditions and no other:
//! always; the state of the connection; `ct status dnat`; one network as the source, if another rule accepts the same as the
//! destination. It is looked for in the base chain and in chains that it jumps to without a condition, up to the first rule that
//! decides about every packet.

mod entries;
mod nft_rules;
mod walk;
mod xt;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;

use ferry_family::Family;

pub use self::walk::States;
pub use self::xt::Extension;

use self::walk::{Evaluation, OwnRule, evaluate};
use crate::errno::ErrorClass;
use crate::iptables::legacy::{self, Entries};
use crate::nft::{BaseChain, CommitFailure, Hook, NftBatch, NftSocket, TableFamily};

/// Forwarded packets that have to be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// those of established connections, and errors related to them
    Established,
    /// both directions of connections whose destination is translated by connection tracking
    Translated,
}

/// The place of a base chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainPlace {
    /// in a table of nf_tables, `iptables-nft`'s included
    Nft {
        /// the table's family
        family: TableFamily,
        /// the table
        table: String,
        /// the chain
        chain: String,
    },
    /// chain `FORWARD` of table `filter` of `iptables-legacy` or `ip6tables-legacy`
    Legacy(Family),
}

/// A base chain in the hook `forward`.
#[derive(Clone, Debug)]
pub struct ForwardChain {
    place: ChainPlace,
    drops: bool,
    evaluation: Evaluation,
}

/// Reads forward chains of one network namespace, and writes one rule to those of nf_tables.
#[derive(Debug)]
pub struct ForwardChains {
    socket: NftSocket,
    /// identifies own rules
    comment: &'static str,
}

// === impl ChainPlace ===

impl ChainPlace {
    /// True if packets of this family traverse the chain.
    pub fn covers(&self, family: Family) -> bool {
        match self {
            Self::Nft { family: of, .. } => of.covers(family),
            Self::Legacy(of) => *of == family,
        }
    }

    /// The command by which an operator adds the rule that accepts this traffic.
    pub fn command(&self, traffic: Traffic) -> String {
        let tool = |family: Family, variant: &str| {
            let number = if family == Family::V4 { "" } else { "6" };
            format!(
                "ip{number}tables-{variant} -A FORWARD -m conntrack --ctstate {} -j ACCEPT",
                traffic.states().names()
            )
        };
        match self {
            Self::Legacy(family) => tool(*family, "legacy"),
            Self::Nft { family: TableFamily::Single(family), .. } if self.is_of_iptables() => tool(*family, "nft"),
            Self::Nft { family, table, chain } => {
                format!("nft add rule {family} {table} {chain} {} accept", traffic.condition())
            }
        }
    }

    /// True for the chain of `iptables-nft`, which can't list a table with a rule of which it doesn't know every expression.
    fn is_of_iptables(&self) -> bool {
        matches!(self, Self::Nft { family: TableFamily::Single(_), table, chain } if table == "filter" && chain == "FORWARD")
    }
}

impl fmt::Display for ChainPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nft { family, table, chain } => write!(f, "chain {chain} of table {family} {table}"),
            Self::Legacy(Family::V4) => f.write_str("chain FORWARD of iptables-legacy"),
            Self::Legacy(Family::V6) => f.write_str("chain FORWARD of ip6tables-legacy"),
        }
    }
}

// === impl ForwardChain ===

impl ForwardChain {
    /// Evaluates chain `FORWARD` of `iptables-legacy` or `ip6tables-legacy` from the entries of table `filter`.
    ///
    /// # Errors
    /// `InvalidData` if the entries can't be decoded.
    pub fn decode_legacy(family: Family, entries: &Entries) -> io::Result<Self> {
        let (drops, evaluation) = entries::evaluate_forward(family, entries)?;
        Ok(Self { place: ChainPlace::Legacy(family), drops, evaluation })
    }

    /// Its place.
    pub fn place(&self) -> &ChainPlace {
        &self.place
    }

    /// True if its policy is drop, and none of its rules is known to accept this traffic, own ones left aside.
    pub fn loses(&self, traffic: Traffic) -> bool {
        self.drops && !self.evaluation.accepted.covers(traffic)
    }

    /// True if its own rules are exactly the one that accepts this traffic, where packets reach it.
    pub fn has_own_rule(&self, traffic: Traffic) -> bool {
        matches!(&*self.evaluation.own, [own] if own.reached && own.states == Some(traffic.states()))
    }

    /// Number of its own rules.
    pub fn own_rules(&self) -> usize {
        self.evaluation.own.len()
    }
}

// === impl ForwardChains ===

impl ForwardChains {
    /// Opens a socket in the network namespace of the calling thread. Own rules are those with this comment.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(comment: &'static str) -> io::Result<Self> {
        Ok(Self { socket: NftSocket::open()?, comment })
    }

    /// Reads nf_tables' generation: as long as it is the same, so are the chains.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn generation(&mut self) -> io::Result<u32> {
        self.socket.generation()
    }

    /// Reads the chains in nf_tables. Those of dormant tables are left out, which see no packet. Empty if this kernel has no
    /// nf_tables.
    ///
    /// # Errors
    /// The kernel's error; `Interrupted` if other programs keep committing.
    pub fn nft(&mut self) -> io::Result<Vec<ForwardChain>> {
        let mut found = Vec::new();
        let chains = match self.socket.base_chains(Hook::Forward) {
            Err(error) if ErrorClass::of(&error).lacks_subsystem() => Vec::new(),
            chains => chains?,
        };
        for chain in chains {
            match self.nft_chain(&chain) {
                // gone since
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => found.extend(read?),
            }
        }
        Ok(found)
    }

    fn nft_chain(&mut self, chain: &BaseChain) -> io::Result<Option<ForwardChain>> {
        let BaseChain { family, table, name, drops, .. } = chain;
        if self.socket.table(*family, table)?.is_none_or(|table| table.dormant) {
            return Ok(None);
        }
        let (socket, comment) = (&mut self.socket, self.comment);
        let evaluation = evaluate(name, &mut |chain| nft_rules::read(socket, (*family, table), chain, comment))?;
        let place = ChainPlace::Nft { family: *family, table: table.clone(), chain: name.clone() };
        Ok(Some(ForwardChain { place, drops: *drops, evaluation }))
    }

    /// Reads the chain of `iptables-legacy` or `ip6tables-legacy`; `None` if its table doesn't exist. Loads no module.
    ///
    /// # Errors
    /// As for [`legacy::filter_entries`] and [`ForwardChain::decode_legacy`].
    pub fn legacy(&self, family: Family) -> io::Result<Option<ForwardChain>> {
        let entries = legacy::filter_entries(family)?;
        entries.map(|entries| ForwardChain::decode_legacy(family, &entries)).transpose()
    }

    /// Writes the one rule that accepts this traffic to a chain: before the first rule that decides about every packet, else at
    /// the end, so that rules of others come first. Own rules that it has go in the same transaction. A rule in
    /// `iptables-nft`'s chain is one that the tool can list.
    ///
    /// # Errors
    /// As for [`NftSocket::commit`]; `Unsupported` for a chain of `iptables-legacy`, which only the tool can write.
    pub fn accept(&mut self, chain: &ForwardChain, traffic: Traffic) -> Result<(), CommitFailure> {
        let exprs = if chain.place.is_of_iptables() { xt::rule(traffic) } else { nft_rules::rule(traffic) };
        let (before, comment) = (chain.evaluation.decided_at, self.comment);
        self.commit(chain, &|batch, name| batch.add_commented_rule(name, &exprs, comment, before))
    }

    /// Removes own rules from a chain.
    ///
    /// # Errors
    /// As for [`ForwardChains::accept`].
    pub fn withdraw(&mut self, chain: &ForwardChain) -> Result<(), CommitFailure> {
        self.commit(chain, &|_, _| {})
    }

    fn commit(&mut self, chain: &ForwardChain, add: &dyn Fn(&mut NftBatch, &str)) -> Result<(), CommitFailure> {
        let ChainPlace::Nft { family, table, chain: name } = &chain.place else {
            return Err(CommitFailure::Io(io::ErrorKind::Unsupported.into()));
        };
        let mut batch = NftBatch::new(*family, table);
        // First, since a position may be that of a rule that goes.
        add(&mut batch, name);
        for OwnRule { handle, .. } in &chain.evaluation.own {
            batch.delete_rule(name, *handle);
        }
        self.socket.commit(batch).map(drop)
    }
}
