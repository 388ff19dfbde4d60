//! Foreign changes, as a kernel half reports them.

/// Everything, or single objects or units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent<K> {
    /// everything that carries our names
    All,
    /// these
    Keys(Vec<K>),
}

/// Foreign changes, by who made them: a repair costs what the damage costs, and waits only where it has to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift<K> {
    /// by another proxy of this node, or it isn't known by whom. They may be changes that this engine is about to make, too
    pub by_proxies: Option<Extent<K>>,
    /// by other programs: whatever differs from the desired state is damage
    pub by_others: Option<Extent<K>>,
}

// === impl Extent ===

impl<K> Extent<K> {
    /// Both extents.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        match (self, other) {
            (Self::Keys(mut keys), Self::Keys(more)) => {
                keys.extend(more);
                Self::Keys(keys)
            }
            (Self::All, _) | (_, Self::All) => Self::All,
        }
    }
}

// === impl Drift ===

impl<K> Drift<K> {
    /// Changes by another proxy, or by an unknown writer.
    pub fn by_proxies(extent: Extent<K>) -> Self {
        Self { by_proxies: Some(extent), by_others: None }
    }

    /// True if nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.by_proxies.is_none() && self.by_others.is_none()
    }

    /// Adds later changes.
    pub fn merge(&mut self, later: Self) {
        merge(&mut self.by_proxies, later.by_proxies);
        merge(&mut self.by_others, later.by_others);
    }
}

// Derived, this would ask for the same of the keys.
impl<K> Default for Drift<K> {
    fn default() -> Self {
        Self { by_proxies: None, by_others: None }
    }
}

fn merge<K>(extent: &mut Option<Extent<K>>, later: Option<Extent<K>>) {
    *extent = match (extent.take(), later) {
        (Some(one), Some(other)) => Some(one.union(other)),
        (one, other) => one.or(other),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_either_origin_add_up_and_everything_is_all() {
        let keys = |keys: &[u8]| Some(Extent::Keys(keys.to_vec()));
        let mut drift = Drift::default();
        assert!(drift.is_empty());
        drift.merge(Drift { by_proxies: None, by_others: keys(&[1]) });
        assert!(!drift.is_empty());
        drift.merge(Drift { by_proxies: keys(&[2]), by_others: keys(&[3]) });
        assert_eq!(drift, Drift { by_proxies: keys(&[2]), by_others: keys(&[1, 3]) });
        drift.merge(Drift::default());
        drift.merge(Drift { by_proxies: Some(Extent::All), by_others: None });
        assert_eq!(drift, Drift { by_proxies: Some(Extent::All), by_others: keys(&[1, 3]) });
        assert!(!Drift::<u8>::by_proxies(Extent::All).is_empty());
    }
}
