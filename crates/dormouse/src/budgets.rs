//! How the node's memory is divided among its buckets.
//!
//! A bucket has either a fixed size or a share. Shares are equal parts of what the sized buckets leave, so they change
//! whenever a bucket is created or deleted. No bucket gets less than [`BUCKET_MEMORY_MIN`].

use crate::config::keys::BUCKET_MEMORY_MIN;
use crate::config::size::show;
use std::collections::BTreeMap;

/// The claims on the node's memory.
#[derive(Debug)]
pub struct Budgets {
    node_bytes: u64,
    /// Maps a bucket's name to its size; `None` is a share.
    claims: BTreeMap<String, Option<u64>>,
}

/// A claim that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub struct DoesNotFit {
    /// The largest size that would fit.
    pub free_bytes: u64,
}

impl Budgets {
    /// Starts with no claims on `node_bytes`.
    pub fn new(node_bytes: u64) -> Self {
        Self { node_bytes, claims: BTreeMap::new() }
    }

    /// Adds or replaces a claim.
    pub fn claim(&mut self, name: &str, size: Option<u64>) -> Result<(), DoesNotFit> {
        let others = self.claims.iter().filter(|(other, _)| *other != name);
        let least: u64 =
            others.map(|(_, size)| size.unwrap_or(BUCKET_MEMORY_MIN)).fold(0, u64::saturating_add);
        let free_bytes = self.node_bytes.saturating_sub(least);
        if size.unwrap_or(BUCKET_MEMORY_MIN) > free_bytes {
            return Err(DoesNotFit { free_bytes });
        }
        self.claims.insert(name.to_owned(), size);
        Ok(())
    }

    /// The same for a size, without taking anything from the shares of others.
    pub fn claim_spare(&mut self, name: &str, size: u64) -> Result<(), DoesNotFit> {
        let takes_shares = self.sharing().any(|other| other != name);
        match self.budget(name) {
            Some(free_bytes) if takes_shares && size > free_bytes => Err(DoesNotFit { free_bytes }),
            _ => self.claim(name, Some(size)),
        }
    }

    /// Changes the node's memory; an error has the least that all claims need.
    pub fn set_node_bytes(&mut self, node_bytes: u64) -> Result<(), u64> {
        let least =
            self.claims.values().map(|size| size.unwrap_or(BUCKET_MEMORY_MIN)).fold(0, u64::saturating_add);
        if node_bytes < least {
            return Err(least);
        }
        self.node_bytes = node_bytes;
        Ok(())
    }

    /// Withdraws a claim.
    pub fn release(&mut self, name: &str) {
        self.claims.remove(name);
    }

    /// The current budget of a bucket; `None` without a claim.
    pub fn budget(&self, name: &str) -> Option<u64> {
        self.claims.get(name).map(|size| size.unwrap_or_else(|| self.share()))
    }

    /// The fixed size that a bucket has requested, if any.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.claims.get(name).copied().flatten()
    }

    /// The buckets that have a share.
    pub fn sharing(&self) -> impl Iterator<Item = &str> {
        self.claims.iter().filter(|(_, size)| size.is_none()).map(|(name, _)| name.as_str())
    }

    fn share(&self) -> u64 {
        let sized: u64 = self.claims.values().flatten().sum();
        let shares = self.claims.values().filter(|size| size.is_none()).count() as u64;
        self.node_bytes.saturating_sub(sized) / shares.max(1)
    }
}

/// The warning for a `node.memory` above what is there: the machine's memory, or that of the control group.
pub fn excess(configured: Option<u64>, there: Option<u64>) -> Option<String> {
    let (configured, there) = (configured?, there?);
    (configured > there).then(|| {
        // Nobody needs the machine's to the byte.
        let (configured, there) = (show(configured), show(there >> 20 << 20));
        format!(
            "node.memory = {configured} is more than the {there} of this machine or its control group: the kernel ends \
             the node before the buckets are full; \"auto\" is 60 % of what is there"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn shares_divide_what_sizes_leave() {
        let mut budgets = Budgets::new(100 * MIB);
        budgets.claim("a", None).expect("fits");
        assert_eq!(budgets.budget("a"), Some(100 * MIB));
        budgets.claim("b", Some(40 * MIB)).expect("fits");
        budgets.claim("c", None).expect("fits");
        assert_eq!(budgets.budget("a"), Some(30 * MIB));
        assert_eq!(budgets.budget("b"), Some(40 * MIB));
        budgets.release("b");
        assert_eq!(budgets.budget("c"), Some(50 * MIB));
        assert_eq!(budgets.budget("b"), None);
        assert_eq!(budgets.sharing().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn more_memory_than_there_is_is_told() {
        assert_eq!(excess(None, Some(MIB)), None);
        assert_eq!(excess(Some(MIB), None), None);
        assert_eq!(excess(Some(MIB), Some(MIB)), None);
        let warning = excess(Some(64 * MIB), Some(32 * MIB)).expect("a warning");
        assert!(
            warning.starts_with("node.memory = 64MiB is more than the 32MiB of this machine"),
            "{warning}"
        );
    }

    #[test]
    fn what_is_spare_is_in_no_share() {
        let mut budgets = Budgets::new(128 * MIB);
        budgets.claim("a", None).expect("fits");
        budgets.claim("b", Some(40 * MIB)).expect("fits");
        assert_eq!(budgets.claim_spare("b", 41 * MIB), Err(DoesNotFit { free_bytes: 40 * MIB }));
        budgets.claim_spare("b", 28 * MIB).expect("less");
        assert_eq!(budgets.claim_spare("b", 40 * MIB), Err(DoesNotFit { free_bytes: 28 * MIB }));
        budgets.claim("c", None).expect("fits");
        assert_eq!(budgets.claim_spare("c", 51 * MIB), Err(DoesNotFit { free_bytes: 50 * MIB }));
        budgets.claim_spare("c", 50 * MIB).expect("its share");
        assert_eq!(budgets.budget("a"), Some(50 * MIB));
        // Its own share is nobody else's, and what no bucket has is spare.
        budgets.claim_spare("a", 20 * MIB).expect("no other shares");
        budgets.claim_spare("b", 58 * MIB).expect("no other shares");
        assert_eq!(budgets.claim_spare("b", 59 * MIB), Err(DoesNotFit { free_bytes: 58 * MIB }));
    }

    #[test]
    fn nothing_is_promised_twice() {
        let mut budgets = Budgets::new(32 * MIB);
        budgets.claim("a", None).expect("fits");
        assert_eq!(budgets.claim("b", Some(25 * MIB)), Err(DoesNotFit { free_bytes: 24 * MIB }));
        budgets.claim("b", Some(24 * MIB)).expect("fits");
        assert_eq!(budgets.budget("a"), Some(8 * MIB));
        assert_eq!(budgets.claim("c", None), Err(DoesNotFit { free_bytes: 0 }));
        assert_eq!(budgets.claim("a", Some(u64::MAX)), Err(DoesNotFit { free_bytes: 8 * MIB }));
    }
}
